"""Many small collectives where a few large ones would do.

## What it finds
At least 8 collectives a step of one kind that move less than 1 MiB each (or, where sizes are not recorded, take less
than 100 µs), and that merged into buckets of 25 MiB would save more than 1 % of the step.

## Why it costs
A small collective takes as long as a message needs to go round all ranks, whatever it carries: 20 µs to some hundreds,
and the host some 100 µs to issue it. A hundred of them cost a hundred times that.

## Example
```python
for p in model.parameters():
    dist.all_reduce(p.grad)
```

## Use instead
```python
model = DistributedDataParallel(model)               # buckets of 25 MB
```
or `torch._utils._flatten_dense_tensors(grads)` and one `all_reduce`; `dist._coalescing_manager` for other collectives.

The saving is what all but the merged number of them take while the device computes nothing, and the idle time of the
device while the host issues them; each merged one takes as long as the median of those that it replaces. The low end is
half of the collectives' own time: what is left waits for other ranks.

On a CPU gloo carries collectives out, in threads of the host. There the saving is the time in which they run and
nothing is computed, of all but the longest ones of a step, which hold the wait for a slower rank: as many as are left
when merged. What all of them carry at 10 Gbit/s is taken off. The low end is half of what is left when each byte takes
as long as in the fastest collective of the recording; the high end is all of their time, as gloo's threads take cores
from the computation. None of it is simulated. Sizes have to be recorded there.

## Known misses
Collectives whose results are needed at once cannot be merged. Pipeline stages that send activations.

## Source
DDP's default bucket of 25 MiB (`bucket_cap_mb`); NCCL's messages reach half of their bandwidth at about 1 MiB
(https://github.com/NVIDIA/nccl-tests). 10 Gbit/s is the least network between hosts of today's clouds. 1 % of the step
is where noise ends.
"""

from __future__ import annotations

import numpy as np

from tightship_analyzers.facts.activity.device_busy import DeviceGaps
from tightship_analyzers.facts.activity.host_activity import host_collectives
from tightship_analyzers.facts.kernels.collective_calls import CollectiveCalls
from tightship_analyzers.facts.kernels.gloo_calls import GlooCalls, RecordedCollectives
from tightship_analyzers.facts.memo import Facts, NotApplicable
from tightship_analyzers.facts.program.enclosing import outermost
from tightship_analyzers.facts.window.steps import Steps
from tightship_analyzers.findings.claim import (
    claim,
    costliest,
    in_window,
    is_worth,
    portion,
    share_of,
    time_of,
    within_window,
)
from tightship_analyzers.findings.evidence import change, fact
from tightship_analyzers.findings.issued import calls_of, issued
from tightship_analyzers.findings.model import NOISE_FRAC, Finding, Judgement, TraceRule
from tightship_analyzers.trace.communication import COLLECTIVE_OPS
from tightship_analyzers.trace.intervals import Intervals
from tightship_analyzers.trace.model import HostOps, Int64s
from tightship_platform.text import shown
from tightship_platform.units import format_bytes, format_ns

MIN_PER_STEP = 8
"""Fewer are not worth merging."""
MAX_BYTES = 1 << 20
"""Larger ones use their bandwidth."""
MAX_NS = 100_000
"""Where bytes are not recorded: longer ones move something, or wait for another rank."""
BUCKET_BYTES = 25 << 20
"""DDP's default."""


FIX = "Merge them: DistributedDataParallel's buckets, one collective over a flat tensor, or a coalescing manager"
CHANGE = change(
    "for p in params:\n    dist.all_reduce(p.grad)", "dist.all_reduce(flat_grads)  # or DistributedDataParallel"
)
GLOO_BYTES_PER_S = 10e9 / 8
"""See the page; between processes of one host gloo is faster."""


def judge(facts: Facts) -> Judgement:
    """One finding per kind of collective."""
    return _on_cpu(facts) if facts.trace.device_kind == "cpu" else _on_device(facts)


def _on_device(facts: Facts) -> Judgement:
    calls, steps = facts[CollectiveCalls], facts[Steps]
    inside = (calls.events.start_ns >= steps.start_ns) & (calls.events.end_ns <= steps.end_ns)
    sized = calls.bytes >= 0
    small = inside & np.where(sized, calls.bytes < MAX_BYTES, calls.events.dur_ns < MAX_NS)
    kind = np.where(calls.collective >= 0, calls.collective, calls.events.name)
    findings = (_finding(facts, np.flatnonzero(small & (kind == one)), int(one)) for one in np.unique(kind[small]))
    return [finding for finding in findings if finding is not None]


