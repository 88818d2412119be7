"""The device waits while the host runs other code.

## What it finds
Stretches of more than 1 ms in which the device idles and the training thread launches nothing, before work that
this thread then launches, and that no other rule accounts for (input, checkpoints, waiting, compiling, logging …); more
than 2 % of the step, by the own function that runs, with the innermost functions, of libraries too, that have the time.
Where the program marks its steps, what it does in the first one before any launch counts as well: preparing a request,
say. Where the trace has no Python stacks, only what operators take.

Two kinds of code are torch's own and have their own remedy: the copies of its buffers that
`DistributedDataParallel` makes before each forward pass, and the update of an optimizer that could be fused.

## Why it costs
The device waits for whatever the host computes between two kernels: metrics in NumPy, schedules and hooks in Python,
masks built on the host, tokenizing a batch. A millisecond of Python is worth hundreds of kernels.

## Example
```python
loss.backward()
accuracy = evaluate_on_host(predictions)      # 20 ms of NumPy; the device has nothing to do
optimizer.step()
```

## Use instead
```python
loss.backward()
optimizer.step()                              # the device is busy again
accuracy = evaluate_on_host(predictions)      # meanwhile
```
or do it on the device, in the loader's workers, or every 100 steps. What torch does itself:
`DistributedDataParallel(model, broadcast_buffers=False)` where the ranks need no equal running statistics,
`AdamW(parameters, fused=True)`.

The value is the idle time. The low end is 0: some of it may have to be where it is.

## Known misses
Without Python stacks Python between two operators, and all else is one finding, at the operator that takes half or
more of it. Functions that take less than 2 % each. What libraries take to load and to choose a kernel for new
shapes, in the first call of an operator with them; where the trace marks no steps, all of that call. What only one of
three or more steps has (start-up, an evaluation): how often it comes back is not known. Python in a backward thread.
Gaps that end in work whose launch the trace does not hold: what it waited for is not known. Other work of
DistributedDataParallel and of optimizers.

## Source
https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html. Dispatching an operator takes 5 to 100 µs; ten times as
much is no dispatch. 2 % of the step is where noise ends.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tightship_analyzers.facts.activity.first_launches import launched_in
from tightship_analyzers.facts.idle.causes import Cause, IdleCauses
from tightship_analyzers.facts.idle.dispatch_gaps import MAX_GAP_NS
from tightship_analyzers.facts.kernels.filled_copies import FilledCopies
from tightship_analyzers.facts.kernels.zero_grads import ZERO_GRAD
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.program.frames import ThreadFrames, place_of
from tightship_analyzers.facts.program.loader_ranges import LoaderRanges
from tightship_analyzers.facts.program.op_tree import OpTree
from tightship_analyzers.facts.program.places import Places
from tightship_analyzers.facts.program.work_threads import AUTOGRAD_NODE
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.findings.claim import (
    Where,
    claim,
    comes_back,
    deepest,
    in_window,
    is_worth,
    share_of,
    time_of,
    within_window,
)
from tightship_analyzers.findings.evidence import change, fact
from tightship_analyzers.findings.model import Finding, Judgement, NotApplicable, TraceRule
from tightship_analyzers.graph.edits import Edits
from tightship_analyzers.rules.communication import data_parallel
from tightship_analyzers.rules.host import cache_flush, logging_in_step, recompilation
from tightship_analyzers.trace.intervals import Intervals
from tightship_analyzers.trace.joins import first_rows
from tightship_analyzers.trace.open_rows import OpenRows
from tightship_analyzers.trace.step_marks import OPTIMIZER
from tightship_platform.results.evidence import Evidence
from tightship_platform.text import shown
from tightship_platform.units import plural

MIN_STEP_FRAC = 0.02
"""Share of the step below which it is no finding."""
MOST_FUNCTIONS = 4
"""Named of those that have at least a tenth of the time."""

ISSUING = re.compile(r".*(Launch|Memcpy|Memset|MemPrefetch).*")
"""Runtime and driver calls that give the device something to do."""
DDP = "DistributedDataParallel.forward"
COALESCING = re.compile(r"aten::(un)?flatten_dense_tensors")
"""Many tensors as one, and back: how DistributedDataParallel sends its buffers."""
FUSED = re.compile(re.escape(OPTIMIZER) + r"(SGD|Adam|AdamW|Adagrad)\.step")
"""Updates that torch offers as one kernel. Source: https://pytorch.org/docs/stable/optim.html (`fused`)."""
IS_FUSED = re.compile(r"aten::_fused_\w+")
OWN_OF_TORCH = re.compile(r"torch\.distributed\.ddp\.reducer::.*|c10d::.*|record_param_comms")


class Remedy(NamedTuple):
    """What to do about one kind of code."""

    what: str
    fix: str
    before: str
    after: str


