"""The control file: both halves of its layout agree, nothing hostile is believed, and the exit protocol holds."""

from __future__ import annotations

import multiprocessing
import os
import struct
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from guard_player import load_injected, load_later, play_the_guard

from tightship_collectors.jobs import control_file
from tightship_collectors.jobs.control_file import (
    Flag,
    arm_capture,
    clear_capture,
    extend_capture,
    rank_path,
    read_rank_file,
    set_capture_window,
)
from tightship_collectors.jobs.ranks import start_ticks_of
from tightship_platform.errors import Invalid

UID = os.getuid()
TRACE = Path("/somewhere/trace_1.json")


@pytest.fixture(scope="module")
def injected() -> ModuleType:
    return load_injected()


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "ranks").mkdir()
    return tmp_path


def test_the_injected_code_repeats_the_layout(injected: ModuleType) -> None:
    names = [n for n in vars(control_file) if n.startswith("OFF_") and n not in ("OFF_MAGIC", "OFF_VERSION", "OFF_PID")]
    names.remove("OFF_START_TICKS")  # these four are written as one, see HEAD
    error_message = load_later("error_message")
    for name in ("OFF_ERROR_NS", "OFF_ERROR", "ERROR_BYTES"):
        assert getattr(error_message, name) == getattr(control_file, name), name
    names = [name for name in names if not hasattr(error_message, name)]
    assert len(names) >= 11
    for name in [*names, "SIZE", "MAGIC", "VERSION", "CAPTURE_PATH_BYTES", "RUNNING", "EXITING", "CANCELLED"]:
        assert getattr(injected, name) == getattr(control_file, name), name
    for flag in Flag:
        assert getattr(injected, flag.name) == flag, flag.name
    assert sum(Flag) == control_file.ALL_FLAGS


