"""Tells the run's launcher what the plan predicted and what the steps took: one small file in the run directory.

Flat, whole numbers only: it is read by a process that trusts nothing of the job's.
"""

from __future__ import annotations

import atexit
import json
import os
import time
from collections import deque
from pathlib import Path
from statistics import median

from tightship_offload.plan.model import Plan
from tightship_offload.runtime.engine import Engine
from tightship_offload.runtime.stats import OffloadStats

FILE = "offload.json"
EVERY_S = 5.0
WARM_UP = 2
"""Steps that are not counted: buffers and optimizer state come into being in them."""
KEPT = 500
"""The figures are medians over the last steps, at most so many."""
_MEDIANS = (
    "step_ns",
    "wait_h2d_ns",
    "wait_update_ns",
    "wait_slot_ns",
    "wait_d2h_ns",
    "update_ns",
    "in_one_pass",
    "h2d_bytes",
    "d2h_bytes",
)


class RunReport:
    """Collects an engine's steps and writes the file at most every `EVERY_S`, and at the end of the process."""

    def __init__(self, engine: Engine, plan: Plan, run_dir: Path) -> None:
        self._plan = plan
        self._file = run_dir / FILE
        self._steps: deque[OffloadStats] = deque(maxlen=KEPT)
        self._seen = 0
        self._written_s = 0.0
        engine.on_step.append(self._stepped)
        atexit.register(self.write)

    def _stepped(self, step: OffloadStats) -> None:
        self._seen += 1
        if self._seen > WARM_UP:
            self._steps.append(step)
        if time.monotonic() - self._written_s > EVERY_S:
            self.write()

    def write(self) -> None:
        """Replace the file; a run directory that is gone or full costs the job nothing."""
        self._written_s = time.monotonic()
        draft = self._file.with_name(f"{FILE}.{os.getpid()}.new")
        try:
            draft.write_text(json.dumps(self.figures()), encoding="ascii")
            draft.replace(self._file)
        except OSError:
            draft.unlink(missing_ok=True) if draft.parent.is_dir() else None

    def figures(self) -> dict[str, int]:
        """The plan's numbers and the medians of the steps."""
        plan, prediction = self._plan, self._plan.prediction
        found = {
            "layers": plan.layer_count,
            "slots": plan.window.slots,
            "resident": len(plan.window.resident),
            "steps": self._seen,
        }
        if prediction is not None:
            found |= {
                "predicted_step_ns": round(prediction.step_ns.value),
                "predicted_low_ns": round(prediction.step_ns.low),
                "predicted_high_ns": round(prediction.step_ns.high),
            }
        if self._steps:
            found |= {name: round(median(getattr(step, name) for step in self._steps)) for name in _MEDIANS}
        return found


def report_to_run(engine: Engine, plan: Plan) -> RunReport | None:
    """Report an engine to the run that this process belongs to; None outside of one, and on ranks but the first."""
    run_dir = os.environ.get("TIGHTSHIP_RUN_DIR")
    if not run_dir or not Path(run_dir).is_dir() or os.environ.get("RANK", "0") != "0":
        return None
    return RunReport(engine, plan, Path(run_dir))
