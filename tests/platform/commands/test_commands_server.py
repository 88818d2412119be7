"""`tightship server` as a process: it starts on a bare machine, says clearly why it cannot, and ends when asked to."""

from __future__ import annotations

import json
import signal
import socket
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from api_calls import HOST, RUN, Capture, authorization, ok, serving, sha256, trace_file
from processes import Running, answers, own, tightship
from services import free_port
from sqlalchemy import create_engine, make_url, text
from waiting import PATIENCE_S, wait_for

from tightship_platform.api import server as api_server
from tightship_platform.database import schema
from tightship_platform.database.engine import open_database


@pytest.fixture
def env(make_platform_env: Any) -> Any:
    """A platform whose database has no schema yet."""
    return make_platform_env(migrated=False)


def one_line(result: Any, *words: str) -> str:
    """The only line of a command that could not do what it was asked."""
    assert result.returncode == 2, result
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("tightship: ")
    for word in words:
        assert word in line
    assert isinstance(line, str)
    return line


def test_from_nothing_to_a_stored_trace_and_a_clean_end(env: Any) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with Running(env.environ, "server", "--port", str(port), cold=True) as server:
        server.hear(f"Serving {url} (one local user)")
        with httpx.Client(base_url=url + "/api/v1", auth=own(env.environ), trust_env=False, timeout=PATIENCE_S) as http:
            capture = Capture(http)
            capture.write()
            data = trace_file(300_000)
            ok(capture.put(data))
            assert capture.now()["ranks"][0]["sha256"] == sha256(data)
        assert server.end() == 0
        assert "Traceback" not in server.output()
    with open_database(env.settings) as database:
        assert database.schema_version() is not None


