"""The loop waits for what it logs.

## What it finds
Device idle time while the training thread prints, logs, moves a progress bar or reports to an experiment tracker
(logging, print, tqdm, TensorBoard, Weights & Biases, MLflow); more than 1 % of the step.

## Why it costs
Formatting and writing happen on the thread that feeds the device. A terminal, a network file system or a tracker's
queue may take milliseconds per line.

## Example
```python
for step, batch in enumerate(loader):
    loss = train_step(batch)
    writer.add_scalar("loss", loss, step)
```

## Use instead
```python
for step, batch in enumerate(loader):
    loss = train_step(batch)
    if step % 100 == 0:
        writer.add_scalar("loss", loss, step)
```

The saving is the time in which the device idles during these calls, and the gap that they leave behind.

## Known misses
Programs that log through their own functions count only as far as they end in one of those named. Reading the value
that is logged from the device is its own finding. Needs Python stacks.

## Source
https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html warns of printing device tensors. 1 % of the step is
where noise ends.
"""

from __future__ import annotations

import re

from tightship_analyzers.facts.activity.device_busy import DeviceGaps
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.program.frames import ThreadFrames
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.findings.claim import share_of, waiter
from tightship_analyzers.findings.evidence import change
from tightship_analyzers.findings.model import NOISE_FRAC, Judgement, TraceRule
from tightship_analyzers.findings.pauses import Pauses, claim_pauses

FRAMES = re.compile(
    r"logging/__init__\.py\(\d+\): (debug|info|warning|error|critical|exception|log|_log|handle|emit)$"
    r"|<built-in function print>|tqdm/(std|auto|asyncio|notebook)\.py\(\d+\): (update|refresh|display|set_\w+|close)$"
    r"|torch/utils/tensorboard/writer\.py\(\d+\): (add_\w+|flush)$|tensorboardX/writer\.py\(\d+\): (add_\w+|flush)$"
    r"|wandb/sdk/wandb_run\.py\(\d+\): (log|_log|wrapper\w*)$|mlflow/tracking/fluent\.py\(\d+\): log_\w+$"
)


def judge(facts: Facts) -> Judgement:
    """One finding per place."""
    return claim_pauses(
        facts,
        RULE,
        Pauses.in_frames(facts, FRAMES.match),
        min_frac=NOISE_FRAC,
        title=lambda claims, name: f"Writing logs holds up {waiter(facts)} for {share_of(facts, claims)}",
        fix="Log every 100 steps, or hand the line to a thread (logging.handlers.QueueHandler)",
        change=change(
            'writer.add_scalar("loss", loss, step)', 'if step % 100 == 0:\n    writer.add_scalar("loss", loss, step)'
        ),
        cause="logging",
        what="call",
    )


RULE = TraceRule(
    id="logging-in-step",
    needs=(Window, ThreadFrames, DeviceGaps),
    title="The loop waits for what it logs",
    fix="Log every 100 steps, or from a thread",
    judge=judge,
    page=__doc__ or "",
    signs=FRAMES,
    signs_in_frames=True,
)
