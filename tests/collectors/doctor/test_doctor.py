from __future__ import annotations

import io
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from agent_rig import Rig, stop
from api_calls import serving
from made_records import make
from nvml_recording import RecordedNvml
from rich.console import Console
from waiting import wait_for

from tightship_collectors.delivery.spool import Spool
from tightship_collectors.doctor import host_checks as on_host
from tightship_collectors.doctor.check import NOTE, OK, WRONG, Check
from tightship_collectors.doctor.host_checks import host_checks
from tightship_collectors.doctor.server_checks import server_checks
from tightship_collectors.doctor.table import print_checks
from tightship_collectors.sources.devices import HostDevices
from tightship_collectors.sources.nvml import NvmlSource
from tightship_platform import __version__
from tightship_platform.results.host import Host
from tightship_platform.settings import Settings, load_settings
from tightship_platform.units import NS_PER_S, now_ns

STATES = {OK, NOTE, WRONG}


@pytest.fixture
def rig(make_platform_env: Callable[..., Any]) -> Iterator[Rig]:
    made = Rig(variables=make_platform_env().variables)
    yield made
    made.close()


def doctor(rig: Rig, **variables: str) -> tuple[int, dict[str, dict[str, str]]]:
    done = rig.run("doctor", "--json", **variables)
    assert done.stderr == ""
    rows = json.loads(done.stdout)
    assert all(set(row) == {"check", "state", "detail", "advice"} and row["state"] in STATES for row in rows)
    assert all(row["advice"] for row in rows if row["state"] == WRONG), "what is wrong needs advice"
    return done.returncode, {row["check"]: row for row in rows}


def test_a_healthy_installation_and_one_whose_server_goes_away(rig: Rig) -> None:
    with serving(load_settings(rig.environ), port=rig.port):
        agent = rig.start_agent()
        wait_for(lambda: rig.get("/hosts"))
        code, rows = doctor(rig)
        assert code == 0, rows
        assert rows["server"]["detail"].endswith(f"runs tightship {__version__}")
        assert rows["extras"]["detail"].startswith("analyze, ") and "azure lacks adlfs" in rows["extras"]["detail"]
        assert [rows[name]["state"] for name in ("database", "broker", "clock", "token", "agent", "spool")] == [OK] * 6
        own_token = f"that of this user, in {rig.home / 'token'}, is accepted for ingest and read"
        assert rows["token"]["detail"] == own_token
        assert rows["agent"]["detail"].startswith(f"{os.uname().nodename}: last heartbeat")
        assert rows["setting home"]["detail"] == f"{rig.home} (environment, TIGHTSHIP_HOME)"
        assert rows["setting host_name"]["detail"].endswith("(default)")
        table = rig.run("doctor")
        assert table.returncode == 0
        assert "CHECK" in table.stdout
        assert "source cpu" in table.stdout
    code, rows = doctor(rig)
    assert code == 1
    assert rows["server"]["state"] == WRONG
    assert "tightship up" in rows["server"]["advice"]
    assert rows["agent"]["state"] == NOTE  # its sign of life is fresh
    stop(agent)
    (rig.home / "liveness" / "agent").unlink()
    code, rows = doctor(rig)
    assert (code, rows["agent"]["state"]) == (1, WRONG)


def test_a_host_without_an_agent(rig: Rig) -> None:
    with serving(load_settings(rig.environ), port=rig.port):
        code, rows = doctor(rig)
    assert (code, rows["agent"]["state"], "never heard" in rows["agent"]["detail"]) == (1, WRONG, True)


def test_a_token_that_the_server_does_not_know(rig: Rig) -> None:
    rig.variables["TIGHTSHIP_TOKEN"] = "the-real-one-0123456789abcdef"
    with serving(load_settings(rig.environ), host="0.0.0.0", port=rig.port):
        code, rows = doctor(rig)
        assert rows["token"] == {
            "check": "token",
            "state": OK,
            "detail": "accepted for ingest and read",
            "advice": "",
        }
        code, rows = doctor(rig, TIGHTSHIP_TOKEN="somebody-elses")
    assert (code, rows["token"]["state"]) == (1, WRONG)
    assert "TIGHTSHIP_TOKEN" in rows["token"]["advice"]


def test_secrets_are_not_shown(rig: Rig) -> None:
    done = rig.run(
        "doctor",
        "--json",
        TIGHTSHIP_TOKEN="hunter2token",
        TIGHTSHIP_DATABASE_URL="postgresql+psycopg://user:hunter2@host/db",
        TIGHTSHIP_BROKER_URL="redis://:hunter2@host/0",
    )
    assert "hunter2" not in done.stdout
    assert "user:***@host/db" in done.stdout


def test_the_file_is_named_as_the_source(rig: Rig) -> None:
    (rig.home / "tightship.toml").write_text('host_name = "node-7"\n')
    _, rows = doctor(rig)
    assert rows["setting host_name"]["detail"] == f"node-7 ({rig.home}/tightship.toml)"


