"""Allocated devices sit idle: the run holds them while nothing happens.

## What it finds
Stretches of a minute or more in which a run held a device, used less than 5 % of it, and no rank completed a step. A
run that makes steps is looked at from its first one on; a run that never made any, from its start.

## Why it costs
Nobody else can use the device. Typical causes: a notebook left open, a job that hangs in a collective, a wait for
another job or for a person, post-processing on the host after the last step.

## Example
```python
trainer.fit(model)
upload(results)          # an hour on the host; the GPUs are still held
```

## Use instead
```python
trainer.fit(model)
submit("upload.py", devices=0)   # a separate job, without a device
```
Let notebooks release their device after an idle time; give a job that may hang a time-out
(`init_process_group(timeout=…)`).

The value is the idle time, the low end what is left after a grace of one minute per stretch.

## Known misses
Minutes without samples are unknown, not idle. Of a run that makes steps, the time before the first one is start-up,
however long. A process that keeps the device busy with nothing useful.

## Source
In the fleet that Alibaba published in 2026 (cluster-trace-v2026-GenAI: 143 GPU pods over 23 h) almost half of the GPU
time lies in stretches of ten minutes or more below 5 % duty cycle. One minute is the resolution of the rollups.
"""

from __future__ import annotations

from datetime import UTC, datetime

from tightship_analyzers.facts.run.held_idle import MIN_WINDOW_NS, RunHistory, held_idle
from tightship_analyzers.findings.evidence import fact
from tightship_analyzers.findings.model import Finding, Judgement, NotApplicable, RunRule, Saving
from tightship_platform.units import NS_PER_S, format_frac, format_ns, plural
from tightship_platform.vocabulary import Method

SHOWN_WINDOWS = 5
"""The longest ones are listed as evidence."""


def judge(history: RunHistory) -> Judgement:
    """All held-idle stretches of a run together."""
    if not history.minutes:
        return NotApplicable("needs samples of the run's devices; there are none")
    idle = held_idle(history)
    windows = [(end - start, start, device) for device, spans in idle.items() for start, end in spans]
    if not windows:
        return []
    total_ns = sum(length for length, _, _ in windows)
    windows.sort(key=lambda window: -window[0])
    devices = [history.device_names[device] for device in idle]
    share = total_ns / history.device_ns
    return [
        Finding(
            rule=RULE.id,
            title=f"Devices are allocated and idle for {format_ns(total_ns)}, {format_frac(share)} of the run",
            place=devices[0] if len(devices) == 1 else f"{devices[0]} and {len(devices) - 1} more",
            fix="Release the device when training ends or pauses: end the process, do the rest in a CPU job",
            saving=Saving(
                value=total_ns,
                low=sum(length - MIN_WINDOW_NS for length, _, _ in windows),
                high=total_ns,
                method=Method.BOUND,
            ),
            unit=RULE.scope.unit,
            share_frac=share,
            evidence=[
                fact(
                    f"{plural(len(windows), 'stretch', 'stretches')} on {plural(len(devices), 'device')}",
                    len(windows),
                    "stretches",
                ),
                *(
                    fact(f"{history.device_names[device]}: {format_ns(length)} from {_utc(start)}", length, "ns")
                    for length, start, device in windows[:SHOWN_WINDOWS]
                ),
            ],
        )
    ]


def _utc(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns // NS_PER_S, UTC).strftime("%Y-%m-%d %H:%M UTC")


RULE = RunRule(
    id="device-held-idle",
    title="Allocated devices sit idle",
    fix="Release the device when training ends or pauses",
    judge=judge,
    page=__doc__ or "",
)
