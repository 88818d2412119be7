"""Gradients are zeroed instead of set to None.

## What it finds
Fills and kernels that `zero_grad()` starts on the device, and the time in which the device idles while the host
launches them one by one; together more than 1 % of the step.

## Why it costs
Every gradient is written once more per step, by one launch per parameter or group of parameters. Where torch goes one
by one a launch takes the host 30 to 60 µs, and the fill takes the device 2 µs: in between it idles. And the backward
pass then reads each gradient again to add to it, where it could simply write.

## Example
```python
optimizer.zero_grad(set_to_none=False)
```

## Use instead
```python
optimizer.zero_grad()        # sets the gradients to None since torch 2.0; before: zero_grad(set_to_none=True)
```

The saving is the fills and that idle time, its low end the fills and half of the idle time. The high end counts the
fills twice: the backward pass then also saves reading each gradient once.

On a CPU, whose operators take the kernels' place, the saving is the fills and, of each gradient, the first addition of
the backward pass after them. Its low end is 0: a gradient that torch cannot take over as it is gets copied instead. The
high end is twice as much: what they push out of the caches, no more than they move, is not read from memory again.

## Known misses
Programs that clear gradients by hand; `model.zero_grad()` in a recording without stacks. Where gradients are
accumulated over several backward passes, only the first of them needs no zeros.

## Source
torch/profiler/_pattern_matcher.py (`GradNotSetToNonePattern`); torch/csrc/autograd/functions/accumulate_grad.h;
https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html. 1 % of the step is where noise ends.
"""

from __future__ import annotations

import re

import numpy as np

from tightship_analyzers.facts.idle.causes import Cause, IdleCauses
from tightship_analyzers.facts.kernels.zero_grads import OF_MODULE, ZERO_GRAD, ZeroedOperators, ZeroGrads
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.program.frames import place_of
from tightship_analyzers.facts.program.places import Places
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.findings.claim import Where, claim, is_worth, share_of, time_of, within_window
from tightship_analyzers.findings.evidence import change, fact
from tightship_analyzers.findings.model import NOISE_FRAC, Judgement, TraceRule
from tightship_analyzers.graph.edits import Edits
from tightship_analyzers.trace.intervals import Intervals, union_of
from tightship_analyzers.trace.model import Annotations, Frames
from tightship_platform.text import shown
from tightship_platform.units import plural


def judge(facts: Facts) -> Judgement:
    """All calls together."""
    on_cpu = facts.trace.device_kind == "cpu"
    missing = facts.missing((ZeroedOperators,) if on_cpu else (ZeroGrads, IdleCauses))
    if missing is not None:
        return missing
    return _on_cpu(facts) if on_cpu else _on_device(facts)


def _on_device(facts: Facts) -> Judgement:
    zeros = facts[ZeroGrads]
    fills = within_window(facts, Intervals.of_table(zeros.events))
    idle = facts[IdleCauses].window.spans(Cause.HOST_DISPATCH) & union_of(zeros.host.values())
    idle = within_window(facts, idle) if len(zeros.events) else Intervals.none()
    claims = fills | idle
    if not is_worth(facts, claims, NOISE_FRAC):
        return []
    host_ns = sum(spans.measure_ns for spans in zeros.host.values())
    without = Edits.without_device(zeros.row)
    for tid, spans in zeros.host.items():
        without |= Edits.without_host(tid, spans)
    return [
        claim(
            facts,
            RULE,
            claims,
            title=f"Zeroing gradients takes {share_of(facts, claims)}",
            where=_where(facts, zeros.calls),
            fix=FIX,
            low_ns=fills.measure_ns + idle.measure_ns // 2,
            high_ns=claims.measure_ns + fills.measure_ns,
            evidence=[
                fact(
                    f"{plural(len(zeros.events), 'fill')} in {plural(len(zeros.calls), 'call')}, "
                    f"{time_of(facts, fills.measure_ns)}",
                    len(zeros.events),
                    "fills",
                ),
                fact(
                    f"They take the host {time_of(facts, host_ns)}; the device idles meanwhile for "
                    f"{time_of(facts, idle.measure_ns)}",
                    host_ns,
                    "ns",
                ),
                CHANGE,
            ],
            without=without,
        )
    ]


def _on_cpu(facts: Facts) -> Judgement:
    zeros = facts[ZeroedOperators]
    fills, adds = (within_window(facts, Intervals.of_table(ops)) for ops in (zeros.fills, zeros.adds))
    claims = fills | adds
    if not len(zeros.fills) or not is_worth(facts, claims, NOISE_FRAC):
        return []
    return [
        claim(
            facts,
            RULE,
            claims,
            title=f"Zeroing gradients, and adding to the zeros, takes {share_of(facts, claims)}",
            where=_where(facts, zeros.calls),
            fix=FIX,
            low_ns=0,
            high_ns=2 * claims.measure_ns,
            evidence=[
                fact(
                    f"{plural(len(zeros.fills), 'fill')} in {plural(len(zeros.calls), 'call')}, "
                    f"{time_of(facts, fills.measure_ns)}",
                    len(zeros.fills),
                    "fills",
                ),
                fact(
                    f"The backward pass adds to {plural(len(zeros.adds), 'zeroed gradient')}, "
                    f"{time_of(facts, adds.measure_ns)}",
                    len(zeros.adds),
                    "additions",
                ),
                CHANGE,
            ],
        )
    ]


def _where(facts: Facts, calls: Annotations | Frames) -> Where:
    """The line of the first call; without stacks the optimizer."""
    call = calls.take(np.array([0]))
    name = facts.trace.names[int(call.name[0])]
    place = facts[Places].of_span(int(call.tid[0]), int(call.start_ns[0]), int(call.end_ns[0]))
    return Where(place or place_of(name) or shown(name.removeprefix(ZERO_GRAD)))


FIX = "Set gradients to None: optimizer.zero_grad(set_to_none=True), the default since torch 2.0"
CHANGE = change("optimizer.zero_grad(set_to_none=False)", "optimizer.zero_grad(set_to_none=True)")

RULE = TraceRule(
    id="zero-grad-memset",
    needs=(Window, Places),
    title="Gradients are zeroed instead of set to None",
    fix="zero_grad(set_to_none=True)",
    judge=judge,
    page=__doc__ or "",
    signs=re.compile(f"{re.escape(ZERO_GRAD)}|{OF_MODULE.pattern}"),
    signs_in_frames=True,
)
