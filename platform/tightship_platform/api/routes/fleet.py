"""The account of the whole fleet."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import Query

from tightship_platform.api.auth import reporter
from tightship_platform.api.reply import Answer, Config, Db
from tightship_platform.api.scopes import needs, scoped_router
from tightship_platform.ingest import imports
from tightship_platform.queries import account_groups, fleets
from tightship_platform.queries import fleet as queries
from tightship_platform.results.filters import imported_fleet
from tightship_platform.results.fleet import AccountGroup, FleetAccount, ImportedFleet
from tightship_platform.results.imported import (
    CaptureExpected,
    FleetRecord,
    FleetStored,
    ImportedCapture,
    ImportedPart,
    PartReceived,
)
from tightship_platform.units import NS_PER_S, now_ns
from tightship_platform.vocabulary import AccountBy, Scope

router = scoped_router("fleet")

WEEK_NS = 7 * 86400 * NS_PER_S
_Instant = Annotated[int | None, Query(ge=0, lt=2**63)]


@router.get("/fleet", dependencies=[needs(Scope.READ)], response_model=FleetAccount)
def fleet_account(
    database: Db, since_ns: _Instant = None, until_ns: _Instant = None, fleet: str | None = None
) -> Answer:
    """Where the device time of all runs went between two instants (default: the last seven days; of an imported fleet,
    its whole history)."""
    name = imported_fleet(fleet)
    with database.session() as session:
        if name is None:
            until = now_ns() if until_ns is None else until_ns
            since = until - WEEK_NS if since_ns is None else since_ns
        else:
            whole = fleets.get_fleet(session, name)
            until = (whole.until_ns or 1) if until_ns is None else until_ns
            since = (whole.since_ns or 0) if since_ns is None else since_ns
        return Answer(queries.fleet_account(session, since_ns=since, until_ns=until, fleet=name))


@router.get("/account", dependencies=[needs(Scope.READ)], response_model=list[AccountGroup])
def account(
    database: Db, by: AccountBy = AccountBy.FLEET, fleet: str | None = None, limit: int = account_groups.MAX_GROUPS
) -> Answer:
    """Where the device time of all runs that are known went, the largest group first. Of the live fleet, or of an
    imported one; by fleet and without a name, each by itself."""
    name = imported_fleet(fleet)
    with database.session() as session:
        of_all = by == AccountBy.FLEET and fleet is None
        return Answer(account_groups.account_groups(session, by, fleet=name, all_fleets=of_all, limit=limit))


@router.get("/fleets", dependencies=[needs(Scope.READ)], response_model=list[ImportedFleet])
def list_fleets(database: Db) -> Answer:
    """Imported fleets by name: what is known of each, and what its figures take for granted."""
    with database.session() as session:
        return Answer(fleets.list_fleets(session))


@router.post("/fleets/{name}", dependencies=[needs(Scope.INGEST)], response_model=FleetStored)
def begin_or_end(name: str, body: FleetRecord, database: Db, settings: Config) -> Answer:
    """An import begins, or has reached the end of its source. The fleet belongs to the team of the token that first
    imported it. Answers which parts are stored already."""
    with database.session() as session:
        stored = imports.put_fleet(session, name, body, reporter=reporter())
        return Answer(replace(stored, trace_max_bytes=settings.upload_max_bytes))


@router.post("/fleets/{name}/parts", dependencies=[needs(Scope.INGEST)], response_model=PartReceived)
def part(name: str, body: ImportedPart, database: Db) -> Answer:
    """A part of an import: runs, with the devices that they held, and samples, however old. The same part again changes
    nothing."""
    with database.session() as session:
        return Answer(imports.put_part(session, name, body, reporter=reporter()))


@router.post("/fleets/{name}/captures", dependencies=[needs(Scope.INGEST)], response_model=CaptureExpected)
def capture(name: str, body: ImportedCapture, database: Db) -> Answer:
    """Recordings of a run of the import, which a part has named before. Answers which of their files are missing; the
    same capture again changes nothing."""
    with database.session() as session:
        return Answer(imports.put_capture(session, name, body, reporter=reporter()))
