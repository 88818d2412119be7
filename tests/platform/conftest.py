"""Fixtures of the platform's own tests: servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from api_calls import Served, serving


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    """`serve(settings, host="127.0.0.1", port=0)` → Served; it ends with the test."""
    with ExitStack() as stack:
        yield lambda settings, host="127.0.0.1", port=0: stack.enter_context(serving(settings, host, port))


@pytest.fixture
def served(platform_env: Any, serve: Callable[..., Served]) -> Served:
    """A server without tokens, on a clean platform."""
    return serve(platform_env.settings)


@pytest.fixture
def http(served: Served) -> Iterator[httpx.Client]:
    """A plain HTTP client of `served`."""
    with served.http() as client:
        yield client