def test_what_the_job_writes_is_what_the_agent_reads(
    injected: ModuleType, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    file = injected.ControlFile(str(run_dir), injected.GUARD)
    path = rank_path(run_dir, os.getpid())
    read = read_rank_file(path, uid=UID)
    assert read is not None
    assert (read.pid, read.start_ticks) == (os.getpid(), start_ticks_of(os.getpid()))
    assert (read.rank, read.world_size, read.flags) == (3, 8, Flag.GUARD | Flag.RANK_FROM_ENV)
    assert (read.exiting, read.cancelled, read.steps, read.first_step_ns, read.capture_in_flight) == (
        False,
        False,
        0,
        0,
        False,
    )
    assert path.stat().st_mode & 0o777 == 0o600
    file.u64[injected.OFF_STEPS // 8] = 2**40 + 1
    file.u64[injected.OFF_FIRST_STEP_NS // 8] = 11
    file.u64[injected.OFF_LAST_STEP_NS // 8] = 22
    file.set_rank(5, 6)
    file.add_flag(injected.STEP_HOOK)
    file.u32[injected.OFF_EXITING // 4] = injected.CANCELLED
    read = read_rank_file(path, uid=UID)
    assert read is not None
    assert (read.steps, read.first_step_ns, read.last_step_ns) == (2**40 + 1, 11, 22)
    assert (read.rank, read.world_size, read.exiting, read.cancelled) == (5, 6, True, True)
    assert Flag.STEP_HOOK in read.flags


def test_what_the_agent_writes_is_what_the_guard_reads(injected: ModuleType, run_dir: Path) -> None:
    file = injected.ControlFile(str(run_dir), injected.GUARD)
    path = rank_path(run_dir, os.getpid())
    assert arm_capture(path, uid=UID, trace=TRACE, deadline_ns=2**60, start_ns=5, end_ns=6, iterations=7)
    assert file.u32[injected.OFF_CAPTURE_IN_FLIGHT // 4] == 1
    assert file.capture_path() == str(TRACE)
    assert file.u64[injected.OFF_CAPTURE_DEADLINE_NS // 8] == 2**60
    assert (file.u64[injected.OFF_CAPTURE_START_NS // 8], file.u64[injected.OFF_CAPTURE_END_NS // 8]) == (5, 6)
    assert file.u32[injected.OFF_CAPTURE_ITERATIONS // 4] == 7
    set_capture_window(path, uid=UID, start_ns=50, end_ns=60)
    extend_capture(path, uid=UID, deadline_ns=2**61)
    assert (file.u64[injected.OFF_CAPTURE_START_NS // 8], file.u64[injected.OFF_CAPTURE_END_NS // 8]) == (50, 60)
    assert file.u64[injected.OFF_CAPTURE_DEADLINE_NS // 8] == 2**61
    clear_capture(path, uid=UID)
    assert file.u32[injected.OFF_CAPTURE_IN_FLIGHT // 4] == 0
    # A capture after it says nothing of its window: what the first one said must not count any more.
    assert arm_capture(path, uid=UID, trace=TRACE, deadline_ns=9)
    assert file.u64[injected.OFF_CAPTURE_START_NS // 8] == file.u32[injected.OFF_CAPTURE_ITERATIONS // 4] == 0


def test_a_process_that_is_ending_is_not_armed(injected: ModuleType, run_dir: Path) -> None:
    file = injected.ControlFile(str(run_dir), injected.GUARD)
    path = rank_path(run_dir, os.getpid())
    file.u32[injected.OFF_EXITING // 4] = injected.EXITING
    read = read_rank_file(path, uid=UID)
    assert read is not None
    assert (read.exiting, read.cancelled) == (True, False)
    assert not arm_capture(path, uid=UID, trace=TRACE, deadline_ns=9)
    assert file.u32[injected.OFF_CAPTURE_IN_FLIGHT // 4] == 0


def test_a_file_that_is_gone_is_a_process_that_has_ended(run_dir: Path) -> None:
    path = rank_path(run_dir, os.getpid())
    assert read_rank_file(path, uid=UID) is None
    assert not arm_capture(path, uid=UID, trace=TRACE, deadline_ns=9)
    clear_capture(path, uid=UID)
    extend_capture(path, uid=UID, deadline_ns=9)
    assert not path.exists()


def test_a_trace_path_that_does_not_fit_is_refused_whole(injected: ModuleType, run_dir: Path) -> None:
    file = injected.ControlFile(str(run_dir), injected.GUARD)
    path = rank_path(run_dir, os.getpid())
    longest = Path("/" + "x" * (control_file.CAPTURE_PATH_BYTES - 2))
    assert arm_capture(path, uid=UID, trace=longest, deadline_ns=9)
    assert file.capture_path() == str(longest)
    clear_capture(path, uid=UID)
    with pytest.raises(Invalid, match="Trace path"):
        arm_capture(path, uid=UID, trace=Path(f"{longest}x"), deadline_ns=9)
    assert file.u32[injected.OFF_CAPTURE_IN_FLIGHT // 4] == 0


def head(pid: int, magic: bytes = control_file.MAGIC, version: int = control_file.VERSION) -> bytes:
    return struct.pack("<8sIiQiiIIQQQ", magic, version, pid, 1, -1, -1, 1, 0, 0, 0, 0)


def _symlink(path: Path) -> None:
    target = path.parent.parent / "target"
    target.write_bytes(head(77).ljust(control_file.SIZE, b"\0"))
    path.symlink_to(target)


def _sparse(path: Path) -> None:
    path.write_bytes(head(77))
    os.truncate(path, control_file.SIZE * 1000)


@pytest.mark.parametrize(
    "forge",
    [
        lambda path: path.write_bytes(head(77)),
        lambda path: path.write_bytes(head(78).ljust(control_file.SIZE, b"\0")),
        lambda path: path.write_bytes(head(77, magic=b"something"[:8]).ljust(control_file.SIZE, b"\0")),
        lambda path: path.write_bytes(head(77, version=9).ljust(control_file.SIZE, b"\0")),
        lambda path: path.write_bytes(b""),
        _sparse,
        os.mkfifo,
        lambda path: path.mkdir(),
        _symlink,
    ],
    ids=["short", "of another pid", "no magic", "newer", "empty", "too long", "fifo", "folder", "symlink"],
)
def test_what_is_no_control_file_is_neither_read_nor_written(run_dir: Path, forge: Callable[[Path], object]) -> None:
    path = rank_path(run_dir, 77)
    forge(path)
    assert read_rank_file(path, uid=UID) is None
    before = path.read_bytes() if path.is_file() else b""
    arm_capture(path, uid=UID, trace=TRACE, deadline_ns=9)
    if path.is_file() and path.stat().st_size != control_file.SIZE:
        assert path.read_bytes() == before
    if path.is_symlink():
        assert path.read_bytes() == before


def test_somebody_elses_file_is_neither_read_nor_written(injected: ModuleType, run_dir: Path) -> None:
    file = injected.ControlFile(str(run_dir), injected.GUARD)
    path = rank_path(run_dir, os.getpid())
    assert read_rank_file(path, uid=UID + 1) is None
    assert not arm_capture(path, uid=UID + 1, trace=TRACE, deadline_ns=9)
    assert file.u32[injected.OFF_CAPTURE_IN_FLIGHT // 4] == 0


def test_a_file_cut_under_the_agent_is_no_reading(injected: ModuleType, run_dir: Path) -> None:
    injected.ControlFile(str(run_dir), injected.GUARD)
    path = rank_path(run_dir, os.getpid())
    os.truncate(path, 20)
    assert read_rank_file(path, uid=UID) is None
    assert not arm_capture(path, uid=UID, trace=TRACE, deadline_ns=9)
    assert path.stat().st_size == 20


def test_of_two_that_come_at_once_one_gives_way(run_dir: Path) -> None:
    rounds = 300
    ours, theirs = multiprocessing.Pipe()
    guard = multiprocessing.get_context("spawn").Process(target=play_the_guard, args=(str(run_dir), rounds, theirs))
    guard.start()
    theirs.close()  # so that its end is seen here
    try:
        assert ours.recv() == "ready"
        path = rank_path(run_dir, guard.pid or 0)
        outcomes, ours_later, theirs_later = set(), 10, 10
        for _ in range(rounds):
            ours.send(theirs_later)
            for _ in range(ours_later):
                pass
            armed = arm_capture(path, uid=UID, trace=TRACE, deadline_ns=2**62, start_ns=2**62)
            saw_none = ours.recv()
            assert not (armed and saw_none), "armed a process that does not wait"
            outcomes.add((armed, saw_none))
            # To where now the one, now the other comes first.
            if armed:
                ours_later, theirs_later = ours_later * 5 // 4 + 10, theirs_later * 3 // 4
            else:
                ours_later, theirs_later = ours_later * 3 // 4, theirs_later * 5 // 4 + 10
            clear_capture(path, uid=UID)
            ours.send("next")
            assert ours.recv() == "ready"
        assert len(outcomes) > 1  # both came first at some time, or nothing was tested
    finally:
        guard.kill()
        guard.join()
