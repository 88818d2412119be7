"""What somebody names on a command line by an id, asked of the server, and the addresses of pages."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urljoin

from tightship_platform.results.codec import decode
from tightship_platform.results.named import Named

if TYPE_CHECKING:
    from tightship_platform.client import ApiClient


def find_named(api: ApiClient, text: str, *kinds: str) -> Named:
    """What the id means.

    :param kinds: what it may be of: `run`, `capture`, `finding`, `trace`; what begins with `@` is of the first.
    :raises ApiError: nothing, or several things.
    """
    return decode(Named, api.get("/ids", {"id": text, "kind": kinds}), "id")


def page_of(api: ApiClient, named: Named) -> str:
    """Where a browser finds the page of what was named."""
    return urljoin(f"{api.server}/", named.page)
