"""Which processes count as ranks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tightship_collectors.jobs import control_file, ranks
from tightship_collectors.jobs.control_file import Flag, RankFile, rank_path
from tightship_collectors.jobs.ranks import judge, read_ranks, start_ticks_of
from tightship_collectors.launch.environment import INJECT_DIR

PLAIN = Flag.GUARD | Flag.STEP_HOOK


def process(
    pid: int, *, rank: int = -1, world: int = -1, steps: int = 0, flags: Flag = PLAIN, start: int = 0
) -> RankFile:
    return RankFile(
        pid=pid,
        start_ticks=start or pid,
        rank=rank,
        world_size=world,
        flags=flags,
        exiting=False,
        cancelled=False,
        steps=steps,
        first_step_ns=1 if steps else 0,
        last_step_ns=2 if steps else 0,
        capture_in_flight=False,
        capture_deadline_ns=0,
    )


MP = PLAIN | Flag.MP_CHILD
LAUNCHER = PLAIN | Flag.LAUNCHER


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ([process(10)], {0: 10}),
        ([process(10, steps=5), process(11, flags=MP)], {0: 10}),
        # torchrun: the launcher has no RANK
        ([process(10, flags=LAUNCHER), process(11, rank=0), process(12, rank=1)], {0: 11, 1: 12}),
        # before its workers import torch
        ([process(10, flags=LAUNCHER)], {}),
        # a cluster gives the launcher the RANK of its node
        ([process(10, rank=0, flags=LAUNCHER), process(11, rank=0), process(12, rank=1)], {0: 11, 1: 12}),
        # spawned data loader workers inherit RANK
        ([process(10, rank=1), process(11, rank=1, flags=MP), process(12, rank=1, flags=MP)], {1: 10}),
        # torch.multiprocessing.spawn: children that train
        (
            [process(10), process(11, rank=0, steps=3, flags=MP), process(12, rank=1, steps=3, flags=MP)],
            {0: 11, 1: 12},
        ),
        # two scripts side by side, neither distributed
        ([process(10, steps=1), process(11, steps=1), process(12)], {0: 10, 1: 11}),
        # nobody has made a step, and none descends from another
        ([process(10), process(11)], {}),
        # a forked child that trains while its parent only waits
        ([process(10), process(11, steps=2, flags=Flag.FORKED | Flag.STEP_HOOK)], {0: 11}),
        # a rank's own subprocess inherits RANK: the elder has the number, unless only the younger makes steps
        ([process(10, rank=0), process(11, rank=0)], {0: 10}),
        ([process(10, rank=0), process(11, rank=0, steps=1)], {0: 11}),
        ([process(10, rank=0, steps=9), process(11, rank=0, steps=1)], {0: 10}),
        # pids wrap around: the order is that of start
        ([process(10, steps=1, start=99), process(11, steps=1, start=5)], {0: 11, 1: 10}),
        ([], {}),
    ],
)
def test_the_rule(files: list[RankFile], expected: dict[int, int]) -> None:
    views = judge(files, ancestors=lambda pid: ())
    assert {view.rank: view.pid for view in views if view.is_rank} == expected
    assert sorted(view.pid for view in views) == sorted(file.pid for file in files)
    assert all(view.rank == -1 for view in views if not view.is_rank)


def test_a_script_that_starts_another_is_the_rank_until_steps_say_otherwise() -> None:
    views = judge(
        [process(10), process(11), process(12)], ancestors=lambda pid: {11: {1, 10}, 12: {1, 10}}.get(pid, {1})
    )
    assert [view.pid for view in views if view.is_rank] == [10]
    views = judge([process(10), process(11, steps=1)], ancestors=lambda pid: {11: {10}}.get(pid, ()))
    assert [view.pid for view in views if view.is_rank] == [11]


def test_what_is_unknown_is_missing() -> None:
    (view,) = judge([process(10, flags=Flag.GUARD)])
    assert (view.steps, view.first_step_ns, view.world_size, view.guard) == (None, None, None, True)
    (view,) = judge([process(10, world=4, rank=2, steps=7, flags=Flag.STEP_HOOK)])
    assert (view.steps, view.first_step_ns, view.world_size, view.guard, view.rank) == (7, 1, 4, False, 2)


MAKE_FILE = f"""
import sys, time
sys.path.insert(0, {str(INJECT_DIR)!r})
import importlib.util
spec = importlib.util.spec_from_file_location("injected", {str(INJECT_DIR / "sitecustomize.py")!r})
injected = importlib.util.module_from_spec(spec)
spec.loader.exec_module(injected)
file = injected.ControlFile(sys.argv[1], injected.GUARD)
print("up", flush=True)
time.sleep(60)
"""


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "ranks").mkdir()
    return tmp_path


def live_process(run_dir: Path) -> subprocess.Popen[str]:
    child = subprocess.Popen([sys.executable, "-c", MAKE_FILE, run_dir], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "up\n"
    return child


def test_only_live_processes_count(run_dir: Path) -> None:
    child = live_process(run_dir)
    try:
        (view,) = read_ranks(run_dir)
        assert (view.pid, view.is_rank, view.rank, view.guard) == (child.pid, True, 0, True)
        child.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert read_ranks(run_dir) == ()  # a zombie
    finally:
        child.kill()
        child.wait()
    assert read_ranks(run_dir) == ()
    assert rank_path(run_dir, child.pid).exists()


def test_a_recycled_pid_is_somebody_else(run_dir: Path) -> None:
    child = live_process(run_dir)
    try:
        path = rank_path(run_dir, child.pid)
        with path.open("r+b") as file:
            file.seek(control_file.OFF_START_TICKS)
            file.write((start_ticks_of(child.pid) - 1).to_bytes(8, "little"))
        assert read_ranks(run_dir) == ()
    finally:
        child.kill()
        child.wait()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_what_belongs_to_somebody_else_does_not_count(run_dir: Path) -> None:
    child = live_process(run_dir)
    try:
        path = rank_path(run_dir, child.pid)
        os.chown(path, 12345, 12345)
        assert read_ranks(run_dir) == ()
        # The whole directory is another user's, who names a process of ours in it.
        os.chown(run_dir, 12345, 12345)
        assert read_ranks(run_dir) == ()
    finally:
        child.kill()
        child.wait()


def test_strange_names_are_passed_over(run_dir: Path) -> None:
    child = live_process(run_dir)
    try:
        own = rank_path(run_dir, child.pid).read_bytes()
        for name in ("x", f"{child.pid}.new", "٣", f"0{child.pid}", "99999999999999999999"):
            (run_dir / "ranks" / name).write_bytes(own)
        assert [view.pid for view in read_ranks(run_dir)] == [child.pid]
        assert ranks.ancestors_of(child.pid) >= {os.getpid(), 1}
    finally:
        child.kill()
        child.wait()


def test_a_flood_of_files_is_not_read_to_its_end(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "MAX_FILES", 50)
    for number in range(200):
        (run_dir / "ranks" / str(number + 1)).write_bytes(b"")
    read: list[Path] = []
    monkeypatch.setattr(ranks, "read_rank_file", lambda path, uid: read.append(path))
    assert read_ranks(run_dir) == ()
    assert len(read) == 50


def test_no_run_directory_is_no_ranks(tmp_path: Path) -> None:
    assert read_ranks(tmp_path / "gone") == ()
    assert read_ranks(tmp_path) == ()
    with pytest.raises(FileNotFoundError):
        start_ticks_of(2**22 + 1)
    assert start_ticks_of(os.getpid()) < time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK") + 1
