"""What the processes of a live run are at: its ranks first, then the loader workers and other children of theirs."""

from __future__ import annotations

import time
from pathlib import Path

from tightship_collectors.jobs.attribution import Attribution
from tightship_collectors.jobs.live_run import HostRun, RankView
from tightship_collectors.jobs.ranks import ancestors_of
from tightship_collectors.jobs.stacks import PATIENCE_S, NoStacks, read_stacks
from tightship_platform.wire import Frame, ProcessFrames

MAX_RANKS = 128
MAX_HELPERS = 16
"""Loader workers and other children of ranks that are looked at."""


def live_run(runtime_dir: Path, name: str) -> HostRun | None:
    """The live run of this host whose id begins so; None: there is none, or several."""
    found = [run.view for run in Attribution(runtime_dir).update() if run.view.run.startswith(name)]
    return found[0] if len(found) == 1 else None


def read_run(run: HostRun, *, native: bool = False, within_s: float | None = None) -> list[ProcessFrames]:
    """The main threads of a live run's processes.

    :param native: also frames of C and C++.
    :param within_s: how long all of it may take: processes that are not reached by then have that as their reason.
    """
    until_s = None if within_s is None else time.monotonic() + within_s
    ranks = [view for view in run.ranks if view.is_rank][:MAX_RANKS]
    pids = {view.pid for view in ranks}
    known = {view.pid for view in run.ranks}
    helpers = [pid for pid in run.pids if pid not in known and (not pids or pids & ancestors_of(pid))]
    looks: list[tuple[int, RankView | None]] = [(view.pid, view) for view in ranks]
    looks += [(pid, None) for pid in helpers[:MAX_HELPERS]]
    return [_look(pid, view, native, until_s) for pid, view in looks]


def _look(pid: int, view: RankView | None, native: bool, until_s: float | None) -> ProcessFrames:
    reason: str | None = None
    runs: bool | None = None
    frames: list[Frame] = []
    left_s = PATIENCE_S if until_s is None else min(PATIENCE_S, until_s - time.monotonic())
    try:
        if left_s <= 0:
            raise NoStacks("not looked at: the processes before it took too long")
        main = read_stacks(pid, native=native, patience_s=left_s)[0]
        frames, runs = list(main.frames), main.runs
    except NoStacks as error:
        reason = str(error)
    except IndexError:
        reason = "it has no Python thread"
    return ProcessFrames(
        pid=pid,
        rank=view.rank if view else None,
        steps=view.steps if view else None,
        last_step_ns=view.last_step_ns if view else None,
        runs=runs,
        frames=frames,
        reason=reason,
    )
