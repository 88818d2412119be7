"""What the parts write is nobody else's, also in a home that was there before and is open to all."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import httpx
import pytest
from processes import Running, tightship
from services import free_port
from waiting import PATIENCE_S, wait_for


def open_to_others(home: Path) -> list[str]:
    return [
        f"{path.relative_to(home)}: {stat.S_IMODE(path.lstat().st_mode):o}"
        for path in home.rglob("*")
        if path.lstat().st_mode & 0o077 and not path.name.endswith((".lock", ".msg", ".exchange"))
    ]


@pytest.fixture
def old_umask() -> Any:
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_all_parts_keep_their_files_to_themselves(tmp_path: Path, old_umask: None) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o755)
    (home / "tightship.db").touch(mode=0o644)
    (home / "logs").mkdir()
    (home / "logs" / "server.log").touch(mode=0o644)
    (home / "logs").chmod(0o700)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TIGHTSHIP_")}
    environ |= {"TIGHTSHIP_HOME": str(home), "TIGHTSHIP_RUNTIME_DIR": os.environ["TIGHTSHIP_RUNTIME_DIR"]}
    with Running(environ, "up", "--port", str(free_port()), "--no-agent") as up:
        up.hear("Dashboard")
        wait_for((home / "liveness" / "worker").exists, "the worker")
        assert (home / "tightship.db-wal").exists()
        assert open_to_others(home) == []
        assert up.end() == 0


def test_a_database_of_an_older_release_is_closed_to_others(tmp_path: Path) -> None:
    environ = os.environ | {"TIGHTSHIP_HOME": str(tmp_path), "TIGHTSHIP_DATABASE_URL": ""}
    assert tightship(environ, "db", "upgrade").returncode == 0
    database = tmp_path / "tightship.db"
    assert stat.S_IMODE(database.stat().st_mode) == 0o600
    database.chmod(0o644)
    assert tightship(environ, "db", "upgrade").returncode == 0
    assert stat.S_IMODE(database.stat().st_mode) == 0o600


def test_health_without_a_token_shows_no_versions_and_asks_no_broker(platform_env: Any) -> None:
    """The broker is a Redis that nobody runs: a look at it would say so."""
    port = free_port()
    environ = platform_env.environ | {
        "TIGHTSHIP_TOKEN": "an-administrators-token",
        "TIGHTSHIP_BROKER_URL": f"redis://127.0.0.1:{free_port()}/0",
    }
    with Running(environ, "server", "--port", str(port)) as server:
        server.hear("Serving")
        with httpx.Client(base_url=f"http://127.0.0.1:{port}/api/v1", trust_env=False, timeout=PATIENCE_S) as http:
            stranger = wait_for(lambda: http.get("/health")).json()
            known = http.get("/health", headers={"authorization": "Bearer an-administrators-token"}).json()
            assert http.get("/live").json() == {"status": "ok"}
        assert server.end() == 0
    assert stranger == {
        "status": "ok",
        "version": None,
        "database": "ok",
        "broker": None,
        "schema": None,
        "reason": None,
    }
    assert known["broker"] == "unreachable" and known["version"] and known["schema"]
