"""The host agent: once a second it looks at the host, its devices and its runs, and passes on what it saw.

[Note: never hurts the job]
The agent only reads what belongs to jobs: /proc, control files, driver counters. A job neither waits for it nor notices
when it dies; Kineto asks its socket without blocking, and the exit guard's wait is bounded by a deadline. What must
outlive the agent (records, open allocations, step counters) is on disk before it is needed.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import psutil

from tightship_collectors.agent.seen_runs import SeenRuns, SeenTick
from tightship_collectors.agent.state import AgentState, load_state, save_state
from tightship_collectors.delivery.sender import Sender
from tightship_collectors.delivery.spool import Spool
from tightship_collectors.jobs.allocations import Allocations
from tightship_collectors.jobs.attribution import Attribution, LocalRun
from tightship_collectors.jobs.live_run import HostRun
from tightship_collectors.jobs.run_directory import encode_record
from tightship_collectors.jobs.run_records import read_run_record
from tightship_collectors.jobs.step_reader import MAX_STEPS, StepReader, is_believable
from tightship_collectors.sources.base import DeviceProcess
from tightship_collectors.sources.devices import HostDevices
from tightship_collectors.sources.host import HostSource
from tightship_platform import __version__
from tightship_platform.client import ApiClient
from tightship_platform.processes.liveness import last_alive_s, report_alive
from tightship_platform.processes.metrics import METRICS, Figure
from tightship_platform.results.run_record import RunRecord
from tightship_platform.settings import ALL_RUNS, Settings
from tightship_platform.units import NS_PER_S, now_ns, plural
from tightship_platform.vocabulary import DeviceKind
from tightship_platform.wire import Batch, DeviceRecord, Heartbeat, LiveRun, RankRecord

LOG = logging.getLogger(__name__)

FLUSH_S = 5.0
"""A batch and a heartbeat are made this often; a heartbeat also at once when runs or ranks change."""
REPEAT_ALLOCATIONS_S = 60.0
MAX_BATCH_ROWS = 5000
FLUSH_AT_END_S = 1.8
FLUSH_ONCE_S = 60.0
"""Of an agent for a single look, which nobody waits for to be gone."""
RECORD_PATIENCE_S = 10.0
"""How long the agent looks for the record of a run before it takes it that there is none."""


class Captures(Protocol):
    """What carries out captures of live runs."""

    def update(self, runs: Sequence[HostRun]) -> None:
        """The runs that live now."""
        ...

    def close(self) -> None:
        """Stop; captures in flight are given back or failed with a reason."""
        ...


class Agent:
    """One host's agent. `run` loops until stopped; `tick` is one look.

    :raises OSError: the spool folder cannot be used.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        interval_ns: int = NS_PER_S,
        devices: HostDevices | None = None,
        captures: Sequence[Captures] = (),
        attribution: Attribution | None = None,
    ) -> None:
        self._settings = settings
        self._interval_ns = interval_ns
        self._devices = devices or HostDevices()
        self._host = HostSource()
        self._captures = captures
        self._attribution = attribution or Attribution(settings.runtime_dir)
        self._info = _host_info()
        self._seen_runs = self._make_seen_runs()
        self._allocations = Allocations()
        self._steps = StepReader(settings.step_period_s * NS_PER_S)
        self._spool = Spool(settings.spool_dir)
        self._client = ApiClient(settings)
        self._sender = Sender(self._client, self._spool, records_dir=settings.spool_dir / "runs")
        self._state_path = settings.spool_dir / "agent.json"
        self._saved: AgentState | None = None
        self._batch = Batch(host=settings.host_name)
        self._flush_at_s = 0.0
        self._repeat_at_s = 0.0
        self._seen: object = None
        self._unrecorded: dict[str, float] = {}
        self._known_runs: set[str] = set()
        self._first_tick = True
        self._failing = False

    def run(self, stop: threading.Event) -> None:
        """Look once per interval until `stop` is set; then deliver what is left within 2 s.

        The schedule is the monotonic clock's, so that it neither drifts nor jumps; looks that were missed (the host
        was suspended, the disk hung) are skipped, not made up for.
        """
        self._sender.start()
        due_ns = time.monotonic_ns()
        try:
            while not stop.is_set():
                self._guarded_tick()
                due_ns += self._interval_ns
                late_ns = time.monotonic_ns() - due_ns
                if late_ns > 0:
                    due_ns += late_ns // self._interval_ns * self._interval_ns
                stop.wait(max(0, due_ns - time.monotonic_ns()) / NS_PER_S)
        finally:
            self.close()

    def once(self) -> None:
        """Two looks one interval apart (rates are differences), delivered."""
        self._sender.start()
        try:
            self.tick()
            time.sleep(self._interval_ns / NS_PER_S)
            self.tick()
        finally:
            self.close(FLUSH_ONCE_S)

    def close(self, flush_s: float = FLUSH_AT_END_S) -> None:
        """Write down what there is, and deliver it for at most `flush_s`."""
        self._flush()
        self._sender.finish(flush_s)
        for captures in self._captures:
            captures.close()
        self._sender.stop(flush_s)
        self._client.close()
        self._steps.close()
        entries, size = self._spool.backlog()
        if entries:
            LOG.info("Kept in the spool for the next agent: %s (%d KiB)", plural(entries, "record"), size // 1024)

    def figures(self) -> Iterator[Figure]:
        """What waits and what was lost, for Prometheus."""
        entries, size = self._spool.backlog()
        yield Figure(name="tightship_spool_entries", value=entries)
        yield Figure(name="tightship_spool_bytes", value=size)
        yield Figure(name="tightship_spool_dropped_total", value=self._spool.dropped)
        yield Figure(name="tightship_rows_not_stored_total", value=self._sender.too_old, labels=("too_old",))
        yield Figure(name="tightship_rows_not_stored_total", value=self._sender.refused, labels=("refused",))
        yield Figure(name="tightship_runs", value=len(self._known_runs))

    def _guarded_tick(self) -> None:
        began_s = time.monotonic()
        try:
            self.tick()
            self._failing = False
        except Exception:
            # A defect in one look must not blind the host for good; a lasting one is reported once.
            if not self._failing:
                LOG.exception("A look at the host failed; the agent goes on")
            self._failing = True
        METRICS.observe("tightship_look_seconds", time.monotonic() - began_s)

    def tick(self) -> None:
        """One look at everything."""
        runs = self._attribution.update()
        views = [run.view for run in runs]
        for captures in self._captures:
            captures.update(views)
        if self._first_tick:
            self._first_tick = False
            self._restore(views)
        time_ns = now_ns()
        self._batch.samples.extend(self._devices.read())
        self._batch.host_samples.extend(self._host.read())
        devices = self._devices.devices()
        processes = list(self._devices.processes())
        found = self._look_for_runs(time_ns, devices, processes)
        seen = self._allocations.update(time_ns, [*runs, *found.holders], devices, processes)
        self._batch.run_samples.extend(seen.samples)
        self._batch.allocations.extend(seen.allocations)
        self._steps.update(time_ns, views)
        self._tell_new_runs(runs)
        live = [_live_run(view, seen.held.get(view.run, [])) for view in views]
        live += [LiveRun(run=one.run, devices=seen.held[one.run], since_ns=one.start_ns) for one in found.holders]
        ended = self._known_runs - {run.run for run in live}
        self._known_runs = {run.run for run in live}
        changed = _who(live) != self._seen
        self._seen = _who(live)
        due = time.monotonic() >= self._flush_at_s
        if due or ended or seen.allocations:
            self._flush()
        self._put_records(found.ended)  # after the last allocations
        if due or changed:
            self._sender.offer(self._heartbeat(time_ns, live))
        if due:
            self._flush_at_s = time.monotonic() + FLUSH_S
            with contextlib.suppress(OSError):  # a full disk: the spool says so
                report_alive(self._settings.home, "agent")

    # ---- runs that nobody launched -----------------------------------------------------------------------------------

    def _make_seen_runs(self) -> SeenRuns | None:
        if self._settings.agent_runs != ALL_RUNS:
            return None
        boot_id, hertz = str(self._info.get("boot_id", "")), os.sysconf("SC_CLK_TCK")
        return SeenRuns(self._attribution.table, self._settings.host_name, boot_id, hertz=hertz)

    def _look_for_runs(
        self, time_ns: int, devices: Sequence[DeviceRecord], processes: Sequence[DeviceProcess]
    ) -> SeenTick:
        if self._seen_runs is None:
            return SeenTick()
        is_processor = any(device.kind == DeviceKind.CPU.value for device in devices)
        found = self._seen_runs.look(time_ns, None if is_processor else processes)
        self._put_records(found.begun)
        return found

    def _put_records(self, records: Sequence[RunRecord]) -> None:
        for record in records:
            self._spool.put("runs", encode_record(record))

    # ---- passing on --------------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Put what was collected into the spool, then remember how far it reaches."""
        batch, self._batch = self._batch, Batch(host=self._settings.host_name)
        batch.steps = self._steps.drain()
        if time.monotonic() >= self._repeat_at_s:
            self._repeat_at_s = time.monotonic() + REPEAT_ALLOCATIONS_S
            batch.allocations.extend(self._allocations.open_allocations())
        batch.devices = list(self._devices.devices())
        for part in split_batch(batch, MAX_BATCH_ROWS):
            self._spool.put("batches", encode(part))
        seen = [] if self._seen_runs is None else self._seen_runs.snapshot()
        state = AgentState(allocations=self._allocations.snapshot(), steps=self._steps.snapshot(), seen=seen)
        if state != self._saved:
            save_state(self._state_path, state)
            self._saved = state
        self._sender.wake()

    def _tell_new_runs(self, runs: Sequence[LocalRun]) -> None:
        """Repeat the launcher's record of each run that was not seen before."""
        now_s = time.monotonic()
        for run in runs:
            key = run.view.run
            if key not in self._known_runs:
                self._unrecorded[key] = now_s + RECORD_PATIENCE_S
            if key in self._unrecorded:
                record = read_run_record(run, self._settings.host_name)
                if record is not None:
                    self._spool.put("runs", json.dumps(record).encode())
                if record is not None or now_s > self._unrecorded[key]:
                    del self._unrecorded[key]
        for key in self._unrecorded.keys() - {run.view.run for run in runs}:
            del self._unrecorded[key]

    def _heartbeat(self, time_ns: int, live: list[LiveRun]) -> Heartbeat:
        entries, size = self._spool.backlog()
        return Heartbeat(
            host=self._settings.host_name,
            time_ns=time_ns,
            agent_version=__version__,
            info={
                **self._info,
                "spool_entries": entries,
                "spool_bytes": size,
                "spool_dropped": self._spool.dropped,
                "rows_too_old": self._sender.too_old,
                "rows_refused": self._sender.refused,
            },
            devices=list(self._devices.devices()),
            sources=[
                self._host.state(),
                *self._devices.states(),
                self._attribution.state(),
                *([] if self._seen_runs is None else [self._seen_runs.state()]),
            ],
            runs=live,
        )

    def _restore(self, views: Sequence[HostRun]) -> None:
        state = load_state(self._state_path)
        try:
            self._steps.restore(state.steps, views)
        except ValueError as error:
            LOG.warning("The step counters in %s are invalid and are counted again: %r", self._state_path, error)
        live = [view.run for view in views]
        if self._seen_runs is not None:
            alive_s = last_alive_s(self._settings.home, "agent")
            ended = self._seen_runs.restore(state.seen, None if alive_s is None else int(alive_s * NS_PER_S))
            self._put_records(ended)
            live += self._seen_runs.live()
        self._allocations.restore(state.allocations, live)


def encode(batch: Batch) -> bytes:
    """The JSON of a batch. What is null is left out: it is most of a row on most hosts."""
    return json.dumps(batch, default=_known_values, separators=(",", ":"), allow_nan=False).encode()


def split_batch(batch: Batch, max_rows: int) -> list[Batch]:
    """The batch in parts of at most `max_rows` rows, in order; none for an empty one."""
    parts: list[Batch] = []
    room = 0
    for name in ("allocations", "samples", "host_samples", "run_samples", "steps"):
        rows = getattr(batch, name)
        while rows:
            if room == 0:
                parts.append(Batch(host=batch.host, devices=batch.devices))
                room = max_rows
            taken, rows = rows[:room], rows[room:]
            setattr(parts[-1], name, taken)
            room -= len(taken)
    return parts


def _known_values(record: object) -> dict[str, object]:
    return {name: value for name, value in vars(record).items() if value is not None}


def _live_run(view: HostRun, devices: list[str]) -> LiveRun:
    ranks = [
        RankRecord(rank=r.rank, pid=r.pid, guard=r.guard, steps=r.steps if (r.steps or 0) <= MAX_STEPS else None)
        for r in view.ranks
        if is_believable(r)
    ]
    return LiveRun(run=view.run, ranks=ranks, devices=devices, since_ns=view.start_ns)


def _who(live: Sequence[LiveRun]) -> object:
    """What the server must learn at once when it changes: runs, ranks, guards and devices, but not step counts."""
    return [(run.run, [(r.rank, r.pid, r.guard) for r in run.ranks], run.devices) for run in live]


def _host_info() -> dict[str, str | int | float]:
    info: dict[str, str | int | float] = {
        "cpus": os.cpu_count() or 1,
        "memory_bytes": psutil.virtual_memory().total,
        "kernel": os.uname().release,
        "agent_pid": os.getpid(),
    }
    try:
        info["boot_id"] = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        LOG.debug("This kernel tells no boot id")
    return info