def test_a_setting_that_is_refused_is_one_wrong_line(rig: Rig) -> None:
    code, rows = doctor(rig, TIGHTSHIP_SERVER="ftp://nowhere")
    assert code == 1
    assert list(rows) == ["settings"]
    assert "expected an http:// or https:// URL" in rows["settings"]["detail"]


def test_the_table_cuts_nothing_and_is_steered_by_nobody() -> None:
    console = Console(width=60, file=io.StringIO(), highlight=False)
    long = "word " * 40 + "last-of-detail"
    checks = [
        Check(check="[red]x", state=WRONG, detail=f"\x1b[2J{long}", advice="do [b]this[/b] " * 9 + "last-of-advice")
    ]
    print_checks(checks, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "last-of-detail" in text
    assert "last-of-advice" in text
    assert "[red]x" in text
    assert "\x1b" not in text
    assert "0 ok, 0 note, 1 wrong" in text


# ---- single checks ---------------------------------------------------------------------------------------------------


def rows_of(checks: Iterator[Any]) -> dict[str, Any]:
    return {check.check: check for check in checks}


@pytest.fixture
def settings() -> Settings:
    return load_settings()


@pytest.mark.parametrize(
    ("spoil", "state", "says"),
    [
        (lambda d: None, OK, "is made when it is needed"),
        (lambda d: d.mkdir(mode=0o700), OK, "not writable for others"),
        (lambda d: (d.mkdir(), d.chmod(0o777)), WRONG, "drwxrwxrwx"),
        (lambda d: d.symlink_to("/"), WRONG, "TIGHTSHIP_RUNTIME_DIR is"),
    ],
)
def test_runtime_dir(spoil: Callable[[Path], object], state: str, says: str, settings: Settings) -> None:
    spoil(settings.runtime_dir)
    try:
        row = rows_of(host_checks(settings))["runtime dir"]
        assert (row.state, says in row.detail) == (state, True)
    finally:
        if settings.runtime_dir.is_symlink():
            settings.runtime_dir.unlink()


def test_spool_backlog(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    assert rows_of(host_checks(settings))["spool"].state == OK
    assert not settings.spool_dir.exists()  # looking changes nothing
    spool = Spool(settings.spool_dir)
    spool.put("batches", b"{}")
    assert rows_of(host_checks(settings))["spool"].state == OK
    entry = spool.peek()
    assert entry is not None
    spool.set_aside(entry, "test")
    row = rows_of(host_checks(settings))["spool"]
    assert (row.state, "1 that the server refused" in row.detail) == (NOTE, True)
    with monkeypatch.context() as past:
        past.setattr("tightship_collectors.delivery.spool.now_ns", lambda: now_ns() - 3600 * NS_PER_S)
        spool = Spool(settings.spool_dir)
        spool.put("batches", b"{}")
    row = rows_of(host_checks(settings))["spool"]
    assert (row.state, "1.00 h" in row.detail) == (WRONG, True)


@pytest.mark.parametrize(
    ("content", "state", "says"),
    [
        (b"\x7fELF..KINETO_IPC_SOCKET_DIR..", OK, "9.9.9; honors"),
        (b"\x7fELF..dynoconfigclient..", WRONG, "cannot be captured"),
        (None, NOTE, "cannot look into"),
        (b"", NOTE, "cannot look into"),
    ],
)
def test_torch_is_judged_by_its_library_without_importing_it(
    content: bytes | None, state: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    (tmp_path / "torch-9.9.9.dist-info").mkdir()
    (tmp_path / "torch-9.9.9.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 9.9.9\n")
    (tmp_path / "torch" / "lib").mkdir(parents=True)
    if content is not None:
        (tmp_path / "torch" / "lib" / "libtorch_cpu.so").write_bytes(content)
    monkeypatch.syspath_prepend(str(tmp_path))
    row = rows_of(host_checks(settings))["torch"]
    assert (row.state, says in row.detail) == (state, True), row


@pytest.mark.torch
def test_the_installed_torch_honors_the_socket_dir() -> None:
    from importlib import metadata

    library = metadata.distribution("torch").locate_file("torch/lib/libtorch_cpu.so")
    assert on_host.names_socket_dir(Path(str(library)))


def test_a_driver_that_does_not_answer_is_wrong(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = NvmlSource(RecordedNvml("t4", init_error="NVML_ERROR_LIB_RM_VERSION_MISMATCH"))
    monkeypatch.setattr(on_host, "HostDevices", lambda: HostDevices(accelerators=broken))
    row = rows_of(host_checks(settings))["source nvml"]
    assert (row.state, "nvidia-smi" in row.advice) == (WRONG, True)
    fine = NvmlSource(RecordedNvml("h100"))
    monkeypatch.setattr(on_host, "HostDevices", lambda: HostDevices(accelerators=fine))
    assert rows_of(host_checks(settings))["source nvml"].detail.startswith("2 devices, driver 550.90.07")


class Stranger:
    """An HTTP server that answers every request alike, except for `paths`."""

    def __init__(
        self, status: int, body: object, *, date: float | None = None, paths: dict[str, object] | None = None
    ) -> None:
        def encode(value: object) -> bytes:
            return value if isinstance(value, bytes) else json.dumps(value).encode()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                answer = encode((paths or {}).get(self.path.removeprefix("/api/v1").partition("?")[0], body))
                self.send_response_only(status)
                if date is not None:
                    self.send_header("date", formatdate(date, usegmt=True))
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            do_POST = do_GET  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        self.http = HTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True)

    def __enter__(self) -> Settings:
        self.thread.start()
        home = load_settings().home
        return Settings(home=home, server=f"http://127.0.0.1:{self.http.server_port}")

    def __exit__(self, *_: object) -> None:
        self.http.shutdown()
        self.http.server_close()


HEALTH = {"status": "ok", "version": __version__, "database": "ok", "broker": "ok", "schema": "0001"}


@pytest.mark.parametrize(
    ("status", "body"), [(200, b"<html>hello</html>"), (404, {"detail": "x"}), (200, ["x"]), (500, b"")]
)
def test_something_else_that_answers_is_no_server(status: int, body: object) -> None:
    with Stranger(status, body) as settings:
        rows = rows_of(server_checks(settings))
    assert rows["server"].state == WRONG
    assert rows["server"].advice


def test_what_the_server_says_of_itself() -> None:
    bad = HEALTH | {"status": "degraded", "version": "9.9", "database": "another schema", "broker": "unreachable"}
    with Stranger(503, bad) as settings:
        rows = rows_of(server_checks(settings))
    assert (rows["server"].state, "9.9" in rows["server"].detail) == (NOTE, True)
    assert (rows["database"].state, "tightship db upgrade" in rows["database"].advice) == (WRONG, True)
    assert rows["broker"].state == WRONG
    assert rows["clock"].state == NOTE  # it tells no time


@pytest.mark.parametrize(("skew_s", "state"), [(0, OK), (-30, WRONG), (3600, WRONG)])
def test_clock_skew(skew_s: float, state: str) -> None:
    with Stranger(200, HEALTH, date=time.time() + skew_s) as settings:
        row = rows_of(server_checks(settings))["clock"]
    assert row.state == state
    assert ("ahead of" in row.detail) is (skew_s < 0)


@pytest.mark.parametrize(
    ("age_s", "info", "state", "says"),
    [
        (2, {"spool_dropped": 0, "rows_too_old": 0}, OK, "last heartbeat"),
        (2, {"spool_dropped": 7, "rows_too_old": 0}, NOTE, "dropped 7 records"),
        (2, {"rows_too_old": 3}, NOTE, "did not store 3 rows older than TIGHTSHIP_KEEP_DAYS"),
        (2, {"rows_too_old": 0, "rows_refused": 1}, NOTE, "refused 1 row with a value that cannot be"),
        (600, {}, WRONG, "tightship agent"),
    ],
)
def test_what_the_server_heard_of_the_agent(
    age_s: int, info: dict[str, int], state: str, says: str, settings: Settings
) -> None:
    seen_ns = now_ns() - age_s * NS_PER_S
    host = make(Host, host=settings.host_name, last_seen_ns=seen_ns, agent_version="1", info=info)
    with Stranger(200, HEALTH, paths={"/hosts": [vars(host)]}) as there:
        row = rows_of(server_checks(there))["agent"]
    assert (row.state, says in row.detail + row.advice) == (state, True), row


def test_artifacts_where_the_server_is_this_machine(tmp_path: Path) -> None:
    with Stranger(200, HEALTH) as settings:
        taken = tmp_path / "file"
        taken.write_text("")
        for url, state in (
            (str(tmp_path / "new" / "store"), OK),
            (f"file://{tmp_path}", OK),
            ("s3://bucket/x", NOTE),
            (str(taken), WRONG),
        ):
            here = Settings(home=settings.home, server=settings.server, artifacts_url=url)
            assert rows_of(server_checks(here))["artifacts"].state == state, url


def test_a_store_of_another_installation() -> None:
    said = {"fault": "The artifact store x belongs to installation y"}
    with Stranger(200, HEALTH, paths={"/store": said}) as settings:
        row = rows_of(server_checks(settings))["artifacts"]
    assert (row.state, row.detail) == (WRONG, f"{said['fault']}: no trace file is ever removed")
    assert "tightship db adopt-store" in row.advice


def test_the_doctor_of_a_server_whose_store_holds_foreign_traces(rig: Rig) -> None:
    with serving(load_settings(rig.environ), port=rig.port):
        _, rows = doctor(rig)
        assert rows["artifacts"]["state"] == OK
        foreign = rig.home / "artifacts" / "traces" / "a1" / "c1" / "rank-0.json.gz"
        foreign.parent.mkdir(parents=True)
        foreign.write_bytes(b"x")
        code, rows = doctor(rig)
        assert (code, rows["artifacts"]["state"]) == (1, WRONG)
        assert "holds traces and carries no installation id" in rows["artifacts"]["detail"]
        assert rig.run("db", "adopt-store", "--yes").returncode == 0
        _, rows = doctor(rig)
        assert rows["artifacts"]["state"] == OK
