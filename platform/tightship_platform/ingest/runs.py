"""Runs: announced by their launcher, kept alive by heartbeats, ended by a record or by silence."""

from __future__ import annotations

import re
import signal
from collections.abc import Collection, Mapping

from sqlalchemy import literal, select
from sqlalchemy.orm import Session

from tightship_platform import captures, validation
from tightship_platform.database import removed_runs
from tightship_platform.database.locks import locked
from tightship_platform.database.models import OpportunityAction, RemovedRun, Run, Workflow
from tightship_platform.database.reporters import ANYBODY, Reporter
from tightship_platform.database.upsert import Row, add_missing
from tightship_platform.errors import Gone, Invalid
from tightship_platform.ingest.allocations import close_allocations
from tightship_platform.ingest.labels import check_labels, with_edits
from tightship_platform.ingest.offload import check_offload, put_offload
from tightship_platform.ingest.run_owner import bind_run, check_host
from tightship_platform.ingest.steps import count_steps
from tightship_platform.redaction import hide_in_command, hide_in_values
from tightship_platform.results.run_record import RunRecord
from tightship_platform.samples.retention import is_removed
from tightship_platform.units import NS_PER_S, now_ns, plural
from tightship_platform.validation import ERROR_MAX, NAME_MAX
from tightship_platform.vocabulary import LIVE, ActionKind, RunSource, RunState

LOST_AFTER_NS = 120 * NS_PER_S
"""A run that nothing was heard of for this long, and that has no end record, is lost."""
UNKNOWN_WORKFLOW = "unknown"
"""Holds runs that an agent saw and no launcher announced yet."""
SEEN_ENDED = "its processes are gone; how they ended only a launcher learns"
NO_TEAM = "no team"
"""In place of a team, before the name of a workflow that a team has already."""
MAX_ARGUMENTS = 256
ARGUMENT_MAX = 4096
COMMAND_MAX = 65_536
VERSIONS = ("torch_version", "cuda_version", "driver_version")
VERSION_MAX = 64
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


def apply_run(session: Session, record: RunRecord, *, reporter: Reporter = ANYBODY, now: int | None = None) -> str:
    """Take a launcher's record of a start or an end, or an agent's of a run that it saw; returns the run's key.

    An end stays an end, whatever comes later and in whatever order. The first end record counts.

    :raises Invalid: a value is not acceptable; nothing was changed.
    :raises Conflict: the run is somebody else's; nothing was changed.
    :raises Gone: the run was deleted; the caller rolls back.
    :raises Forbidden: the reporter may not say this of the record's host.
    """
    now = now_ns() if now is None else now
    _check(record, now)
    check_host(session, record, reporter)
    command, labels, surroundings = _command(record.command), hide_in_values(record.labels), _surroundings(record)
    source = RunSource.SEEN if record.seen else RunSource.LAUNCH
    workflow = _workflow(session, record.workflow)
    values = {
        "key": record.run,
        "workflow_id": workflow.id,
        "source": source.value,
        "simulated": False,
        "host_name": record.host,
        "team": reporter.team,
        "user_name": reporter.user or record.user or None,
        "uid": record.uid,
        "external_id": validation.optional_name("External id", record.external_id),
        "command": command,
        "labels": labels,
        "state": RunState.RUNNING.value,
        "start_ns": record.start_ns,
        "last_seen_ns": record.start_ns,
        "ranks": [],
        **surroundings,
    }
    # Whole, as most runs are new: what is set to the same value below costs nothing.
    add_missing(session, Run, [values])
    run = lock_run(session, record.run)
    # Only now: who removes it has it locked.
    if removed_runs.among(session, [record.run]):
        raise Gone(f"Run {record.run} was deleted; nothing more of it is taken")
    bind_run(session, run, record, reporter)
    workflow = _workflow_of(session, workflow, run.team, run.id)
    run.workflow_id = workflow.id
    run.source = source.value if run.source == RunSource.AGENT else run.source
    if run.state == RunState.RUNNING:
        run.reason = None
    run.external_id = validation.optional_name("External id", record.external_id)
    for name, value in surroundings.items():
        setattr(run, name, value)
    _take_action(session, run, record)
    run.command = command
    run.labels = with_edits(labels, run.label_edits)
    run.start_ns = record.start_ns
    # A record may have waited in a spool: what it proves is that the run lived at its own times.
    run.last_seen_ns = max(run.last_seen_ns, record.start_ns, record.end_ns or 0)
    _take_ownership(session, workflow, record, run.team)
    if record.end_ns is not None and run.end_ns is None:
        _end(session, run, record.end_ns, record, now)
        if not is_removed(session, run):
            run.accounted_ns = None
    if record.offload:
        put_offload(session, run, record.offload, now)
    session.flush()
    return run.key


def lock_run(session: Session, key: str) -> Run:
    """The run, which exists, with its row locked until the transaction ends."""
    [run] = locked(session, select(Run).where(Run.key == key))
    return run


