"""`tightship profile` at its edge: what it refuses, what it prints, what it ends with."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from agent_rig import Rig
from api_calls import serving
from waiting import PATIENCE_S, wait_for

from tightship_collectors.kineto.target import resolve_target
from tightship_platform.errors import Invalid, NotFound
from tightship_platform.settings import load_settings
from tightship_platform.units import now_ns

CAPTURE_KEYS = {
    "capture",
    "run",
    "workflow",
    "state",
    "reason",
    "requested_ns",
    "requested_by",
    "stages",
    "expected",
    "params",
    "ranks",
    "latency_s",
}
NOBODY = 65534


@pytest.fixture(scope="module")
def rig(make_platform_env: Callable[..., Any]) -> Iterator[Rig]:
    """A server without an agent: what is asked for stays asked for, unless the test plays the agent."""
    made = Rig(variables=make_platform_env().variables)
    with serving(load_settings(made.environ), port=made.port):
        yield made
        made.close()


@pytest.fixture
def run(rig: Rig) -> dict[str, Any]:
    """A live run that the server knows."""
    record = {
        "run": secrets.token_hex(8),
        "workflow": f"flow-{secrets.token_hex(3)}",
        "start_ns": now_ns(),
        "host": "somewhere",
    }
    with rig.api as api:
        api.post("/runs", record)
    return record


def refused(rig: Rig, *arguments: str, **variables: str) -> str:
    """The one line that it says before it ends with 2."""
    ended = rig.run("profile", *arguments, **variables)
    assert ended.returncode == 2, ended
    assert ended.stdout == ""
    lines = ended.stderr.splitlines()
    assert len(lines) == 1, ended.stderr
    assert lines[0].startswith("tightship: ")
    return lines[0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--duration", "9ms"], "10ms to 60s"),
        (["--duration", "61s"], "10ms to 60s"),
        (["--duration", "soon"], "'soon'"),
        (["--duration", "-1s"], "'-1s'"),
        (["--iterations", "0"], "--iterations is 0"),
        (["--iterations", "10001"], "--iterations is 10001"),
        (["--iterations", "5", "--duration", "1s"], "stand alone"),
        (["--timeout", "0"], "--timeout"),
        (["--timeout", "forever"], "'forever'"),
        (["--every", "30m", "--wait"], "--every"),
        (["--every", "now and then"], "'now and then'"),
    ],
)
def test_what_is_out_of_range_is_one_line_and_asks_nobody(rig: Rig, arguments: list[str], said: str) -> None:
    assert said in refused(rig, "any", *arguments)


def test_an_unknown_run_or_workflow(rig: Rig, run: dict[str, Any]) -> None:
    line = refused(rig, "nothing-of-that-name")
    assert "No run or workflow named 'nothing-of-that-name'" in line
    assert run["workflow"] in line


@pytest.mark.parametrize("name", ["two\nlines", "bell\a", "x" * 5000, ""])
def test_a_name_that_would_break_a_line_is_refused_in_one(rig: Rig, name: str) -> None:
    refused(rig, name)


def test_a_run_that_has_ended(rig: Rig, run: dict[str, Any]) -> None:
    with rig.api as api:
        api.post("/runs", run | {"end_ns": now_ns(), "exit_code": 0})
    assert "finished" in refused(rig, run["run"])
    assert "no live run" in refused(rig, run["workflow"])


def test_no_server(rig: Rig) -> None:
    assert "tightship up" in refused(rig, "any", TIGHTSHIP_SERVER="http://127.0.0.1:9")


def test_a_process_that_is_gone(rig: Rig) -> None:
    gone = subprocess.Popen([sys.executable, "-S", "-c", ""])
    gone.wait()
    line = refused(rig, str(gone.pid))
    assert f"No process named '{gone.pid}'" in line


def test_a_process_that_was_not_launched_by_us(rig: Rig) -> None:
    assert "tightship run" in refused(rig, str(os.getpid()))
    with pytest.raises(NotFound):
        resolve_target("999999999")


def test_a_process_stands_for_its_run_and_so_does_its_launcher() -> None:
    code = "import subprocess, sys; print('up', flush=True); sys.stdin.readline()"
    launcher_code = (
        "import os, subprocess, sys; "
        "subprocess.run([sys.executable, '-S', '-c', sys.argv[1]], env=os.environ | {'TIGHTSHIP_RUN': 'feed' * 4})"
    )
    with subprocess.Popen(
        [sys.executable, "-S", "-c", launcher_code, code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdin is not None
        assert launcher.stdout.readline() == "up\n"
        assert resolve_target(str(launcher.pid)) == "feed" * 4
        launcher.stdin.write("\n")
    with subprocess.Popen(
        [sys.executable, "-S", "-c", code],
        env=os.environ | {"TIGHTSHIP_RUN": "beef" * 4},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as job:
        assert job.stdout is not None
        assert job.stdin is not None
        assert job.stdout.readline() == "up\n"
        assert resolve_target(str(job.pid)) == "beef" * 4
        job.stdin.write("\n")


def test_a_process_whose_environment_names_rubbish() -> None:
    with subprocess.Popen(
        [sys.executable, "-S", "-c", "import sys; print('up', flush=True); sys.stdin.readline()"],
        env={"TIGHTSHIP_RUN": "../../etc\n"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as job:
        assert job.stdout is not None
        assert job.stdin is not None
        assert job.stdout.readline() == "up\n"
        with pytest.raises(Invalid, match="TIGHTSHIP_RUN"):
            resolve_target(str(job.pid))
        job.stdin.write("\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_somebody_elses_process() -> None:
    child = os.fork()
    if child == 0:
        os.setuid(NOBODY)
        try:
            resolve_target("1")
        except Invalid as error:
            os._exit(0 if f"user {NOBODY} may read" in str(error) else 1)
        os._exit(2)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_a_number_too_long_for_a_process_is_a_run_id() -> None:
    assert resolve_target("1234567890123456") == "1234567890123456"


def test_without_waiting_it_says_what_was_asked_for(rig: Rig, run: dict[str, Any]) -> None:
    ended = rig.run("profile", run["workflow"], "--duration", "2s", "--no-stacks", "--memory", "--json")
    assert ended.returncode == 0, ended.stderr
    capture = json.loads(ended.stdout)
    assert capture.keys() >= CAPTURE_KEYS
    assert (capture["run"], capture["state"]) == (run["run"], "requested")
    assert capture["params"] == {
        "duration_ns": 2 * 10**9,
        "iterations": None,
        "stacks": False,
        "shapes": True,
        "memory": True,
        "insist": False,
        "passes": 2,
    }
    said = rig.run("profile", run["run"], "--iterations", "7").stdout
    assert run["workflow"] in said
    assert "tightship captures --run" in said
    newest = rig.get("/captures")[0]
    assert (newest["params"]["iterations"], newest["params"]["duration_ns"]) == (7, None)
    assert newest["reason"] == f"waits for capture {capture['capture']}"


def test_waiting_ends_after_the_timeout_with_2_and_says_where_it_stands(rig: Rig, run: dict[str, Any]) -> None:
    ended = rig.run("profile", run["run"], "--wait", "--timeout", "600ms", "--json")
    assert ended.returncode == 2
    assert json.loads(ended.stdout)["state"] == "requested"
    assert "still requested after 600ms" in ended.stderr


def play_agent(rig: Rig, run: dict[str, Any], reports: list[dict[str, Any]]) -> threading.Thread:
    """Lease the run's next capture and report on it, as an agent does."""

    def play() -> None:
        with rig.api as api:
            leases = wait_for(
                lambda: api.post("/captures/lease", {"host": "somewhere", "runs": [run["run"]]})["leases"]
            )
            for report in reports:
                time.sleep(0.2)
                api.post(f"/captures/{leases[0]['capture']}/report", {"host": "somewhere"} | report)

    thread = threading.Thread(target=play)
    thread.start()
    return thread


