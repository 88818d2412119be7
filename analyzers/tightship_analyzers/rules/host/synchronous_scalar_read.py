"""Host blocked reading a scalar from the device in every step.

## What it finds
Places where the host reads a value from the device (`.item()`, `float(loss)`, `if tensor:`) and therefore blocks until
the device has finished, and the device then idles until the host has launched new work; more than 2 % of the step.

## Why it costs
The host normally runs ahead and queues kernels, so that the device always has work. A read empties the queue: the host
waits for the device, then the device waits for the host.

## Example
```python
for batch in loader:
    loss = train_step(batch)
    running += loss.item()
```

## Use instead
```python
running = torch.zeros((), device=device)
for step, batch in enumerate(loader):
    loss = train_step(batch)
    running += loss.detach()
    if step % 100 == 0:
        log(running.item())
```

Of each gap that is open when the call returns, at most as much goes as the host was blocked. Where other blocking calls
follow in the same step they may inherit the wait: then the low end is 0.

## Known misses
Copies that block and calls that wait without reading have their own rules. On a job that computes on the CPU the
rule does not apply: there the operator has finished when it returns, and a read waits for nothing.

## Source
https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html ("Avoid unnecessary CPU-GPU synchronization"). 2 % of
the step is where noise ends.
"""

from __future__ import annotations

from tightship_analyzers.facts.blocking.sync_places import SyncKind, SyncPlaces
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.findings.claim import share_of
from tightship_analyzers.findings.evidence import change
from tightship_analyzers.findings.model import Judgement, TraceRule
from tightship_analyzers.findings.syncs import claim_syncs

MIN_STEP_FRAC = 0.02
"""Share of the step below which it is no finding."""


def judge(facts: Facts) -> Judgement:
    """One finding per place that reads."""
    return claim_syncs(
        facts,
        RULE,
        SyncKind.SCALAR,
        min_frac=MIN_STEP_FRAC,
        title=lambda place: (
            f"{place.operator} reads a value from the device, which then idles for {share_of(facts, place.cost)}"
        ),
        fix="Keep the value on the device and read it every 100 steps, or after the next step has been launched",
        change=change("total += loss.item()", "total += loss.detach()  # total.item() once, at the end"),
    )


RULE = TraceRule(
    id="synchronous-scalar-read",
    needs=(Window, SyncPlaces),
    title="Host blocked reading a scalar from the device",
    fix="Keep the value on the device and read it rarely",
    judge=judge,
    page=__doc__ or "",
)