def runs_by_key(
    session: Session, first_seen: Mapping[str, int], host: str, *, team: str | None = None
) -> tuple[dict[str, Run], list[str]]:
    """The runs of these keys, locked, in order of key, other hosts' too; makes placeholders for those never announced.
    Those that were deleted are missing.

    :param first_seen: key → earliest time at which it was seen, which is a placeholder's start.
    :param team: whose a placeholder is.
    :returns: the runs by key, and the keys that were never announced. See [Note: runs that were never announced].
    """
    if not first_seen:
        return {}, []
    known, gone = _known_and_removed(session, first_seen)
    missing = sorted(set(first_seen) - known - gone)
    if missing:
        workflow = _workflow_of(session, _workflow(session, UNKNOWN_WORKFLOW), team)
        reason = f"seen by the agent on {host}; its launcher has not reported yet"
        rows: list[Row] = [
            {
                "key": key,
                "workflow_id": workflow.id,
                "source": RunSource.AGENT.value,
                "simulated": False,
                "host_name": host,
                "team": team,
                "command": [],
                "labels": {},
                "state": RunState.RUNNING.value,
                "reason": reason,
                "start_ns": first_seen[key],
                "last_seen_ns": first_seen[key],
                "ranks": [],
            }
            for key in missing
        ]
        add_missing(session, Run, rows)
    runs = _lock_runs(session, set(first_seen) - gone)
    for key in removed_runs.among(session, missing):  # the placeholder waited for the end of its removal
        session.delete(runs.pop(key))
    for key, run in runs.items():
        if run.source == RunSource.AGENT and run.host_name == host:
            run.start_ns = min(run.start_ns, first_seen[key])
    return runs, [key for key, run in runs.items() if run.source == RunSource.AGENT]


def _known_and_removed(session: Session, keys: Collection[str]) -> tuple[set[str], set[str]]:
    """Keys of the runs that are there, and of those that were removed, or are being removed and may be there, too."""
    there = select(Run.key, literal(False)).where(Run.key.in_(keys))
    rows = session.execute(there.union_all(select(RemovedRun.key, literal(True)).where(RemovedRun.key.in_(keys)))).all()
    return {key for key, is_removed in rows if not is_removed}, {key for key, is_removed in rows if is_removed}


def _lock_runs(session: Session, keys: Collection[str]) -> dict[str, Run]:
    """These runs, which exist, with their rows locked until the transaction ends: in order of key, so that nobody
    deadlocks, and in one statement, so that a host with many runs does not hold up the others."""
    return {run.key: run for run in locked(session, select(Run).where(Run.key.in_(keys)).order_by(Run.key))}


def seen(run: Run, at_ns: int) -> None:
    """A sign of life. A run that was given up comes back."""
    run.last_seen_ns = max(run.last_seen_ns, at_ns)


def revive(run: Run, now: int) -> None:
    """Undo `lost` when the run was heard of recently."""
    if run.state == RunState.LOST and run.end_ns is None and run.last_seen_ns >= now - LOST_AFTER_NS:
        run.state = RunState.RUNNING.value
        run.reason = None


def close_lost_runs(session: Session, *, now: int | None = None) -> list[str]:
    """Mark runs as lost that fell silent; returns their keys. A heartbeat or an end record brings them back."""
    now = now_ns() if now is None else now
    silent = select(Run.key).where(Run.state == RunState.RUNNING.value, Run.last_seen_ns < now - LOST_AFTER_NS)
    lost = []
    for key in session.scalars(silent.order_by(Run.key)).all():
        run = lock_run(session, key)
        if run.state == RunState.RUNNING and run.last_seen_ns < now - LOST_AFTER_NS:
            run.state = RunState.LOST.value
            run.reason = f"no sign of life for {LOST_AFTER_NS // NS_PER_S} s; its host, agent or launcher went away"
            lost.append(key)
    session.flush()
    return lost


def _end(session: Session, run: Run, end_ns: int, record: RunRecord, now: int) -> None:
    run.end_ns, run.exit_code = end_ns, record.exit_code
    ended = RunState.UNKNOWN if record.seen else RunState.FINISHED if record.exit_code == 0 else RunState.FAILED
    run.state = ended.value
    if run.state == RunState.FAILED:
        run.error = validation.line(record.error or "", ERROR_MAX) or None
        run.oom_kills = record.oom_kills
    run.reason = SEEN_ENDED if record.seen else _why_failed(run)
    close_allocations(session, run, now)
    session.flush()
    count_steps(session, [run])
    session.flush()
    captures.run_ended(session, run, now=now)


def _why_failed(run: Run) -> str | None:
    if run.exit_code == 0:
        return None
    why = _how_ended(run.exit_code)
    if run.oom_kills:
        why += f"; the kernel killed {plural(run.oom_kills, 'process', 'processes')} of its group for lack of memory"
    return why if run.error is None else f"{why}: {run.error}"


def _how_ended(exit_code: int | None) -> str:
    if exit_code is None:
        return "ended without an exit code"
    if exit_code > 128:
        try:
            return f"ended by {signal.Signals(exit_code - 128).name}"
        except ValueError:
            pass
    return f"ended with exit code {exit_code}"


