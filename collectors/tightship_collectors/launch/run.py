"""One run from its first to its last moment.

[Note: never in the way]
Whatever is missing (a server, an agent, space, permission, a readable settings file) costs one line on stderr, and the
command runs. Only what the user asked for wrongly ends before it starts: a name that is none, a command that is none.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tightship_collectors.jobs.run_directory import RunDir, live_run_dir, read_user_conf, remove_stale
from tightship_collectors.launch import naming
from tightship_collectors.launch.child import CannotStart, Child
from tightship_collectors.launch.delivery import Delivery
from tightship_collectors.launch.ending import OomKills, memory_limit, read_job_error
from tightship_collectors.launch.environment import Offload, armed
from tightship_collectors.launch.memory_advice import LINE_MAX, has_torch, measure_command, memory_advice
from tightship_collectors.launch.observed import watch
from tightship_collectors.launch.offload_file import read_offload
from tightship_collectors.launch.surroundings import Surroundings
from tightship_platform import validation
from tightship_platform.errors import TightshipError
from tightship_platform.redaction import hide_in_values
from tightship_platform.results.memory_lack import lack_of
from tightship_platform.results.run_record import RunRecord
from tightship_platform.settings import Settings, load_settings
from tightship_platform.units import now_ns

if TYPE_CHECKING:
    from tightship_collectors.launch.change import LaunchedChange

if TYPE_CHECKING:
    from tightship_collectors.launch.change import LaunchedChange


@dataclass(frozen=True, kw_only=True)
class Names:
    """How the user names a run.

    :raises Invalid: one of them is too long, or would break a line.
    """

    workflow: str | None = None
    """Default: the name of the script."""
    team: str | None = None
    owner: str | None = None
    labels: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for what, value in (("--workflow", self.workflow), ("--team", self.team), ("--owner", self.owner)):
            if value is not None:
                validation.name(what, value)


class OneLine:
    """Says the first thing that went wrong, and no more."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._warned = False

    def __call__(self, text: str, limit: int = 600) -> None:
        """:param limit: characters of the line."""
        with self._lock:
            if self._warned:
                return
            self._warned = True
        with contextlib.suppress(OSError, ValueError, AttributeError):  # stderr is closed, or nobody reads it any more
            sys.stderr.write(f"tightship: {validation.line(text, limit)}\n")
            sys.stderr.flush()


def run_command(
    command: Sequence[str],
    names: Names,
    *,
    steps: bool = True,
    offload: Offload | None = None,
    change: LaunchedChange | None = None,
) -> int:
    """Run `command` as a separate run and return its exit code as a shell gives it (128 + n for signal n).

    A run within a run is not a separate run: the command then joins the outer one, whose launcher reports it.

    :param steps: count optimizer steps.
    :param offload: a plan to apply to the job.
    :param change: an application that the job is launched with.
    :raises CannotStart: there is no such command; nothing has been recorded.
    """
    warn = OneLine()
    environ = dict(os.environ) if change is None else change.applied_to(os.environ)
    environ = environ if offload is None else offload.environment(environ)
    outer = live_run_dir(os.environ)
    if outer is not None:
        warn(f"already inside run {outer.name}: the command is part of it, and options of the inner run do not apply")
        return Child(command, environ).wait()
    try:
        settings = load_settings()
    except (TightshipError, OSError, RuntimeError, ValueError) as error:
        warn(f"{error}; the command runs without tightship")
        return Child(command, environ).wait()
    action = None if change is None else change.action
    return _run(command, names, settings, steps, warn, environ, offload, action)


