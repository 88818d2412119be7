"""Recompilation in steady-state steps.

## What it finds
Ranges of torch.compile at work (`… (dynamo_timed)`, `entire_frame_compile`), or frames of its compilers or of Triton's,
on the training thread in more than one step, or in the only one recorded; more than 1 % of the step.

## Why it costs
Compiling a region takes from 0.1 s to minutes, while the device idles. It happens again whenever a guard fails:
another input size, a Python number that changed, a module attribute that was replaced. After eight times torch gives
up and runs the function uncompiled.

## Example
```python
model = torch.compile(model)
for batch in loader:              # batches of any length
    loss = model(batch)
```

## Use instead
```python
model = torch.compile(model, dynamic=True)
torch._dynamo.mark_dynamic(batch, 1)
```
or pad to few lengths; keep step numbers and learning rates as tensors. `TORCH_LOGS=recompiles` names the guard that
failed.

The saving is the time in which the device idles while the host compiles; without an accelerator all of the compiling.
Code for any size is slower than code for one: the low end allows for it that the rest of the step takes three times as
long.

## Known misses
Compiling on other threads or in processes. Warm-up: compilation in the first of several recorded steps only is left
out.

## Source
https://pytorch.org/docs/stable/torch.compiler_troubleshooting.html ("Dealing with recompilations"). 1 % of the step is
where noise ends. Of a CPU job on sentences of many lengths (benchmarks/proof), a step with `dynamic=True`
took 2.5 times what it took before without the compiling: hence the allowance of three.
"""

from __future__ import annotations

import re

import numpy as np

from tightship_analyzers.facts.activity.device_busy import DeviceGaps
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.program.work_threads import WorkThreads
from tightship_analyzers.facts.window.steps import Steps
from tightship_analyzers.findings.claim import share_of, waiter
from tightship_analyzers.findings.evidence import change
from tightship_analyzers.findings.model import NOISE_FRAC, Judgement, TraceRule
from tightship_analyzers.findings.pauses import Pauses, claim_pauses
from tightship_analyzers.trace.model import Frames, HostOps, Table

RANGES = re.compile(
    r".*\(dynamo_timed\)$|entire_(frame|backward)_compile$|_?compile(_inner|_fx_inner)$"
    r"|torch/_dynamo/convert_frame\.py\(\d+\): (_compile|compile_inner)$"
    r"|torch/_inductor/compile_fx\.py\(\d+\): (compile_fx\w*)$|triton/compiler/compiler\.py\(\d+\): compile$"
)
RUN_TIME = re.compile(r".*(cudagraph|runtime|lookup)", re.IGNORECASE)
"""Timed ranges in which a compiled region runs and is not compiled."""

SLOWER = 3
"""How many times as long the rest of the step may take with code for any size; see the page's Source."""


def judge(facts: Facts) -> Judgement:
    """One finding per place that compiles."""
    steps, trace = facts[Steps], facts.trace
    # A compilation shows as a range, as a Python call, or as both.
    pauses = _outermost(_compiling(facts, trace.host_ops), _compiling(facts, trace.frames))
    if steps.count > 1 and not (pauses.start_ns >= steps.host_bounds_ns[1]).any():
        return []
    return claim_pauses(
        facts,
        RULE,
        pauses,
        min_frac=NOISE_FRAC,
        title=lambda claims, _: f"Recompilation holds up {waiter(facts)} for {share_of(facts, claims)}",
        fix="Mark varying sizes: torch.compile(…, dynamic=True) or mark_dynamic; TORCH_LOGS=recompiles says why",
        change=change("model = torch.compile(model)", "model = torch.compile(model, dynamic=True)"),
        cause="compilation",
        what="compilation",
        sure_ns=lambda claims: claims.measure_ns - (SLOWER - 1) * (steps.window_ns - claims.measure_ns),
    )


def _compiling(facts: Facts, table: HostOps | Frames) -> HostOps | Frames:
    steps, names = facts[Steps], facts.trace.names
    near = table.overlapping(steps.start_ns, steps.end_ns)
    near = near.take(facts[WorkThreads].among(near.tid))
    return near.take(names.mask(near.name, lambda name: RANGES.match(name) is not None and not RUN_TIME.match(name)))


def _outermost(*tables: HostOps | Frames) -> Pauses:
    start_ns = np.concatenate([table.start_ns for table in tables])
    end_ns = np.concatenate([table.end_ns for table in tables])
    name, tid = (np.concatenate([getattr(table, column) for table in tables]) for column in ("name", "tid"))
    order = np.lexsort((-end_ns, start_ns))
    return Pauses.outermost(Table(start_ns[order], end_ns[order]), name[order], tid[order])


RULE = TraceRule(
    id="recompilation",
    needs=(Steps, DeviceGaps),
    title="Recompilation in steady-state steps",
    fix="Mark varying sizes as dynamic, or pad to a few sizes",
    judge=judge,
    page=__doc__ or "",
    signs=RANGES,
    signs_in_frames=True,
)
