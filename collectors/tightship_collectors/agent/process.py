"""The agent as a process: one per installation, stopped by signals."""

from __future__ import annotations

import logging
import resource
import signal
import threading
from types import FrameType

from tightship_collectors.agent.agent import Agent
from tightship_collectors.agent.tidying import Tidying
from tightship_collectors.delivery.own_token import with_own_token
from tightship_collectors.jobs.run_directory import make_private, taken_runtime_dir
from tightship_collectors.kineto.executor import CaptureExecutor
from tightship_collectors.kineto.service import KinetoService
from tightship_platform import __version__, validation
from tightship_platform.client import ApiClient
from tightship_platform.errors import Conflict
from tightship_platform.logs import configure_logging
from tightship_platform.processes.liveness import hold_lock
from tightship_platform.processes.metrics import METRICS
from tightship_platform.processes.metrics_listener import MetricsListener
from tightship_platform.settings import load_settings

LOG = logging.getLogger(__name__)

LOCK = "agent"
MAX_FILES = 65_536
"""Open files, as far as the system permits: each run has a socket, and each rank a control file."""


def run_agent(*, interval_ns: int, once: bool) -> None:
    """Be this host's agent until SIGTERM or SIGINT.

    :raises Conflict: another agent serves the same home or runtime directory.
    :raises Invalid: the runtime directory is not ours alone, or the host's name is none.
    """
    settings = with_own_token(load_settings())
    configure_logging(settings.log_format)
    _allow_many_files()
    # The server would refuse everything that this host ever says.
    validation.name("TIGHTSHIP_HOST_NAME", settings.host_name)
    try:
        make_private(settings.runtime_dir)
        locks = [
            hold_lock(settings.home, LOCK, "stop it first, or set another TIGHTSHIP_HOME"),
            hold_lock(settings.runtime_dir, LOCK, "stop it first, or set another TIGHTSHIP_RUNTIME_DIR"),
        ]
        captures = [] if once else [CaptureExecutor(settings, ApiClient(settings), KinetoService())]
        agent = Agent(settings, interval_ns=interval_ns, captures=captures)
        if settings.metrics_address and not once:
            METRICS.add_source("agent", agent.figures)
            MetricsListener(settings, "agent").start()
    except OSError as error:
        raise Conflict(f"The agent cannot use {error.filename}: {error.strerror}; check its owner and space") from error
    stop = threading.Event()

    def on_signal(number: int, _frame: FrameType | None) -> None:
        LOG.info("Stopping: received %s", signal.Signals(number).name)
        stop.set()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    LOG.info("Agent %s of host %s reports to %s", __version__, settings.host_name, settings.server)
    taken = taken_runtime_dir(settings.runtime_dir)
    if taken is not None:
        LOG.warning("%s is another user's: runs are in %s; have root remove it", taken, settings.runtime_dir)
    if once:
        agent.once()
    else:
        Tidying(settings.runtime_dir).start()
        agent.run(stop)
    for lock in locks:
        lock.close()


def _allow_many_files() -> None:
    """The usual 1,024 would let a few users with many runs each take the socket of everybody else's."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