def test_waiting_for_one_that_fails_ends_with_2_and_the_reason(rig: Rig, run: dict[str, Any]) -> None:
    agent = play_agent(
        rig,
        run,
        [
            {"state": "leased", "reason": "waits for a process of the run to import torch"},
            {"state": "armed", "expected": [{"rank": 0, "pid": 7}]},
            {"state": "failed", "reason": "run ended: rank 0 (process 7) ended before its trace began"},
        ],
    )
    ended = rig.run("profile", run["workflow"], "--wait", "--json")
    agent.join()
    assert ended.returncode == 2
    assert json.loads(ended.stdout)["state"] == "failed"
    assert "has failed: run ended: rank 0 (process 7) ended before its trace began" in ended.stderr


def test_what_it_waits_for_can_be_seen_meanwhile(rig: Rig, run: dict[str, Any]) -> None:
    rig.run("profile", run["run"])
    agent = play_agent(rig, run, [{"state": "leased", "reason": "waits for its first step"}])
    agent.join()
    (capture,) = [c for c in rig.get("/captures") if c["run"] == run["run"]]
    assert (capture["state"], capture["reason"]) == ("leased", "waits for its first step")


@pytest.mark.parametrize("cancelled_before", [False, True])
def test_an_interrupted_wait_cancels_the_capture_and_says_so(
    rig: Rig, run: dict[str, Any], cancelled_before: bool
) -> None:
    command = [sys.executable, "-m", "tightship_platform.cli", "profile", run["run"], "--wait", "--timeout", "60s"]
    with subprocess.Popen(command, env=rig.environ, stderr=subprocess.PIPE, text=True) as waiting:
        [asked] = wait_for(lambda: rig.get(f"/captures?run={run['run']}"))
        key = asked["capture"]
        time.sleep(0.5)  # it has the server's answer, and waits
        if cancelled_before:
            waiting.send_signal(signal.SIGSTOP)  # so that it does not see that
            with rig.api as api:
                api.post(f"/captures/{key}/cancel", None)
        waiting.send_signal(signal.SIGINT)
        waiting.send_signal(signal.SIGCONT)
        assert waiting.stderr is not None
        said = waiting.stderr.read()
    assert waiting.returncode == 130
    if cancelled_before:
        why = f"Capture {key} is failed already (cancelled by loopback); there is nothing to cancel"
        assert said == f"tightship: The wait was interrupted: {why}\n"
    else:
        assert said == f"tightship: The wait was interrupted, and capture {key} of run {run['run']} is cancelled\n"
    now = rig.get(f"/captures/{key}")
    assert (now["state"], now["reason"]) == ("failed", "cancelled by loopback")