def _finding(facts: Facts, rows: Int64s, kind: int) -> Finding | None:
    calls, steps = facts[CollectiveCalls], facts[Steps]
    if len(rows) < MIN_PER_STEP * steps.count:
        return None
    # Those of one step merge; each step keeps at least one.
    step = np.searchsorted(steps.bounds_ns, calls.events.start_ns[rows], side="right") - 1
    gone = []
    for number in np.unique(step).tolist():
        own = rows[step == number]
        merged = max(1, -(-int(calls.bytes[own][calls.bytes[own] > 0].sum()) // BUCKET_BYTES))
        # The merged ones take as long as the typical one: keep those around the median, drop the others.
        distance = np.abs(calls.events.dur_ns[own] - np.median(calls.events.dur_ns[own]))
        gone.append(own[np.argsort(distance, kind="stable")[merged:]])
    dropped = np.concatenate(gone)
    events = calls.events.take(dropped)
    less = issued(facts, Intervals.of_table(events) & calls.exposed, calls.row[dropped], _issuing(facts, dropped))
    claims = less.claims
    if not is_worth(facts, claims, NOISE_FRAC):
        return None
    size = int(calls.bytes[rows][calls.bytes[rows] > 0].sum())
    name, median_ns = shown(facts.trace.names[kind], 60), int(np.median(calls.events.dur_ns[rows]))
    return claim(
        facts,
        RULE,
        claims,
        title=f"{len(rows) // steps.count} small {name} a step cost {share_of(facts, claims)}",
        where=costliest(facts, calls.op[dropped], events.dur_ns, name),
        fix=FIX,
        low_ns=less.work.measure_ns // 2,
        evidence=[
            fact(
                f"{len(rows)} {in_window(facts)}, half of them shorter than {format_ns(median_ns)}",
                len(rows),
                "collectives",
            ),
            fact(f"Together they move {format_bytes(size // steps.count)} a step", size / steps.count, "bytes")
            if size
            else None,
            fact(f"{time_of(facts, less.work.measure_ns)} is exposed", less.work.measure_ns / steps.count, "ns"),
            fact(f"Issuing them takes the host {time_of(facts, less.host_ns)}", less.host_ns / steps.count, "ns")
            if less.host_ns
            else None,
            CHANGE,
        ],
        without=less.without,
    )


def _issuing(facts: Facts, calls: Int64s) -> HostOps:
    """The outermost operators of torch.distributed around the launches of these calls."""
    trace = facts.trace
    ops = trace.host_ops.take(
        trace.names.mask(trace.host_ops.name, lambda name: COLLECTIVE_OPS.match(name) is not None)
    )
    launch = facts[CollectiveCalls].events.launch[calls]
    launches = trace.launches.take(launch[launch >= 0])
    return calls_of(ops, outermost(launches.tid, launches.start_ns, launches.end_ns, ops))


def _on_cpu(facts: Facts) -> Judgement:
    calls = facts[GlooCalls]
    if not (calls.most_bytes >= 0).any():
        return NotApplicable("needs the collectives' input shapes; record with record_shapes=True")
    small = (calls.most_bytes >= 0) & (calls.most_bytes < MAX_BYTES)
    kinds = np.unique(calls.kind[small]).tolist()
    findings = (_of_gloo(facts, np.flatnonzero(small & (calls.kind == one)), one) for one in kinds)
    return [finding for finding in findings if finding is not None]


def _of_gloo(facts: Facts, rows: Int64s, kind: int) -> Finding | None:
    calls, steps, ops = facts[GlooCalls], facts[Steps], facts.trace.host_ops
    if len(rows) < MIN_PER_STEP * steps.count:
        return None
    took_ns, size = calls.end_ns - calls.start_ns, calls.most_bytes
    kept = []
    for number in range(steps.count):
        own = rows[calls.step[rows] == number]
        merged = max(1, -(-int(size[own].sum()) // BUCKET_BYTES))
        kept.append(own[np.argsort(took_ns[own], kind="stable")[-merged:]])
    alone = within_window(facts, host_collectives(facts.trace))
    everything = within_window(facts, _spans(facts, rows))
    exposed = (alone & everything) - _spans(facts, np.concatenate(kept))
    moved, rate = int(size[rows].sum()), float((size / np.maximum(took_ns, 1)).max())
    left_ns = max(0, exposed.measure_ns - round(moved / GLOO_BYTES_PER_S * 1e9))
    claims = portion(exposed, left_ns / max(1, exposed.measure_ns))
    if not is_worth(facts, claims, NOISE_FRAC):
        return None
    name, median_ns = shown(facts.trace.names[kind], 60), int(np.median(took_ns[rows]))
    return claim(
        facts,
        RULE,
        claims,
        title=f"{len(rows) // steps.count} small {name} a step cost {share_of(facts, claims)}",
        where=costliest(facts, calls.op[rows], took_ns[rows] + ops.dur_ns[calls.op[rows]], name),
        fix=FIX,
        low_ns=max(0, claims.measure_ns - round(moved / rate)) // 2,
        high_ns=everything.measure_ns,
        evidence=[
            fact(
                f"{len(rows)} {in_window(facts)}, half of them shorter than {format_ns(median_ns)}",
                len(rows),
                "collectives",
            ),
            fact(
                f"Together they move at most {format_bytes(moved // steps.count)} a step", moved / steps.count, "bytes"
            ),
            fact(f"{time_of(facts, (alone & everything).measure_ns)} is exposed"),
            CHANGE,
        ],
    )


def _spans(facts: Facts, rows: Int64s) -> Intervals:
    """When gloo's threads ran these collectives, and when they were issued."""
    calls = facts[GlooCalls]
    ran = Intervals.of(calls.start_ns[rows], calls.end_ns[rows])
    return ran | Intervals.of_table(facts.trace.host_ops.take(calls.op[rows]))


RULE = TraceRule(
    id="tiny-collectives",
    needs=(Steps, DeviceGaps, RecordedCollectives),
    title="Many small collectives where a few large ones would do",
    fix="Merge them into buckets",
    judge=judge,
    page=__doc__ or "",
)
