"""An unmodified training script, watched from inside its process: steps are counted and timed, some are recorded.

    python watched_job.py RESULT.json PLAN SCRIPT [ARGUMENTS …]

PLAN is JSON with the fields of `Plan`. A step ends with `Optimizer.step`, as for the step counter of `tightship run`;
the recording begins and ends there, as with `tightship profile --iterations`. When the plan is done the process
writes RESULT.json and ends at once: the script's own end is never reached.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.profiler import ProfilerActivity, profile


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to do, in optimizer steps."""

    warm_up: int
    """Steps before the first one that counts."""
    steps: int
    """Steps that are timed, without recording."""
    recorded: int = 0
    """Whole steps of each recording after those."""
    traces: tuple[str, ...] = ()
    """Where the recordings go: the first with stacks and shapes, the second without. So `tightship profile` records in
    two passes where the first one made the steps much longer."""


@dataclass(frozen=True, kw_only=True)
class Timed:
    """What the timed steps took."""

    steps: int
    wall_ns: int
    cpu_ns: int
    """Processor time of the process, its threads and all processes below it."""


def cpu_ns() -> int:
    """Processor time so far of this process and all below it, those that have ended included."""
    spent, top = 0.0, psutil.Process()
    for process in [top, *top.children(recursive=True)]:
        try:
            spent += sum(process.cpu_times()[:4])
        except psutil.Error:
            continue
    return int(spent * 1e9)


class Watch:
    """Follows the plan from one end of a step to the next."""

    def __init__(self, plan: Plan, result: Path) -> None:
        self._plan, self._result = plan, result
        self._count = 0
        self._wall_ns = self._cpu_ns = 0
        self._profile: profile | None = None
        self._due = plan.warm_up
        self._then = self._begin

    def step_ended(self, *_: Any) -> None:
        """Called by torch at the end of every `Optimizer.step`."""
        self._count += 1
        if self._count == self._due:
            self._then()

    def _begin(self) -> None:
        self._in(self._plan.steps, self._timed)
        self._cpu_ns, self._wall_ns = cpu_ns(), time.perf_counter_ns()

    def _timed(self) -> None:
        plan, wall_ns = self._plan, time.perf_counter_ns() - self._wall_ns
        timed = Timed(steps=plan.steps, wall_ns=wall_ns, cpu_ns=cpu_ns() - self._cpu_ns)
        self._result.write_text(json.dumps(asdict(timed)))
        self._record(0)

    def _record(self, number: int) -> None:
        """Begin the recording of that number; the end of a step in it begins its first whole step."""
        if number == len(self._plan.traces):
            end_now()
        self._profile = recorder(light=number > 0)
        self._profile.start()
        self._in(self._plan.recorded + 1, lambda: self._recorded(number))

    def _recorded(self, number: int) -> None:
        assert self._profile is not None
        self._profile.stop()
        self._profile.export_chrome_trace(self._plan.traces[number])
        # Meanwhile workers have loaded ahead: the job has to get back to its pace.
        self._in(self._plan.warm_up, lambda: self._record(number + 1))

    def _in(self, steps: int, then: Callable[[], None]) -> None:
        self._due, self._then = self._count + steps, then


def recorder(*, light: bool) -> profile:
    """As `tightship profile` records: all threads, with stacks and shapes or, for the second pass, without."""
    config = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
    return profile(activities=activities, with_stack=not light, record_shapes=not light, experimental_config=config)


def end_now() -> None:
    """End this process and all below it without the script's own end."""
    for child in psutil.Process().children(recursive=True):
        child.kill()
    sys.stdout.flush()
    os._exit(0)


def main() -> None:
    """Runs the script as `python SCRIPT ARGUMENTS` would."""
    result, plan, script = Path(sys.argv[1]), Plan(**json.loads(sys.argv[2])), sys.argv[3]
    watch = Watch(plan, result)
    register_optimizer_step_post_hook(watch.step_ended)
    sys.argv = sys.argv[3:]
    sys.path[0] = str(Path(script).parent)
    runpy.run_path(script, run_name="__main__")
    raise SystemExit(f"{script} ended before its plan did")


if __name__ == "__main__":
    main()
