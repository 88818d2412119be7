"""The optimizer updates one parameter tensor at a time.

## What it finds
Calls of `optimizer.step()` that run the same few elementwise operators once per parameter tensor, for at least 4
tensors, instead of one operator over all of them.

## Why it costs
Each tiny operator costs a dispatch on the host and, on an accelerator, a kernel launch; and each of the 5 to 15
elementwise operators of an update reads and writes every parameter again. A fused update is one pass.

## Example
```python
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=False)
```

## Use instead
```python
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
```
`fused=True` exists for Adam, AdamW, SGD and Adagrad. On an accelerator `foreach=True` helps every torch optimizer; on a
CPU foreach operators still go tensor by tensor, so only `fused=True` helps there.

The saving is what the update takes beyond its most expensive elementwise pass. Its low end is the time in which
operators are only dispatched, its high end the whole update. On an accelerator whose host sets the pace the update also
delays what the host does next: there the idle time after it counts as well, as far as a simulation without the
operators gets it back, and the low end leaves a quarter of it for operators over lists of tensors.

## Known misses
Optimizers that evaluate a closure several times (LBFGS) or multiply matrices (Shampoo, Muon) are left out. Of those
that evaluate one once, before the update, as Lightning has them do, only Adam, AdamW, SGD and Adagrad are judged: by
what follows the closure's last gradient. Where the closure clips gradients at its end, that looks like part of the
update. A trace without the annotation `Optimizer.step#…` (torch older than 1.10).

## Source
torch/profiler/_pattern_matcher.py (`OptimizerSingleTensorPattern`) warns of the same; torch/optim/adam.py and its
neighbours evaluate the closure first, and once. torch's documentation of `torch.optim` ranks the implementations:
fused, then foreach, then the loop. 2 % of the step is where noise ends.
"""

from __future__ import annotations

import numpy as np

from tightship_analyzers.facts.activity.device_busy import DeviceGaps
from tightship_analyzers.facts.blocking.host_pace import HostPace
from tightship_analyzers.facts.kernels.optimizer_work import OptimizerCall, OptimizerWork
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.program.frames import ThreadFrames
from tightship_analyzers.facts.simulation.dependency_graph import DependencyGraph
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.findings.claim import share_of, unit_of, within_window
from tightship_analyzers.findings.evidence import change, fact, timeline
from tightship_analyzers.findings.model import Finding, Judgement, Saving, TraceRule
from tightship_analyzers.graph.edits import Edits
from tightship_analyzers.trace.intervals import Intervals, union_of
from tightship_platform.units import format_ns

MIN_STEP_FRAC = 0.02
"""Share of the step below which it is no finding."""

HOST_PACED_FRAC = 0.95
"""Of the step, what a host that sets the pace needs without its waits; the rest is what a launch may wait."""
MIN_PARAMETERS = 4
"""With fewer parameter tensors there is nothing to bundle."""

FUSED = frozenset(("Adam", "AdamW", "SGD", "Adagrad"))
"""Optimizers of torch with a fused implementation."""


def judge(facts: Facts) -> Judgement:
    """Optimizer calls that go tensor by tensor."""
    window, work = facts[Window], facts[OptimizerWork]
    has_fused = work.optimizer in FUSED
    slow = [call for call in work.calls if _is_single_tensor(call) and (has_fused or not call.after_closure)]
    if not slow or (facts.trace.device_kind == "cpu" and not has_fused):
        return []
    claims = within_window(facts, union_of(call.active - call.one_pass for call in slow) | _idle_after(facts, slow))
    if claims.measure_ns < MIN_STEP_FRAC * window.window_ns:
        return []
    return [_finding(facts, window, work, slow, claims)]


