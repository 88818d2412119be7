"""The account of the whole fleet."""

from __future__ import annotations

from dataclasses import replace

from tightship_platform.api.auth import reporter
from tightship_platform.api.filters import Wanted
from tightship_platform.api.reply import Answer, Config, Db
from tightship_platform.api.scopes import needs, scoped_router
from tightship_platform.ingest import imports
from tightship_platform.queries import fleets
from tightship_platform.queries.account import MAX_GROUPS, fleet_account
from tightship_platform.results.fleet import FleetAccount, ImportedFleet
from tightship_platform.results.imported import (
    CaptureExpected,
    FleetRecord,
    FleetStored,
    ImportedCapture,
    ImportedPart,
    PartReceived,
)
from tightship_platform.vocabulary import AccountBy, Scope

router = scoped_router("fleet")


@router.get("/account", dependencies=[needs(Scope.READ)], response_model=FleetAccount)
def account(database: Db, filters: Wanted, by: AccountBy = AccountBy.TEAM, limit: int = MAX_GROUPS) -> Answer:
    """Where the device time of a fleet went in a period (default: the last seven days; of an imported fleet, its whole
    history): in all, over time, and by group, the most unproductive first. Removed runs have left nothing but their
    workflow and team, and count where no more is asked for."""
    with database.session() as session:
        return Answer(fleet_account(session, by, filters, limit=limit))


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
