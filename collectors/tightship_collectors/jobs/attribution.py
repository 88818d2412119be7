"""Which processes belong to which run.

[Note: a claim is checked]
A process names its run in its environment, and anybody can set a variable. A claim counts only when the run directory
is one that `tightship run` makes for exactly this user: named by the run key, in a runtime directory that this agent
serves, owned by the process's user, mode 0700, and no symbolic link. Nobody else can make such a directory, so nobody
can put a process of theirs into somebody else's run, or lead an agent that is root to another place.

An agent serves its own `runtime_dir`; where that is one of the default directories, the others of its user, too, as the
launcher may have found another one taken; one that is root also serves the default directories of all other users. Runs
elsewhere belong to another installation (the demo, a test) and are left alone.
"""

from __future__ import annotations

import logging
import os
import stat
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from tightship_collectors.jobs.live_run import HostRun
from tightship_collectors.jobs.processes import ClaimingProcess, Process, ProcessTable
from tightship_collectors.jobs.ranks import MAX_FILES, read_ranks
from tightship_collectors.sources.base import OK
from tightship_platform.settings import runtime_dirs
from tightship_platform.units import plural
from tightship_platform.wire import SourceState

LOG = logging.getLogger(__name__)

MAX_RUNS = 1000
"""Live runs of a host that the server takes notice of."""
MAX_RUNS_PER_USER = 256
"""More live runs of one user on one host than this are an attack; that user's newest are not attributed."""

MAX_REFUSALS_REPORTED = 20
"""Claims of a user refused at a time that are written to the log: nobody fills the disk with forged ones."""

MAX_REFUSALS_SHOWN = 3
"""Claims of a user that the state names, so that one user's do not hide the others'."""


@dataclass(frozen=True, kw_only=True)
class LocalRun:
    """A live run together with the processes that it was recognised by."""

    view: HostRun
    processes: tuple[Process, ...]
    external_id: str | None

    @property
    def run(self) -> str:
        """Its id."""
        return self.view.run

    @property
    def start_ns(self) -> int:
        """Start of its oldest process."""
        return self.view.start_ns


