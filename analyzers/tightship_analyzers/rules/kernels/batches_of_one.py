"""A step computes one input after the other, each in a batch of one.

## What it finds
A module that runs three times or more in one step, forward only, each time for a batch of one of the same sizes, with
the same kernels, on data that was copied to the device for it; together at least 5 % of the step.

## Why it costs
Every pass reads all weights again and launches all kernels again, for work that fills a part of the device. Where the
input is the same each time, such as one image that is compared with several labels, all passes but one are repeated
work.

## Example
```python
for label in labels:
    scores.append(model(image, label))        # encodes the same image for each label
```

## Use instead
```python
scores = model(image.expand(len(labels), …), labels)     # one batch; or encode the image once, and keep the result
```

The saving is at most the device time of all passes but one. A bound, whose low end is 0: a trace holds no values, so
whether inputs are equal is not known, and of different ones a batch saves what the device leaves unused. What prepares
the inputs on the host is not counted.

## Known misses
Needs Python stacks and recorded shapes. Inputs that a device makes itself, as the steps of a diffusion or of a
generating loop, which follow from one another. Copies of less than 1 MiB.

## Source
Transformers' pipelines, on batches: https://huggingface.co/docs/transformers/main_classes/pipelines#pipeline-batching.
Two passes may be two views of one input, as in guidance, so three are the least; 1 MiB is more than arguments such as
sizes, masks or token ids take. 5 % of the step.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tightship_analyzers.facts.kernels.device_work import DeviceWork
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.program.frames import MODULE, ThreadFrames
from tightship_analyzers.facts.program.op_shapes import Dims, OpShapes
from tightship_analyzers.facts.window.steps import Steps
from tightship_analyzers.findings.claim import Where, claim, gone, is_worth, share_of, time_of, within_window
from tightship_analyzers.findings.evidence import change, fact
from tightship_analyzers.findings.model import Judgement, TraceRule
from tightship_analyzers.graph.threads import backward_nodes
from tightship_analyzers.trace.columns import EventKind
from tightship_analyzers.trace.copy_memory import CopyMemory
from tightship_analyzers.trace.intervals import Intervals
from tightship_analyzers.trace.model import Bools, DeviceEvents, Frames, Int64s
from tightship_platform.results.evidence import Evidence
from tightship_platform.text import shown
from tightship_platform.units import format_bytes, plural

MIN_STEP_FRAC = 0.05
"""Share of the step below which it is no finding."""
MIN_CALLS = 3
"""In one step; see the page's Source."""
MIN_BYTES = 1 << 20
"""Of a copy to the device that is an input."""
MOST_PARTS = 5
"""Named of modules within one another."""
INPUT_AXES = 3
"""An input has a batch, and positions or channels with values, so as many axes or more."""


class Pass(NamedTuple):
    """One call of a module."""

    copied: int
    """Bytes of inputs that were copied to the device since the call before."""
    sizes: Dims
    """Of the first operator's input that has a batch; empty where none has."""
    kernels: tuple[int, ...]
    """Names of what it launched, in order."""
    rows: Int64s
    """The same in `DeviceWork`."""


def judge(facts: Facts) -> Judgement:
    """One finding per module."""
    steps, work, names = facts[Steps], facts[DeviceWork], facts.trace.names
    repeated: dict[int, list[list[Pass]]] = {}
    for bounds in pairwise(steps.host_bounds_ns.tolist()):
        for name, passes in _repeated(facts, *bounds):
            repeated.setdefault(name, []).append(passes)
    findings = []
    for name, groups in repeated.items():
        more = np.concatenate([one.rows for passes in groups for one in passes[1:]])
        events = work.events.take(more)
        claims = within_window(facts, gone(events, np.ones(len(more))))
        if not is_worth(facts, claims, MIN_STEP_FRAC):
            continue
        one, calls, module = groups[0][0], len(groups[0]), _class(names[name])
        start_ns, end_ns = (int(work.launched_ns[groups[0][at].rows[at]]) for at in (0, -1))
        findings.append(
            claim(
                facts,
                RULE,
                claims,
                title=f"{module} runs {calls} times in one step, each time for a batch of one: "
                f"{share_of(facts, claims)} at most to gain",
                where=Where(facts[ThreadFrames].place_at(names, start_ns, end_ns) or module),
                fix="Compute all inputs in one batch; where they are the same, once, and keep the result",
                low_ns=0,
                evidence=[
                    fact(
                        f"{plural(calls, 'pass', 'passes')} launch the same {plural(len(one.kernels), 'kernel')} on "
                        f"{'×'.join(map(str, one.sizes))}, each after {format_bytes(one.copied)} were copied for it",
                        calls,
                        "passes",
                    ),
                    fact(f"All but the first: {time_of(facts, claims.measure_ns)} on the device"),
                    _parts(facts, one),
                    fact("Whether the inputs are the same is not in a trace: of different ones a batch saves less"),
                    change("[model(one) for one in inputs]", "model(torch.cat(inputs))  # or once, if they are equal"),
                ],
            )
        )
    return findings


