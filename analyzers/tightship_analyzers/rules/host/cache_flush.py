"""The loop returns cached device memory to the driver.

## What it finds
Calls of `torch.cuda.empty_cache()` on the training thread while the device idles; more than 1 % of the step.

## Why it costs
torch keeps freed blocks so that the next allocation costs microseconds. Emptying the cache waits for the device, frees
every block with a driver call, and makes the next step allocate them all again. It does not make more memory available
to the program itself.

## Example
```python
for batch in loader:
    train_step(batch)
    torch.cuda.empty_cache()
```

## Use instead
```python
for batch in loader:
    train_step(batch)        # the cache stays
```

The saving is the time in which the device idles during these calls, and the gap that they leave behind.

## Known misses
The allocations that the next step has to make again belong to `allocator-churn`. Needs Python stacks.

## Source
https://pytorch.org/docs/stable/generated/torch.cuda.memory.empty_cache.html: "doesn't increase the amount of GPU memory
available for PyTorch". 1 % of the step is where noise ends.
"""

from __future__ import annotations

import re

from tightship_analyzers.facts.activity.device_busy import DeviceGaps
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.program.frames import ThreadFrames
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.findings.claim import share_of
from tightship_analyzers.findings.evidence import change
from tightship_analyzers.findings.model import NOISE_FRAC, Judgement, TraceRule
from tightship_analyzers.findings.pauses import Pauses, claim_pauses

FRAMES = re.compile(
    r"torch/(cuda/memory|xpu/memory|accelerator/memory|mps/__init__)\.py\(\d+\): empty_cache"
    r"|<built-in (method|function) _(cuda|xpu|mps|accelerator)_emptyCache\b"
)


def judge(facts: Facts) -> Judgement:
    """One finding per place."""
    return claim_pauses(
        facts,
        RULE,
        Pauses.in_frames(facts, FRAMES.match),
        min_frac=NOISE_FRAC,
        title=lambda claims, name: f"empty_cache() idles the device for {share_of(facts, claims)}",
        fix="Remove torch.cuda.empty_cache() from the loop",
        change=change("torch.cuda.empty_cache()", "# nothing: torch uses the cached blocks again"),
        cause="allocator",
        what="call",
    )


RULE = TraceRule(
    id="cache-flush",
    needs=(Window, ThreadFrames, DeviceGaps),
    title="The loop calls empty_cache()",
    fix="Remove empty_cache() from the loop",
    judge=judge,
    page=__doc__ or "",
    signs=FRAMES,
    signs_in_frames=True,
)
