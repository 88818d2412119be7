"""Deleting runs: one, or all of a workflow, a user or a team."""

from __future__ import annotations

import time

from tightship_platform.api.auth import require
from tightship_platform.api.reply import Answer, Config, Db
from tightship_platform.api.scopes import needs, scoped_router
from tightship_platform.captures import store_owner
from tightship_platform.captures.artifact_store import open_artifacts
from tightship_platform.database.audit import audit
from tightship_platform.database.engine import Database
from tightship_platform.results.removal import Removal
from tightship_platform.settings import Settings
from tightship_platform.tasks.removal import runs
from tightship_platform.tasks.removal.requested import Kind, begin_all
from tightship_platform.vocabulary import Scope

router = scoped_router("deletion")
AT_ONCE_S = 10.0
"""What takes longer is left to the worker."""


@router.delete("/runs/{key}", dependencies=[needs(Scope.DELETE)], response_model=Removal)
def delete_run(key: str, database: Db, settings: Config) -> Answer:
    """Delete a run that is over, with its samples, captures, traces and findings. What arrives of it later is refused.
    Its device time stays in the fleet's sums, without names."""
    return _delete(Kind.RUN, key, database, settings)


@router.delete("/workflows/{name:path}", dependencies=[needs(Scope.DELETE)], response_model=Removal)
def delete_workflow(name: str, database: Db, settings: Config) -> Answer:
    """Delete a workflow with all its runs, its schedule and its opportunities. None of the runs may live."""
    return _delete(Kind.WORKFLOW, name, database, settings)


@router.delete("/users/{name:path}", dependencies=[needs(Scope.DELETE)], response_model=Removal)
def delete_user(name: str, database: Db, settings: Config) -> Answer:
    """Delete all runs of a user, of the caller's team where its token has one. None of the runs may live."""
    return _delete(Kind.USER, name, database, settings)


@router.delete("/teams/{name:path}", dependencies=[needs(Scope.DELETE)], response_model=Removal)
def delete_team(name: str, database: Db, settings: Config) -> Answer:
    """Delete all runs of a team. None of them may live. Tokens stay; revoke them."""
    return _delete(Kind.TEAM, name, database, settings)


def _delete(kind: Kind, name: str, database: Database, settings: Settings) -> Answer:
    caller, store, deadline_s = require(Scope.DELETE), open_artifacts(settings), time.monotonic() + AT_ONCE_S
    with database.session() as session:
        store_owner.require_own(session, store)
    with database.session() as session:
        keys = begin_all(session, kind, name, of_all=caller.team is None or Scope.ADMIN in caller.scopes)
        audit(session, caller.name, f"{kind}.delete", name, runs=len(keys))
    gone = runs.finish_all(database, store, keys, deadline_s=deadline_s)
    return Answer(Removal(kind=kind.value, name=name, runs=len(keys), left=len(keys) - len(gone)))
