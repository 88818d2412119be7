"""A PostgreSQL that is there and says nothing: stopped in the middle of its work, as a hung disk leaves it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import psutil
import psycopg
import pytest
import services
from api_calls import HOST, Served, ok, refused
from sqlalchemy import make_url, text
from waiting import wait_for

from tightship_platform.api import turns
from tightship_platform.database import engine, schema, time_limits
from tightship_platform.settings import Settings
from tightship_platform.units import now_ns

pytestmark = pytest.mark.postgres
ADMIN = "admin-token-of-tests"
THREADS = 40
"""Of the server, for routes that block."""


@dataclass(frozen=True)
class Postgres:
    """A server that no other test uses: it may be stopped."""

    url: str

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Stop the server and all its backends; connections stay open."""
        with psycopg.connect(self.url.replace("+psycopg", "")) as connection:
            (folder,) = connection.execute("SHOW data_directory").fetchone() or ("",)
        root = psutil.Process(int((Path(folder) / "postmaster.pid").read_text().split()[0]))
        stopped = [root, *root.children(recursive=True)]
        _signal(stopped, signal.SIGSTOP)
        try:
            yield
        finally:
            _signal(stopped, signal.SIGCONT)


def _signal(processes: list[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # a backend that was just ending
            process.send_signal(number)


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    try:
        with services.postgres_server() as url:
            yield Postgres(url)
    except services.Unavailable as why:
        pytest.skip(str(why))


@pytest.fixture
def settings(postgres: Postgres, platform_env: Any) -> Settings:
    """Of a platform on that server; no limits."""
    made = replace(
        platform_env.settings,
        database_url=postgres.url,
        database_statement_s=0,
        database_lock_s=0,
        database_idle_s=0,
        database_silent_s=0,
        database_pool_s=3600,
    )
    engine.upgrade(made)
    return made


def heartbeats(http: httpx.Client, count: int) -> list[int]:
    """Statuses of so many heartbeats at once."""

    def send(number: int) -> int:
        body = {"host": f"{HOST}-{number}", "time_ns": now_ns(), "agent_version": "x"}
        return http.post("/hosts/heartbeat", json=body, timeout=None).status_code

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(send, range(count)))


def lists(http: httpx.Client, count: int) -> list[int]:
    """Statuses of so many lists at once; each takes a thread and a connection."""
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(lambda _: http.get("/runs", timeout=None).status_code, range(count)))


def test_the_server_says_how_it_is_while_every_thread_and_connection_waits(
    postgres: Postgres, settings: Settings, serve: Callable[..., Served]
) -> None:
    served = serve(replace(settings, token=ADMIN))
    with served.http(ADMIN) as http, ThreadPoolExecutor(1) as background:
        assert ok(http.get("/ready")) == {"status": "ok", "database": "ok"}
        assert set(lists(http, THREADS)) == {200}  # connections are open now
        with postgres.silent():
            waiting = background.submit(lists, http, 3 * THREADS)
            wait_for(lambda: sum("AnyIO" in thread.name for thread in threading.enumerate()) >= THREADS)
            with served.http() as prober:  # its own connection
                assert ok(prober.get("/live"))["status"] == "ok"
                for _ in range(2):
                    answer = prober.get("/ready")
                    assert (answer.status_code, answer.json()["database"]) == (503, "unreachable")
                    answer = prober.get("/health")
                    assert (answer.status_code, answer.json()["database"]) == (503, "unreachable")
                    assert httpx.get(f"{served.url}/login", trust_env=False).status_code == 200
            assert not waiting.done()
        assert set(waiting.result()) <= {200, 503}  # a new connection was not waited for
        wait_for(lambda: http.get("/ready").status_code == 200)


def test_requests_are_answered_and_the_server_recovers(
    postgres: Postgres, settings: Settings, serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_limits, "GRACE_S", 1)
    monkeypatch.setattr(turns, "WAIT_S", 2)
    served = serve(replace(settings, database_statement_s=1, database_pool_s=1, token=ADMIN))
    with served.http(ADMIN) as http:
        assert set(heartbeats(http, 30)) <= {200, 503}
        with postgres.silent():
            assert set(heartbeats(http, 30)) == {503}
            refused(http.get("/hosts"), 503, "try again")
        wait_for(lambda: set(heartbeats(http, 5)) == {200})


def test_a_statement_ends_with_its_limit_and_maintenance_does_not(postgres: Postgres, settings: Settings) -> None:
    short = replace(settings, database_statement_s=2, database_lock_s=1)
    with engine.open_database(short) as database, migrating(database):
        with pytest.raises(Exception, match="lock timeout"), database.session() as session:
            session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": schema._LOCK_KEY})
        with pytest.raises(Exception, match="statement timeout"), database.session() as session:
            session.execute(text("SELECT pg_sleep(3600)"))
        upgrading = threading.Thread(target=engine.upgrade, args=(short,))
        upgrading.start()
        upgrading.join(3)  # longer than either limit
        assert upgrading.is_alive(), "it waits for the migration of another process"
    upgrading.join()


@contextmanager
def migrating(database: engine.Database) -> Iterator[None]:
    """Another process migrates."""
    with database.session() as session:
        session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": schema._LOCK_KEY})
        yield


def test_limits_are_those_of_the_settings_unless_the_url_says_otherwise(postgres: Postgres, settings: Settings) -> None:
    def limits_of(url: str, **changes: int) -> list[str]:
        names = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
        with (
            engine.open_database(replace(settings, database_url=url, **changes)) as database,
            database.session() as session,
        ):
            return [str(session.scalar(text(f"SHOW {name}"))) for name in names]

    assert limits_of(postgres.url) == ["0", "0", "0"]
    given = {"database_statement_s": 7, "database_lock_s": 8, "database_idle_s": 9}
    assert limits_of(postgres.url, **given) == ["7s", "8s", "9s"]
    url = make_url(postgres.url).update_query_dict({"options": "-c statement_timeout=3s"})
    assert limits_of(url.render_as_string(hide_password=False), **given) == ["3s", "8s", "9s"]
    arguments = time_limits.for_requests(Settings()).as_arguments("")
    assert (arguments["tcp_user_timeout"], arguments["keepalives_count"]) == (15_000, 3)
    idle, between = arguments["keepalives_idle"], arguments["keepalives_interval"]
    assert idle + 3 * between == 15
