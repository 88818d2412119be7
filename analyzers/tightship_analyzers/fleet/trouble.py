"""Runs whose account or judgement fails: each costs itself only, says so, and is tried again later."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from sqlalchemy import ColumnElement, or_, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from tightship_platform.database.engine import Database
from tightship_platform.database.locks import locked
from tightship_platform.database.models import Run
from tightship_platform.database.trouble import is_away
from tightship_platform.errors import TightshipError
from tightship_platform.units import NS_PER_S, now_ns
from tightship_platform.validation import line

log = logging.getLogger(__name__)

RETRY_NS = 600 * NS_PER_S
"""A run that failed is left alone for this long."""
MAX_REASON = 300


def not_troubled(now: int) -> ColumnElement[bool]:
    """A run that has not failed within RETRY_NS."""
    return or_(Run.trouble_ns.is_(None), Run.trouble_ns < now - RETRY_NS)


def for_each_run(database: Database, run_ids: Iterable[int], work: Callable[[Session, Run], object], what: str) -> None:
    """Do the work for every run, each in its own transaction; one that fails keeps the reason.

    :param what: is done, for the reason: `account`.
    :raises DBAPIError: the database does not work now; what is left is due again.
    """
    for run_id in run_ids:
        try:
            with database.session() as session:
                # First of all its row, before that of its workflow: whoever locks both does so in this order.
                found = locked(session, select(Run).where(Run.id == run_id))
                if not found:  # it was deleted meanwhile
                    continue
                [run] = found
                run.trouble, run.trouble_ns = None, None
                work(session, run)
        except DBAPIError as error:
            if is_away(error):
                raise
            _note(database, run_id, what, error)
        except Exception as error:  # one bad run must not block those after it
            _note(database, run_id, what, error)


def _note(database: Database, run_id: int, what: str, error: Exception) -> None:
    cause = getattr(error, "orig", None) or error
    why = str(cause) if isinstance(error, TightshipError) else f"{type(cause).__name__}: {cause}"
    log.error("Run %d: the %s failed", run_id, what, exc_info=error)
    with database.session() as session:
        run = session.get(Run, run_id)
        if run is not None:
            run.trouble, run.trouble_ns = line(f"The {what} failed ({why})", MAX_REASON), now_ns()
