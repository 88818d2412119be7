"""The supervisor over real processes: it restarts what dies, ends all it started, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from processes import PATIENCE_S, Running

from tightship_platform.processes import log_file
from tightship_platform.processes.log_file import PartLog

DRIVER = Path(__file__).with_name("supervisor_driver.py")

PATIENT = "print('here', flush=True); import time; time.sleep(600)"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('here', flush=True); time.sleep(600)"
)


def supervised(folder: Path, parts: dict[str, str], **env: str) -> Running:
    """A supervisor in its own process over parts that run these programs."""
    commands = {name: [sys.executable, "-u", "-c", code] for name, code in parts.items()}
    command = [sys.executable, str(DRIVER), str(folder / "logs"), json.dumps(commands)]
    return Running(os.environ | env, command=command)


def children(running: Running) -> list[psutil.Process]:
    return running.family()[1:]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    started: list[Running] = []

    def start(parts: dict[str, str], **env: str) -> Running:
        started.append(supervised(tmp_path, parts, **env))
        return started[-1]

    yield start
    for running in started:
        running.__exit__()


def test_output_is_prefixed_with_the_part_and_kept_in_its_file(run: Callable[..., Running], tmp_path: Path) -> None:
    running = run({"one": PATIENT, "three": "print('a\\tb \\x1b[31mred', flush=True)\n" + PATIENT})
    assert running.hear("red") == "three | a\tb \\x1b[31mred"
    running.hear("one   | here")
    running.hear("three | here")
    assert running.end(signal.SIGTERM) == 0
    assert (tmp_path / "logs" / "three.log").read_text() == "a\tb \\x1b[31mred\nhere\n"


def test_a_part_that_is_killed_starts_again_with_a_line_that_says_so(run: Callable[..., Running]) -> None:
    running = run({"one": PATIENT, "two": PATIENT})
    running.hear("one | here")
    running.hear("two | here")
    first, second = children(running)
    first.kill()
    line = running.hear("The one")
    assert f"(pid {first.pid}) was ended by SIGKILL after 0 s; starting it again in 0.1 s" in line
    running.hear("one | here")
    assert second.is_running()
    assert len(children(running)) == 2


def test_a_part_that_keeps_dying_waits_longer_each_time(run: Callable[..., Running]) -> None:
    running = run({"one": "import sys; print('so', flush=True); sys.exit(3)", "two": PATIENT})
    waits = [running.hear("The one").rpartition(" in ")[2] for _ in range(4)]
    assert waits == ["0.1 s", "0.2 s", "0.4 s", "0.8 s"]
    assert "ended with exit code 3" in running.lines[-1]
    assert running.end(signal.SIGINT) == 0


def test_a_configuration_error_at_the_first_start_ends_everything_with_its_line(run: Callable[..., Running]) -> None:
    code = "import sys, time; time.sleep(0.3); sys.stderr.write('tightship: Port 1 is in use\\n'); sys.exit(2)"
    running = run({"good": PATIENT, "bad": code})
    running.hear("good | here")
    (good,) = [child for child in children(running) if "sys.stderr" not in " ".join(child.cmdline())]
    running.hear("tightship: The bad cannot start: Port 1 is in use")
    assert running.process.wait(PATIENCE_S) == 2
    assert not good.is_running()


def test_a_configuration_error_later_on_is_no_reason_to_end(run: Callable[..., Running]) -> None:
    code = (
        "import os, sys, time\nif os.path.exists({0!r}): sys.exit(2)\nopen({0!r}, 'w').close()\nos.kill(os.getpid(), 9)"
    )
    running = run({"one": code.format(str(Path(os.environ["TIGHTSHIP_HOME"] + "-mark"))), "two": PATIENT})
    running.hear("was ended by SIGKILL")
    running.hear("ended with exit code 2")
    assert running.process.poll() is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_all_parts(run: Callable[..., Running], number: signal.Signals) -> None:
    running = run({"one": PATIENT, "two": PATIENT})
    running.hear("one | here")
    running.hear("two | here")
    parts = children(running)
    assert running.end(number) == 0
    assert len(parts) == 2
    assert not any(part.is_running() for part in parts)


def test_a_part_that_ignores_the_request_is_killed(run: Callable[..., Running]) -> None:
    running = run({"one": STUBBORN}, KILL_AFTER_S="0.5")
    running.hear("one | here")
    (child,) = children(running)
    assert running.end(signal.SIGTERM) == 0
    assert not child.is_running()
    running.hear(f"The one (pid {child.pid}) has not ended; killing it")


def test_a_second_signal_waits_for_nobody(run: Callable[..., Running]) -> None:
    running = run({"one": STUBBORN}, KILL_AFTER_S="600")
    running.hear("one | here")
    running.process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert running.process.poll() is None
    assert running.end(signal.SIGINT) == 0


def test_parts_die_with_a_supervisor_that_is_killed(run: Callable[..., Running]) -> None:
    running = run({"one": STUBBORN, "two": PATIENT})
    running.hear("one | here")
    running.hear("two | here")
    parts = children(running)
    running.process.kill()
    gone, alive = psutil.wait_procs(parts, timeout=PATIENCE_S)
    assert len(gone) == 2
    assert not alive


def test_output_without_an_end_or_without_end_is_passed_on(run: Callable[..., Running]) -> None:
    endless = "import sys, time; sys.stdout.write('x' * 200000); sys.stdout.flush(); time.sleep(600)"
    running = run({"one": "import sys; sys.stdout.write('no newline'); sys.exit(1)", "two": endless})
    running.hear("one | no newline")
    running.hear("two | xxx")


def test_a_grandchild_that_holds_the_pipe_delays_nothing(run: Callable[..., Running]) -> None:
    code = "import subprocess, sys; print('child', subprocess.Popen(['sleep', '20']).pid, flush=True); sys.exit(1)"
    running = run({"one": code})
    child = int(running.hear("one | child").split()[-1])
    try:
        running.hear("ended with exit code 1")
        assert running.end(signal.SIGTERM) == 0
    finally:
        os.kill(child, signal.SIGKILL)
        running.process.kill()  # it may have started the next one meanwhile


def test_log_files_are_turned_over_by_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_file, "MAX_BYTES", 100)
    heard: list[str] = []
    log = PartLog(tmp_path / "one.log", heard.append)
    for number in range(200):
        log.write(f"line {number:04d}\n".encode())
    log.close()
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["one.log", "one.log.1", "one.log.2", "one.log.3"]
    assert all(file.stat().st_size <= 110 for file in files)
    kept = "".join(file.read_text() for file in [*reversed(files[1:]), files[0]]).splitlines()
    assert kept == [f"line {number:04d}" for number in range(200 - len(kept), 200)]
    assert len(heard) == 200


def test_a_full_disk_costs_the_file_and_not_the_line(tmp_path: Path) -> None:
    heard: list[str] = []
    (tmp_path / "one.log").symlink_to("/dev/full")
    log = PartLog(tmp_path / "one.log", heard.append)
    log.write(b"first\nsecond\n")
    assert heard[0] == "first"
    assert "second" in heard
    assert any("No space left" in line for line in heard)
