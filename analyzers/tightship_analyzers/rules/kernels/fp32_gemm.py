"""FP32 GEMM and convolution kernels do not use tensor cores.

## What it finds
Kernels of matrix products and convolutions whose name says that they compute in float32 without tensor cores
(`…sgemm…`, `simt_sfprop`, `scudnn`, float winograd), on a device that has tensor cores; together more than 5 % of the
step.

## Why it costs
Tensor cores multiply 4 to 16 times as fast: a V100 reaches 125 TFLOP/s in float16 and 15.7 in float32, an A100 156 in
TF32 and 19.5 in float32.

## Example
```python
loss = model(batch).mean()                     # float32 throughout
```

## Use instead
```python
torch.backends.cuda.matmul.fp32_precision = "tf32"     # Ampere and later; convolutions: cudnn.conv.fp32_precision
with torch.autocast("cuda", dtype=torch.bfloat16):     # V100 and T4: torch.float16, with a GradScaler
    loss = model(batch).mean()
```

Of products, `tightship run --apply` allows TF32 by a variable of the environment (`TORCH_ALLOW_TF32_CUBLAS_OVERRIDE`).

The saving is what the same kernels would take less, at most two thirds of each: real kernels gain up to three times,
not the ratio of the peak rates, which is the high end. The low end assumes one and a half times. On a device that is
not in the catalogue, and of which only its compute capability or its kernels tell that it has tensor cores, three times
is the high end, one and a half the value, and nothing is sure: on some devices TF32 is no faster than float32.

## Known misses
Kernels shorter than 10 µs are left out: their launch limits them. AMD's kernels do not tell their type by name. Whether
the model converges in lower precision is for its owner to say.

## Source
Peak rates: the device's entry in hardware.toml. Three times:
https://developer.nvidia.com/automatic-mixed-precision. torch/profiler/_pattern_matcher.py (`FP32MatMulPattern`). 5 % of
the step.
"""

from __future__ import annotations

import re

import numpy as np

from tightship_analyzers.facts.kernels.kernel_ops import KernelOps
from tightship_analyzers.facts.kernels.tensor_cores import TensorCores
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.findings.claim import (
    claim,
    costliest,
    gone,
    in_window,
    is_worth,
    mostly_in,
    share_of,
    time_of,
    within_window,
)
from tightship_analyzers.findings.evidence import change, fact, overlay
from tightship_analyzers.findings.model import Judgement, TraceRule
from tightship_analyzers.graph.edits import Edits
from tightship_platform.results.overlay import TF32
from tightship_platform.text import shown
from tightship_platform.units import plural

MIN_STEP_FRAC = 0.05
"""Share of the step below which it is no finding."""
MIN_KERNEL_NS = 10_000
"""A launch takes 3 to 10 µs (source: launch-bound): of a shorter kernel it is the limit."""
MAX_SPEEDUP = 3.0
"""Source: the page. Of whole models, although peak rates differ by more."""
SURE_SPEEDUP = 1.5
"""Half of what is gained at most, as products that memory limits gain no more than their bytes, a half."""

SIMT = re.compile(
    r"(?<![a-z0-9])sgemm|_simt_s(fprop|dgrad|wgrad)|scudnn|convolve_sgemm|f32f32_f32f32_f32"
    r"|winograd\w*(::\w+)*<float, float>|(dgrad|wgrad)\w*_engine<float,|conv2d_grouped_direct_kernel<float",
    re.IGNORECASE,
)
CONVOLUTION = re.compile(r"fprop|dgrad|wgrad|scudnn|convolve|winograd|conv2d", re.IGNORECASE)
"""The variable speaks of cuBLAS alone; cuDNN may use TF32 unless the script forbids it."""
NUMERICS = (
    "Float32 matrix products round their inputs to TF32, 10 bits of mantissa in place of 23: losses differ from before"
)
TENSOR = re.compile(r"tensorop|_tf32|s1688|s16816|xmma_\w+_tf32|_h884|hmma|half_t|bfloat16", re.IGNORECASE)


def judge(facts: Facts) -> Judgement:
    """All kernels together, at the place that costs most."""
    kernels, names, cores = facts[KernelOps], facts.trace.names, facts[TensorCores]
    slow = names.mask(kernels.events.name, lambda name: SIMT.search(name) is not None and not TENSOR.search(name))
    rows = np.flatnonzero(slow & (kernels.events.dur_ns >= MIN_KERNEL_NS))
    events = kernels.events.take(rows)
    high_left = 1 / (cores.gain or MAX_SPEEDUP)
    left = max(high_left, 1 / MAX_SPEEDUP) if cores.gain else 1 / SURE_SPEEDUP

    def saved(frac: float) -> int:
        return within_window(facts, gone(events, np.full(len(events), frac))).measure_ns

    claims = within_window(facts, gone(events, np.full(len(events), 1 - left)))
    if not is_worth(facts, claims, MIN_STEP_FRAC):
        return []
    lost_ns = np.rint(events.dur_ns * (1 - left)).astype(np.int64)
    where = costliest(facts, kernels.op[rows], lost_ns, shown(names[int(events.name[0])], 100))
    tf32 = cores.target == "tf32"
    convolves = names.mask(events.name, lambda name: CONVOLUTION.search(name) is not None)
    by_variable = tf32 and 2 * int(events.dur_ns[convolves].sum()) < int(events.dur_ns.sum())
    return [
        claim(
            facts,
            RULE,
            claims,
            title=f"FP32 GEMM kernels do not use tensor cores: {share_of(facts, claims)}",
            where=where,
            fix='Allow TF32: torch.backends.cuda.matmul.fp32_precision = "tf32"; or autocast to bfloat16'
            if tf32
            else "Use mixed precision: torch.autocast with float16 and a GradScaler",
            low_ns=saved(1 - max(left, 1 / SURE_SPEEDUP)) if cores.gain else 0,
            high_ns=saved(1 - high_left),
            evidence=[
                fact(
                    f"{plural(len(rows), 'kernel')} {in_window(facts)}, {time_of(facts, int(events.dur_ns.sum()))}",
                    len(rows),
                    "kernels",
                ),
                fact(cores.text, cores.gain, "times" if cores.gain else ""),
                mostly_in(facts, kernels.op[rows], events.dur_ns),
                change(
                    "loss = model(batch)",
                    'torch.backends.cuda.matmul.fp32_precision = "tf32"  # once'
                    if tf32
                    else 'with torch.autocast("cuda", dtype=torch.float16):\n    loss = model(batch)',
                ),
                overlay(TF32, "1", NUMERICS) if by_variable else None,
            ],
            without=Edits.without_device(kernels.row[rows], left),
        )
    ]


RULE = TraceRule(
    id="fp32-gemm",
    needs=(Window, KernelOps, TensorCores),
    title="FP32 GEMM kernels do not use tensor cores",
    fix="Allow TF32, or use mixed precision",
    judge=judge,
    page=__doc__ or "",
    signs=SIMT,
)