class Attribution:
    """Turns the processes of this host into its live runs, once a second.

    :param runtime_dir: where runs of this installation keep their directories.
    """

    def __init__(
        self,
        runtime_dir: Path,
        *,
        table: ProcessTable | None = None,
        own_uid: int | None = None,
    ) -> None:
        self._runtime_dir = runtime_dir
        self.table = table or ProcessTable()
        self._own_uid = os.geteuid() if own_uid is None else own_uid
        self._accepted: dict[str, tuple[Path, int]] = {}
        self._refused: dict[int, dict[str, str]] = {}
        """User → run that a process of theirs claims → why it is not believed."""
        self._beyond: Counter[int] = Counter()
        """User → claims beyond their share, at the last look."""
        self._elsewhere: set[str] = set()

    def update(self) -> list[LocalRun]:
        """The live runs of this host, oldest first."""
        groups: dict[tuple[str, Path, int], list[ClaimingProcess]] = {}
        for process in self.table.scan():
            groups.setdefault((process.claim.run, process.claim.run_dir, process.uid), []).append(process)
        self._forget(groups)
        runs: dict[str, LocalRun] = {}
        looked_at: Counter[int] = Counter()
        self._beyond.clear()
        served = {group: processes for group, processes in groups.items() if self._is_served(group[1].parent, group[2])}
        self._elsewhere.update(run for run, _, _ in groups.keys() - served.keys())
        claims = Counter(uid for _, _, uid in served)
        share = _share(claims)
        for (run, run_dir, uid), processes in served.items():
            looked_at[uid] += 1
            if looked_at[uid] > share:
                self._beyond[uid] += 1
            elif run not in runs and self._is_valid(run, run_dir, uid):
                files = MAX_FILES // min(claims[uid], share)
                runs[run] = self._local_run(run, run_dir, uid, processes, files)
        return list(runs.values())

    def state(self) -> SourceState:
        """What was seen, and which claims were not believed."""
        detail = plural(len(self._accepted), "live run")
        if self._elsewhere:
            detail += f"; {len(self._elsewhere)} of other runtime directories left alone"
        for uid, number in sorted(self._beyond.items()):
            detail += f"; {number} runs of user {uid} are too many to be attributed"
        for uid, refused in sorted(self._refused.items()):
            for run, why in sorted(refused.items())[:MAX_REFUSALS_SHOWN]:
                detail += f"; {run} refused: {why}"
            if len(refused) > MAX_REFUSALS_SHOWN:
                detail += f"; {len(refused) - MAX_REFUSALS_SHOWN} more claims of user {uid} refused"
        return SourceState(name="attribution", state=OK, detail=detail[:1000])

    def _local_run(self, run: str, run_dir: Path, uid: int, processes: list[ClaimingProcess], files: int) -> LocalRun:
        view = HostRun(
            run=run,
            run_dir=run_dir,
            uid=uid,
            pids=tuple(p.pid for p in processes),
            ranks=read_ranks(run_dir, uid=uid, most=files),
            start_ns=processes[0].start_ns,
        )
        external_id = next((p.claim.external_id for p in processes if p.claim.external_id), None)
        return LocalRun(view=view, processes=tuple(processes), external_id=external_id)

    def _is_valid(self, run: str, run_dir: Path, uid: int) -> bool:
        accepted = self._accepted.get(run)
        if accepted is not None and accepted != (run_dir, uid):
            self._refuse(run, uid, f"process of user {uid} names {run_dir}, but the run is in {accepted[0]}")
            return False
        try:
            why = _unfit(run, run_dir, uid)
        except FileNotFoundError:
            # The launcher has ended and tidied up; what is left of the job still holds its devices.
            if accepted is not None:
                return True
            why = f"{run_dir} is not there"
        except OSError as error:
            why = f"{run_dir}: {error.strerror}"
        if why:
            self._refuse(run, uid, why)
            return False
        self._accepted[run] = (run_dir, uid)
        return True

    def _is_served(self, parent: Path, uid: int) -> bool:
        if parent == self._runtime_dir:
            return True
        of_user = runtime_dirs(uid)
        is_another = self._own_uid == 0 and uid != 0
        return parent in of_user and (is_another or (uid == self._own_uid and self._runtime_dir in of_user))

    def _refuse(self, run: str, uid: int, why: str) -> None:
        refused = self._refused.setdefault(uid, {})
        if refused.get(run) != why:
            refused[run] = why
            if len(refused) <= MAX_REFUSALS_REPORTED:
                LOG.warning("Claim to be part of run %s is rejected: %s", run, why)

    def _forget(self, groups: Collection[tuple[str, Path, int]]) -> None:
        live = {run for run, _, _ in groups}
        claimed = {(uid, run) for run, _, uid in groups}
        for run in self._accepted.keys() - live:
            del self._accepted[run]
        for uid, refused in list(self._refused.items()):
            kept = {run: why for run, why in refused.items() if (uid, run) in claimed}
            self._refused[uid] = kept
            if not kept:
                del self._refused[uid]
        self._elsewhere &= live


def _share(claims: Counter[int]) -> int:
    """Runs that each user may have, so that all have room; a user with fewer than that loses nothing."""
    share = MAX_RUNS_PER_USER
    while share > 1 and sum(min(number, share) for number in claims.values()) > MAX_RUNS:
        share -= 1
    return share


def _unfit(run: str, run_dir: Path, uid: int) -> str:
    """Why this cannot be the directory of a run of this user; empty when it can.

    :raises OSError: it cannot be looked at.
    """
    if run_dir.name != run:
        return f"{run_dir} is not named by the run"
    if not stat.S_ISDIR(os.lstat(run_dir.parent).st_mode):
        return f"{run_dir.parent} is not a directory (or is a link to one)"
    status = os.lstat(run_dir)
    if not stat.S_ISDIR(status.st_mode):
        return f"{run_dir} is not a directory"
    if status.st_uid != uid:
        return f"{run_dir} belongs to user {status.st_uid}, the process to user {uid}"
    if stat.S_IMODE(status.st_mode) != 0o700:
        return f"{run_dir} has mode {stat.S_IMODE(status.st_mode):o}, not 700"
    return ""
