"""What a page knows of the request behind it: the database, the address, the viewer's zone and rights."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote
from zoneinfo import ZoneInfo

from dash.backends._fastapi import get_current_request

from tightship_dashboard.sentences.formatting import zone_of
from tightship_platform.api.auth import current_caller
from tightship_platform.database.engine import Database
from tightship_platform.processes.metrics import Figure
from tightship_platform.units import now_ns
from tightship_platform.vocabulary import Scope

ZONE_COOKIE = "tightship_zone"
"""Set by assets/before_paint.js: the browser's zone, such as Europe%2FBerlin."""
_QUERY_MAX = 2_000
"""Longest query string that is looked at."""


@dataclass(frozen=True, kw_only=True)
class View:
    """One look at one page."""

    database: Database
    zone: ZoneInfo
    query: dict[str, str] = field(default_factory=dict)
    may_capture: bool = False
    is_admin: bool = False
    now_ns: int = field(default_factory=now_ns)


def current_view(database: Database, search: str | None) -> View:
    """The view of the request being worked on; `search` is the page's query string, with or without '?'."""
    caller = current_caller()
    return View(
        database=database,
        zone=zone_of(unquote(get_current_request().cookies.get(ZONE_COOKIE, ""))),
        query=parse_query(search),
        may_capture=caller is not None and caller.may(Scope.CAPTURE),
        is_admin=caller is not None and caller.may(Scope.ADMIN),
    )


def current_figures() -> list[Figure]:
    """The figures that the server shows at /metrics of the installation."""
    figures: list[Figure] = get_current_request().app.state.figures.read()
    return figures


def parse_query(search: str | None) -> dict[str, str]:
    """The filters in an address; of a name that comes twice the last counts."""
    try:
        return dict(parse_qsl((search or "").lstrip("?")[:_QUERY_MAX], max_num_fields=20))
    except ValueError:  # too many fields: nothing that a page of ours made
        return {}
