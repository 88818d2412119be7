"""Puts the server together: the API's routes, the dashboard, and before both the gate and the limit on bodies."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp

from tightship_platform import __version__
from tightship_platform.api.auth import Access, local_token
from tightship_platform.api.bodies import BodyLimit
from tightship_platform.api.deliveries import Deliveries
from tightship_platform.api.drain import Drain
from tightship_platform.api.errors import add_error_handlers
from tightship_platform.api.figures import Figures
from tightship_platform.api.gate import Gate
from tightship_platform.api.groups import GROUPS_AT_ONCE, NEWCOMERS_AT_ONCE, Newcomers, known_groups
from tightship_platform.api.headers import SecurityHeaders
from tightship_platform.api.measured import Measured
from tightship_platform.api.polls import Polls
from tightship_platform.api.probes import Probes
from tightship_platform.api.rates import Rates
from tightship_platform.api.recalled_tokens import RecalledTokens
from tightship_platform.api.refusals import Refusals
from tightship_platform.api.sso import single_sign_on
from tightship_platform.api.turns import Turns
from tightship_platform.database.engine import open_database
from tightship_platform.ingest.known import KnownHosts
from tightship_platform.settings import Settings

WEB_GROUP = "tightship.web"
"""Entry points `mount(app: FastAPI, settings: Settings) -> None` that add pages to the server."""

SUBJECTS = (
    "about",
    "login",
    "sso",
    "ids",
    "hosts",
    "runs",
    "captures",
    "stacks",
    "traces",
    "findings",
    "opportunities",
    "workflows",
    "samples",
    "standards",
    "fleet",
    "metrics",
    "audit",
    "collection",
    "removal",
    "docs",
)
"""Modules of `api.routes`, each with a `router`."""


def load_parts() -> None:
    """Import what `create_app` puts together, so that it takes next to no time: nothing else is done."""
    for subject in SUBJECTS:
        import_module(f"tightship_platform.api.routes.{subject}")
    for entry in entry_points(group=WEB_GROUP):
        _installed(entry)


def add_routes(app: FastAPI) -> None:
    """Add the API, and the pages that go with it."""
    for subject in SUBJECTS:
        app.include_router(import_module(f"tightship_platform.api.routes.{subject}").router)


class _App(FastAPI):
    """Its answers to defects, which Starlette makes outside of all layers, carry the same headers as the others."""

    def build_middleware_stack(self) -> ASGIApp:
        return Measured(SecurityHeaders(super().build_middleware_stack()))


def create_app(settings: Settings, *, host: str = "127.0.0.1") -> FastAPI:
    """The server's ASGI application for a listener on `host`; `app.state` holds `settings` and `database`.

    The database must carry this release's schema (`database.upgrade`).

    :raises SchemaMismatch: it does not.
    :raises Conflict: `host` is no loopback address and there is no token (see auth, [Note: who is let in]).
    :raises Invalid: single sign-on is set up in part only, or the token of this machine's user is of no use.
    """
    signing_on = single_sign_on(settings)
    database = open_database(settings)
    probes = Probes(settings)
    access = Access(settings, database, local_token=local_token(host, settings, database))

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        groups.close()
        newcomers.close()
        for one in (of_groups, database):
            one.close()
        probes.close()

    app = _App(
        title="tightship",
        version=__version__,
        lifespan=lifespan,
        # Our own routes take their place; they declare a scope (routes/about.py).
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        # /metrics is ours; FastAPI would look for OpenTelemetry at each request.
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.state.settings = settings
    app.state.database = database
    app.state.access = access
    app.state.single_sign_on = signing_on
    app.state.drain = Drain(settings.drain_s)
    app.state.probes = probes
    app.state.known_hosts = KnownHosts()
    of_groups = open_database(settings, connections=GROUPS_AT_ONCE + NEWCOMERS_AT_ONCE)
    groups, newcomers = known_groups(of_groups), Newcomers(of_groups, app.state.known_hosts)
    app.state.turns = Turns()
    app.state.polls = Polls(database)
    app.state.host_rates = Rates(settings.requests_per_host, "TIGHTSHIP_REQUESTS_PER_HOST")
    app.state.refusals = Refusals(database)
    app.state.figures = Figures(settings, database)
    add_error_handlers(app)
    add_routes(app)
    for entry in entry_points(group=WEB_GROUP):
        mount = _installed(entry)
        if mount is not None:
            mount(app, settings)
    # Added last, so that they are outermost: before the dashboard's own layers too.
    app.add_middleware(BodyLimit)
    app.add_middleware(
        Deliveries,
        groups=groups,
        newcomers=newcomers,
        known_hosts=app.state.known_hosts,
        turns=app.state.turns,
        polls=app.state.polls,
        database=database,
    )
    token_rates = Rates(settings.requests_per_token, "TIGHTSHIP_REQUESTS_PER_TOKEN")
    app.add_middleware(
        Gate,
        rates=token_rates,
        access=access,
        recalled=RecalledTokens(access, database),
        refusals=app.state.refusals,
        public_url=settings.public_url,
    )
    return app


def _installed(entry: Any) -> Callable[[FastAPI, Settings], None] | None:
    """The entry point's function; None when its package is not installed. A fault inside it is not hidden."""
    package = entry.module.partition(".")[0]
    try:
        mount: Callable[[FastAPI, Settings], None] = entry.load()
    except ModuleNotFoundError as error:
        if error.name is not None and (error.name == package or error.name == entry.module):
            return None
        raise
    return mount
