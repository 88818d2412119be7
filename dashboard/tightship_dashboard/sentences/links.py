"""Addresses of the pages, and the parts that sentences are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote, urlencode


@dataclass(frozen=True)
class Link:
    """A number or a name, and where its proof is."""

    text: str
    href: str


Part = str | Link
Answer = Sequence[Part]
"""A sentence. A number or name in it leads to what proves it."""


def run_href(key: str) -> str:
    """Address of one run's page."""
    return f"/runs/{quote(key, safe='')}"


def finding_href(finding: object) -> str:
    """Address of one finding's page."""
    return f"/findings/{quote(str(finding), safe='')}"


def one_trace_href(capture: str, rank: int | None = None) -> str:
    """Address of the page of a capture's traces; without a rank it shows the least productive one."""
    return f"/traces/{quote(capture, safe='')}" + ("" if rank is None else f"?rank={rank}")


def runs_href(**query: str | None) -> str:
    """Address of the list of runs, filtered; an empty filter leaves its name out."""
    given = {k: v for k, v in query.items() if v}
    return "/runs" + (f"?{urlencode(given)}" if given else "")


def fit_href(**query: str | None) -> str:
    """Address of *Will it fit, and how fast?* for a workflow, a GPU and a host; what is empty is left out."""
    given = {k: v for k, v in query.items() if v}
    return "/will-it-fit" + (f"?{urlencode(given)}" if given else "")


def audit_href(**query: str | None) -> str:
    """Address of *Who did what?*, filtered; an empty filter leaves its name out."""
    given = {k: v for k, v in query.items() if v}
    return "/audit" + (f"?{urlencode(given)}" if given else "")