def _repeated(facts: Facts, from_ns: int, to_ns: int) -> Iterator[tuple[int, list[Pass]]]:
    """(name, passes) of modules in one step; of modules within one another the outermost."""
    work, tid, trace = facts[DeviceWork], facts[Steps].tid, facts.trace
    if _is_input(facts, work.events.take(work.numbers_in(tid, from_ns, to_ns))).sum() < MIN_CALLS:
        return
    modules = facts[ThreadFrames].modules
    here = modules.take((modules.start_ns >= from_ns) & (modules.end_ns <= to_ns))
    backward_ns = np.sort(trace.host_ops.start_ns[backward_nodes(trace)])
    often = np.flatnonzero(np.bincount(here.name) >= MIN_CALLS) if len(here) else np.array([], dtype=np.int64)
    order = np.argsort(-np.bincount(here.name, weights=here.dur_ns)[often], kind="stable") if len(often) else often
    known = Intervals.none()
    for name in often[order].tolist():
        calls = here.take(here.name == name)
        if known.contains(calls.start_ns).all():
            continue
        first_ns, last_ns = int(calls.start_ns[0]), int(calls.end_ns[-1])
        if np.searchsorted(backward_ns, last_ns) > np.searchsorted(backward_ns, first_ns):
            continue
        passes = _passes(facts, calls, from_ns)
        first = passes[0]
        if first.copied >= MIN_BYTES and first.sizes[:1] == (1,) and all(one[:3] == first[:3] for one in passes):
            known = known | Intervals.of_table(calls)
            yield name, passes


def _is_input(facts: Facts, events: DeviceEvents) -> Bools:
    return CopyMemory.of(facts.trace, events).to_device & (events.bytes >= MIN_BYTES)


def _passes(facts: Facts, calls: Frames, since_ns: int) -> list[Pass]:
    work, tid = facts[DeviceWork], facts[Steps].tid
    found = []
    for start_ns, end_ns in zip(calls.start_ns.tolist(), calls.end_ns.tolist(), strict=True):
        before = work.events.take(work.numbers_in(tid, since_ns, end_ns))
        rows = work.numbers_in(tid, start_ns, end_ns)
        rows = rows[work.events.kind[rows] == EventKind.KERNEL]
        copied = int(before.bytes[_is_input(facts, before)].sum())
        found.append(Pass(copied, _sizes(facts, start_ns, end_ns), tuple(work.events.name[rows].tolist()), rows))
        since_ns = end_ns
    return found


def _parts(facts: Facts, one: Pass) -> Evidence | None:
    """The modules within that have most of the device's time of a pass, the enclosing one first."""
    work, names, tid = facts[DeviceWork], facts.trace.names, facts[Steps].tid
    first, last = int(one.rows[0]), int(one.rows[-1])
    inside = facts[ThreadFrames].modules.overlapping(int(work.launched_ns[first]), int(work.launched_ns[last]))
    half_ns, found = work.events.dur_ns[one.rows].sum() / 2, []
    for row in range(len(inside)):
        rows = work.numbers_in(tid, int(inside.start_ns[row]), int(inside.end_ns[row]))
        if work.events.dur_ns[np.intersect1d(rows, one.rows)].sum() > half_ns:
            found.append(_class(names[int(inside.name[row])]))
    return fact(f"Most of it is in {' → '.join(found[:MOST_PARTS])}") if len(found) > 1 else None


def _class(frame: str) -> str:
    return shown(frame.removeprefix(MODULE).rpartition("_")[0], 80)


def _sizes(facts: Facts, start_ns: int, end_ns: int) -> Dims:
    ops, shapes, tid = facts.trace.host_ops, facts[OpShapes], facts[Steps].tid
    first, stop = np.searchsorted(ops.start_ns, (start_ns, end_ns)).tolist()
    for row in (first + np.flatnonzero((ops.tid[first:stop] == tid) & (ops.shapes[first:stop] >= 0))).tolist():
        dims = shapes.of(ops, row).dims
        if dims and len(dims[0]) >= INPUT_AXES:
            return dims[0]
    return ()


RULE = TraceRule(
    id="batches-of-one",
    needs=(Steps, ThreadFrames, OpShapes, DeviceWork),
    title="A step computes several inputs in batches of one",
    fix="Compute them in one batch, or once where they are equal",
    judge=judge,
    page=__doc__ or "",
)
