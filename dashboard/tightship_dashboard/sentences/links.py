"""Addresses of the pages, and the parts that sentences are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from tightship_platform.results.named import finding_href, one_trace_href, run_href
from tightship_platform.vocabulary import LIVE

__all__ = [
    "Answer",
    "Link",
    "Part",
    "action_href",
    "actions_href",
    "audit_href",
    "finding_href",
    "fit_href",
    "fleet_href",
    "one_trace_href",
    "run_href",
    "runs_href",
    "search_href",
]


@dataclass(frozen=True)
class Link:
    """A number or a name, and where its proof is."""

    text: str
    href: str


Part = str | Link
Answer = Sequence[Part]
"""A sentence. A number or name in it leads to what proves it."""


def fleet_href(fleet: str | None) -> str:
    """Address of *Where do device-hours go?* of an imported fleet; None or `live`: of the live one."""
    return "/" if fleet in (None, LIVE) else f"/?{urlencode({'fleet': fleet})}"


def runs_href(**query: str | None) -> str:
    """Address of the list of runs, filtered; an empty filter leaves its name out."""
    given = {k: v for k, v in query.items() if v}
    return "/runs" + (f"?{urlencode(given)}" if given else "")


def search_href(term: str) -> str | None:
    """Address of the runs in which this is found; None where a search cannot say it."""
    if '"' in term:
        return None
    return runs_href(search=f'"{term}"' if " " in term else term)


def actions_href(**query: str | None) -> str:
    """Address of *Did it work?*, filtered; an empty filter leaves its name out."""
    given = {k: v for k, v in query.items() if v}
    return "/did-it-work" + (f"?{urlencode(given)}" if given else "")


def action_href(action: int) -> str:
    """Address of what came of one action."""
    return f"/did-it-work/{action}"


def fit_href(**query: str | None) -> str:
    """Address of *Will it fit, and how fast?* for a workflow, a GPU and a host; what is empty is left out."""
    given = {k: v for k, v in query.items() if v}
    return "/will-it-fit" + (f"?{urlencode(given)}" if given else "")


def audit_href(**query: str | None) -> str:
    """Address of *Who did what?*, filtered; an empty filter leaves its name out."""
    given = {k: v for k, v in query.items() if v}
    return "/audit" + (f"?{urlencode(given)}" if given else "")
