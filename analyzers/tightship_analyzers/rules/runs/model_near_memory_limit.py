"""Device memory is nearly full.

## What it finds
A run that uses 95 % or more of an accelerator's memory in at least half of its samples, from its first step on. A
processor is not judged: its memory is the host's, which other programs share and swap stretches.

## Why it costs
Nothing yet: it is a risk, without a saving. A longer sequence, a larger batch at the end of an epoch, an evaluation
or memory in pieces too small to use ends the run with an out-of-memory error, and what it did since its last save is
lost. Near the limit PyTorch's allocator also gives cached blocks back and asks again, which stops the device (rule
`allocator-churn`).

## Example
```python
for batch in batches:             # 77 of 80 GiB are in use
    loss = model(batch).loss      # the longest sequence comes on the third day
    loss.backward()
```

## Use instead
```python
# tightship run --offload plan.yaml -- python train.py
for batch in batches:             # the script stays as it is; a window of the model's layers is on the device
    loss = model(batch).loss
    loss.backward()
```
The plan comes from a trace of the workflow itself:
```
tightship profile llm-7b --duration 2s --wait
tightship offload plan --workflow=llm-7b -o plan.yaml
```
A plan keeps a window of layers on the device and the rest in host memory, and says beforehand how long a step will
take. Where little is missing, a smaller micro-batch with accumulation or activation checkpointing may do.

## Known misses
Samples show what is reserved, not what is needed: PyTorch's allocator keeps freed blocks, and JAX and TensorFlow take
most of a device at their start. `torch.cuda.max_memory_allocated()` shows the need. Peaks between two samples are not
seen. Where a device's processes cannot be distinguished, the use of the whole device is taken for the run's.

## Source
vLLM, which sizes itself to a device, leaves 10 % of it free by default (`gpu_memory_utilization=0.9`,
https://docs.vllm.ai/en/latest/configuration/engine_args.html): half of that is left at 95 %. What PyTorch reserves
beyond what tensors use: https://pytorch.org/docs/stable/notes/cuda.html#memory-management.
"""

from __future__ import annotations

from tightship_analyzers.facts.run.held_idle import RunHistory
from tightship_analyzers.facts.run.memory import NEAR_FRAC
from tightship_analyzers.findings.evidence import fact
from tightship_analyzers.findings.model import Finding, Judgement, NotApplicable, RunRule, Saving
from tightship_analyzers.rules.runs.plan_advice import plan_evidence, plan_fix
from tightship_platform.results.memory_lack import Lack
from tightship_platform.units import format_bytes, format_frac, plural

SUSTAINED_FRAC = 0.5
"""Share of samples above which high usage counts as sustained."""
MIN_SAMPLES = 30
"""Half a minute at one sample a second: less says nothing of a run."""
SHOWN_DEVICES = 5
"""The fullest ones are listed as evidence."""


def judge(history: RunHistory) -> Judgement:
    """All devices of a run together, the fullest first."""
    if not history.memory:
        return NotApplicable("needs samples of an accelerator's memory; there are none")
    if history.end is not None and history.end.lack is Lack.DEVICE:
        return []  # it has come to pass: out-of-memory-run says so
    full = {
        device: memory
        for device, memory in history.memory.items()
        if memory.samples >= MIN_SAMPLES and memory.near >= SUSTAINED_FRAC * memory.samples
    }
    if not full:
        return []
    fullest = sorted(full, key=lambda device: -full[device].peak_bytes / full[device].capacity_bytes)
    names = [history.device_names[device] for device in fullest]
    top = full[fullest[0]]
    return [
        Finding(
            rule=RULE.id,
            title=f"{format_bytes(top.peak_bytes)} of {format_bytes(top.capacity_bytes)} device memory are in use, "
            f"{format_frac(NEAR_FRAC)} or more for {format_frac(top.near / top.samples)} of the time",
            place=names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more",
            fix=plan_fix(history.workflow),
            saving=Saving(value=0, low=0, high=0),
            unit=RULE.scope.unit,
            share_frac=0.0,
            evidence=[
                fact(
                    f"{plural(len(full), 'device')} of {len(history.memory)} nearly full",
                    len(full),
                    "devices",
                ),
                *(
                    fact(
                        f"{history.device_names[device]}: at most {format_bytes(full[device].peak_bytes)}, "
                        f"{plural(full[device].near, 'sample')} of {full[device].samples:,} nearly full",
                        full[device].peak_bytes,
                        "bytes",
                    )
                    for device in fullest[:SHOWN_DEVICES]
                ),
                plan_evidence(history.workflow),
            ],
        )
    ]


RULE = RunRule(
    id="model-near-memory-limit",
    title="Device memory is nearly full",
    fix="Offload layers, with a plan made from the workflow's own trace",
    judge=judge,
    page=__doc__ or "",
)
