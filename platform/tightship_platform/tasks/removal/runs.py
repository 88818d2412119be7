"""Removing one run; see [Note: begun and finished]."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from sqlalchemy import ColumnElement, and_, delete, exists, select, true, update
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session

from tightship_platform.captures import store_owner
from tightship_platform.captures.artifact_store import TRACES, ArtifactStore
from tightship_platform.captures.files import remove_all_below
from tightship_platform.captures.transitions import lock, move
from tightship_platform.database import ranked_workflows
from tightship_platform.database.engine import Database
from tightship_platform.database.locks import locked
from tightship_platform.database.models import (
    Action,
    Capture,
    CaptureSchedule,
    FleetPart,
    Opportunity,
    Plan,
    RemovedRun,
    Rollup,
    Run,
    RunAccount,
    RunSample,
    StepStat,
    Trace,
    Workflow,
)
from tightship_platform.database.trouble import is_away
from tightship_platform.database.upsert import add_missing
from tightship_platform.errors import Conflict, TightshipError
from tightship_platform.samples import past_accounts, unallocated
from tightship_platform.units import now_ns
from tightship_platform.vocabulary import CaptureState, OpportunityState, RunState

log = logging.getLogger(__name__)

ROWS_AT_ONCE = 20_000
"""Samples and step counts that one transaction removes, about."""
ENDED = "its run was deleted"


def begin(session: Session, run_id: int, *, keeps_names: bool, now: int | None = None) -> str:
    """Write down that a run goes, and have its rows name no file any more; returns its key.

    :raises Conflict: it lives.
    """
    now = now_ns() if now is None else now
    [run] = locked(session, select(Run).where(Run.id == run_id))
    if run.state == RunState.RUNNING:
        raise Conflict(f"Run {run.key} of {run.workflow.name!r} is running; a run is deleted when it has ended")
    row = {"key": run.key, "keeps_names": keeps_names, "begun_ns": now, "removed_ns": None}
    add_missing(session, RemovedRun, [row])
    final = [state.value for state in CaptureState if state.is_final]
    under_way = select(Capture.key).where(Capture.run_id == run.id, Capture.state.not_in(final)).order_by(Capture.id)
    for key in session.scalars(under_way).all():
        move(lock(session, key), CaptureState.FAILED, now, ENDED)
    session.flush()
    of_run = update(Trace).where(Trace.run_id == run.id, Trace.removed_ns.is_(None)).values(removed_ns=now)
    session.execute(of_run.execution_options(synchronize_session=False))
    return run.key


def begun(session: Session) -> list[str]:
    """Keys of the runs that are being removed, the oldest first."""
    waiting = select(RemovedRun.key).where(RemovedRun.removed_ns.is_(None))
    return list(session.scalars(waiting.order_by(RemovedRun.begun_ns, RemovedRun.key)))


def finish_all(database: Database, store: ArtifactStore, keys: Iterable[str], *, deadline_s: float) -> list[str]:
    """Finish what was begun, each run by itself; one that fails costs a line in the log.

    :param deadline_s: monotonic; nothing more is done after it.
    :returns: keys of the runs that are gone.
    :raises Conflict: the store is not this installation's; nothing was removed.
    :raises DBAPIError: the database is away.
    """
    with database.session() as session:
        store_owner.require_own(session, store)
    gone = []
    for key in keys:
        try:
            if finish(database, store, key, deadline_s=deadline_s):
                gone.append(key)
        except DBAPIError as error:
            if is_away(error):
                raise
            log.warning("Run %s is not removed yet: %s", key, " ".join(str(error.orig).split()))
        except (TightshipError, OSError) as error:
            log.warning("Run %s is not removed yet: %s", key, error)
        except Exception:  # one bad run must not block those after it
            log.exception("Run %s could not be removed", key)
        if time.monotonic() > deadline_s:
            break
    return gone


def finish(database: Database, store: ArtifactStore, key: str, *, deadline_s: float) -> bool:
    """Remove the files and rows of a run whose removal was begun; False: the rest is for another time."""
    remove_all_below(store, f"{TRACES}/{key}")
    with database.session() as session:
        run_id = session.scalar(select(Run.id).where(Run.key == key))
    if run_id is not None and not _clear(database, run_id, deadline_s):
        return False
    with database.session() as session:
        [removed] = locked(session, select(RemovedRun).where(RemovedRun.key == key))
        of_key = locked(session, select(Run).where(Run.key == key))
        for run in of_key:
            _remove_rows(session, run, keeps_names=removed.keeps_names)
        removed.removed_ns = removed.removed_ns or now_ns()
    return True


def _clear(database: Database, run_id: int, deadline_s: float) -> bool:
    """Remove what a run may have very many of; False: time is up."""
    for model in (RunSample, StepStat):
        last: int | None = 0
        while last is not None:
            with database.session() as session:
                mine = select(model.time_ns).where(model.run_id == run_id).order_by(model.time_ns)
                last = session.scalar(mine.offset(ROWS_AT_ONCE).limit(1))
                _delete(session, model, and_(model.run_id == run_id, true() if last is None else model.time_ns <= last))
            if time.monotonic() > deadline_s:
                return False
    with database.session() as session:
        devices = session.scalars(select(Rollup.device_id).where(Rollup.run_id == run_id).distinct()).all()
    for device_id in devices:
        with database.session() as session:
            _delete(session, Rollup, and_(Rollup.run_id == run_id, Rollup.device_id == device_id))
        if time.monotonic() > deadline_s:
            return False
    return True


def _remove_rows(session: Session, run: Run, *, keeps_names: bool) -> None:
    account = {
        row.bucket: row.device_ns for row in session.scalars(select(RunAccount).where(RunAccount.run_id == run.id))
    }
    if run.fleet_id is None:
        past_accounts.keep(session, run, account, keeps_names=keeps_names)
        unallocated.settle(session, run)
    else:  # an import may bring it back
        _delete(session, FleetPart, FleetPart.fleet_id == run.fleet_id)
    plans = session.scalars(select(Action.plan_id).where(Action.run_id == run.id, Action.plan_id.is_not(None))).all()
    _delete(session, Action, Action.run_id == run.id)
    _delete(session, Plan, and_(Plan.id.in_(plans), ~exists().where(Action.plan_id == Plan.id)))
    ranked_workflows.mark(session, [run.workflow_id])
    workflow_id = run.workflow_id
    session.expunge(run)
    _delete(session, Run, Run.id == run.id)  # and, by the database, all that refers to it
    remove_if_empty(session, workflow_id)


def remove_if_empty(session: Session, workflow_id: int) -> None:
    """Remove a workflow without runs, unless somebody made a schedule for it or acted upon its opportunities."""
    acted = Opportunity.state != OpportunityState.OPEN.value
    kept = (
        exists().where(Run.workflow_id == Workflow.id),
        exists().where(CaptureSchedule.workflow_id == Workflow.id),
        exists().where(Plan.workflow_id == Workflow.id),
        exists().where(Opportunity.workflow_id == Workflow.id, acted),
    )
    try:
        with session.begin_nested():
            _delete(session, Workflow, and_(Workflow.id == workflow_id, *(~one for one in kept)))
    except IntegrityError:
        return  # it has a new run by now


def _delete(session: Session, model: type, which: ColumnElement[bool]) -> None:
    session.execute(delete(model).where(which).execution_options(synchronize_session=False))