MOVE = Remedy(
    "code of the host",
    "Move it off the path: after the next step has been launched, into the loader's workers, onto the device; "
    "or do it less often",
    "metrics = on_host(output)\noptimizer.step()",
    "optimizer.step()\nmetrics = on_host(output)",
)
BUFFERS = Remedy(
    "DistributedDataParallel to copy its buffers",
    "broadcast_buffers=False, where the ranks need no equal buffers (such as running statistics); else fewer of them",
    "DistributedDataParallel(model)",
    "DistributedDataParallel(model, broadcast_buffers=False)",
)
FUSE = Remedy(
    "the optimizer to prepare its update",
    "Let one kernel update all parameters: fused=True",
    "optimizer = AdamW(parameters)",
    "optimizer = AdamW(parameters, fused=True)",
)


def judge(facts: Facts) -> Judgement:
    """One finding per place that runs, and one for each kind of code of torch."""
    if facts.trace.device_kind != "gpu":
        return NotApplicable("needs an accelerator; on a CPU the host's code is the work")
    own = _stretches(facts)
    buffers, fusible, other = _of_torch(facts)
    findings = [
        _finding(facts, claims, remedy, _place(facts, claims))
        for claims, remedy in ((own & buffers, BUFFERS), (own & fusible, FUSE))
        if is_worth(facts, claims, MIN_STEP_FRAC)
    ]
    part = facts[IdleCauses].window.within(own - buffers - fusible - other)
    by_frame: dict[str, list[int]] = {}
    for row, number in enumerate(part.place.tolist()):
        by_frame.setdefault(part.places[number].frame, []).append(row)
    for frame, rows in by_frame.items():
        claims = Intervals.of(part.start_ns[rows], part.end_ns[rows])
        if not frame:
            claims = claims & _in_operators(facts)
        if is_worth(facts, claims, MIN_STEP_FRAC) and comes_back(facts, claims):
            place = frame or _mostly(_operators(facts, claims), claims.measure_ns)
            findings.append(_finding(facts, claims, MOVE, place))
    return findings


def _stretches(facts: Facts) -> Intervals:
    """Long ones between two calls that issue work, which the training thread ends by launching what comes next."""
    trace, tid = facts.trace, facts[Window].tid
    calls = trace.launches.take(trace.names.mask(trace.launches.name, lambda name: bool(ISSUING.match(name))))
    held = facts[IdleCauses].window.spans(Cause.HOST_DISPATCH) - Intervals.of_table(calls) - _accounted(facts)
    held = within_window(facts, held - _first_calls(facts))
    events = trace.device_events
    ends = np.searchsorted(events.start_ns, held.end_ns)
    launch = np.append(events.launch, -1)[ends]
    by_trainer = (launch >= 0) & (np.append(trace.launches.tid, -1)[launch] == tid)
    kept = by_trainer & (held.end_ns - held.start_ns > MAX_GAP_NS)
    return Intervals(held.start_ns[kept], held.end_ns[kept])


def _first_calls(facts: Facts) -> Intervals:
    """In a recording without steps: the first call of each operator, and if it launches kernels of each of its shapes,
    in which libraries load and tune; start-up that a marked step would not hold."""
    tree = facts.find(OpTree)
    if tree is None or facts[Window].of_steps:
        return Intervals.none()
    top = tree.top
    shapes = np.where(launched_in(facts.trace, top) >= 0, top.shapes, -1)
    return Intervals.of_table(top.take(first_rows(top.name, shapes)))


def _of_torch(facts: Facts) -> tuple[Intervals, Intervals, Intervals]:
    """When torch ran its own code: DDP's buffers, updates that could be fused, all else."""
    trace, names, tid = facts.trace, facts.trace.names, facts[Window].tid
    ops = trace.host_ops.take(trace.host_ops.tid == tid)

    def of_ops(pattern: re.Pattern[str]) -> Intervals:
        return Intervals.of_table(ops.take(names.mask(ops.name, lambda name: bool(pattern.fullmatch(name)))))

    updates = trace.annotations_named(OPTIMIZER)
    fusible = updates.take(names.mask(updates.name, lambda name: bool(FUSED.fullmatch(name))))
    fused = of_ops(IS_FUSED)
    fusible = fusible.take(fused.overlap_ns(fusible.start_ns, fusible.end_ns) == 0)
    buffers = of_ops(COALESCING) & Intervals.of_table(trace.annotations_named(DDP))
    return buffers, Intervals.of_table(fusible), of_ops(OWN_OF_TORCH) | Intervals.of_table(updates)


def _in_operators(facts: Facts) -> Intervals:
    """When the training thread was inside of an operator."""
    tree = facts.find(OpTree)
    if tree is None:
        return Intervals.none()
    return Intervals.of_table(tree.top.take(tree.top.tid == facts[Window].tid))


