"""A convolution adds a bias that the following batch norm cancels.

## What it finds
Convolutions with a bias directly followed by a batch norm; the kernels that add the bias and those that sum up its
gradient, together more than 1 % of the step.

## Why it costs
The norm subtracts the mean of each channel, and with it any bias. Adding it reads and writes the whole result of the
convolution, and its gradient, which is always zero, reads all of it once more.

## Example
```python
nn.Conv2d(64, 128, 3), nn.BatchNorm2d(128)
```

## Use instead
```python
nn.Conv2d(64, 128, 3, bias=False), nn.BatchNorm2d(128)
```

The saving is these kernels.

## Known misses
Needs recorded shapes. A bias that the library adds inside the convolution's own kernel costs nothing to speak of and is
not counted.

## Source
torch/profiler/_pattern_matcher.py (`Conv2dBiasFollowedByBatchNorm2dPattern`);
https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html ("Disable bias for convolutions directly followed by a
batch norm"). 1 % of the step is where noise ends.
"""

from __future__ import annotations

import re

from tightship_analyzers.facts.kernels.biased_convolutions import BiasedConvolutions
from tightship_analyzers.facts.kernels.kernel_ops import KernelOps
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.findings.claim import (
    claim,
    costliest,
    in_window,
    is_worth,
    mostly_in,
    share_of,
    time_of,
    within_window,
)
from tightship_analyzers.findings.evidence import change, fact
from tightship_analyzers.findings.model import NOISE_FRAC, Judgement, TraceRule
from tightship_analyzers.graph.edits import Edits
from tightship_analyzers.trace.intervals import Intervals
from tightship_platform.units import plural


def judge(facts: Facts) -> Judgement:
    """All such convolutions together, at the costliest place."""
    biased, kernels = facts[BiasedConvolutions], facts[KernelOps]
    events = kernels.events.take(biased.rows)
    claims = within_window(facts, Intervals.of_table(events))
    if not is_worth(facts, claims, NOISE_FRAC):
        return []
    where = costliest(facts, kernels.op[biased.rows], events.dur_ns, "convolutions")
    return [
        claim(
            facts,
            RULE,
            claims,
            title=f"Convolution biases that batch norm cancels cost {share_of(facts, claims)}",
            where=where,
            fix="Construct these convolutions with bias=False",
            evidence=[
                fact(
                    f"{plural(biased.convolutions, 'biased convolution')} before a batch norm {in_window(facts)}, "
                    f"{plural(len(events), 'kernel')}, {time_of(facts, int(events.dur_ns.sum()))}",
                    biased.convolutions,
                    "convolutions",
                ),
                mostly_in(facts, kernels.op[biased.rows], events.dur_ns),
                change(
                    "nn.Conv2d(64, 128, 3), nn.BatchNorm2d(128)",
                    "nn.Conv2d(64, 128, 3, bias=False), nn.BatchNorm2d(128)",
                ),
            ],
            without=Edits.without_device(kernels.row[biased.rows]),
        )
    ]


RULE = TraceRule(
    id="conv-bias-before-batch-norm",
    needs=(Window, KernelOps, BiasedConvolutions),
    title="A convolution's bias is cancelled by the following batch norm",
    fix="bias=False",
    judge=judge,
    page=__doc__ or "",
    signs=re.compile("^aten::batch_norm$"),
)
