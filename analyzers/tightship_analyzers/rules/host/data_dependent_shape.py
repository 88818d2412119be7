"""The host waits for the device because a tensor's size depends on values.

## What it finds
Places that call `nonzero`, index with a boolean mask, `masked_select`, `unique` or `bincount` on the device, where the
host waits for the number of elements and the device then idles; more than 1 % of the step.

## Why it costs
The host must know the size of the result before it can allocate it. So it waits until the device has counted, and the
device waits until the host has launched new work. It also breaks CUDA graphs and compiled regions.

## Example
```python
loss = loss_per_token[mask].mean()
```

## Use instead
```python
loss = (loss_per_token * mask).sum() / mask.sum()
```
`torch.where` keeps the size; `torch.nonzero_static(x, size=n)` fixes it. Where the size must be known, compute the mask
a step ahead, on the host.

Of each gap that is open when the call returns, at most as much goes as the host was blocked. Where other blocking calls
follow in the same step they may inherit the wait: then the low end is 0.

## Known misses
Libraries with their own kernels that read a count back without one of these operators.

## Source
https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html ("Avoid unnecessary CPU-GPU synchronization" names
nonzero and masked operators). 1 % of the step is where noise ends.
"""

from __future__ import annotations

import re

from tightship_analyzers.facts.blocking.host_syncs import SIZED_BY_DATA
from tightship_analyzers.facts.blocking.sync_places import SyncKind, SyncPlaces
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.findings.claim import share_of
from tightship_analyzers.findings.evidence import change
from tightship_analyzers.findings.model import NOISE_FRAC, Judgement, TraceRule
from tightship_analyzers.findings.syncs import claim_syncs


def judge(facts: Facts) -> Judgement:
    """One finding per place that asks for a size."""
    return claim_syncs(
        facts,
        RULE,
        SyncKind.SIZE,
        min_frac=NOISE_FRAC,
        title=lambda place: (
            f"{place.operator} makes the host wait for the size of its result; the device then idles for "
            f"{share_of(facts, place.cost)}"
        ),
        fix="Keep sizes fixed: torch.where or a factor instead of boolean indexing, nonzero_static for nonzero",
        change=change("loss = losses[mask].mean()", "loss = (losses * mask).sum() / mask.sum()"),
    )


RULE = TraceRule(
    id="data-dependent-shape",
    needs=(Window, SyncPlaces),
    title="Host blocked on a data-dependent shape",
    fix="Use operators with a fixed output size",
    judge=judge,
    page=__doc__ or "",
    signs=re.compile("|".join(map(re.escape, sorted(SIZED_BY_DATA)))),
)
