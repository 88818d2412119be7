"""Runs that nobody started with `tightship run`: jobs that hold a device of this host, as the agent sees them.

[Note: seen runs]
A job is a process that holds a device, its descendants, and whatever else of the same user the same job holds: by Slurm
job and step, or pod; ranks by whoever launched them; else by process group. Never across users. On a host with
accelerators the driver says who holds one. On a host without, a process holds the processor that has loaded torch and
computes (`seen_use`): IMPORT_S of processor time more than IDLE_FRAC of its life. Its mappings are read at that moment,
and again only when the time has doubled. A process that claims a run of `tightship run`, rightly or not, is left alone,
and so is one whose environment may not be read: it might claim one.

A run's id is made of host, boot, and number and start of its first process: an agent that starts again finds the same.
It ends when none of its processes is left. Nobody knows then how it ended. A job that holds a device again after that
is another run.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tightship_collectors.agent import seen_process as about
from tightship_collectors.agent.seen_use import Computing
from tightship_collectors.jobs.processes import Known, Process, ProcessTable
from tightship_collectors.launch import naming
from tightship_collectors.sources.base import OK, DeviceProcess
from tightship_platform.results.run_record import RunRecord
from tightship_platform.units import plural
from tightship_platform.wire import SourceState

LOG = logging.getLogger(__name__)

YOUNG_S = 3.0
"""A process that holds an accelerator is no run before it is so old: it may only have looked whether there is one."""
MAX_NEW = 16
"""Processes that are looked into at one look; the others wait for the next."""
MAX_RUNS = 256
MAX_RUNS_PER_USER = 64
"""Live runs of a host, and of a user on it, that are reported; more are left alone, and counted."""
MAX_PROCESSES = 2048
"""Processes of one run that are followed."""
MAX_KEPT = 64
"""Processes of a run that the state on disk names, the oldest."""


@dataclass(frozen=True, kw_only=True)
class SeenRun:
    """One such run, as it is kept over a restart of the agent."""

    record: RunRecord
    """What the server gets."""
    job: list[str]
    """What joins further processes to it; see `_job_key`."""
    boot_id: str
    processes: dict[str, int]
    """Pid → its start, in ticks since boot."""


@dataclass(kw_only=True)
class _Live:
    """One that lives."""

    record: RunRecord
    job: list[str]
    uid: int
    pids: dict[int, int] = field(default_factory=dict)
    """Process → its start, in ticks since boot."""
    processes: dict[int, Process] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class SeenHolder:
    """A live one with its processes, for `Allocations`."""

    run: str
    start_ns: int
    processes: tuple[Process, ...]


@dataclass(kw_only=True)
class SeenTick:
    """What one look yields."""

    holders: list[SeenHolder] = field(default_factory=list)
    begun: list[RunRecord] = field(default_factory=list)
    ended: list[RunRecord] = field(default_factory=list)


class SeenRuns:
    """Finds such runs and follows them, from look to look.

    :param table: the processes of this host, which `Attribution` scans before each look.
    """

    def __init__(self, table: ProcessTable, host: str, boot_id: str, *, hertz: int) -> None:
        self._table = table
        self._host = host
        self._boot_id = boot_id
        self._runs: dict[str, _Live] = {}
        self._run_of: dict[int, str] = {}
        self._computing = Computing(table, hertz)
        self._ruled_out: dict[int, int] = {}
        """Process that is none, whatever it does → its start."""
        self._strangers: dict[int, int] = {}
        """Process of another user that a run has started → its start."""
        self._waiting = 0
        self._beyond: dict[int, tuple[int, int]] = {}
        """Process for whose run there is no room → its start, its user."""
        self._hidden: dict[int, int] = {}
        """Process whose environment or mappings may not be read → its start."""

    def look(self, time_ns: int, holding: Iterable[DeviceProcess] | None) -> SeenTick:
        """Compare the host with the last look.

        :param holding: who holds which accelerator; None: the host has none, so its processor is the device.
        """
        tick = SeenTick()
        self._forget()
        others = self._table.others()
        self._adopt(others)
        self._waiting = 0
        if holding is None:
            found, self._waiting = self._computing.look(others, self._may_be, MAX_NEW)
        else:
            found = list(self._holding({process.pid for process in holding}))
        candidates = sorted(found, key=lambda one: (one[1].ticks, one[0]))
        self._waiting += max(0, len(candidates) - MAX_NEW)
        for pid, known in candidates[:MAX_NEW]:
            if pid not in self._run_of:
                self._take(pid, known, tick)
        for key, run in list(self._runs.items()):
            if run.pids:
                tick.holders.append(self._holder(run))
            else:
                tick.ended.append(self._ended(key, time_ns))
                self._beyond.clear()
        self._table.followed = frozenset(self._run_of)
        return tick

    def state(self) -> SourceState:
        """What was seen, and what was left alone."""
        detail = plural(len(self._runs), "live run")
        if self._waiting:
            detail += f"; {plural(self._waiting, 'process', 'processes')} more than {MAX_NEW} at once wait"
        if self._hidden:
            detail += (
                f"; {plural(len(self._hidden), 'process', 'processes')} left alone, as this agent may not read their "
                "environment: run it as root"
            )
        for uid, number in sorted(Counter(uid for _, uid in self._beyond.values()).items()):
            detail += f"; {plural(number, 'process', 'processes')} of user {uid} beyond the runs that are reported"
        return SourceState(name="seen-runs", state=OK, detail=detail[:1000])

    def live(self) -> list[str]:
        """Ids of the runs that live."""
        return list(self._runs)

    def snapshot(self) -> list[SeenRun]:
        """What a restarted agent needs in order to go on."""
        kept = []
        for run in self._runs.values():
            oldest = sorted(run.pids.items(), key=lambda one: (one[1], one[0]))[:MAX_KEPT]
            processes = {str(pid): ticks for pid, ticks in oldest}
            kept.append(SeenRun(record=run.record, job=run.job, boot_id=self._boot_id, processes=processes))
        return kept

    def restore(self, snapshot: Sequence[SeenRun], alive_ns: int | None) -> list[RunRecord]:
        """Take over what an earlier agent followed; returns the records of runs that have ended since.

        :param alive_ns: when that agent was alive last: these runs ended then, as far as anybody knows.
        """
        ended = []
        for kept in snapshot[:MAX_RUNS]:
            record = kept.record
            if record.host != self._host:
                continue  # another name of this host: the server would refuse it
            pids = {int(pid): ticks for pid, ticks in kept.processes.items() if pid.isascii() and pid.isdigit()}
            there = [pid for pid, ticks in pids.items() if self._is_there(pid, ticks)]
            if there and kept.boot_id == self._boot_id and record.uid is not None:
                run = self._runs[record.run] = _Live(record=record, job=kept.job, uid=record.uid)
                for pid in there:
                    self._rejoin(run, pid)
            else:
                ended.append(replace(record, end_ns=max(record.start_ns, alive_ns or 0)))
        self._adopt(self._table.all_others())
        return ended

    # ---- following ---------------------------------------------------------------------------------------------------

    def _forget(self) -> None:
        for run in self._runs.values():
            for pid in [pid for pid, ticks in run.pids.items() if not self._is_there(pid, ticks)]:
                del run.pids[pid], run.processes[pid], self._run_of[pid]
        for pids in (self._ruled_out, self._hidden, self._strangers):
            for pid in [pid for pid, ticks in pids.items() if not self._is_there(pid, ticks)]:
                del pids[pid]
        for pid in [pid for pid, (ticks, _) in self._beyond.items() if not self._is_there(pid, ticks)]:
            del self._beyond[pid]

    def _is_there(self, pid: int, ticks: int) -> bool:
        known = self._table.other(pid)
        return known is not None and known.ticks == ticks

    def _adopt(self, processes: Iterable[tuple[int, Known]]) -> None:
        """What a process of a run starts is of that run, where it is of the same user."""
        if not self._run_of:
            return
        for pid, known in processes:
            key = self._run_of.get(known.parent)
            if key is None or pid in self._run_of or self._strangers.get(pid) == known.ticks:
                continue
            run = self._runs[key]
            if self._table.uid(pid) != run.uid:
                self._strangers[pid] = known.ticks
            elif len(run.pids) < MAX_PROCESSES:
                self._join(run, pid, known)

    def _join(self, run: _Live, pid: int, known: Known) -> None:
        run.pids[pid] = known.ticks
        run.processes[pid] = self._table.measured(pid, known, run.uid)
        self._run_of[pid] = run.record.run

    def _rejoin(self, run: _Live, pid: int) -> None:
        known = self._table.other(pid)
        if known is not None:
            self._join(run, pid, known)

    def _holder(self, run: _Live) -> SeenHolder:
        for pid in run.pids:
            known, process = self._table.other(pid), run.processes.get(pid)
            if known is not None and process is not None:
                self._table.measure(process, known)
        processes = tuple(run.processes.values())
        return SeenHolder(run=run.record.run, start_ns=run.record.start_ns, processes=processes)

    def _ended(self, key: str, time_ns: int) -> RunRecord:
        record = self._runs.pop(key).record
        LOG.info("Run %s of user %s has ended", key, record.user)
        return replace(record, end_ns=max(record.start_ns, time_ns))

    # ---- finding -----------------------------------------------------------------------------------------------------

    def _holding(self, pids: Iterable[int]) -> Iterator[tuple[int, Known]]:
        for pid in pids:
            known = self._table.other(pid)
            if known is not None and self._may_be(pid, known) and self._table.age_s(known) >= YOUNG_S:
                yield pid, known

    def _may_be(self, pid: int, known: Known) -> bool:
        ticks = known.ticks
        is_judged = ticks in (self._ruled_out.get(pid), self._hidden.get(pid), self._beyond.get(pid, (None,))[0])
        return pid not in self._run_of and not is_judged

    def _take(self, pid: int, known: Known, tick: SeenTick) -> None:
        """Look into a process that holds a device; it joins a run, begins one, or is none."""
        environ, uid = about.environment_of(self._table, pid), self._table.uid(pid)
        if environ is None or uid is None:
            self._hidden[pid] = known.ticks
            return
        command = about.command_of(self._table, pid)
        if about.is_launcher(command) or about.is_daemon(self._table, pid, uid):
            self._ruled_out[pid] = known.ticks
            return
        job = about.job_of(about.cgroup_of(self._table, pid), environ)
        key = [str(uid), *self._job_key(pid, known, uid, job, environ)]
        run = next((run for run in self._runs.values() if run.job == key and run.pids), None)
        if run is None:
            run = self._begin(pid, known, uid, key, job, environ)
            if run is None:
                return
            tick.begun.append(run.record)
        if len(run.pids) < MAX_PROCESSES:
            self._join(run, pid, known)
            self._adopt(self._table.all_others())
        else:
            self._beyond[pid] = known.ticks, uid

    def _job_key(self, pid: int, known: Known, uid: int, job: about.Job, environ: Mapping[str, str]) -> tuple[str, ...]:
        """What all processes of the job have in common, besides their user."""
        if job.kind:
            return job.kind, job.id
        if about.is_rank(environ):
            launcher, start = self._launcher_of(known)
            rendezvous = [environ.get(name, "")[:200] for name in ("TORCHELASTIC_RUN_ID", "MASTER_PORT")]
            return "ranks", str(launcher), str(start), *rendezvous
        return "group", str(known.group)

    def _launcher_of(self, known: Known) -> tuple[int, int]:
        """The first ancestor that is no rank itself, and its start. It holds no device by what its ranks do."""
        pid = known.parent
        for _ in range(about.MAX_ELDERS):
            elder = self._table.other(pid)
            if elder is None:
                break
            if not about.is_rank(about.environment_of(self._table, pid) or {}):
                if pid not in self._run_of:
                    self._ruled_out[pid] = elder.ticks
                return pid, elder.ticks
            pid = elder.parent
        return pid, 0

    def _begin(
        self, pid: int, known: Known, uid: int, key: list[str], job: about.Job, environ: Mapping[str, str]
    ) -> _Live | None:
        of_user = sum(run.uid == uid for run in self._runs.values())
        if len(self._runs) >= MAX_RUNS or of_user >= MAX_RUNS_PER_USER:
            self._beyond[pid] = known.ticks, uid
            return None
        pid, known = self._first(pid, known, uid)
        command = about.command_of(self._table, pid)
        identity = f"{self._host}\0{self._boot_id}\0{uid}\0{pid}\0{known.ticks}"
        record = RunRecord(
            run=hashlib.blake2b(identity.encode("utf-8", "replace"), digest_size=8).hexdigest(),
            workflow=about.workflow_name(command, environ),
            start_ns=self._table.measured(pid, known, uid).start_ns,
            host=self._host,
            user=about.user_name(uid),
            uid=uid,
            command=naming.reported_command(command),
            external_id=job.external_id,
            image=naming.image_of(environ),
            seen=True,
        )
        run = _Live(record=record, job=key, uid=uid)
        self._runs[record.run] = run
        self._join(run, pid, known)
        LOG.info("Run %s: process %d of user %s, which `tightship run` did not start", record.run, pid, record.user)
        return run

    def _first(self, pid: int, known: Known, uid: int) -> tuple[int, Known]:
        """The process whose command says what the job is: above those that Python's multiprocessing started."""
        for _ in range(about.MAX_ELDERS):
            elder = self._table.other(known.parent)
            is_part = about.is_multiprocessing(about.command_of(self._table, pid))
            if not is_part or elder is None or known.parent in self._run_of or self._table.uid(known.parent) != uid:
                break
            pid, known = known.parent, elder
        return pid, known
