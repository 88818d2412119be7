"""The worker and beat processes: Celery's own programs with our logging, signs of life and quick, clean ends."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any

from celery import bootsteps, signals
from celery.beat import PersistentScheduler, SchedulingError, Service
from celery.platforms import SecurityWarning
from celery.worker import state

from tightship_platform.client import new_request_id, set_request_id
from tightship_platform.logs import configure_logging
from tightship_platform.processes.liveness import hold_lock, last_alive_s, report_alive
from tightship_platform.processes.metrics import METRICS
from tightship_platform.processes.metrics_listener import MetricsListener
from tightship_platform.processes.scratch import remove_abandoned
from tightship_platform.processes.start import starting
from tightship_platform.settings import Settings
from tightship_platform.tasks.app import PERIODIC_QUEUE, QUEUE, REQUEST_ID, create_celery, queue_lengths, shown_url
from tightship_platform.tasks.quietly import BROKER_TROUBLE, without_traceback
from tightship_platform.tasks.reserved import Reserved, follow_parent
from tightship_platform.tasks.task_times import TaskTimes
from tightship_platform.tasks.watchdog import Signs, Watchdog

log = logging.getLogger(__name__)

LIVENESS_S = 5.0
PERIODIC_PART = "worker-periodic"
"""Under this name the process for periodic tasks leaves its sign of life."""
MAX_CHILD_KIB = 3 * 1024 * 1024
"""A pool process that has grown beyond this is replaced after its task."""
LAST_RESORT_S = 15.0
"""A worker that should have ended by itself is ended after this long."""
FAREWELL_S = 1.0
"""Time for Python's own exit after that."""


