"""A Python loop indexes a tensor slice by slice.

## What it finds
At least 10 iterations of the same operators, each beginning with an index into a tensor (`x[:, t]`), issued by one
Python loop within one step.

## Why it costs
Every iteration dispatches all its operators again on a small slice: the time goes into Python and dispatch, not into
arithmetic. Where the tensor needs a gradient it is worse: the backward of every single index allocates, zeroes and adds
a tensor of the *whole* size, so the cost grows with the square of the number of iterations.

## Example
```python
for t in range(x.shape[1]):
    state = cell(x[:, t], state)
```

## Use instead
Work on the whole sequence at once (`torch.nn.GRU`, a batched operator). Where an iteration needs the previous one:
```python
for x_t in x.unbind(1):          # one operator, and one for its backward
    state = cell(x_t, state)
```
and move what does not depend on the state (the projection of the input) out of the loop.

The saving is the indexing itself, forward and backward, in all iterations but one: `unbind` alone gives that back. Its
high end adds the time between the innermost operators of those iterations, which one operator over the whole sequence
would not need either. Where the indexing itself is cheap (no gradient), that time is the saving, and only the second
way helps; then the low end is the indexing. On a CPU nothing is sure: see the known misses.

## Known misses
Needs Python stacks: the same pattern without a common caller is a network of equal layers. Loops whose body takes
different branches, or that index in a function called per iteration.

On a CPU the recording makes operators that allocate look dearer than they are, up to ten times: the profiler's own
records fill the holes that the allocator would have used again, so every large temporary is fresh memory. There the
low end is 0. Where the step counter has seen steps without recording, value and high end allow for that; a trace file
alone cannot tell.

## Source
torch/profiler/_pattern_matcher.py (`ForLoopIndexingPattern`), also for the 10 iterations. 2 % of the step is where
noise ends; time between operators counts from 5 % on, because recording itself lengthens it.
"""

from __future__ import annotations

from tightship_analyzers.facts.kernels.loop_cost import LoopCost, LoopCosts
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.program.frames import ThreadFrames
from tightship_analyzers.facts.program.indexed_loops import MIN_REPEATS, IndexedLoops, Loop
from tightship_analyzers.facts.window.steps import Steps
from tightship_analyzers.findings.claim import in_window
from tightship_analyzers.findings.evidence import change, fact, timeline
from tightship_analyzers.findings.model import Finding, Judgement, Saving, TraceRule
from tightship_analyzers.trace.intervals import Intervals, union_of
from tightship_platform.results.evidence import Evidence
from tightship_platform.text import shown
from tightship_platform.units import format_frac, format_ns, plural

__all__ = ["MIN_REPEATS", "MIN_STEP_FRAC", "RULE", "judge"]

MIN_STEP_FRAC = 0.02
"""Share of the step below which indexing is no finding."""

MIN_DISPATCH_FRAC = 0.05
"""Share of the step below which the time between a loop's operators is no finding."""

SHOWN_ITERATIONS = 3
SHOWN_OPERATORS = 12


def judge(facts: Facts) -> Judgement:
    """One finding per place that loops."""
    steps, stacks = facts[Steps], facts[ThreadFrames]
    by_place: dict[str, list[LoopCost]] = {}
    for cost in facts[LoopCosts].costs:
        place = stacks.place_at(facts.trace.names, *cost.loop.all_but_one)
        by_place.setdefault(place, []).append(cost)
    findings = []
    for place, costs in by_place.items():
        indexing = union_of(cost.indexing for cost in costs)
        overhead = union_of(cost.overhead for cost in costs)
        if indexing.measure_ns >= MIN_STEP_FRAC * steps.window_ns:
            findings.append(_finding(facts, place, costs, indexing, overhead, unbind=True))
        elif overhead.measure_ns >= MIN_DISPATCH_FRAC * steps.window_ns:
            findings.append(_finding(facts, place, costs, indexing, overhead, unbind=False))
    return findings


def _finding(
    facts: Facts, place: str, costs: list[LoopCost], indexing: Intervals, overhead: Intervals, *, unbind: bool
) -> Finding:
    steps = facts[Steps]
    claims = indexing if unbind else overhead
    share = claims.measure_ns / steps.window_ns
    loop = max(costs, key=lambda cost: cost.overhead.measure_ns).loop
    if unbind:
        title = f"Indexing a tensor {loop.count} times in a Python loop takes {format_frac(share)} of the step"
        fix = "Index once outside of the loop: `for x_t in x.unbind(1)`; or use one operator over the whole sequence"
        after = "for x_t in x.unbind(1):\n    y = f(x_t)"
    else:
        title = f"A Python loop over {loop.count} slices spends {format_frac(share)} of the step between its operators"
        fix = "Replace the loop by one operator over the whole tensor (torch.nn.GRU, a batched operator)"
        after = "y = f(x)  # all slices at once"
    return Finding(
        rule=RULE.id,
        title=title,
        place=place,
        fix=fix,
        saving=Saving.per_step(
            steps.count,
            value_ns=claims.measure_ns,
            low_ns=0 if facts.trace.device_kind == "cpu" else indexing.measure_ns,
            high_ns=overhead.measure_ns,
        ),
        unit=RULE.scope.unit,
        share_frac=share,
        evidence=[
            *_evidence(facts, loop, indexing, overhead),
            fact(f"{plural(len(costs), 'such loop')} {in_window(facts)}", len(costs), "loops"),
            change("for t in range(x.shape[1]):\n    y = f(x[:, t])", after),
        ],
        claims=claims,
    )


def _evidence(facts: Facts, loop: Loop, indexing: Intervals, overhead: Intervals) -> list[Evidence]:
    steps, names = facts[Steps], facts.trace.names
    body = [shown(names[number].removeprefix("aten::"), 40) for number in loop.body.name[: loop.per_iteration].tolist()]
    begin_ns, few_ns = int(loop.iterations_ns[0]), int(loop.iterations_ns[min(SHOWN_ITERATIONS, loop.count)])
    step = f"of a step of {format_ns(steps.mean_ns)}"
    index_ns, rest_ns = indexing.measure_ns // steps.count, (overhead - indexing).measure_ns // steps.count
    return [
        timeline(facts, begin_ns, few_ns, "loop"),
        fact(
            f"{loop.count} iterations of {loop.per_iteration} operators: {', '.join(body[:SHOWN_OPERATORS])}",
            loop.count,
            "iterations",
        ),
        fact(f"Indexing and its backward: {format_ns(index_ns)} {step}", index_ns, "ns"),
        fact(f"Between the loop's other operators: {format_ns(rest_ns)} {step}", rest_ns, "ns"),
    ]


RULE = TraceRule(
    id="loop-indexing",
    needs=(Steps, ThreadFrames, IndexedLoops, LoopCosts),
    title="A Python loop indexes a tensor slice by slice",
    fix="Index once outside the loop, or use one operator on the whole tensor",
    judge=judge,
    page=__doc__ or "",
)
