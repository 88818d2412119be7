"""The worker and beat processes: Celery's own programs with our logging, signs of life and quick, clean ends."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any

from celery import bootsteps, signals
from celery.beat import PersistentScheduler, Service
from celery.platforms import SecurityWarning

from tightship_platform.logs import configure_logging
from tightship_platform.processes.liveness import hold_lock, report_alive
from tightship_platform.settings import Settings
from tightship_platform.tasks.app import create_celery, shown_url

log = logging.getLogger(__name__)

LIVENESS_S = 5.0
MAX_CHILD_KIB = 3 * 1024 * 1024
"""A pool process that has grown beyond this is replaced after its task."""
LAST_RESORT_S = 15.0
"""A worker that should have ended by itself is ended after this long."""
FAREWELL_S = 1.0
"""Time for Python's own exit after that."""
_PARENT_POLL_S = 1.0


def follow_parent() -> None:
    """End this process soon after its parent is gone: after kill -9 nobody else would.

    A thread that looks rather than PR_SET_PDEATHSIG, which fires already when the *thread* that forked ends.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_POLL_S)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="follow-parent", daemon=True).start()


class Schedule(PersistentScheduler):  # type: ignore[misc]  # celery carries no types
    """Celery's scheduler that also leaves a sign of life at each tick."""

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Send what is due; seconds until the next look."""
        report_alive(self.app.tightship_home, "beat")
        return min(float(super().tick(*args, **kwargs)), LIVENESS_S)


class _Liveness(bootsteps.StartStopStep):  # type: ignore[misc]  # celery carries no types
    """Leaves the worker's sign of life, and ends the worker when its embedded beat has died."""

    requires = ("celery.worker.components:Timer", "celery.worker.components:Beat")

    def __init__(self, worker: Any, **kwargs: Any) -> None:
        super().__init__(worker, **kwargs)
        self._entry: Any = None

    def start(self, worker: Any) -> None:
        self._check(worker)
        self._entry = worker.timer.call_repeatedly(LIVENESS_S, self._check, (worker,))

    def stop(self, worker: Any) -> None:
        if self._entry is not None:
            self._entry.cancel()
            self._entry = None

    def _check(self, worker: Any) -> None:
        report_alive(worker.app.tightship_home, "worker")
        beat = worker.beat
        # pid: before its start there is nothing to watch.
        if beat is not None and getattr(beat, "pid", None) and not beat.is_alive():
            from celery.worker import state

            log.error(
                "The embedded beat has died (exit code %s); ending the worker to start both afresh", beat.exitcode
            )
            state.should_terminate = 1
            # Celery waits for ever for a pool that died at the same moment.
            _end_within(LAST_RESORT_S, 1)
            self.stop(worker)


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
    configure_logging()
    # Celery warns when it runs as root, for the sake of pickled messages; JSON is all that is accepted here.
    warnings.filterwarnings("ignore", category=SecurityWarning)
    signals.setup_logging.connect(_keep_logging, weak=False)
    signals.worker_process_init.connect(_child_started, weak=False)
    signals.beat_embedded_init.connect(_child_started, weak=False)
    app = create_celery(settings)
    app.tightship_home = settings.home
    app.conf.update(
        beat_schedule_filename=str(settings.home / "beat-schedule"),
        beat_scheduler=Schedule,
        beat_max_loop_interval=LIVENESS_S,
    )
    return app


def _keep_logging(**_: Any) -> None:
    """Being connected is what keeps Celery from configuring the logs itself."""


def _child_started(**_: Any) -> None:
    follow_parent()


def run_worker(settings: Settings, *, concurrency: int, beat: bool) -> int:
    """Run tasks until a signal says stop; returns the exit code.

    SIGTERM and SIGINT give running tasks `worker_soft_shutdown_timeout` seconds, then kill them and give their
    messages back to the broker.

    :raises Conflict: `beat` is asked for and runs already in this home.
    """
    app = _prepare(settings)
    lock = hold_lock(settings.home, "beat", "one schedule is enough; run this worker without --beat") if beat else None
    stopping = threading.Event()

    def stop() -> None:
        stopping.set()
        # A shutdown in which Celery's threads wait for each other is rare, but lasts forever.
        _end_within(app.conf.worker_soft_shutdown_timeout + LAST_RESORT_S, 0)

    # Celery's signal handlers write advice about Ctrl-C to the original stdout, past the logs; without one they do not.
    vars(sys)["__stdout__"] = None
    app.steps["worker"].add(_Liveness)
    worker = app.Worker(
        pool="prefork",
        concurrency=concurrency,
        max_memory_per_child=MAX_CHILD_KIB,
        beat=beat,
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
    log.info(
        "Worker of %d %s on %s%s",
        concurrency,
        "process" if concurrency == 1 else "processes",
        shown_url(settings.broker_url),
        ", with beat" if beat else "",
    )
    worker.start()
    if lock is not None:
        lock.close()
    exit_code = 0 if stopping.is_set() else int(worker.exitcode or 0) or 1
    # All is given back. At its exit Billiard waits for a lock, which a pool process that was killed may still hold.
    _end_within(FAREWELL_S, exit_code)
    return exit_code


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
