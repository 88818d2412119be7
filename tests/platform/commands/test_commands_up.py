"""`tightship up` as a process: all parts come up, come back, and go."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import psutil
import pytest
from processes import Running, answers, own, tightship
from services import free_port
from waiting import PATIENCE_S, wait_for

from tightship_platform.commands import up as up_command
from tightship_platform.settings import DEFAULT_SERVER, Settings


@pytest.fixture
def env(make_platform_env: Any) -> Any:
    """A platform whose database has no schema yet."""
    return make_platform_env(migrated=False)


@pytest.fixture
def port() -> int:
    return free_port()


class Up(Running):
    """`tightship up`, on a platform whose database had no schema."""

    def __init__(self, env: Any) -> None:
        self.env, self.port, self.link = env, free_port(), ""
        self.url = f"http://127.0.0.1:{self.port}"
        super().__init__(env.environ, "up", "--port", str(self.port), cold=True)


@pytest.fixture(scope="module")
def start_up(make_platform_env: Any) -> Iterator[Callable[[], Up]]:
    """All parts, up: those of the test before unless it ended them."""
    running: list[Up] = []
    with ExitStack() as stack:

        def start() -> Up:
            if not running or running[-1].process.poll() is not None:
                up = stack.enter_context(Up(make_platform_env(migrated=False)))
                running.append(up)
                up.link = up.hear(f"Dashboard: {up.url}/login?code=").partition(": ")[2]
                up.hear(f"export TIGHTSHIP_SERVER={up.url}")
                up.hear(f"export TIGHTSHIP_HOME={up.env.home}")
                up.hear("Worker of")
                up.hear("agent  | ")
            return running[-1]

        yield start


@pytest.fixture
def up(start_up: Callable[[], Up]) -> Up:
    return start_up()


def part(up: Running, name: str) -> psutil.Process:
    """The process of a part."""
    found = [
        child
        for child in psutil.Process(up.process.pid).children()
        if child.status() != psutil.STATUS_ZOMBIE and name in child.cmdline()
    ]
    assert len(found) == 1
    return found[0]


def hosts(up: Up) -> list[Any]:
    answer = httpx.get(f"{up.url}/api/v1/hosts", auth=own(up.env.environ), trust_env=False, timeout=PATIENCE_S)
    found: list[Any] = answer.json()
    return found


def test_a_browser_gets_in_by_the_link_once_and_no_token_is_said(up: Up) -> None:
    with httpx.Client(headers={"accept": "text/html"}, trust_env=False, timeout=PATIENCE_S) as pages:
        assert str(pages.get(up.link, follow_redirects=True).url) == f"{up.url}/"
    assert httpx.get(up.link, trust_env=False, timeout=PATIENCE_S).status_code == 401
    token = (up.env.home / "token").read_text().strip()
    assert token not in up.output_so_far()
    assert not [path for path in (up.env.home / "logs").iterdir() if token in path.read_text()]


def test_a_second_one_in_the_same_home_is_one_line(up: Up) -> None:
    second = tightship(up.env.environ, "up", "--port", str(free_port()))
    assert second.returncode == 2
    assert second.stderr.strip() == (
        f"tightship: `tightship up` already runs in {up.env.home} (pid {up.process.pid}); "
        "stop that one first, or set another TIGHTSHIP_HOME"
    )
    assert up.process.poll() is None


@pytest.mark.sliced(1)
@pytest.mark.parametrize("name", ["server", "worker", "agent"])
def test_a_part_that_is_killed_comes_back(up: Up, name: str) -> None:
    killed = part(up, name)
    killed.kill()
    line = up.hear(f"The {name} (pid {killed.pid}) was ended by SIGKILL")
    assert "starting it again in 0.5 s" in line
    wait_for(lambda: f"{name:<6} | " in up.output_so_far().partition(line)[2], "its first words")
    wait_for(lambda: answers(up.url), "the server to answer")
    assert part(up, name).pid != killed.pid


def test_everything_comes_up_from_nothing_and_goes_on_ctrl_c(up: Up) -> None:
    family = up.family()
    assert {name for name in ("server", "worker", "agent") if part(up, name)} == {"server", "worker", "agent"}
    wait_for(lambda: len(hosts(up)) == 1, "the agent's heartbeat")
    assert up.end(signal.SIGINT) == 0
    assert up.output().splitlines()[-1] == "All parts have ended."
    _, alive = psutil.wait_procs(family, timeout=PATIENCE_S)
    assert alive == []
    assert "Traceback" not in up.output_so_far()
    assert {"server.log", "worker.log", "agent.log"} <= {p.name for p in (up.env.home / "logs").iterdir()}


def test_nothing_outlives_a_supervisor_that_is_killed(up: Up) -> None:
    wait_for(lambda: len(up.family()) >= 7, "three parts, two pool processes and beat below the worker")
    family = up.family()
    os.kill(up.process.pid, signal.SIGKILL)
    _, alive = psutil.wait_procs(family, timeout=PATIENCE_S)
    assert alive == []
    up.process.wait()


def test_a_port_in_use_ends_it_with_that_line(env: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = tightship(env.environ, "up", "--port", str(port))
    assert result.returncode == 2
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith(f"tightship: The server cannot start: Port {port} on 127.0.0.1 is in use")


def test_beyond_loopback_without_a_token_ends_it_with_that_line(env: Any, port: int) -> None:
    result = tightship(env.environ, "up", "--host", "0.0.0.0", "--port", str(port), "--no-worker")
    assert result.returncode == 2
    assert "tightship token create" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_with_a_token_the_agent_is_let_in(env: Any, port: int) -> None:
    environ = env.environ | {"TIGHTSHIP_TOKEN": "token-of-this-very-test"}
    with Running(environ, "up", "--host", "0.0.0.0", "--port", str(port), "--no-worker") as up:
        up.hear("(tokens required)")
        bearer = {"authorization": "Bearer token-of-this-very-test"}
        url = f"http://127.0.0.1:{port}/api/v1/hosts"
        wait_for(lambda: answers(f"http://127.0.0.1:{port}"), "the server to answer")
        wait_for(
            lambda: len(httpx.get(url, headers=bearer, trust_env=False, timeout=PATIENCE_S).json()) == 1,
            "the agent's heartbeat",
        )
        assert httpx.get(url, trust_env=False, timeout=PATIENCE_S).status_code == 401
        assert "token-of-this-very-test" not in up.output_so_far()


def test_other_shells_hear_of_a_server_only_where_they_would_not_find_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(up_command, "_is_well", lambda opener, url: True)
    for url in (DEFAULT_SERVER, "http://127.0.0.1:8123"):
        assert up_command._announcer(Settings(server=url), is_local=False)()
    assert capsys.readouterr().out.splitlines() == [
        f"Dashboard: {DEFAULT_SERVER}",
        "Dashboard: http://127.0.0.1:8123",
        "Other shells need:",
        "export TIGHTSHIP_SERVER=http://127.0.0.1:8123",
    ]


@pytest.mark.parametrize(("mode", "shown"), [(0o600, True), (0o644, False), (0o640, False)])
def test_no_link_stands_in_a_file_that_others_can_read(tmp_path: Any, mode: int, shown: bool) -> None:
    code = (
        "import sys; from pathlib import Path; from tightship_platform.commands.up import _announce; "
        "from tightship_platform.settings import Settings; _announce(Settings(home=Path(sys.argv[1])), True)"
    )
    log = tmp_path / "up.log"
    with log.open("wb") as out:
        log.chmod(mode)
        subprocess.run([sys.executable, "-c", code, str(tmp_path)], stdout=out, check=True)
    assert ("code=" in log.read_text()) is shown
    assert "tightship token link" in log.read_text()


def test_parts_can_be_left_out(env: Any, port: int) -> None:
    with Running(env.environ, "up", "--port", str(port), "--no-agent", "--no-worker") as up:
        up.hear("Dashboard:")
        assert len(up.family()) == 2
        assert up.end() == 0


def test_a_home_that_cannot_be_is_one_line(env: Any, tmp_path: Any) -> None:
    (tmp_path / "file").touch()
    for home in ("/proc/nowhere", str(tmp_path / "file" / "home")):
        result = tightship(env.environ | {"TIGHTSHIP_HOME": home}, "up")
        assert result.returncode == 2
        (line,) = result.stderr.strip().splitlines()
        assert line.startswith("tightship: ")
        assert home in line
