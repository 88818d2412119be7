"""What a page of the dashboard says, asked for as a browser does: the document, then what is drawn into it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx

SHOWN = ("children", "rowData", "label")
"""Properties of Dash's components that hold what is read."""


def page_text(http: httpx.Client, address: str) -> str:
    """All texts of the page at this address, the first line twice: as the document has it and as it is drawn."""
    path, _, query = address.partition("#")[0].partition("?")
    document = http.get(address)
    assert document.status_code == 200, f"{address}: {document.status_code} {document.text[:500]}"
    drawn = http.post(
        "/_dash-update-component",
        json={
            "output": "..page.children...title.data..",
            "outputs": [{"id": "page", "property": "children"}, {"id": "title", "property": "data"}],
            "inputs": [{"id": "url", "property": "pathname", "value": path}],
            "state": [{"id": "url", "property": "search", "value": f"?{query}" if query else ""}],
            "changedPropIds": ["url.pathname"],
        },
    )
    assert drawn.status_code == 200, f"{address}: {drawn.status_code} {drawn.text[:500]}"
    return " | ".join([document.text, *_texts(drawn.json()["response"]["page"]["children"])])


def _texts(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        node = [node["props"].get(name) for name in SHOWN] if "props" in node else list(node.values())
    if isinstance(node, list):
        for part in node:
            yield from _texts(part)
    elif node is not None:
        yield str(node)