def _run(
    command: Sequence[str],
    names: Names,
    settings: Settings,
    steps: bool,
    warn: OneLine,
    environ: dict[str, str],
    offload: Offload | None,
    action: int | None,
) -> int:
    key = os.urandom(8).hex()
    begin_ns = _elapsed_ns()
    record = dataclasses.replace(_record(key, command, names, settings, environ), applied_action=action)
    run_dir = _prepare(settings, record, warn)
    if run_dir is not None:
        environ = armed(environ, key=key, run_dir=run_dir.path, steps=steps)
    oom_kills = OomKills()
    try:
        child = Child(command, environ)
    except CannotStart:
        if run_dir is not None:
            run_dir.close()
        raise
    # From here on there is a job, and no defect of ours may take its exit code.
    delivery = Delivery(settings, warn)
    tidy = threading.Thread(target=remove_stale, args=(settings.runtime_dir,), name="tidy", daemon=True)
    over = threading.Event()
    surroundings = Surroundings(command, environ, delivery)
    with _only_warned(warn):
        surroundings.announce(record)
        tidy.start()
        if run_dir is not None:
            arguments = (child.pid, run_dir.path, OneLine(), over)
            threading.Thread(target=watch, args=arguments, name="observed", daemon=True).start()
    exit_code = child.wait()
    over.set()
    # Not the wall clock, which may have been set meanwhile: a run has the length that it took.
    end_ns = record.start_ns + _elapsed_ns() - begin_ns
    ended = dataclasses.replace(surroundings.at_end(record), end_ns=end_ns, exit_code=exit_code)
    if run_dir is not None:
        ended.offload = read_offload(run_dir.path)
        if offload is not None and not offload.optional and not exit_code and not ended.offload:
            OneLine()(
                f"{offload.plan} was not applied: no process of the job took a step with an optimizer of torch.optim "
                "on a model that it fits"
            )
    if exit_code:  # what a job survived did not end it
        with _only_warned(warn):
            ended.oom_kills = oom_kills.count()
            ended.error = None if run_dir is None else read_job_error(run_dir.path)
            _advise(command, ended, run_dir, offload)
    with _only_warned(warn):
        if run_dir is not None:
            _write(run_dir, ended, warn)
        delivery.finish(ended)
    with _only_warned(warn):
        if run_dir is not None:
            run_dir.close()
    return exit_code


def _advise(command: Sequence[str], ended: RunRecord, run_dir: RunDir | None, offload: Offload | None) -> None:
    """Say what a job that died for lack of memory was short of, and where to go on."""
    lack = lack_of(ended.error, ended.oom_kills)
    if lack is None:
        return
    advice = memory_advice(
        lack,
        oom_kills=ended.oom_kills,
        limit_bytes=memory_limit(),
        next_command=measure_command(command) if run_dir is not None and has_torch(run_dir.path) else None,
        plan=None if offload is None else offload.plan,
    )
    OneLine()(advice, LINE_MAX + 600)


def _elapsed_ns() -> int:
    """A clock that nobody sets, and that goes on while the host is suspended."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


@contextlib.contextmanager
def _only_warned(warn: OneLine) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        # No thread or descriptor to be had, say: whatever it is, the job has nothing to do with it.
        warn(f"this run may not be recorded ({type(error).__name__}: {error})")


def _prepare(settings: Settings, record: RunRecord, warn: OneLine) -> RunDir | None:
    try:
        run_dir = RunDir.create(settings.runtime_dir, record.run, kineto_conf=read_user_conf(os.environ))
    except (TightshipError, OSError) as error:
        warn(f"{error}; the command runs, but cannot be captured")
        return None
    _write(run_dir, record, warn)
    return run_dir


def _write(run_dir: RunDir, record: RunRecord, warn: OneLine) -> None:
    try:
        run_dir.write_record(record)
    except OSError as error:
        warn(f"the run's record could not be written: {error}")


def _record(
    key: str, command: Sequence[str], names: Names, settings: Settings, environ: Mapping[str, str]
) -> RunRecord:
    return RunRecord(
        run=key,
        workflow=names.workflow or naming.workflow_of(command),
        start_ns=now_ns(),
        host=settings.host_name,
        user=naming.user_name(),
        team=names.team,
        owner=names.owner,
        labels=hide_in_values(names.labels),
        command=naming.reported_command(command),
        external_id=naming.external_id_of(environ),
        image=naming.image_of(environ),
    )