def _place(facts: Facts, claims: Intervals) -> str:
    """The own function that waits longest for torch; the operator or "host" without stacks."""
    stretches = [(end_ns - start_ns, start_ns, end_ns) for start_ns, end_ns in claims]
    _, start_ns, end_ns = max(stretches)
    place = facts[Places].of_span(facts[Window].tid, start_ns, end_ns)
    return place or _mostly(_operators(facts, claims), claims.measure_ns)


def _finding(facts: Facts, claims: Intervals, remedy: Remedy, place: str) -> Finding:
    window, operators = facts[Window], _operators(facts, claims)
    return claim(
        facts,
        RULE,
        claims,
        title=f"The device waits {share_of(facts, claims)} for {remedy.what}",
        where=Where(place),
        fix=remedy.fix,
        low_ns=0,
        gap="host",
        evidence=[
            fact(
                f"{plural(len(claims), 'stretch', 'stretches')} {in_window(facts)}, "
                f"{time_of(facts, claims.measure_ns)}",
                len(claims),
                "stretches",
            ),
            deepest(facts, claims, place),
            *_functions(facts, claims),
            *(
                fact(f"Of which in {name}: {time_of(facts, ns)}", ns / window.count, "ns")
                for name, ns in operators[:3]
                if ns * 10 >= claims.measure_ns
            ),
            change(remedy.before, remedy.after),
        ],
        without=Edits.without_host(window.tid, claims),
    )


def _functions(facts: Facts, claims: Intervals) -> Iterator[Evidence]:
    """The innermost functions, of libraries too, that have the time, and how often each was called for it."""
    stacks, window = facts.find(ThreadFrames), facts[Window]
    if stacks is None or not len(stacks.files):
        return
    files = stacks.files
    opened = OpenRows.of(files.start_ns, files.end_ns)
    ran_ns = claims.overlap_ns(opened.at_ns[:-1], opened.at_ns[1:])
    held = (ran_ns > 0) & (opened.row[:-1] >= 0)
    row, ran_ns = opened.row[:-1][held], ran_ns[held]
    total_ns = np.bincount(files.name[row], weights=ran_ns).astype(np.int64)
    calls = np.bincount(files.name[np.unique(row)], minlength=len(total_ns))
    for name in np.argsort(-total_ns, kind="stable")[:MOST_FUNCTIONS].tolist():
        if total_ns[name] * 10 >= claims.measure_ns:
            text = f"In {place_of(facts.trace.names[name])}, {plural(int(calls[name]), 'call')}"
            yield fact(f"{text}: {time_of(facts, int(total_ns[name]))}", int(total_ns[name]) / window.count, "ns")


def _mostly(operators: list[tuple[str, int]], total_ns: int) -> str:
    """The operator that takes half of it or more; where none does, nothing but that it is the host."""
    return operators[0][0] if operators and 2 * operators[0][1] >= total_ns else "host"


def _operators(facts: Facts, claims: Intervals) -> list[tuple[str, int]]:
    """(outermost operator, ns) that ran, the costliest first."""
    tree = facts.find(OpTree)
    if tree is None:
        return []
    top = tree.top
    ran_ns = claims.overlap_ns(top.start_ns, top.end_ns)
    totals: dict[int, int] = {}
    for name, ns in zip(top.name[ran_ns > 0].tolist(), ran_ns[ran_ns > 0].tolist(), strict=True):
        totals[name] = totals.get(name, 0) + ns
    ranked = sorted(totals.items(), key=lambda item: -item[1])
    return [(shown(facts.trace.names[name].removeprefix(AUTOGRAD_NODE)), ns) for name, ns in ranked]


def _accounted(facts: Facts) -> Intervals:
    """What other rules judge although it is the host at work."""
    trace = facts.trace
    spans = Intervals.of_table(trace.annotations_named(data_parallel.RANGE))
    spans = spans | Intervals.of_table(trace.annotations_named(ZERO_GRAD))
    spans = spans | Intervals.of_table(
        trace.host_ops.take(trace.names.mask(trace.host_ops.name, lambda name: bool(recompilation.RANGES.match(name))))
    )
    loader, stacks = facts.find(LoaderRanges), facts.find(ThreadFrames)
    if loader is not None:
        spans = spans | loader.spans
    fills = facts.find(FilledCopies)
    if fills is not None:
        spans = spans | Intervals.of(fills.fills.start_ns, fills.copies.end_ns)
    if stacks is not None:
        calls = trace.names.mask(stacks.frames.name, _is_accounted)
        spans = spans | Intervals.of_table(stacks.frames.take(calls))
    return spans


def _is_accounted(frame: str) -> bool:
    return any(pattern.match(frame) for pattern in (logging_in_step.FRAMES, cache_flush.FRAMES, recompilation.RANGES))


RULE = TraceRule(
    id="busy-host",
    needs=(Window, IdleCauses),
    title="The device waits while the host runs other code",
    fix="Move it off the critical path or onto the device, or do it less often",
    judge=judge,
    page=__doc__ or "",
)
