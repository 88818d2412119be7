"""Memory-layout conversions around every convolution.

## What it finds
Kernels that only change the layout of a tensor (cuDNN's `nchwToNhwcKernel` and `nhwcToNchwKernel`, MIOpen's
`batched_transpose_…`); together more than 1 % of the step.

## Why it costs
Tensor cores want channels last (NHWC). A model in the default layout (NCHW) makes the library convert the input, the
weight and the output of each convolution, and each conversion reads and writes the whole tensor.

## Example
```python
model = ResNet50().to(device)
```

## Use instead
```python
model = ResNet50().to(device, memory_format=torch.channels_last)
images = images.to(device, memory_format=torch.channels_last)
```

The saving is the time of these kernels; its low end is half of it, for operators that do not keep channels last.

## Known misses
Layout changes by `contiguous()` or `permute` cannot be distinguished from needed copies. Weights that are converted
once per step remain where they are stored in another type.

## Source
https://pytorch.org/tutorials/intermediate/memory_format_tutorial.html; NVIDIA, "Convolutional Layers User's Guide"
(tensor layouts). 1 % of the step is where noise ends.
"""

from __future__ import annotations

import re

import numpy as np

from tightship_analyzers.facts.kernels.kernel_ops import KernelOps
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.findings.claim import claim, costliest, is_worth, mostly_in, share_of, time_of, within_window
from tightship_analyzers.findings.evidence import change, fact
from tightship_analyzers.findings.model import NOISE_FRAC, Judgement, TraceRule
from tightship_analyzers.graph.edits import Edits
from tightship_analyzers.trace.intervals import Intervals
from tightship_platform.text import shown
from tightship_platform.units import plural

CONVERSIONS = re.compile(
    r"nchwToNhwc|nhwcToNchw|nchwToFoldedNhwc|nhwcToFoldedNhwc|FoldedNhwcToNchw|nchw2nhwc|nhwc2nchw"
    r"|^batched_transpose_\d+x\d+_",
    re.IGNORECASE,
)


def judge(facts: Facts) -> Judgement:
    """All conversions together, at the costliest place."""
    kernels, names = facts[KernelOps], facts.trace.names
    rows = np.flatnonzero(names.mask(kernels.events.name, lambda name: CONVERSIONS.search(name) is not None))
    events = kernels.events.take(rows)
    claims = within_window(facts, Intervals.of_table(events))
    if not is_worth(facts, claims, NOISE_FRAC):
        return []
    where = costliest(facts, kernels.op[rows], events.dur_ns, shown(names[int(events.name[0])], 100))
    return [
        claim(
            facts,
            RULE,
            claims,
            title=f"Memory-layout conversions around convolutions take {share_of(facts, claims)}",
            where=where,
            fix="Put model and images into channels-last memory: .to(memory_format=torch.channels_last)",
            low_ns=claims.measure_ns // 2,
            evidence=[
                fact(
                    f"{plural(len(rows), 'conversion')}, {time_of(facts, int(events.dur_ns.sum()))}",
                    len(rows),
                    "kernels",
                ),
                mostly_in(facts, kernels.op[rows], events.dur_ns),
                change("model.to(device)", "model.to(device, memory_format=torch.channels_last)  # the images too"),
            ],
            without=Edits.without_device(kernels.row[rows]),
        )
    ]


RULE = TraceRule(
    id="layout-ping-pong",
    needs=(Window, KernelOps),
    title="Memory-layout conversions around convolutions",
    fix="Use channels-last memory throughout",
    judge=judge,
    page=__doc__ or "",
    signs=CONVERSIONS,
)
