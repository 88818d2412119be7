"""The steps of a trace by number and name, and the one that a user picked."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.window.steps import Steps
from tightship_analyzers.trace.model import Trace
from tightship_analyzers.trace.step_marks import PROFILER, SERVER
from tightship_platform.errors import Invalid, TightshipError
from tightship_platform.results.not_applicable import NotApplicable
from tightship_platform.text import shown


def step_names(trace: Trace, steps: Steps) -> list[tuple[int, str]]:
    """(number, name) of each step: numbers count from 0, names are the program's (`ProfilerStep#12`, a server's mark of
    the batch) or `step 0` …"""
    marks = trace.annotations.take(trace.names.mask(trace.annotations.name, _marks_step))
    marks = marks.take(marks.tid == steps.tid)
    named = {start: trace.names[name] for start, name in zip(marks.start_ns.tolist(), marks.name.tolist(), strict=True)}
    first = steps.first
    return [
        (number, shown(named.get(start, f"step {number}")))
        for number, start in enumerate(steps.host_bounds_ns[:-1].tolist(), start=first)
    ]


def _marks_step(name: str) -> bool:
    return name.startswith(PROFILER) or SERVER.match(name) is not None


def pick_step(facts: Facts, step: str) -> None:
    """Makes one step all that `facts` know of steps, so that everything is judged for it alone.

    `step` is a number as in `steps[].step`, or a name (`ProfilerStep#12`, or its part after the `#` as `#12`).

    :raises TightshipError: the trace has no steps.
    :raises Invalid: it has no such step.
    """
    steps = facts.get(Steps)
    if isinstance(steps, NotApplicable):
        raise TightshipError(f"No step to pick in {shown(facts.trace.source)}: it {steps.reason}")
    names = step_names(facts.trace, steps)
    for row, (number, name) in enumerate(names):
        if step in (str(number), name, f"#{name.removeprefix(PROFILER)}"):
            bounds, host_bounds = (
                np.array(ends[row : row + 2], dtype=np.int64) for ends in (steps.bounds_ns, steps.host_bounds_ns)
            )
            facts.give(replace(steps, bounds_ns=bounds, host_bounds_ns=host_bounds, first=number))
            return
    known = f"0 to {names[-1][0]}" + (f" or {names[0][1]} to {names[-1][1]}" if PROFILER in names[0][1] else "")
    raise Invalid("Step", step, f"a whole step of {shown(facts.trace.source)}: {known}")
