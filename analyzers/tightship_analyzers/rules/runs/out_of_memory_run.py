"""Run failed out of memory.

## What it finds
Runs that failed with an out-of-memory exception (`torch.OutOfMemoryError`, CUDA's and its libraries' words for it,
`MemoryError`, the CPU allocator's), also where another exception followed from it; and runs that failed while the
kernel killed a process of their control group for lack of memory.

## Why it costs
What the run did since its last save is lost, and the next attempt begins with start-up again. Repeated with the same
settings it ends the same way.

## Example
```python
loss = model(batch).loss
loss.backward()   # torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total …
```

## Use instead
```python
# tightship run --offload plan.yaml -- python train.py
loss = model(batch).loss   # the script stays as it is; a window of the model's layers is on the device
loss.backward()
```
The plan comes from a trace of a run that fits, such as one with a smaller batch:
```
tightship profile llm-7b --duration 2s --wait
tightship offload plan --workflow=llm-7b -o plan.yaml
```
A plan keeps a window of layers on the device and the rest in host memory, and says beforehand what fits and how long a
step will take. Where the host's memory was not enough, a plan with layers in files, fewer loader workers or a larger
limit for the job help.

The value is the device time outside of steps: start-up, and from the last step to the end. The next attempt spends it
again for certain. What was done in steps since the last save is not seen, so the high end is all of the run's device
time but what was held idle, which is its own finding. Of a run in which no step was counted that is the value,
too, and the low end is 0: where the counter does not see the optimizer, it may have saved some of its work.

## Known misses
An exception in a process that never imported torch, or that ends with `os._exit`. A job that catches the exception and
ends with its own message. A run whose launcher was killed with it is lost, not failed, and says nothing. Kills are
counted per control group: where several jobs share one, another job's counts, too.

## Source
Zhang et al., An Empirical Study on Program Failures of Deep Learning Jobs (ICSE 2020, 4,960 failures of one platform),
and Gao et al., Estimating GPU Memory Consumption of Deep Learning Models (ESEC/FSE 2020), which begins with them.
The kernel's counter: https://docs.kernel.org/admin-guide/cgroup-v2.html#memory-interface-files (`oom_kill`).
"""

from __future__ import annotations

from tightship_analyzers.facts.run.held_idle import RunHistory
from tightship_analyzers.facts.run.memory import RunEnd
from tightship_analyzers.findings.evidence import fact
from tightship_analyzers.findings.model import Finding, Judgement, RunRule, Saving
from tightship_analyzers.rules.runs.plan_advice import plan_evidence, plan_fix
from tightship_platform.results.evidence import Evidence
from tightship_platform.results.memory_lack import Lack
from tightship_platform.units import format_bytes, format_frac, format_ns, plural
from tightship_platform.vocabulary import Bucket, Method

OUTSIDE_STEPS = (Bucket.STARTUP, Bucket.SHUTDOWN)
"""What no save can hold."""

HOST_FIX = (
    "Give the job more host memory, or let it use less: fewer loader workers, less prefetching, a dataset that is read "
    "as it is needed; of an offload plan, layers in files"
)


def judge(history: RunHistory) -> Judgement:
    """How a failed run ended."""
    if history.end is None or history.end.lack is None:
        return []
    end, lack = history.end, history.end.lack
    saving = _lost(history)
    share = saving.value / sum(history.account.values()) if saving.value else 0.0
    return [
        Finding(
            rule=RULE.id,
            title=f"The run failed: out of {lack} memory{_loss(saving, share)}",
            place=next(iter(history.device_names.values())) if len(history.device_names) == 1 else "",
            fix=plan_fix(history.workflow) if lack is Lack.DEVICE else HOST_FIX,
            saving=saving,
            unit=RULE.scope.unit,
            share_frac=share,
            evidence=_evidence(history, end, lack),
        )
    ]


def _loss(saving: Saving, share: float) -> str:
    if not saving.value:
        return ""
    what = "outside of its steps are lost" if saving.low else "before any step was counted may be lost"
    return f"; {format_ns(saving.value)} {what}, {format_frac(share)} of it"


def _lost(history: RunHistory) -> Saving:
    """Device-ns that are lost. Other findings claim what was held idle."""
    at_most = sum(history.account.values()) - history.account.get(Bucket.HELD_IDLE, 0)
    certain = sum(history.account.get(bucket, 0) for bucket in OUTSIDE_STEPS)
    value = at_most if history.first_step_ns is None else certain
    return Saving(value=value, low=certain, high=at_most, method=Method.BOUND)


def _evidence(history: RunHistory, end: RunEnd, lack: Lack) -> list[Evidence]:
    found: list[Evidence] = []
    if end.error:
        found.append(fact(f"It ended with {end.error}"))
    if end.oom_kills:
        killed = plural(end.oom_kills, "process", "processes")
        found.append(fact(f"The kernel's OOM killer killed {killed} of its control group", end.oom_kills))
    for device, memory in history.memory.items() if lack is Lack.DEVICE else ():
        used = f"{format_bytes(memory.peak_bytes)} of {format_bytes(memory.capacity_bytes)}"
        found.append(fact(f"{history.device_names[device]}: at most {used} seen in use", memory.peak_bytes, "bytes"))
    if history.first_step_ns is None:
        found.append(fact("No completed step was counted"))
    if lack is Lack.DEVICE:
        found.append(plan_evidence(history.workflow))
    return found


RULE = RunRule(
    id="out-of-memory-run",
    title="Run failed out of memory",
    fix="Offload layers, with a plan made from the workflow's own trace",
    judge=judge,
    page=__doc__ or "",
)
