"""Steps of each rank in buckets of time, from the control files.

[Note: no step is lost or counted twice]
The sum of a rank's records is its counter, always. Steps between two readings go to the bucket in which the later one
falls, or to the earlier bucket when the last step was made in it. When more than a bucket passes between two readings
(the agent was restarted, or the job is older than the agent) one record as wide as the gap carries them: how many is
known, when exactly is not. A control file is kept open from its first reading, so that the counter of a process that
has just ended is still read after the launcher removed the run directory.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from tightship_collectors.jobs.control_file import OFF_STEPS, open_rank_file, rank_path
from tightship_collectors.jobs.live_run import HostRun, RankView
from tightship_platform.units import NS_PER_S
from tightship_platform.wire import StepRecord

BUCKET_NS = 10 * NS_PER_S
"""Width of a bucket where no setting says another."""
MAX_STEPS = 2**53
"""A counter beyond this is no counter."""
MAX_RANK = 10_000_000
"""No job has more ranks."""
MAX_OPEN_FILES_PER_USER = 256
"""Control files of one user's processes that are kept open; of the others' ends the last steps are not seen."""
_COUNTERS = struct.Struct("<QQQ")


@dataclass(slots=True)
class _Process:
    """One process of a rank: its counter as last read."""

    rank: int
    fd: int | None
    steps: int = 0
    read_ns: int = 0


@dataclass(slots=True)
class _Rank:
    """The running bucket of one rank."""

    bucket_ns: int
    steps: int = 0
    first_step_ns: int | None = None
    last_step_ns: int | None = None
    changed: bool = False


@dataclass(slots=True)
class _Run:
    start_ns: int
    uid: int
    processes: dict[int, _Process] = field(default_factory=dict)
    ranks: dict[int, _Rank] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RunSteps:
    """The counters of one run, as an agent keeps them over its own restart."""

    start_ns: int
    """Start of the run."""
    processes: dict[str, list[int]]
    """Pid → rank, steps, time of the last reading."""
    ranks: dict[str, list[int | None]]
    """Rank → start of its running bucket, steps in it, first and last step."""


class StepReader:
    """Follows the counters of all runs. `update` once a second, `drain` whenever a batch is made.

    :param width_ns: of a bucket.
    """

    def __init__(self, width_ns: int = BUCKET_NS) -> None:
        self._width_ns = width_ns
        self._runs: dict[str, _Run] = {}
        self._closed: list[StepRecord] = []

    def update(self, time_ns: int, runs: Sequence[HostRun]) -> None:
        """Read every rank's counter, and that of ranks that have ended since, a last time."""
        live = {run.run: run for run in runs}
        for key, state in list(self._runs.items()):
            run = live.get(key)
            pids = {view.pid for view in run.ranks} if run else set()
            for pid in state.processes.keys() - pids:
                self._read_last(key, state, pid, time_ns)
            if run is None:
                for number in state.ranks:
                    self._close_bucket(key, state, number)
                del self._runs[key]
        for run in runs:
            for view in run.ranks:
                if view.steps is not None and is_believable(view):
                    self._read(run, view, time_ns)

    def drain(self) -> list[StepRecord]:
        """Every bucket that changed since the last call; the running one appears again until it is over."""
        records, self._closed = self._closed, []
        for key, state in self._runs.items():
            for number, rank in state.ranks.items():
                if rank.changed:
                    rank.changed = False
                    records.append(_record(key, number, rank, self._width_ns))
        return records

    def snapshot(self) -> dict[str, RunSteps]:
        """Run → what a restarted agent needs in order to go on."""
        return {
            key: RunSteps(
                start_ns=run.start_ns,
                processes={str(pid): [p.rank, p.steps, p.read_ns] for pid, p in run.processes.items()},
                ranks={str(n): [r.bucket_ns, r.steps, r.first_step_ns, r.last_step_ns] for n, r in run.ranks.items()},
            )
            for key, run in self._runs.items()
        }

    def restore(self, snapshot: dict[str, RunSteps], runs: Sequence[HostRun]) -> None:
        """Go on where an earlier agent left off, for the runs that still live."""
        for run in runs:
            saved = snapshot.get(run.run)
            if saved is None:
                continue
            state = self._runs[run.run] = _Run(saved.start_ns, run.uid)
            for pid, (rank, steps, read_ns) in saved.processes.items():
                state.processes[int(pid)] = _Process(rank, self._open(run, int(pid)), steps, read_ns)
            for number, (bucket_ns, made, first, last) in saved.ranks.items():
                state.ranks[int(number)] = _Rank(bucket_ns or 0, made or 0, first, last)

    def close(self) -> None:
        """Let go of the control files."""
        for run in self._runs.values():
            for process in run.processes.values():
                _close(process)

    # ---- one reading -------------------------------------------------------------------------------------------------

    def _read(self, run: HostRun, view: RankView, time_ns: int) -> None:
        state = self._runs.setdefault(run.run, _Run(run.start_ns, run.uid))
        process = state.processes.get(view.pid)
        if process is None:
            process = state.processes[view.pid] = _Process(view.rank, self._open(run, view.pid))
        process.rank = view.rank
        self._count(run.run, state, process, time_ns, view.steps or 0, view.first_step_ns, view.last_step_ns)

    def _open(self, run: HostRun, pid: int) -> int | None:
        theirs = (state for state in self._runs.values() if state.uid == run.uid)
        if (
            sum(process.fd is not None for state in theirs for process in state.processes.values())
            >= MAX_OPEN_FILES_PER_USER
        ):
            return None
        return open_rank_file(rank_path(run.run_dir, pid), os.O_RDONLY, uid=run.uid)

    def _read_last(self, key: str, state: _Run, pid: int, time_ns: int) -> None:
        process = state.processes.pop(pid)
        if process.fd is not None:
            with contextlib.suppress(OSError, struct.error):
                steps, first, last = _COUNTERS.unpack(os.pread(process.fd, _COUNTERS.size, OFF_STEPS))
                self._count(key, state, process, time_ns, steps, first or None, last or None)
        _close(process)

    def _count(
        self,
        key: str,
        state: _Run,
        process: _Process,
        time_ns: int,
        steps: int,
        first_ns: int | None,
        last_ns: int | None,
    ) -> None:
        made = steps - process.steps
        if steps > MAX_STEPS or made < 0:
            # Nonsense, or a counter that restarted: nothing can be said about the time before.
            made = 0
        first_ns = _plausible(first_ns, state.start_ns, time_ns)
        last_ns = _plausible(last_ns, state.start_ns, time_ns)
        before_ns = process.read_ns or first_ns or time_ns
        process.steps, process.read_ns = (steps if steps <= MAX_STEPS else process.steps), time_ns
        rank = state.ranks.get(process.rank)
        if rank is None:
            rank = state.ranks[process.rank] = _Rank(self._bucket(min(before_ns, time_ns)))
        if rank.first_step_ns is None:
            rank.first_step_ns = first_ns
        if self._bucket(time_ns) > rank.bucket_ns:
            made = self._turn_over(key, state, process.rank, rank, time_ns, made, last_ns)
        if made:
            rank.steps += made
            rank.last_step_ns = last_ns if last_ns is not None and last_ns >= rank.bucket_ns else rank.last_step_ns
            rank.changed = True

    def _turn_over(
        self, key: str, state: _Run, number: int, rank: _Rank, time_ns: int, made: int, last_ns: int | None
    ) -> int:
        """End the running bucket and begin that of `time_ns`. Returns the steps that belong to the new one."""
        now_bucket, end_ns = self._bucket(time_ns), rank.bucket_ns + self._width_ns
        if made and last_ns is not None and rank.bucket_ns <= last_ns < end_ns:
            rank.steps, rank.last_step_ns, rank.changed, made = rank.steps + made, last_ns, True, 0
        # A bucket without a record becomes part of the gap.
        gap_from_ns = end_ns if rank.steps else rank.bucket_ns
        if made and now_bucket > end_ns:
            self._closed.append(
                StepRecord(
                    run=key,
                    rank=number,
                    time_ns=gap_from_ns,
                    width_ns=now_bucket - gap_from_ns,
                    steps=made,
                    first_step_ns=rank.first_step_ns,
                    last_step_ns=last_ns if last_ns is not None and last_ns < now_bucket else None,
                )
            )
            made = 0
        self._close_bucket(key, state, number)
        rank.bucket_ns, rank.steps, rank.last_step_ns, rank.changed = now_bucket, 0, None, False
        return made

    def _close_bucket(self, key: str, state: _Run, number: int) -> None:
        rank = state.ranks[number]
        if rank.changed:
            self._closed.append(_record(key, number, rank, self._width_ns))
            rank.changed = False

    def _bucket(self, time_ns: int) -> int:
        return time_ns - time_ns % self._width_ns


def is_believable(view: RankView) -> bool:
    """It trains, under a number that a rank can have. One job's nonsense must not spoil the others' records."""
    return view.is_rank and 0 <= view.rank <= MAX_RANK


def _record(run: str, number: int, rank: _Rank, width_ns: int) -> StepRecord:
    return StepRecord(
        run=run,
        rank=number,
        time_ns=rank.bucket_ns,
        width_ns=width_ns,
        steps=rank.steps,
        first_step_ns=rank.first_step_ns,
        last_step_ns=rank.last_step_ns,
    )


def _plausible(value: int | None, start_ns: int, time_ns: int) -> int | None:
    """A step lies between the start of the run and now; the job's word alone is not enough."""
    if value is None or not start_ns - NS_PER_S <= value <= time_ns + NS_PER_S:
        return None
    return value


def _close(process: _Process) -> None:
    if process.fd is not None:
        os.close(process.fd)
        process.fd = None
