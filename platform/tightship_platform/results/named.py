"""What an id names, and the addresses of pages."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote


@dataclass(frozen=True, kw_only=True)
class Named:
    """A run, a capture, a finding or a trace that somebody named by its id, the beginning of one, or `@`."""

    kind: str
    """`run`, `capture`, `finding` or `trace`."""
    id: str
    """Its whole id."""
    run: str
    """Id of the run that it is, or is of."""
    capture: str | None
    """Id of the capture that it is, or is of; null: of none."""
    rank: int | None
    """Rank of the trace that it is, or is of; null: of none."""
    page: str
    """Address of its page: whole where the server has a TIGHTSHIP_PUBLIC_URL, else from the server's own address on."""


def run_href(key: str) -> str:
    """Address of one run's page."""
    return f"/runs/{quote(key, safe='')}"


def finding_href(finding: object) -> str:
    """Address of one finding's page."""
    return f"/findings/{quote(str(finding), safe='')}"


def one_trace_href(capture: str, rank: int | None = None) -> str:
    """Address of the page of a capture's traces; without a rank it shows the least productive one."""
    return f"/traces/{quote(capture, safe='')}" + ("" if rank is None else f"?rank={rank}")
