"""Run directories: private, whole, and gone when nobody needs them."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launching import launch, run_dirs, start
from waiting import PATIENCE_S, wait_for

from tightship_collectors.jobs import run_directory as run_dirs_module
from tightship_collectors.jobs.control_file import arm_capture, clear_capture, rank_path
from tightship_collectors.jobs.run_directory import (
    STALE_S,
    RunDir,
    is_needed,
    live_run_dir,
    make_private,
    read_user_conf,
    remove_stale,
    replace_file,
)
from tightship_platform.errors import Invalid
from tightship_platform.results.run_record import RunRecord

KEY = "0123456789abcdef"
RECORD = RunRecord(run=KEY, workflow="w", start_ns=1, host="h")
HOLD = """
import importlib.util, os, sys, time
spec = importlib.util.spec_from_file_location("injected", sys.argv[1])
injected = importlib.util.module_from_spec(spec)
spec.loader.exec_module(injected)
file = injected.ControlFile(os.environ["TIGHTSHIP_RUN_DIR"], injected.GUARD)
print("up", flush=True)
while not os.path.exists(sys.argv[2]):
    time.sleep(0.02)
"""


@pytest.fixture
def runtime(tmp_path: Path) -> Path:
    return tmp_path / "r"


def test_a_directory_is_made_and_removed(runtime: Path) -> None:
    made = RunDir.create(runtime, KEY)
    made.write_record(RECORD)
    assert made.path == runtime / KEY
    assert sorted(p.name for p in made.path.iterdir()) == ["kineto.conf", "ranks", "run.json", "traces"]
    assert RunRecord(**json.loads((made.path / "run.json").read_text())) == RECORD
    assert made.close()
    assert list(runtime.iterdir()) == []


def test_a_umask_makes_it_no_less_usable(runtime: Path) -> None:
    before = os.umask(0o777)
    try:
        runtime.mkdir()
        runtime.chmod(0o700)
        made = RunDir.create(runtime, KEY)
    finally:
        os.umask(before)
    assert {p.name: p.stat().st_mode & 0o777 for p in [made.path, *made.path.iterdir()]} == {
        KEY: 0o700,
        "ranks": 0o700,
        "traces": 0o700,
        "kineto.conf": 0o600,
    }
    made.close()


def test_a_key_that_is_taken_is_not_shared(runtime: Path) -> None:
    made = RunDir.create(runtime, KEY)
    with pytest.raises(FileExistsError):
        RunDir.create(runtime, KEY)
    assert (made.path / "kineto.conf").exists()
    made.close()


def test_parents_are_made_private(runtime: Path) -> None:
    make_private(runtime / "a" / "b")
    assert (runtime / "a" / "b").stat().st_mode & 0o777 == 0o700
    make_private(runtime / "a" / "b")
    (runtime / "link").symlink_to(runtime / "a")
    with pytest.raises(Invalid, match="TIGHTSHIP_RUNTIME_DIR"):
        make_private(runtime / "link")


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    place = tmp_path / "f"
    replace_file(place, b"old")
    replace_file(place, b"new")
    assert place.read_bytes() == b"new"
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError):
        replace_file(tmp_path / "folder", b"x")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["f", "folder"]
    planted = tmp_path / f".f.{os.getpid()}.new"
    planted.symlink_to(tmp_path / "victim")
    with pytest.raises(OSError):
        replace_file(place, b"newer")
    assert place.read_bytes() == b"new" and not (tmp_path / "victim").exists()


def test_a_waiting_trace_keeps_it(runtime: Path) -> None:
    made = RunDir.create(runtime, KEY)
    (made.path / "traces" / "c_1.json").touch()
    assert is_needed(made.path)
    assert not made.close()
    assert (made.path / "traces" / "c_1.json").exists()


def test_a_live_process_or_a_capture_in_flight_keeps_it(runtime: Path, tmp_path: Path) -> None:
    made = RunDir.create(runtime, KEY)
    assert not is_needed(made.path)
    source = Path(run_dirs_module.__file__).parents[1] / "inject" / "sitecustomize.py"
    end = tmp_path / "end"
    env = {**os.environ, "TIGHTSHIP_RUN_DIR": str(made.path)}
    job = subprocess.Popen([sys.executable, "-c", HOLD, source, end], env=env, stdout=subprocess.PIPE)
    assert job.stdout is not None and job.stdout.readline() == b"up\n"
    assert is_needed(made.path)
    place = rank_path(made.path, job.pid)
    arm_capture(place, uid=os.getuid(), trace=Path("/x"), deadline_ns=1)
    end.touch()
    job.communicate()
    assert is_needed(made.path)  # the agent has not let go of it yet
    clear_capture(place, uid=os.getuid())
    assert not is_needed(made.path)
    assert made.close()


def age(path: Path) -> None:
    then = time.time() - STALE_S - 60
    os.utime(path, (then, then))


def test_what_is_stale_and_dead_is_removed(runtime: Path, tmp_path: Path) -> None:
    def old(number: int) -> Path:
        made = RunDir.create(runtime, f"{number:016x}")
        os.close(made._lock)  # its launcher was killed
        (made.path / "traces" / "c_1.json").touch()
        age(made.path)
        return made.path

    dead, inhabited, led, young = (old(number) for number in range(4))
    os.utime(young)
    stranger = runtime / "not-a-key"
    stranger.mkdir()
    (runtime / ("f" * 16)).symlink_to(tmp_path)
    age(stranger)
    env = {**os.environ, "TIGHTSHIP_RUN_DIR": str(inhabited)}
    job = subprocess.Popen(["sleep", "60"], env=env)
    wait_for(Path(f"/proc/{job.pid}/environ").read_bytes, "an environment: `exec` sets it last")
    lock = os.open(led, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        assert remove_stale(runtime) == [dead]
        assert sorted(p.name for p in runtime.iterdir()) == sorted(
            [inhabited.name, led.name, young.name, "not-a-key", "f" * 16]
        )
    finally:
        job.kill()
        job.wait()
        os.close(lock)
    assert sorted(remove_stale(runtime)) == [inhabited, led]
    assert tmp_path.exists()
    assert remove_stale(runtime / "gone") == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give directories away")
def test_what_is_stale_and_somebody_elses_stays(runtime: Path) -> None:
    made = RunDir.create(runtime, KEY)
    os.close(made._lock)
    age(made.path)
    os.chown(made.path, 12345, 12345)
    assert remove_stale(runtime) == []


def test_the_next_launch_tidies_up() -> None:
    runtime = Path(os.environ["TIGHTSHIP_RUNTIME_DIR"])
    made = RunDir.create(runtime, KEY)
    os.close(made._lock)
    age(made.path)
    launch("sleep", "1")
    assert run_dirs() == []


def test_a_live_run_is_recognised(runtime: Path) -> None:
    made = RunDir.create(runtime, KEY)
    env = {"TIGHTSHIP_RUN": KEY, "TIGHTSHIP_RUN_DIR": str(made.path)}
    assert live_run_dir(env) is None  # no record: half made
    made.write_record(RECORD)
    assert live_run_dir(env) == made.path
    for wrong in (
        {},
        {"TIGHTSHIP_RUN": KEY},
        {"TIGHTSHIP_RUN": "f" * 16, "TIGHTSHIP_RUN_DIR": str(made.path)},
        {"TIGHTSHIP_RUN": "../../etc", "TIGHTSHIP_RUN_DIR": "/etc"},
        {"TIGHTSHIP_RUN": KEY, "TIGHTSHIP_RUN_DIR": f"elsewhere/{KEY}"},
    ):
        assert live_run_dir(wrong) is None
    (made.path / "run.json").write_text("[]")
    assert live_run_dir(env) is None
    made.write_record(RunRecord(run=KEY, workflow="w", start_ns=1, host="h", end_ns=2))
    assert live_run_dir(env) is None
    made.close()


def test_a_users_config_is_read_within_reason(tmp_path: Path) -> None:
    conf = tmp_path / "c"
    conf.write_bytes(b"\xff=1\n" * 100_000)
    assert len(read_user_conf({"KINETO_CONFIG": str(conf)})) <= run_dirs_module.USER_CONF_MAX_BYTES
    assert read_user_conf({"KINETO_CONFIG": str(tmp_path / "gone")}) == ""
    assert read_user_conf({"KINETO_CONFIG": str(tmp_path)}) == ""
    assert read_user_conf({}) == ""


def test_a_directory_under_a_job_that_was_left_running_stays(tmp_path: Path) -> None:
    """The command ends, but something that it started in the background still asks for captures."""
    source = Path(run_dirs_module.__file__).parents[1] / "inject" / "sitecustomize.py"
    hold, end = tmp_path / "hold.py", tmp_path / "end"
    hold.write_text(HOLD)
    up = tmp_path / "up"
    command = (
        "sh",
        "-c",
        f"{sys.executable} {hold} {source} {end} > {up} & until grep -q up {up}; do sleep 0.1; done; exit 3",
    )
    job = start(*command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert job.wait(PATIENCE_S) == 3
    assert len(run_dirs()) == 1
    end.touch()
    wait_for(lambda: not is_needed(run_dirs()[0]))