def test_a_server_that_goes_away_meanwhile_does_not_end_the_wait(
    make_platform_env: Callable[..., Any], run: dict[str, Any]
) -> None:
    rig = Rig(variables=make_platform_env().variables)
    try:
        server = rig.start_server()
        with rig.api as api:
            api.post("/runs", run)
        with subprocess.Popen(
            [sys.executable, "-m", "tightship_platform.cli", "profile", run["run"], "--wait", "--timeout", "60s"],
            env=rig.environ,
            stderr=subprocess.PIPE,
            text=True,
        ) as waiting:
            wait_for(lambda: rig.get("/captures"))
            server.kill()
            server.wait()
            time.sleep(1)
            assert waiting.poll() is None
            with serving(load_settings(rig.environ), port=rig.port):
                play_agent(rig, run, [{"state": "failed", "reason": "run ended"}]).join()
                assert waiting.stderr is not None
                assert "has failed: run ended" in waiting.stderr.read()
        assert waiting.returncode == 2
    finally:
        rig.close()


def test_a_schedule_is_set_and_ended(rig: Rig, run: dict[str, Any]) -> None:
    ended = rig.run("profile", run["workflow"], "--every", "30m", "--duration", "500ms", "--json")
    assert ended.returncode == 0, ended.stderr
    schedule = json.loads(ended.stdout)["schedule"]
    assert (schedule["every_ns"], schedule["params"]["duration_ns"]) == (1800 * 10**9, 5 * 10**8)
    assert "every 30.0 min" in rig.run("profile", run["workflow"], "--every", "30m").stdout
    assert "no captures by schedule" in rig.run("profile", run["workflow"], "--every", "off").stdout
    assert json.loads(rig.run("profile", run["workflow"], "--every", "off", "--json").stdout)["schedule"] is None
    assert "No workflow named" in refused(rig, "no such workflow", "--every", "30m")
    assert "1.00 min" in refused(rig, run["workflow"], "--every", "1s")


def test_somebody_who_looks_sees_the_stages(rig: Rig, run: dict[str, Any]) -> None:
    agent = play_agent(
        rig,
        run,
        [{"state": "armed", "expected": [{"rank": 0, "pid": 7}]}, {"state": "failed", "reason": "run ended"}],
    )
    ours, theirs = os.openpty()
    shown = bytearray()

    def watch() -> None:
        with contextlib.suppress(OSError):  # how a terminal says that nobody writes to it any more
            while piece := os.read(ours, 4096):
                shown.extend(piece)

    watcher = threading.Thread(target=watch)
    watcher.start()
    ended = subprocess.run(
        [sys.executable, "-m", "tightship_platform.cli", "profile", run["run"], "--wait"],
        env=rig.environ | {"TERM": "xterm", "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        stderr=theirs,
        timeout=PATIENCE_S,
        check=False,
    )
    agent.join()
    os.close(theirs)
    watcher.join()
    os.close(ours)
    assert ended.returncode == 2
    assert b"requested" in shown
    assert b"armed" in shown
    assert b"failed: run ended" in shown
