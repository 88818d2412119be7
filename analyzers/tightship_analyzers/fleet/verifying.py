"""Settles what was applied as soon as later runs tell: verified, refuted, or still applied, with the reason."""

from __future__ import annotations

import logging

from sqlalchemy.exc import DBAPIError

from tightship_platform.database.engine import Database
from tightship_platform.database.trouble import is_away
from tightship_platform.ingest.actions.later_runs import due_applications, settle

log = logging.getLogger(__name__)


def verify_applications(database: Database) -> int:
    """Compare the runs since each application with those before it, each in its own transaction; returns how many
    applications were looked at. One that fails stops no other, and is tried again.

    :raises DBAPIError: the database does not work now.
    """
    with database.session() as session:
        due = due_applications(session)
    for action_id in due:
        try:
            with database.session() as session:
                settle(session, action_id)
        except DBAPIError as error:
            if is_away(error):
                raise
            log.warning(
                "Action %d could not be verified, and is again: %s", action_id, " ".join(str(error.orig).split())
            )
        except Exception:  # one bad application must not block those after it
            log.exception("Action %d could not be verified", action_id)
    return len(due)
