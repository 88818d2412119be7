"""Python collects garbage in the loop, and the device waits.

## What it finds
Calls of `gc.collect()` on the training thread, and collections that the interpreter started itself where they were
recorded (`record_python_gc_info`), while the device idles; more than 1 % of the step.

## Why it costs
A full collection visits every object of the process: 50 to 500 ms once a large model, its optimizer and its data set
are loaded. Nothing is issued to the device meanwhile. With several ranks all wait for the one that collects.

## Example
```python
for step, batch in enumerate(loader):
    train_step(batch)
    gc.collect()
```

## Use instead
```python
gc.collect()
gc.freeze()                  # what lives now is never visited again
gc.disable()
for step, batch in enumerate(loader):
    train_step(batch)
    if step % 1000 == 0:
        gc.collect(1)        # young objects only, in the same step on all ranks
```

The saving is the time in which the device idles during these calls, and the gap that they leave behind.

## Known misses
Without `record_python_gc_info` a collection that the interpreter starts itself leaves no frame: it shows as idle time
of whatever function it struck. Needs Python stacks.

## Source
https://docs.python.org/3/library/gc.html; torchtitan (`GarbageCollection` in tools/utils.py) disables the
automatic collection for this reason. 1 % of the step is where noise ends.
"""

from __future__ import annotations

from tightship_analyzers.facts.activity.device_busy import DeviceGaps
from tightship_analyzers.facts.activity.host_activity import GARBAGE_FRAMES
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.program.frames import ThreadFrames
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.findings.claim import share_of, waiter
from tightship_analyzers.findings.evidence import change
from tightship_analyzers.findings.model import NOISE_FRAC, Judgement, TraceRule
from tightship_analyzers.findings.pauses import Pauses, claim_pauses


def judge(facts: Facts) -> Judgement:
    """One finding per place."""
    return claim_pauses(
        facts,
        RULE,
        Pauses.in_frames(facts, GARBAGE_FRAMES.fullmatch),
        min_frac=NOISE_FRAC,
        title=lambda claims, name: f"Garbage collection holds up {waiter(facts)} for {share_of(facts, claims)}",
        fix="Call gc.freeze() once after start-up and collect rarely, generation 1 only, in the same step on all ranks",
        change=change("gc.collect()", "gc.freeze()  # once, before the loop; then gc.collect(1) every 1000 steps"),
        cause="garbage collection",
        what="collection",
    )


RULE = TraceRule(
    id="garbage-collection",
    needs=(Window, ThreadFrames, DeviceGaps),
    title="Garbage collection in the loop",
    fix="gc.freeze() after start-up, and collect rarely",
    judge=judge,
    page=__doc__ or "",
    signs=GARBAGE_FRAMES,
    signs_in_frames=True,
)
