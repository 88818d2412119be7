"""Exposed communication: the device waits for other ranks although it has other work to compute.

## What it finds
Communication during which the device computes nothing, more than 10 % of the step, in a job that also computes.

## Why it costs
Gradients of the last layers are ready long before those of the first ones; parameters of the next layer can be fetched
while this one computes. Every rank waits for the communication that is not overlapped.

## Example
```python
model = DistributedDataParallel(model, bucket_cap_mb=1000)   # one bucket, sent after the whole backward pass
```

## Use instead
```python
model = DistributedDataParallel(model, bucket_cap_mb=25, gradient_as_bucket_view=True, static_graph=True)
```
FSDP: `set_modules_to_forward_prefetch`, `set_modules_to_backward_prefetch`; sparse models: send the next batch's
indices while this one computes. Less to send: accumulate gradients (`no_sync`), bfloat16 compression.

The value is as much of it as computation that nothing is hidden behind yet could hide; the high end is all of it. The
low end is 0: what has to be waited for depends on the model, and on the slowest rank.

## Known misses
Sends and receives between pipeline stages in a table of operations: a stage that waits there waits for another stage,
not for the network, and what is to be gained lies in the schedule (`tightship stragglers`). A rank that waits for a
slower one shows it as communication, too. Whether the network is slow is judged by `low-bus-bandwidth`.

## Source
Li et al., "PyTorch Distributed" (VLDB 2020) on buckets and overlap. 10 % is the threshold of the PyTorch Profiler
TensorBoard plugin.
"""

from __future__ import annotations

from tightship_analyzers.facts.activity.device_busy import DeviceBusy
from tightship_analyzers.facts.kernels.collective_calls import CollectiveCalls
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.findings.claim import claim, is_worth, one_place, portion, share_of, time_of, within_window
from tightship_analyzers.findings.evidence import change, fact
from tightship_analyzers.findings.model import NOISE_FRAC, Judgement, NotApplicable, TraceRule
from tightship_analyzers.trace.intervals import Intervals
from tightship_analyzers.trace.model import Bools
from tightship_analyzers.trace.op_table.op_types import POINT_TO_POINT
from tightship_platform.results.evidence import Evidence
from tightship_platform.text import shown

MIN_STEP_FRAC = 0.10
"""Share of the step below which it is no finding; source: the profiler's TensorBoard plugin."""

TRANSFERS = frozenset(kind.label for kind in POINT_TO_POINT)
PIPELINE = (
    "needs communication that computation could hide; between pipeline stages a receive waits for the other stage: "
    "`tightship stragglers` tells what its schedule and its slow ranks cost"
)


def judge(facts: Facts) -> Judgement:
    """All of it together, at the operator that is exposed most."""
    busy = facts[DeviceBusy]
    transfers = _between_stages(facts)
    calls = facts[CollectiveCalls].events.take(~transfers)
    communication = Intervals.of_table(calls) & busy.communication
    exposed = within_window(facts, communication - busy.compute)
    if not is_worth(facts, exposed, MIN_STEP_FRAC):
        return NotApplicable(PIPELINE) if transfers.any() else []
    free_ns = within_window(facts, busy.compute - busy.communication).measure_ns
    claims = portion(exposed, free_ns / exposed.measure_ns)
    if not is_worth(facts, claims, NOISE_FRAC):
        return []
    each_ns = exposed.overlap_ns(calls.start_ns, calls.end_ns)
    where = one_place(facts, facts[CollectiveCalls].op[~transfers], each_ns, "collectives")
    worst = int(each_ns.argmax())
    total_ns = within_window(facts, communication).measure_ns
    return [
        claim(
            facts,
            RULE,
            claims,
            title=f"Exposed (non-overlapped) communication: {share_of(facts, exposed)}",
            where=where,
            fix="Overlap it: smaller buckets (DDP), prefetching (FSDP), a separate stream; or send less",
            low_ns=0,
            high_ns=exposed.measure_ns,
            evidence=[
                fact(
                    f"Communication takes {time_of(facts, total_ns)}, {share_of(facts, exposed)} is exposed",
                    exposed.measure_ns / facts[Window].count,
                    "ns",
                ),
                fact(f"Computation to overlap with: {time_of(facts, free_ns)}", free_ns / facts[Window].count, "ns"),
                *_left_out(facts, transfers),
                fact(f"The longest: {shown(facts.trace.names[int(calls.name[worst])], 100)}"),
                change(
                    "DistributedDataParallel(model, bucket_cap_mb=1000)",
                    "DistributedDataParallel(model, bucket_cap_mb=25, gradient_as_bucket_view=True)",
                ),
            ],
        )
    ]


def _left_out(facts: Facts, transfers: Bools) -> list[Evidence]:
    if not transfers.any():
        return []
    ns = within_window(facts, Intervals.of_table(facts[CollectiveCalls].events.take(transfers))).measure_ns
    text = f"Not in it: {time_of(facts, ns)} between pipeline stages; `tightship stragglers` tells who waits for whom"
    return [fact(text, ns / facts[Window].count, "ns")]


def _between_stages(facts: Facts) -> Bools:
    """(calls,) sends and receives of a table of operations (see op_table/rank_trace.py)."""
    return facts.trace.names.mask(facts[CollectiveCalls].events.name, TRANSFERS.__contains__)


RULE = TraceRule(
    id="exposed-communication",
    needs=(Window, CollectiveCalls),
    title="Exposed (non-overlapped) communication",
    fix="Overlap it: start it earlier, in smaller parts",
    judge=judge,
    page=__doc__ or "",
)
