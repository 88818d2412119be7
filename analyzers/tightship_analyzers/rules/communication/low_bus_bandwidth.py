"""Collectives run far below the bandwidth of the link between the devices.

## What it finds
Collectives of at least 4 MiB among the ranks of one machine (up to 8) whose best call of that size reaches less than
half of the link's rate; more than 2 % of the step. Ranks share a machine where the world has at most 8 of them, or
where all of the group's lie in one aligned block of 8 (0 to 7, 8 to 15, …), by `pg_config` in the trace's
`distributedInfo`. Of any other group the link is not known.

## Why it costs
The traffic goes a longer way than it needs to: over PCIe or the processors' memory instead of NVLink, over one link
instead of all, or an algorithm was forced.

## Example
```python
os.environ["NCCL_P2P_DISABLE"] = "1"          # set for a test and never removed
```

## Use instead
```python
os.environ.pop("NCCL_P2P_DISABLE", None)      # also NCCL_ALGO, NCCL_PROTO, NCCL_SHM_DISABLE, CUDA_VISIBLE_DEVICES
```
`NCCL_DEBUG=INFO` shows which transport is used, `nvidia-smi topo -m` which links there are.

The saving of each call is what it takes longer than at 80 % of the link's rate, as far as the device computes nothing
meanwhile. Waiting for a slower rank only lowers a call's rate, hence the best call of each size decides whether there
is a finding; only that call's excess is certain, which is the low end.

## Known misses
Devices whose links are not in the catalogue; groups whose ranks the trace does not list. Machines whose devices are
linked over PCIe only, and groups of up to 8 ranks over several smaller machines, show the same figures as those where
NVLink is not used.

## Source
Bus bandwidth: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md. Links: the device's entry in
hardware.toml. nccl-tests reach 80 to 90 % of NVLink with large messages. 2 % of the step.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tightship_analyzers.facts.kernels.collective_calls import CollectiveCalls
from tightship_analyzers.facts.kernels.device_model import DeviceModel
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.findings.claim import (
    claim,
    costliest,
    gone,
    in_window,
    is_worth,
    share_of,
    time_of,
    within_window,
)
from tightship_analyzers.findings.evidence import change, fact
from tightship_analyzers.findings.model import Judgement, NotApplicable, TraceRule
from tightship_analyzers.graph.edits import Edits
from tightship_analyzers.trace.model import Bools
from tightship_platform.text import shown
from tightship_platform.units import format_bytes, format_frac, plural

MIN_STEP_FRAC = 0.02
"""Share of the step below which it is no finding."""
MIN_BYTES = 4 << 20
"""Smaller messages do not reach the link's rate."""
MAX_MACHINE = 8
"""Ranks that share a machine at most; they are numbered one after the other, machine by machine."""
LOW_FRAC = 0.5
"""Of the link's rate; a fault (one link of several, a path through the host) costs half or more."""
GOOD_FRAC = 0.8
"""Of the link's nominal rate, which large messages reach; source: the page."""

MACHINE_LINKS = ("nvlink", "xgmi")