def test_a_server_is_loaded_before_it_changes_the_schema(env: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """After that, servers of older releases may not be ready any more: it has to answer soon."""
    begun: list[str] = []
    ended = RuntimeError("that is all")

    def change(_settings: object) -> None:
        begun.append("schema")
        raise ended

    monkeypatch.setattr(api_server, "load_parts", lambda: begun.append("parts"))
    monkeypatch.setattr(api_server, "upgrade", change)
    with socket.socket() as listener, pytest.raises(RuntimeError, match="that is all"):
        api_server.serve(env.settings, listener, None, None, host="127.0.0.1")
    assert begun == ["parts", "schema"]


def test_a_port_in_use_is_one_line(env: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        one_line(tightship(env.environ, "server", "--port", str(port)), f"Port {port}", "in use", "--port")
    assert not (env.home / "tightship.db").exists(), "nothing was done before the port was had"


@pytest.mark.sliced(1)
@pytest.mark.parametrize("host", ["203.0.113.77", "no-such-host.invalid", "x y"])
def test_a_host_that_is_not_ours_is_one_line(env: Any, host: str) -> None:
    one_line(tightship(env.environ, "server", "--host", host, "--port", str(free_port())), "--host", host)


def test_beyond_loopback_it_needs_a_token(env: Any) -> None:
    port = str(free_port())
    refused = tightship(env.environ, "server", "--host", "0.0.0.0", "--port", port)
    one_line(refused, "'0.0.0.0'", "tightship token create", "TIGHTSHIP_TOKEN", "127.0.0.1")
    weak = tightship(env.environ | {"TIGHTSHIP_TOKEN": "a"}, "server", "--host", "0.0.0.0", "--port", port)
    one_line(weak, "TIGHTSHIP_TOKEN is '1 character, not shown'", "at least 20 characters")
    made = tightship(env.environ, "token", "create", "ops", "--scope", "read")
    assert made.returncode == 0
    with Running(env.environ, "server", "--host", "0.0.0.0", "--port", port) as server:
        server.hear("(tokens required)")
        url = f"http://127.0.0.1:{port}/api/v1/runs"
        wait_for(lambda: answers(f"http://127.0.0.1:{port}"), "the server to answer")
        bearer = {"authorization": f"Bearer {made.stdout.strip()}"}
        with httpx.Client(trust_env=False, timeout=PATIENCE_S) as http:
            assert http.get(url).status_code == 401
            assert http.get(url, headers=bearer).json() == []
        assert made.stdout.strip() not in server.output_so_far()


@pytest.mark.sliced(1)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_connections_that_stay_open_do_not_delay_its_end(env: Any, number: signal.Signals) -> None:
    port = free_port()
    with Running(env.environ, "server", "--port", str(port)) as server:
        server.hear("Serving")
        wait_for(lambda: answers(f"http://127.0.0.1:{port}"), "the server to answer")
        idle = socket.create_connection(("127.0.0.1", port))
        idle.sendall(b"GET /api/v1/health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert idle.recv(12) == b"HTTP/1.1 200"
        half = socket.create_connection(("127.0.0.1", port))
        half.sendall(b"POST /api/v1/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n")
        sending = socket.create_connection(("127.0.0.1", port))
        sending.sendall(
            b"POST /api/v1/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            + authorization(env.home).encode()
            + b"Content-Length: 1000\r\n\r\n{"
        )
        time.sleep(0.3)
        assert server.end(number) == 0
        for connection in (idle, half, sending):
            connection.close()


def test_a_request_that_waits_for_the_database_does_not_delay_its_end(make_platform_env: Any) -> None:
    env = make_platform_env(database="sqlite", migrated=False)
    port = free_port()
    with Running(env.environ, "server", "--port", str(port)) as server:
        server.hear("Serving")
        wait_for(lambda: answers(f"http://127.0.0.1:{port}"), "the server to answer")
        engine = create_engine(env.database_url)
        with engine.connect() as holder:
            holder.exec_driver_sql("BEGIN IMMEDIATE")
            waiting = socket.create_connection(("127.0.0.1", port))
            body = json.dumps({"host": HOST, "time_ns": 1, "agent_version": "1"}).encode()
            waiting.sendall(
                b"POST /api/v1/hosts/heartbeat HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                + f"{authorization(env.home)}Content-Length: {len(body)}\r\n\r\n".encode()
                + body
            )
            time.sleep(0.5)
            assert server.end() == 0
            # Had it waited for the lock, it would have said so.
            assert b"503" not in waiting.recv(1000)
            waiting.close()
        engine.dispose()


def test_servers_that_start_at_once_on_an_empty_database_all_come_up(env: Any) -> None:
    ports = [free_port() for _ in range(2)]
    servers = [Running(env.environ, "server", "--port", str(port)) for port in ports]
    try:
        for server, port in zip(servers, ports, strict=True):
            server.hear(f"Serving http://127.0.0.1:{port}")
    finally:
        for server in servers:
            server.__exit__()


def test_who_comes_while_it_starts_is_turned_away_and_need_not_wait(make_platform_env: Any) -> None:
    """A start may wait for a migration: a balancer, or an agent, asks another server meanwhile."""
    env = make_platform_env(database="postgres")
    port = free_port()
    engine = create_engine(make_url(env.database_url))
    waiting = text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
    with engine.connect() as migrating, engine.connect() as watcher:
        migrating.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": schema._LOCK_KEY})
        with Running(env.environ, "server", "--port", str(port)) as server:
            wait_for(lambda: watcher.execute(waiting).scalar(), "the server to wait for the migration")
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port))
            migrating.rollback()
            server.hear("Serving")
            assert answers(f"http://127.0.0.1:{port}")
    engine.dispose()


def test_a_newer_database_is_one_line_and_stays_as_it_is(platform_env: Any) -> None:
    engine = create_engine(make_url(platform_env.database_url).set(drivername=_driver(platform_env.database_url)))
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE tightship_schema SET version_num = '9999', readable_from = '9998'")
    engine.dispose()
    for command in (["server", "--port", str(free_port())], ["worker"], ["db", "upgrade"], ["db", "status"]):
        one_line(tightship(platform_env.environ, *command), "'9999'", "newer")


def test_a_store_that_cannot_be_written_is_one_line_at_the_start(env: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    environ = env.environ | {"TIGHTSHIP_ARTIFACTS_URL": str(tmp_path / "file" / "store")}
    done = tightship(environ, "server", "--port", str(free_port()))
    one_line(done, "TIGHTSHIP_ARTIFACTS_URL", "a store that can be written (Not a directory)")


def test_a_file_that_is_no_database_is_one_line(env: Any, tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("not a database " * 100)
    environ = env.environ | {"TIGHTSHIP_DATABASE_URL": f"sqlite:///{file}"}
    one_line(tightship(environ, "server", "--port", str(free_port())), "notes.txt")
    assert file.read_text() == "not a database " * 100


def test_kill_9_in_the_middle_of_an_upload_leaves_no_half_file(env: Any) -> None:
    port = free_port()
    data = trace_file(500_000)
    with Running(env.environ, "server", "--port", str(port)) as server:
        server.hear("Serving")
        url = f"http://127.0.0.1:{port}/api/v1"
        with httpx.Client(base_url=url, auth=own(env.environ), trust_env=False, timeout=PATIENCE_S) as http:
            capture = Capture(http)
            capture.write()
            with socket.create_connection(("127.0.0.1", port)) as sending:
                head = (
                    f"PUT /api/v1/captures/{capture.key}/traces/0?pid=100&host={HOST} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                    f"{authorization(env.home)}Content-Length: {len(data)}\r\nX-SHA256: {sha256(data)}\r\n\r\n"
                )
                sending.sendall(head.encode() + data[:-100])
                time.sleep(0.3)
                psutil.Process(server.process.pid).kill()
                server.process.wait()
    store = Path(env.settings.artifacts_url)
    assert not [path for path in store.rglob("rank-*.json.gz") if path.is_file()]
    with serving(env.settings) as served, served.http() as http:
        capture.http = http
        ok(capture.put(data))
        assert ok(http.get(f"/captures?run={RUN}"))[0]["state"] == "uploaded"


def _driver(url: str) -> str:
    return "postgresql+psycopg" if url.startswith("postgres") else "sqlite"


def test_several_processes_serve_as_one(env: Any) -> None:
    """Whichever process is asked: a lease, an upload and a page. One that is killed is replaced; the end is clean."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with Running(env.environ, "server", "--port", str(port), "--workers", "2") as server:
        server.hear(f"Serving {url} (one local user, 2 processes)")
        wait_for(lambda: answers(url))
        workers = server.family()[1:]
        assert len(workers) == 2
        for _ in range(2):
            with httpx.Client(
                base_url=url + "/api/v1", auth=own(env.environ), trust_env=False, timeout=PATIENCE_S
            ) as http:
                http.headers["connection"] = "close"  # each request may meet the other process
                capture = Capture(http)
                capture.write()
                data = trace_file(1000)
                ok(capture.put(data))
                assert capture.now()["ranks"][0]["sha256"] == sha256(data)
                assert httpx.get(url, auth=own(env.environ), trust_env=False, timeout=PATIENCE_S).status_code == 200
            if workers:
                workers.pop().kill()
                server.hear("another one follows")
                wait_for(lambda: len([one for one in server.family()[1:] if one.status() != psutil.STATUS_ZOMBIE]) == 2)
        assert server.end() == 0
        assert "Traceback" not in server.output()


def test_processes_end_with_the_one_that_began_them(env: Any) -> None:
    port = free_port()
    with Running(env.environ, "server", "--port", str(port), "--workers", "2") as server:
        wait_for(lambda: answers(f"http://127.0.0.1:{port}"))
        workers = server.family()[1:]
        server.process.kill()
        wait_for(lambda: not any(one.is_running() for one in workers))
