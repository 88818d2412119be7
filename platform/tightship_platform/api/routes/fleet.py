"""The account of the whole fleet."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from tightship_platform.api.reply import Answer, Db
from tightship_platform.api.scopes import needs, scoped_router
from tightship_platform.queries import fleet
from tightship_platform.results.fleet import FleetAccount
from tightship_platform.units import NS_PER_S, now_ns
from tightship_platform.vocabulary import Scope

router = scoped_router("fleet")

WEEK_NS = 7 * 86400 * NS_PER_S
_Instant = Annotated[int | None, Query(ge=0, lt=2**63)]


@router.get("/fleet", dependencies=[needs(Scope.READ)], response_model=FleetAccount)
def fleet_account(database: Db, since_ns: _Instant = None, until_ns: _Instant = None) -> Answer:
    """Where the device time of all runs went between two instants (default: the last seven days)."""
    until = now_ns() if until_ns is None else until_ns
    since = until - WEEK_NS if since_ns is None else since_ns
    with database.session() as session:
        return Answer(fleet.fleet_account(session, since_ns=since, until_ns=until))