def judge(facts: Facts) -> Judgement:
    """All slow calls together."""
    calls, device, names = facts[CollectiveCalls], facts[DeviceModel].device, facts.trace.names
    link = next((kind for kind in MACHINE_LINKS if kind in device.link_bytes_per_s), None)
    if link is None:
        return NotApplicable(f"needs a link between devices; the catalogue lists none for {device.id}")
    rate = device.link_bytes_per_s[link]
    factor = np.array(
        [
            _bus_factor(names[name] if name >= 0 else "", int(size))
            for name, size in zip(calls.collective.tolist(), calls.group_size.tolist(), strict=True)
        ]
    )
    large = (calls.bytes >= MIN_BYTES) & (factor > 0) & (calls.group_size <= MAX_MACHINE) & _on_one_machine(facts)
    if not large.any():
        return NotApplicable(
            "needs collectives of at least 4 MiB among ranks that are known to share a machine; the trace holds none"
        )
    ideal_ns = calls.bytes * factor / (GOOD_FRAC * rate) * 1e9
    reached = np.where(large, calls.bytes * factor / np.maximum(calls.events.dur_ns, 1) * 1e9 / rate, np.inf)
    slow = np.zeros(len(large), dtype=np.bool_)
    sure_ns = 0.0
    for size in np.unique(calls.bytes[large]).tolist():
        same = np.flatnonzero(large & (calls.bytes == size))
        best = int(same[reached[same].argmax()])
        if reached[best] < LOW_FRAC:
            slow[same] = True
            sure_ns += len(same) * max(float(calls.events.dur_ns[best]) - float(ideal_ns[best]), 0.0)
    rows = np.flatnonzero(slow)
    events = calls.events.take(rows)
    left = np.clip(ideal_ns[rows] / np.maximum(events.dur_ns, 1), 0.0, 1.0)
    claims = within_window(facts, gone(events, 1 - left) & calls.exposed)
    if not is_worth(facts, claims, MIN_STEP_FRAC):
        return []
    worst, best_frac = int(events.dur_ns.argmax()), float(reached[rows].max())
    kinds = shown(", ".join(sorted({names[name] for name in calls.collective[rows].tolist() if name >= 0})), 60)
    where = costliest(facts, calls.op[rows], events.dur_ns, shown(names[int(events.name[worst])], 100))
    return [
        claim(
            facts,
            RULE,
            claims,
            title=f"Collectives ({kinds}) far below the bandwidth of {link} cost {share_of(facts, claims)}",
            where=where,
            fix="See with NCCL_DEBUG=INFO which transport is used; remove NCCL_P2P_DISABLE, NCCL_ALGO and the like",
            low_ns=int(min(sure_ns, claims.measure_ns)),
            evidence=[
                fact(
                    f"The best call reaches {format_frac(best_frac)} of {rate / 1e9:.0f} GB/s ({link} of {device.id})",
                    best_frac,
                    "frac",
                ),
                fact(
                    f"{plural(len(rows), 'call')} {in_window(facts)}, {time_of(facts, int(events.dur_ns.sum()))}, "
                    f"the longest for {format_bytes(int(calls.bytes[rows][worst]))}",
                    len(rows),
                    "calls",
                ),
                change('os.environ["NCCL_P2P_DISABLE"] = "1"', 'os.environ.pop("NCCL_P2P_DISABLE", None)'),
            ],
            without=Edits.without_device(calls.row[rows], left),
        )
    ]


def _on_one_machine(facts: Facts) -> Bools:
    """(calls,) is it known that all ranks of the group share a machine?"""
    group, trace = facts[CollectiveCalls].group, facts.trace
    if trace.world_size is not None and trace.world_size <= MAX_MACHINE:
        return np.ones(len(group), dtype=np.bool_)
    recorded = trace.distributed.get("pg_config")
    near = [
        trace.names.id(str(entry.get("pg_name")))
        for entry in (recorded if isinstance(recorded, list) else ())
        if isinstance(entry, dict) and _in_one_block(entry.get("ranks"))
    ]
    return (group >= 0) & np.isin(group, near)


def _in_one_block(ranks: Any) -> bool:
    if not isinstance(ranks, list) or not all(isinstance(rank, int) for rank in ranks):
        return False
    return len({rank // MAX_MACHINE for rank in ranks}) == 1


def _bus_factor(collective: str, ranks: int) -> float:
    """Bytes that cross each rank's link per byte of the message, by nccl-tests; 0: not known."""
    name = collective.lower().replace("_", "")
    if ranks < 2:
        return 0.0
    if "allreduce" in name:
        return 2 * (ranks - 1) / ranks
    if any(kind in name for kind in ("allgather", "reducescatter", "alltoall")):
        return (ranks - 1) / ranks
    return 1.0 if "broadcast" in name or name == "reduce" else 0.0


RULE = TraceRule(
    id="low-bus-bandwidth",
    needs=(Window, CollectiveCalls, DeviceModel),
    title="Collectives run far below the link's bandwidth",
    fix="Check which transport is used, and why",
    judge=judge,
    page=__doc__ or "",
)
