"""Gradients are zeroed instead of set to None.

## What it finds
Fills and kernels that `optimizer.zero_grad()` starts on the device; more than 1 % of the step.

## Why it costs
Every gradient is written once more per step, by one launch per parameter or group of parameters; and the backward pass
then reads it again to add to it, where it could simply write.

## Example
```python
optimizer.zero_grad(set_to_none=False)
```

## Use instead
```python
optimizer.zero_grad()        # sets the gradients to None since torch 2.0; before: zero_grad(set_to_none=True)
```

The saving is the fills. Its high end is twice that: the backward pass then also saves reading each gradient once.

## Known misses
Programs that clear gradients by hand, and wrappers (`model.zero_grad`) that do not call the optimizer's method. Where
gradients are accumulated over several backward passes, only the first of them needs no zeros.

## Source
torch/profiler/_pattern_matcher.py (`GradNotSetToNonePattern`);
https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html. 1 % of the step is where noise ends.
"""

from __future__ import annotations

import re

import numpy as np

from tightship_analyzers.facts.kernels.zero_grads import ZERO_GRAD, ZeroGrads
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.program.places import Places
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.findings.claim import Where, claim, is_worth, share_of, time_of, within_window
from tightship_analyzers.findings.evidence import change, fact
from tightship_analyzers.findings.model import NOISE_FRAC, Judgement, TraceRule
from tightship_analyzers.graph.edits import Edits
from tightship_analyzers.trace.intervals import Intervals
from tightship_platform.text import shown
from tightship_platform.units import plural


def judge(facts: Facts) -> Judgement:
    """All calls together."""
    zeros, where = facts[ZeroGrads], facts[Places]
    claims = within_window(facts, Intervals.of_table(zeros.events))
    if not is_worth(facts, claims, NOISE_FRAC):
        return []
    call = zeros.calls.take(np.array([0]))
    optimizer = shown(facts.trace.names[int(call.name[0])].removeprefix(ZERO_GRAD))
    place = where.of_span(int(call.tid[0]), int(call.start_ns[0]), int(call.end_ns[0]))
    return [
        claim(
            facts,
            RULE,
            claims,
            title=f"Zeroing gradients takes {share_of(facts, claims)}",
            where=Where(place or optimizer),
            fix="Set gradients to None: optimizer.zero_grad(set_to_none=True), the default since torch 2.0",
            high_ns=2 * claims.measure_ns,
            evidence=[
                fact(
                    f"{plural(len(zeros.events), 'fill')} in {plural(len(zeros.calls), 'call')}, "
                    f"{time_of(facts, claims.measure_ns)}",
                    len(zeros.events),
                    "fills",
                ),
                change("optimizer.zero_grad(set_to_none=False)", "optimizer.zero_grad(set_to_none=True)"),
            ],
            without=Edits.without_device(zeros.row),
        )
    ]


RULE = TraceRule(
    id="zero-grad-memset",
    needs=(Window, ZeroGrads),
    title="Gradients are zeroed instead of set to None",
    fix="zero_grad(set_to_none=True)",
    judge=judge,
    page=__doc__ or "",
    signs=re.compile(re.escape(ZERO_GRAD)),
)
