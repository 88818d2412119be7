"""A real server with the dashboard on it, empty or with a simulated fleet."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import httpx
import pytest
from api_calls import Served, serving
from simulated_fleet import fill

from tightship_platform.database.engine import open_database


@pytest.fixture(scope="session")
def fleet(make_platform_env: Callable[..., object]) -> Iterator[Served]:
    """A server whose database holds the simulated fleet; tests only read from it."""
    env = make_platform_env()
    with open_database(env.settings) as database:  # type: ignore[attr-defined]
        fill(database.engine)
    with serving(env.settings) as served:  # type: ignore[attr-defined]
        yield served


@pytest.fixture
def browser_like(fleet: Served) -> Iterator[httpx.Client]:
    """Asks as a browser does, for pages rather than for the API."""
    with fleet.pages() as client:
        client.cookies.set("tightship_zone", "Europe%2FBerlin")
        yield client


@pytest.fixture(scope="session")
def modules_of_the_server() -> set[str]:
    """What a new process has imported once it has the server."""
    code = "import sys, tightship_dashboard.server.app, tightship_platform.api.app; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    modules = set(done.stdout.split())
    assert "tightship_dashboard.server.app" in modules
    return modules
