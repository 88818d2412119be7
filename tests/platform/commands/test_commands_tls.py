"""A server with a certificate of a private authority, and everything that calls it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority, make_authority
from processes import Running, tightship
from services import free_port
from waiting import PATIENCE_S, wait_for

from tightship_platform.client import ApiClient
from tightship_platform.errors import TightshipError
from tightship_platform.settings import load_settings


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return make_authority(tmp_path_factory.mktemp("authority"))


@dataclass
class Secured:
    """A server under TLS, and the variables of whoever trusts its authority."""

    url: str
    environ: dict[str, str]
    home: Path

    def run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return tightship(self.environ | variables, *arguments)


@pytest.fixture(scope="module")
def secured(make_platform_env: Callable[..., Any], authority: Authority) -> Iterator[Secured]:
    env = make_platform_env(migrated=False)
    certificate, key = authority.sign("server", "DNS:localhost")
    port = free_port()
    own = {"TIGHTSHIP_TLS_CERT_FILE": str(certificate), "TIGHTSHIP_TLS_KEY_FILE": str(key)}
    with Running(dict(env.environ) | own, "server", "--port", str(port)) as server:
        server.hear(f"Serving https://127.0.0.1:{port} (one local user)")
        url = f"https://localhost:{port}"
        trust = {"TIGHTSHIP_SERVER": url, "TIGHTSHIP_CA_FILE": str(authority.certificate)}
        made = Secured(url, dict(env.environ) | trust, env.home)
        wait_for(lambda: answer("/live", made.environ), "the server to answer")
        yield made
        assert server.end() == 0


def answer(path: str, environ: dict[str, str]) -> Any:
    """What the server says; None while it does not answer."""
    try:
        with ApiClient(load_settings(environ), timeout_s=PATIENCE_S) as api:
            return api.get(path)
    except TightshipError:
        return None


def failed(result: subprocess.CompletedProcess[str], *words: str) -> None:
    assert result.returncode == 2, result
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("tightship: ")
    for word in words:
        assert word in line


def test_launcher_agent_doctor_and_health_reach_a_server_of_a_private_authority(secured: Secured) -> None:
    done = secured.run("run", "--workflow", "tls", "--", sys.executable, "-c", "import time; time.sleep(1)")
    assert (done.returncode, done.stderr) == (0, "")
    (run,) = json.loads(secured.run("runs", "--json").stdout)
    assert run["workflow"] == "tls"
    assert secured.run("agent", "--once").returncode == 0
    checks = {row["check"]: row for row in json.loads(secured.run("doctor", "--json").stdout)}
    assert [checks[name]["state"] for name in ("server", "token", "agent")] == ["ok"] * 3, checks
    for part in ("server", "agent"):
        command = [sys.executable, "-m", "tightship_platform.processes.health", part]
        assert subprocess.run(command, env=secured.environ, timeout=PATIENCE_S).returncode == 0


def test_without_the_authority_the_line_says_what_to_set(secured: Secured) -> None:
    failed(secured.run("runs", TIGHTSHIP_CA_FILE=""), "certificate of https://localhost", "TIGHTSHIP_CA_FILE")
    done = secured.run("run", "--", sys.executable, "-c", "print('done')", TIGHTSHIP_CA_FILE="")
    assert (done.returncode, done.stdout) == (0, "done\n"), "the job is nobody's hostage"
    assert "TIGHTSHIP_CA_FILE" in done.stderr
    rows = json.loads(secured.run("doctor", "--json", TIGHTSHIP_CA_FILE="").stdout)
    (row,) = [row for row in rows if row["check"] == "server"]
    assert row["state"] == "wrong"
    assert "TIGHTSHIP_CA_FILE" in row["advice"]


def test_a_name_that_the_certificate_does_not_hold_is_refused(secured: Secured) -> None:
    by_address = secured.url.replace("localhost", "127.0.0.1")
    failed(secured.run("runs", TIGHTSHIP_SERVER=by_address), "127.0.0.1", "TIGHTSHIP_SERVER to a name")


def test_another_authority_is_not_trusted(secured: Secured, tmp_path: Path) -> None:
    other = make_authority(tmp_path / "other")
    failed(secured.run("runs", TIGHTSHIP_CA_FILE=str(other.certificate)), "certificate of", "is refused")


def test_a_file_without_certificates_is_one_line_for_everybody(secured: Secured, tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("no certificate\n")
    for path, why in ((tmp_path / "none.pem", "No such file"), (empty, "it holds none"), (tmp_path, "directory")):
        for command in (("runs",), ("agent", "--once")):
            failed(secured.run(*command, TIGHTSHIP_CA_FILE=str(path)), "TIGHTSHIP_CA_FILE is", str(path), why)
        done = secured.run("run", "--", sys.executable, "-c", "print('done')", TIGHTSHIP_CA_FILE=str(path))
        assert (done.returncode, done.stdout) == (0, "done\n")
        assert "TIGHTSHIP_CA_FILE" in done.stderr
        assert "Traceback" not in done.stderr
        rows = json.loads(secured.run("doctor", "--json", TIGHTSHIP_CA_FILE=str(path)).stdout)
        assert [row["state"] for row in rows if row["check"] == "server"] == ["wrong"]


def test_a_server_says_what_is_wrong_with_its_certificate(
    make_platform_env: Callable[..., Any], authority: Authority, tmp_path: Path
) -> None:
    env = make_platform_env(migrated=False)
    certificate, key = authority.sign("a", "DNS:localhost")
    _, other_key = authority.sign("b", "DNS:localhost")
    locked, locked_key = authority.sign("c", "DNS:localhost", password="secret")
    cases = (
        ((tmp_path / "none.pem", key), "TIGHTSHIP_TLS_CERT_FILE", "No such file"),
        ((certificate, tmp_path / "none.key"), "TIGHTSHIP_TLS_KEY_FILE", "No such file"),
        ((certificate, None), "TIGHTSHIP_TLS_CERT_FILE", f"is in {certificate}"),
        ((certificate, other_key), "TIGHTSHIP_TLS_CERT_FILE", "KEY_VALUES_MISMATCH"),
        ((locked, locked_key), "TIGHTSHIP_TLS_CERT_FILE", "without a password"),
        ((None, key), "TIGHTSHIP_TLS_KEY_FILE", "TIGHTSHIP_TLS_CERT_FILE beside it"),
    )
    for files, *words in cases:
        given = zip(("TIGHTSHIP_TLS_CERT_FILE", "TIGHTSHIP_TLS_KEY_FILE"), files, strict=True)
        variables = {name: str(path) for name, path in given if path is not None}
        failed(tightship(dict(env.environ) | variables, "server", "--port", str(free_port())), *words)
    assert not (env.home / "tightship.db").exists(), "nothing was done before that"


def test_up_calls_its_server_by_the_name_of_its_certificate(
    make_platform_env: Callable[..., Any], authority: Authority
) -> None:
    env = make_platform_env(migrated=False)
    certificate, key = authority.sign("up", "DNS:localhost")
    both = authority.folder / "both.pem"
    both.write_bytes(certificate.read_bytes() + key.read_bytes())
    port = free_port()
    own = {
        "TIGHTSHIP_TLS_CERT_FILE": str(both),
        "TIGHTSHIP_CA_FILE": str(authority.certificate),
        "TIGHTSHIP_SERVER": f"https://localhost:{port}",
    }
    with Running(dict(env.environ) | own, "up", "--port", str(port), "--no-worker") as up:
        up.hear(f"Dashboard: https://localhost:{port}")
        wait_for(lambda: answer("/hosts", dict(env.environ) | own), "the agent's heartbeat")
        command = [sys.executable, "-m", "tightship_platform.processes.health", "agent"]
        assert subprocess.run(command, env=dict(env.environ) | own, timeout=PATIENCE_S).returncode == 0
        assert up.end() == 0