def _idle_after(facts: Facts, slow: list[OptimizerCall]) -> Intervals:
    """Idle time of the device from each update to the next, as long as the host was busy with operators at most: what
    the host does after it could begin so much earlier. Where that cannot be simulated, only of a host that hardly ever
    waits."""
    known, gaps, window = facts.find(DependencyGraph), facts.find(DeviceGaps), facts[Window]
    if known is None or gaps is None or facts.trace.device_kind == "cpu":
        return Intervals.none()
    if known.distrust is not None and facts[HostPace].step_ns < HOST_PACED_FRAC * window.mean_ns:
        return Intervals.none()
    ends = [*(call.start_ns for call in slow[1:]), window.claim_end_ns]
    return union_of(
        _first(gaps.spans.clip(call.start_ns, max(call.start_ns, end_ns)), call.host.measure_ns)
        for call, end_ns in zip(slow, ends, strict=True)
    )


def _without(tid: int, slow: list[OptimizerCall]) -> Edits:
    """One pass of the device is left, and no time of the host."""
    rows = np.concatenate([call.other_rows for call in slow])
    return Edits.without_device(rows) | Edits.without_host(tid, union_of(call.host for call in slow))


def _first(spans: Intervals, ns: int) -> Intervals:
    """The beginning of these spans, so much of their time in all."""
    before_ns = np.cumsum(spans.end_ns - spans.start_ns) - (spans.end_ns - spans.start_ns)
    left_ns = np.clip(ns - before_ns, 0, spans.end_ns - spans.start_ns)
    return Intervals.of(spans.start_ns, spans.start_ns + left_ns)


def _is_single_tensor(call: OptimizerCall) -> bool:
    return call.elementwise and not call.many_tensors and call.parameters >= MIN_PARAMETERS


def _finding(
    facts: Facts, window: Window, work: OptimizerWork, slow: list[OptimizerCall], claims: Intervals
) -> Finding:
    share = claims.measure_ns / window.window_ns
    call = max(slow, key=lambda one: one.active.measure_ns)
    keyword = "fused=True" if work.optimizer in FUSED else "foreach=True"
    on_cpu = facts.trace.device_kind == "cpu"
    dispatch_ns = sum((one.active - one.work).measure_ns for one in slow) if on_cpu else claims.measure_ns * 3 // 4
    whole_ns = sum(max(one.active.measure_ns, one.end_ns - one.start_ns) for one in slow)
    kept_ns = sum(one.one_pass.measure_ns for one in slow)
    stacks = facts.find(ThreadFrames)
    # On a CPU tensor by tensor is what torch does when nothing was said; elsewhere somebody has asked for it.
    asked = "" if on_cpu else ", foreach=False"
    return Finding(
        rule=RULE.id,
        title=f"{work.optimizer} updates its {call.parameters} tensors one at a time, {share_of(facts, claims)}",
        place=stacks.place_at(facts.trace.names, call.start_ns, call.end_ns) if stacks else f"{work.optimizer}.step",
        fix=f"Construct the optimizer with {keyword}: {work.optimizer}(model.parameters(), …, {keyword})",
        saving=Saving.per_step(window.count, value_ns=claims.measure_ns, low_ns=dispatch_ns, high_ns=whole_ns),
        unit=unit_of(facts),
        share_frac=share,
        evidence=[
            timeline(facts, next(iter(call.active))[0], next(iter(call.active))[1], "optimizer"),
            fact(
                f"One update runs {call.operators} operators for {call.parameters} parameter tensors",
                call.operators,
                "operators",
            ),
            fact(
                f"An update takes {format_ns(whole_ns // len(slow))}, one pass over the parameters "
                f"{format_ns(kept_ns // len(slow))}",
                whole_ns / len(slow),
                "ns",
            ),
            change(
                f"torch.optim.{work.optimizer}(model.parameters(), …{asked})",
                f"torch.optim.{work.optimizer}(model.parameters(), …, {keyword})",
            ),
        ],
        claims=claims,
        without=None if on_cpu else _without(work.tid, slow),
    )


RULE = TraceRule(
    id="single-tensor-optimizer",
    needs=(Window, OptimizerWork),
    title="The optimizer updates one parameter tensor at a time",
    fix="Construct it with fused=True, or foreach=True where there is no fused implementation",
    judge=judge,
    page=__doc__ or "",
)
