"""Whose a run is: see [Note: whose is it] in `database.reporters`."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy.orm import Session

from tightship_platform.database.models import Run, UserTeam
from tightship_platform.database.reporters import Reporter, require_host
from tightship_platform.errors import Conflict
from tightship_platform.ingest.refused_rows import RefusedRows
from tightship_platform.vocabulary import RunSource
from tightship_platform.wire import RunRecord


def check_host(session: Session, record: RunRecord, reporter: Reporter) -> None:
    """Refuse a record that the reporter may not send, whosever the run is.

    :raises Conflict: the token is another host's.
    :raises Forbidden: it says what only the host's agent knows, and comes from somebody else.
    """
    if record.uid is not None:
        require_host(session, reporter, record.host)
    elif reporter.host is not None and reporter.host != record.host:
        raise Conflict(
            f"Run {record.run} is of host {record.host!r}; "
            f"the token {reporter.name!r} reports for {reporter.host!r} only"
        )


def bind_run(session: Session, run: Run, record: RunRecord, reporter: Reporter) -> None:
    """Give a run that is new to the host, user and team of its record, or see that it is theirs. The run is locked.

    :raises Conflict: it is somebody else's; nothing was changed.
    """
    user = reporter.user or record.user or None
    if run.host_name != record.host:
        shown = f"host {run.host_name!r}" if run.host_name else "an import"
        raise Conflict(
            f"Run {run.key} is of {shown}, so a record from {record.host!r} is refused; "
            "where one host has two names, set TIGHTSHIP_HOST_NAME"
        )
    if None not in (run.uid, record.uid) and run.uid != record.uid:
        raise Conflict(
            f"Run {run.key} is of the user with number {run.uid}, so a record of number {record.uid} is refused"
        )
    if run.source != RunSource.AGENT and record.seen != (run.source == RunSource.SEEN):
        seen, launched = "an agent that saw it", "a launcher"
        known, sent = (launched, seen) if record.seen else (seen, launched)
        raise Conflict(f"Run {run.key} is reported by {known}, so a record of {sent} is refused")
    # What the agent knows from the kernel goes before what a launcher said of itself.
    agent_tells = record.uid is not None and run.uid is None
    if None not in (run.user_name, user) and run.user_name != user and not agent_tells:
        raise Conflict(f"Run {run.key} is of user {run.user_name!r}, so a record of {user!r} is refused")
    if None not in (run.team, reporter.team) and run.team != reporter.team:
        raise Conflict(f"Run {run.key} is of team {run.team!r}, so a record from team {reporter.team!r} is refused")
    run.user_name = user or run.user_name
    run.uid = run.uid if record.uid is None else record.uid
    run.team = run.team or reporter.team or _team_of_user(session, run, reporter)


def _team_of_user(session: Session, run: Run, reporter: Reporter) -> str | None:
    """The team that an administrator gave the user; None where only the record says who that is."""
    is_known = reporter.user is not None or reporter.is_admin or run.uid is not None
    row = session.get(UserTeam, run.user_name) if is_known and run.user_name is not None else None
    return None if row is None else row.team


def is_of_another(runs: Mapping[str, Run], key: str, host: str, refused: RefusedRows) -> bool:
    """Whether the run is another host's, or was deleted; then a row about it is counted as refused.

    :param runs: as `runs_by_key` returned them.
    """
    run = runs.get(key)
    if run is None:
        refused.add(f"Run {key} was deleted, so nothing more of it is stored")
        return True
    if run.host_name == host:
        return False
    refused.add(f"Run {key} is of {run.host_name!r}, so {host!r} cannot report on it")
    return True
