"""The server about itself: its health, and the description of its routes."""

from __future__ import annotations

import asyncio

from fastapi import Request

from tightship_platform import __version__
from tightship_platform.api.auth import current_caller
from tightship_platform.api.openapi import document
from tightship_platform.api.probes import Probes
from tightship_platform.api.reply import Answer, Config, Db
from tightship_platform.api.scopes import needs, scoped_router
from tightship_platform.captures import store_owner
from tightship_platform.captures.artifact_store import open_artifacts
from tightship_platform.errors import TightshipError
from tightship_platform.results.health import Health, Liveness, Readiness, StoreHealth
from tightship_platform.vocabulary import Scope

router = scoped_router("about")


@router.get("/health", dependencies=[needs(None)], response_model=Health, responses={503: {"model": Health}})
async def health(request: Request) -> Answer:
    """Whether the server can work; where it cannot, the status is 503.

    A broker that is down degrades nothing at once (work waits), so the status stays `ok`; without the database it is
    `degraded`. A newer release's schema that this one can work with is no fault: the status stays 200, and `reason`
    says it. Without a token the broker is not asked, and no versions are shown.
    """
    probes: Probes = request.app.state.probes
    if current_caller() is None:
        database, broker = await probes.database(), None
    else:
        database, answers = await asyncio.gather(probes.database(), probes.broker())
        broker = "ok" if answers else "unreachable"
    works, known = database.state == "ok", broker is not None
    body = Health(
        status="ok" if works else "degraded",
        version=__version__ if known else None,
        database=database.state,
        broker=broker,
        schema=database.schema if known else None,
        reason=database.difference if known else None,
    )
    return Answer(body, status_code=200 if works else 503)


@router.get("/live", dependencies=[needs(None)], response_model=Liveness)
async def live() -> Answer:
    """The process is alive: it answers. Neither database nor broker is looked at."""
    return Answer(Liveness(status="ok"))


@router.get("/ready", dependencies=[needs(None)], response_model=Readiness, responses={503: {"model": Readiness}})
async def ready(request: Request) -> Answer:
    """Whether the server can take requests now; where it cannot, because of the database or as it ends, it is 503."""
    if not request.app.state.drain.asked():
        return Answer(Readiness(status="ending", database=None), status_code=503)
    database = await request.app.state.probes.database()
    works = database.state == "ok"
    return Answer(
        Readiness(status="ok" if works else "degraded", database=database.state), status_code=200 if works else 503
    )


@router.get("/store", dependencies=[needs(Scope.READ)], response_model=StoreHealth)
def store(database: Db, settings: Config) -> Answer:
    """Whose the artifact store is."""
    try:
        with database.session() as session:
            fault = store_owner.find_fault(session, open_artifacts(settings))
    except (TightshipError, OSError) as error:
        fault = f"The artifact store cannot be read ({' '.join(str(error).split())})"
    return Answer(StoreHealth(fault=fault))


@router.get("/openapi.json", dependencies=[needs(Scope.READ)], include_in_schema=False)
def openapi(request: Request) -> Answer:
    """The OpenAPI document."""
    return Answer(document(request.app))
