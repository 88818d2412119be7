"""Host blocked in a copy or a fill whose result it does not need next.

## What it finds
Copies and fills that block the host: synchronous calls (`cudaMemcpy`, `cudaMemset`,
`hipMemcpyWithStream`), a synchronization right after a copy (`.to(device)` from pinned memory, `.cpu()`), where the
device idled for it; more than 1 % of the step. Copies to the device from pageable memory and reads of single values
have their own rules.

## Why it costs
While it waits, the host launches nothing; when the copy is done the device has nothing left to do until the host has
launched new work.

## Example
```python
batch = batch.to(device)                 # pinned, but the host waits all the same
metrics.append(logits.cpu())
```

## Use instead
```python
batch = batch.to(device, non_blocking=True)
host.copy_(logits, non_blocking=True)    # host = torch.empty_like(logits, device="cpu", pin_memory=True)
copied.record()                          # a torch.cuda.Event; read `host` a step later, after copied.synchronize()
```

The saving is the time in which the device idles while the host waits, and the gap that the wait leaves behind. The high
end adds the copies themselves.

## Known misses
A value that the host needs at once, to decide what to run next, cannot be read later. Memory that is copied by a
library without an operator around it is shown at the name of the copy.

## Source
CUDA Runtime API, "API synchronization behavior"; https://pytorch.org/docs/stable/notes/cuda.html ("Use pinned memory
buffers"). 1 % of the step is where noise ends.
"""

from __future__ import annotations

import re

from tightship_analyzers.facts.blocking.copies import BlockingCopies
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.findings.claim import share_of
from tightship_analyzers.findings.copies import claim_copies
from tightship_analyzers.findings.evidence import change
from tightship_analyzers.findings.model import NOISE_FRAC, Judgement, TraceRule


def judge(facts: Facts) -> Judgement:
    """One finding per place that copies."""
    copies = facts[BlockingCopies]
    return claim_copies(
        facts,
        RULE,
        ~(copies.pageable & copies.to_device),
        min_frac=NOISE_FRAC,
        title=lambda cost: f"Host blocked in synchronous copies; the device idles for {share_of(facts, cost)}",
        fix="Copy with non_blocking=True from and to pinned memory, and read the result a step later",
        change=change("metrics.append(logits.cpu())", "host.copy_(logits, non_blocking=True)  # pinned; read it later"),
    )


RULE = TraceRule(
    id="synchronous-copy",
    needs=(Window, BlockingCopies),
    title="Host blocked in a synchronous copy",
    fix="Copy with non_blocking=True from and to pinned memory",
    judge=judge,
    page=__doc__ or "",
    signs=re.compile("Memcpy|Memset|dma", re.IGNORECASE),
)
