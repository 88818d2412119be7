"""Says so where updates during backward are taken back step after step: the plan counted on their overlap."""

from __future__ import annotations

from collections.abc import Callable

from tightship_offload.runtime.engine import Engine
from tightship_offload.runtime.stats import OffloadStats

STEPS = 10
"""In a row: clipping scales the gradients of single steps in every training."""


def warn_of_lost_updates(engine: Engine, say: Callable[[str], None]) -> None:
    """Call `say` with one line, once, after `STEPS` steps that each took back the early updates of most layers."""
    updates = engine.updates
    seen, in_a_row = updates.taken_back, 0

    def stepped(step: OffloadStats) -> None:
        nonlocal seen, in_a_row
        lost, seen = updates.taken_back - seen, updates.taken_back
        in_a_row = in_a_row + 1 if 2 * lost > len(engine.layers) else 0
        if in_a_row == STEPS:
            engine.on_step.remove(stepped)
            say(
                f"the updates during backward were taken back in each of the last {STEPS} steps, so that steps take "
                "longer than planned: clipping scales every step, or gradients are read before optimizer.step() as "
                "Trainer and Accelerate do; plan without --early, or train with OffloadTrainer or OffloadAccelerator"
            )

    engine.on_step.append(stepped)
