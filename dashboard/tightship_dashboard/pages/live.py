"""Live parts of a page: what did not change is not sent, so that nothing that is being read moves."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from dash import no_update
from plotly.utils import PlotlyJSONEncoder

from tightship_dashboard.figures import grid
from tightship_dashboard.figures.elements import Node

Seen = dict[str, str]
"""Part → digest of what the browser shows of it."""

LIVE_MS = 2_000
"""How often a page with something live asks again."""
CALM_EVERY = 5
"""Of so many looks at a run that has been going for a while, one draws its metrics again."""
CALM_MS = 60_000
"""How often a page asks again whose numbers move by the hour."""


def digest(value: Any) -> str:
    """Short fingerprint of a component or of plain data."""
    text = json.dumps(value, cls=PlotlyJSONEncoder, sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def digests(parts: Mapping[str, Node]) -> Seen:
    """Fingerprints of all parts."""
    return {name: digest(part) for name, part in parts.items()}


def changed(parts: Mapping[str, Node], seen: Any) -> tuple[list[Any], Any]:
    """What to send for each part, in their order, and what the browser then shows.

    A part that is `no_update` was not looked at this time and stays as it is.
    """
    known = seen if isinstance(seen, dict) else {}
    fresh = {name: known.get(name) if part is no_update else digest(part) for name, part in parts.items()}
    if fresh == known:
        return [no_update] * len(parts), no_update
    return [part if known.get(name) != fresh[name] else no_update for name, part in parts.items()], fresh


def row_digests(rows: Sequence[grid.Row]) -> Seen:
    """Fingerprints of all rows of a table, by their id."""
    return {str(row["id"]): digest(row) for row in rows}


def changed_rows(rows: Sequence[grid.Row], seen: Any) -> tuple[Any, Any]:
    """Rows of a table that are new or differ, and the ids that went; and what the browser then shows."""
    known = seen if isinstance(seen, dict) else {}
    fresh = row_digests(rows)
    if fresh == known:
        return no_update, no_update
    news = [row for row in rows if known.get(row["id"]) != fresh[str(row["id"])]]
    return {"rows": news, "gone": [key for key in known if key not in fresh]}, fresh
