"""A live run by the stacks of its processes, and how a run that has ended died."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from tightship_analyzers.hangs.stacks import collective_of, judge_stacks, own_place
from tightship_platform.results.run import RunDetail
from tightship_platform.results.why import ProcessStack, RunWhy
from tightship_platform.units import format_ns, plural
from tightship_platform.vocabulary import LIVE, RunState
from tightship_platform.wire import ProcessFrames

_WORKER = "/torch/utils/data/_utils/worker.py"


def why_it_hangs(run: str, processes: Sequence[ProcessFrames], read_ns: int) -> RunWhy:
    """What the processes of a live run are at.

    :param read_ns: when their stacks were read.
    """
    judged = [_process(one) for one in processes]
    verdict, cause = judge_stacks(judged)
    since = _since(processes, read_ns)
    return RunWhy(run=run, state=RunState.RUNNING, verdict=f"{since}{verdict}", cause=cause, processes=judged)


def _since(processes: Sequence[ProcessFrames], read_ns: int) -> str:
    lasts = [one.last_step_ns for one in processes if one.last_step_ns]
    return f"The last step ended {format_ns(max(0, read_ns - max(lasts)))} ago. " if lasts else ""


def _process(one: ProcessFrames) -> ProcessStack:
    role = "other" if one.rank is None else "rank"
    if role != "rank" and any(frame.file.endswith(_WORKER) for frame in one.frames):
        role = "worker"
    return ProcessStack(
        rank=one.rank,
        role=role,
        pid=one.pid,
        steps=one.steps,
        last_step_ns=one.last_step_ns,
        collective=collective_of(one.frames),
        place=own_place(one.frames),
        runs=one.runs,
        stack=[str(frame) for frame in one.frames],
        reason=one.reason,
    )


def why_nothing_came(run: RunDetail, waited_s: float) -> RunWhy:
    """Of a live run whose agent brought no stacks."""
    return RunWhy(
        run=run.run,
        state=run.state,
        verdict=f"It runs on {run.host or 'another host'}, whose agent brought no stacks within {waited_s:.0f} s.",
        cause=f"See `tightship hosts`; or run `tightship why {run.run}` there, as its user or as root.",
        processes=[],
    )


def why_it_ended(run: RunDetail) -> RunWhy:
    """How a run died, as far as its launcher saw it."""
    lasted = format_ns((run.end_ns or run.last_seen_ns) - run.start_ns)
    if run.fleet != LIVE:
        verdict = f"It is of the imported fleet {run.fleet}; its state is {run.state}, after {lasted}."
        cause = run.reason or "The import does not say more."
    elif run.state == RunState.FINISHED:
        verdict, cause = f"It finished after {lasted} with exit code 0.", "Nothing went wrong that its launcher saw."
    elif run.state == RunState.LOST:
        verdict = f"It was lost after {lasted}: no heartbeat and no end record arrived."
        cause = run.reason or "Unknown: its host, agent or network went away with it."
    elif run.state == RunState.UNKNOWN:
        verdict, cause = f"It ended after {lasted}; how is not known.", run.reason or "Nobody reported more."
    else:
        verdict, cause = f"It failed after {lasted}{_exit(run.exit_code)}.", _cause_of_death(run)
    return RunWhy(run=run.run, state=run.state, verdict=verdict, cause=cause, processes=[])


def _cause_of_death(run: RunDetail) -> str:
    parts = []
    if run.oom_kills:
        parts.append(f"The kernel killed {plural(run.oom_kills, 'process', 'processes')} of it for lack of memory.")
    if run.error:
        parts.append(f"The first uncaught exception: {run.error}.")
    if not parts and run.reason:
        parts.append(f"{run.reason}.")
    return " ".join(parts) or "Unknown: no exception was uncaught; its own output says more."


def _exit(exit_code: int | None) -> str:
    if exit_code is None:
        return ""
    if 128 < exit_code < 128 + signal.NSIG:
        try:
            return f" by {signal.Signals(exit_code - 128).name}"
        except ValueError:
            return f" by signal {exit_code - 128}"
    return f" with exit code {exit_code}"