def _workflow(session: Session, name: str) -> Workflow:
    found = select(Workflow).where(Workflow.name == name)
    workflow = session.scalar(found)
    if workflow is None:
        add_missing(session, Workflow, [{"name": name, "labels": {}}])
        workflow = session.scalars(found).one()
    return workflow


def _workflow_of(session: Session, workflow: Workflow, team: str | None, run_id: int | None = None) -> Workflow:
    """The team's workflow of this name; `team/name` where that is another's, as no workflow holds runs of two teams,
    and none of an imported fleet those of the live one.

    :param run_id: a run that is to go there, wherever it is now.
    """
    if workflow.fleet_id is not None:
        return _workflow_of(session, _workflow(session, f"{LIVE}/{workflow.name}"[:NAME_MAX]), team, run_id)
    others = select(Run.team).where(Run.workflow_id == workflow.id, Run.id.is_distinct_from(run_id)).limit(1)
    found = session.execute(others).one_or_none()
    if found is None:  # the first run: of two at once, one is
        locked(session, select(Workflow).where(Workflow.id == workflow.id))
        found = session.execute(others).one_or_none()
    if found is None or found.team == team:
        return workflow
    own = validation.name("Workflow", f"{team or NO_TEAM}/{workflow.name}")
    return _workflow_of(session, _workflow(session, own), team, run_id)


def _take_ownership(session: Session, workflow: Workflow, record: RunRecord, bound: str | None) -> None:
    """Team and owner are those of the newest run that names them; an old record that comes late changes nothing.

    :param bound: the team of the token that reported the run, which goes before what its record says.
    """
    team = bound or validation.optional_name("Team", record.team)
    owner = validation.optional_name("Owner", record.owner)
    if team in (None, workflow.team) and owner in (None, workflow.owner):
        return
    later = select(Run.id).where(
        Run.workflow_id == workflow.id, Run.start_ns > record.start_ns, Run.source != RunSource.AGENT.value
    )
    is_newest = session.scalar(later.limit(1)) is None
    if team is not None and (is_newest or workflow.team is None):
        workflow.team = team
    if owner is not None and (is_newest or workflow.owner is None):
        workflow.owner = owner


def _surroundings(record: RunRecord) -> dict[str, str | bool]:
    """What the run was launched with. It becomes known bit by bit: a record without it takes nothing away."""
    known: dict[str, str | bool | None] = {"git_commit": record.git_commit, "git_dirty": record.git_dirty}
    for name, most in (("image", NAME_MAX), *((name, VERSION_MAX) for name in VERSIONS)):
        known[name] = validation.line(getattr(record, name) or "", most) or None
    return {name: value for name, value in known.items() if value is not None}


def _take_action(session: Session, run: Run, record: RunRecord) -> None:
    """The application that it was launched with, if it is one of the run's workflow."""
    if record.applied_action is None:
        return
    action = session.get(OpportunityAction, record.applied_action)
    if action is not None and action.workflow_id == run.workflow_id and action.kind == ActionKind.APPLY:
        run.applied_action_id = action.id


def _check(record: RunRecord, now: int) -> None:
    validation.key("Run", record.run)
    validation.name("Workflow", record.workflow)
    validation.name("Host", record.host)
    for what, value in (("Team", record.team), ("Owner", record.owner), ("User", record.user)):
        validation.optional_name(what, value)
    if record.uid is not None:
        validation.count("uid", record.uid, most=2**32 - 1)
    if record.seen and (record.uid is None or (record.exit_code, record.error) != (None, None)):
        raise Invalid("seen", record.seen, "false, or a uid and neither exit_code nor error: an agent sees no more")
    validation.optional_name("External id", record.external_id)
    if record.git_commit is not None and not _COMMIT.fullmatch(record.git_commit):
        raise Invalid("git_commit", record.git_commit, "40 or 64 hexadecimal digits")
    validation.time_ns("start_ns", record.start_ns, now)
    check_labels(record.labels)
    check_offload(record.offload)
    if record.end_ns is not None:
        validation.time_ns("end_ns", record.end_ns, now)
        if record.end_ns < record.start_ns:
            raise Invalid("end_ns", record.end_ns, f"a time after start_ns {record.start_ns}")
    if record.exit_code is not None:
        validation.count("exit_code", record.exit_code, most=255)
        if record.end_ns is None:
            raise Invalid("exit_code", record.exit_code, "null while end_ns is null")
    if record.applied_action is not None:
        validation.count("applied_action", record.applied_action)
    if record.oom_kills is not None:
        validation.count("oom_kills", record.oom_kills, most=validation.INT32_MAX)


def _command(command: list[str]) -> list[str]:
    kept: list[str] = []
    for text in hide_in_command(command[:MAX_ARGUMENTS]):
        kept.append(validation.argument(text, ARGUMENT_MAX))
        if sum(map(len, kept)) > COMMAND_MAX:
            return [*kept[:-1], "…"]
    return kept if len(command) <= MAX_ARGUMENTS else [*kept, "…"]