class Schedule(PersistentScheduler):  # type: ignore[misc]  # celery carries no types
    """Celery's scheduler that also leaves a sign of life at each tick, and outlives a set clock and a full disk."""

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Send what is due; seconds until the next look."""
        report_alive(self.app.tightship_home, "beat")
        self._follow_clock()
        return min(float(super().tick(*args, **kwargs)), LIVENESS_S)

    def apply_entry(self, entry: Any, producer: Any = None) -> None:
        """Send a task that is due. Where the broker does not take it, that is one line: it comes again."""
        try:
            self.apply_async(entry, producer=producer, advance=False)
        except SchedulingError as error:
            cause = error.__context__
            if isinstance(cause, BROKER_TROUBLE):
                log.warning("%s is not sent (%s); it comes again", entry.name, " ".join(str(cause).split()))
            else:
                log.exception("%s is not sent", entry.name)

    def sync(self) -> None:
        """Keep on disk what ran when, so that what is due every hour also runs where this process lives for less."""
        try:
            super().sync()
        except OSError as error:
            log.warning("The schedule is not kept in %s (%s)", self.schedule_filename, error)

    def _follow_clock(self) -> None:
        now = self.app.now()
        ahead = [entry for entry in self.schedule.values() if entry.last_run_at > now]
        if ahead:  # the clock was set back; they would wait until it is again where it was
            for entry in ahead:
                entry.last_run_at = now
            self._heap = None


class _Liveness(bootsteps.StartStopStep):  # type: ignore[misc]  # celery carries no types
    """Leaves the worker's sign of life, and ends the worker when its embedded beat, or its process for periodic tasks,
    has died, or when its watchdog says so."""

    requires = ("celery.worker.components:Timer", "celery.worker.components:Beat")

    def __init__(self, worker: Any, **kwargs: Any) -> None:
        super().__init__(worker, **kwargs)
        self._entry: Any = None
        self._ticks = self._taken = 0
        self._watchdog = Watchdog(
            lambda: self._signs(worker),
            lambda: _waiting(worker.app),
            lambda fault: self._give_up(worker, f"{fault}; ending it to start it afresh"),
        )

    def start(self, worker: Any) -> None:
        signals.task_received.connect(self._count, weak=False)
        self._check(worker)
        self._entry = worker.timer.call_repeatedly(LIVENESS_S, self._check, (worker,))
        self._watchdog.start()

    def stop(self, worker: Any) -> None:
        self._watchdog.stop()
        if self._entry is not None:
            self._entry.cancel()
            self._entry = None

    def _count(self, **_: Any) -> None:
        self._taken += 1

    def _signs(self, worker: Any) -> Signs:
        beat_s = None
        if getattr(worker.beat, "pid", None):  # before its start there is nothing to watch
            beat_s = last_alive_s(worker.app.tightship_home, "beat") or 0.0  # it may hang before its first sign
        return Signs(ticks=self._ticks, taken=self._taken, holds=len(state.reserved_requests), beat_s=beat_s)

    def _check(self, worker: Any) -> None:
        self._ticks += 1
        report_alive(worker.app.tightship_home, worker.app.tightship_part)
        beat, reserved = worker.beat, worker.app.tightship_reserved
        # pid: before its start there is nothing to watch.
        if beat is not None and getattr(beat, "pid", None) and not beat.is_alive():
            self._give_up(worker, _death("embedded beat", beat.exitcode))
        elif reserved is not None and reserved.poll() is not None:
            self._give_up(worker, _death("process for periodic tasks", reserved.poll()))

    def _give_up(self, worker: Any, why: str) -> None:
        log.error("%s", why)
        state.should_terminate = 1
        # Celery waits for ever for a pool that died at the same moment.
        _end_within(LAST_RESORT_S, 1)
        self.stop(worker)


def _death(part: str, exit_code: int | None) -> str:
    return f"The {part} has died (exit code {exit_code}); ending the worker to start both afresh"


def _waiting(app: Any) -> int | None:
    """How many tasks wait in the queues that this process takes from; None: the broker does not answer."""
    lengths = queue_lengths(app.tightship_settings)
    return sum(lengths[queue] for queue in app.tightship_queues) if lengths else None


def _end_within(seconds: float, exit_code: int) -> None:
    """End this process then if it has not ended by itself; its pool follows it, the broker has its messages back."""
    last_resort = threading.Timer(seconds, os._exit, (exit_code,))
    last_resort.daemon = True
    last_resort.start()


def _call_first(number: signal.Signals, action: Callable[[], None]) -> None:
    """Have this process (none that it forks) call `action` at that signal, before the handler that stands there."""
    rest = signal.getsignal(number)
    owner = os.getpid()

    def handle(got: int, frame: FrameType | None) -> None:
        if os.getpid() == owner:
            action()
        if callable(rest):
            rest(got, frame)

    signal.signal(number, handle)


def _prepare(settings: Settings) -> Any:
    configure_logging(settings.log_format)
    for handler in logging.getLogger().handlers:
        handler.addFilter(without_traceback)
    # Celery warns when it runs as root, for the sake of pickled messages; JSON is all that is accepted here.
    warnings.filterwarnings("ignore", category=SecurityWarning)
    signals.setup_logging.connect(_keep_logging, weak=False)
    signals.worker_process_init.connect(_child_started, weak=False)
    signals.beat_embedded_init.connect(_child_started, weak=False)
    signals.task_prerun.connect(_task_begins, weak=False)
    signals.task_postrun.connect(_task_has_ended, weak=False)
    app = create_celery(settings)
    app.tightship_settings = settings
    app.tightship_home, app.tightship_part, app.tightship_reserved = settings.home, "worker", None
    app.tightship_times = None
    app.conf.update(
        beat_schedule_filename=str(settings.home / "beat-schedule"),
        beat_scheduler=Schedule,
        beat_max_loop_interval=LIVENESS_S,
    )
    return app


def _keep_logging(**_: Any) -> None:
    """Being connected is what keeps Celery from configuring the logs itself."""


def _task_begins(task_id: str, task: Any, **_: Any) -> None:
    set_request_id(str(task.request.get(REQUEST_ID) or new_request_id()))
    if task.app.tightship_times is not None:
        task.app.tightship_times.begin(task_id)


def _task_has_ended(task_id: str, task: Any, state: str | None = None, **_: Any) -> None:
    if task.app.tightship_times is not None:
        task.app.tightship_times.end(task_id, task.name, failed=state == "FAILURE")
    set_request_id("")


def _child_started(**_: Any) -> None:
    follow_parent()


def run_worker(settings: Settings, *, concurrency: int, beat: bool) -> int:
    """Run tasks until a signal says stop; returns the exit code.

    SIGTERM and SIGINT give running tasks `worker_soft_shutdown_timeout` seconds, then kill them and give their
    messages back to the broker.

    :param concurrency: processes for analyses and plans. One more is kept for periodic tasks.
    :raises Conflict: `beat` is asked for and runs already in this home.
    """
    app = _prepare(settings)
    listener = MetricsListener(settings, "worker") if settings.metrics_address else None
    lock = hold_lock(settings.home, "beat", "one schedule is enough; run this worker without --beat") if beat else None
    # Celery's signal handlers write advice about Ctrl-C to the original stdout, past the logs; without one they do not.
    vars(sys)["__stdout__"] = None
    app.steps["worker"].add(_Liveness)
    remove_abandoned()
    with starting():
        app.loader.import_default_modules()  # before the fork, which shares them
    app.tightship_times = TaskTimes([name for name in app.tasks if not name.startswith("celery.")])
    METRICS.add_source("worker", app.tightship_times.read)

    def run_periodic_tasks() -> int:
        app.tightship_part = PERIODIC_PART
        return _consume(app, [PERIODIC_QUEUE], concurrency=1, hostname="periodic@%h")

    app.tightship_reserved = reserved = Reserved(run_periodic_tasks)
    if listener is not None:
        listener.start()
    log.info(
        "Worker of %d %s on %s, and one for periodic tasks%s",
        concurrency,
        "process" if concurrency == 1 else "processes",
        shown_url(settings.broker_url),
        ", with beat" if beat else "",
    )
    # An idle process for analyses takes periodic tasks, too.
    exit_code = _consume(app, [QUEUE, PERIODIC_QUEUE], concurrency=concurrency, beat=beat, on_stop=reserved.terminate)
    # On a slow machine it takes its time to give its task back; it has its own last resort.
    reserved.end(app.conf.worker_soft_shutdown_timeout + LAST_RESORT_S)
    if lock is not None:
        lock.close()
    # All is given back. At its exit Billiard waits for a lock, which a pool process that was killed may still hold.
    _end_within(FAREWELL_S, exit_code)
    return exit_code


def _consume(
    app: Any,
    queues: list[str],
    *,
    concurrency: int,
    beat: bool = False,
    hostname: str = "celery@%h",
    on_stop: Callable[[], None] | None = None,
) -> int:
    """Run the tasks of these queues until a signal says stop; returns the exit code."""
    stopping = threading.Event()
    app.tightship_queues = queues

    def stop() -> None:
        stopping.set()
        if on_stop is not None:
            on_stop()
        # Asked to stop while it starts, Celery looks for the pool that it has just given up, and calls that an error.
        logging.getLogger("celery.worker.worker").addFilter(lambda record: "Unrecoverable" not in str(record.msg))
        # A shutdown in which Celery's threads wait for each other is rare, but lasts forever.
        _end_within(app.conf.worker_soft_shutdown_timeout + LAST_RESORT_S, 0)

    worker = app.Worker(
        pool="prefork",
        concurrency=concurrency,
        max_memory_per_child=MAX_CHILD_KIB,
        beat=beat,
        queues=queues,
        hostname=hostname,
        quiet=True,
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
        loglevel="WARNING",
    )
    install_handlers = worker.install_platform_tweaks

    def install_handlers_behind_ours(celery_worker: Any) -> None:
        install_handlers(celery_worker)
        # First of all: Celery's own handlers wait for the pool, and announce the shutdown only then.
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            _call_first(number, stop)

    worker.install_platform_tweaks = install_handlers_behind_ours
    worker.start()
    return 0 if stopping.is_set() else int(worker.exitcode or 0) or 1


def run_beat(settings: Settings) -> int:
    """Send the periodic tasks until a signal says stop; returns the exit code.

    :raises Conflict: a beat runs already in this home.
    """
    app = _prepare(settings)
    lock = hold_lock(settings.home, "beat", "one schedule is enough")
    service = Service(app, scheduler_cls=Schedule, schedule_filename=app.conf.beat_schedule_filename)

    def stop(*_: object) -> None:
        sys.exit(0)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    log.info("Beat on %s", shown_url(settings.broker_url))
    try:
        service.start()  # takes the SystemExit as its end and writes the schedule
    finally:
        lock.close()
    return 0
