"""The control file `<run_dir>/ranks/<pid>`: step counter of the job, capture flag of the agent.

[Note: one writer per field]
The job maps the file and owns the first half; the agent owns the second, the fields named `capture_…`. No field has two
writers, so nothing is locked. The agent never maps the file: a job that truncates it would kill a mapping reader with
SIGBUS; `pread`/`pwrite` merely come back short. The page cache keeps both views coherent.

[Note: exit protocol]
A process that ends while Kineto records it aborts, so it must not end then, and must not be armed once it ends.
Agent: set `capture_in_flight`, *then* look at `exiting`; if it is set, clear and do not arm. Guard: set `exiting`,
*then* look at `capture_in_flight`; while it is set, wait until it is cleared or the file `capture_path` is there, or
cancel the recording (`exiting` = 2). Whichever comes second sees the other (Dekker), so no order of events arms a
process that will not wait. Between the two steps each side crosses the kernel, which is the fence this needs.

The job's half of the layout is repeated in inject/ and inject_support/, which import nothing of ours; a test compares.
Times are UTC nanoseconds. All fields are little-endian and naturally aligned.
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntFlag
from pathlib import Path

from tightship_collectors.jobs.user_folder import FILE_FLAGS, user_folder
from tightship_platform.errors import Invalid

SIZE = 4096
MAGIC = b"TSRANK\x00\x01"
VERSION = 1
FOLDER = "ranks"

OFF_MAGIC = 0  # 8 bytes
OFF_VERSION = 8  # u32
OFF_PID = 12  # i32
OFF_START_TICKS = 16  # u64, field 22 of /proc/<pid>/stat: tells a recycled pid from the writer
OFF_RANK = 24  # i32, -1 unknown
OFF_WORLD_SIZE = 28  # i32, -1 unknown
OFF_FLAGS = 32  # u32
OFF_EXITING = 36  # u32
OFF_STEPS = 40  # u64
OFF_FIRST_STEP_NS = 48  # u64, 0 none
OFF_LAST_STEP_NS = 56  # u64, 0 none
OFF_ERROR_NS = 64  # u64, 0 none: when the process ended of an exception
OFF_ERROR = 72  # char[1024] NUL-terminated UTF-8: `type: message`
ERROR_BYTES = 1024
OFF_CAPTURE_IN_FLIGHT = 2048  # u32, agent
OFF_CAPTURE_DEADLINE_NS = 2056  # u64, agent
OFF_CAPTURE_PATH = 2064  # char[512] NUL-terminated, agent
CAPTURE_PATH_BYTES = 512
OFF_CAPTURE_START_NS = 2576  # u64, agent, 0 unknown
OFF_CAPTURE_END_NS = 2584  # u64, agent, 0 unknown
OFF_CAPTURE_ITERATIONS = 2592  # u32, agent, 0 = the window is one of time

RUNNING, EXITING, CANCELLED = 0, 1, 2
"""Values of the field at `OFF_EXITING`."""

_JOB = struct.Struct("<8sIiQiiIIQQQ")


class Flag(IntFlag):
    """What the job says about itself."""

    GUARD = 1
    """The exit guard is installed."""
    MP_CHILD = 2
    """A child of `multiprocessing` (data loader worker, spawned trainer)."""
    RANK_FROM_ENV = 4
    """The rank was read from RANK in the environment."""
    STEP_HOOK = 8
    """Optimizer steps are counted; otherwise zero steps mean nothing."""
    FORKED = 16
    """The file belongs to a forked child that makes its own steps."""
    LAUNCHER = 32
    """torchrun or another starter of ranks: imports torch, trains nothing."""


ALL_FLAGS = 63


@dataclass(frozen=True, kw_only=True)
class RankFile:
    """One reading of a control file."""

    pid: int
    start_ticks: int
    rank: int
    world_size: int
    flags: Flag
    exiting: bool
    """It has entered its exit guard."""
    cancelled: bool
    """Its exit guard has cancelled the recording in flight: no trace will come."""
    steps: int
    first_step_ns: int
    last_step_ns: int
    capture_in_flight: bool
    capture_deadline_ns: int


def rank_path(run_dir: Path, pid: int) -> Path:
    """Where the control file of `pid` is."""
    return run_dir / FOLDER / str(pid)


def open_rank_file(path: Path, mode: int, *, uid: int) -> int | None:
    """A descriptor of a control file that is regular, of `uid` and of full size; None when there is none.

    See [Note: in a user's folder].
    """
    try:
        with user_folder(path.parent.parent, uid, path.parent.name) as folder:
            fd = os.open(path.name, mode | FILE_FLAGS, dir_fd=folder)
    except OSError:
        return None
    status = os.fstat(fd)
    if stat.S_ISREG(status.st_mode) and status.st_uid == uid and status.st_size == SIZE:
        return fd
    os.close(fd)
    return None


def read_rank_file(path: Path, *, uid: int) -> RankFile | None:
    """Read a control file; None when there is none, or when it is not a whole, regular file owned by `uid`."""
    with _opened(path, os.O_RDONLY, uid) as fd:
        if fd is None:
            return None
        job = os.pread(fd, _JOB.size, 0)
        agent = os.pread(fd, 16, OFF_CAPTURE_IN_FLIGHT)
    if len(job) < _JOB.size or len(agent) < 16:
        return None
    magic, version, pid, ticks, rank, world, flags, exiting, steps, first, last = _JOB.unpack(job)
    if magic != MAGIC or version != VERSION or str(pid) != path.name:
        return None
    in_flight, deadline = struct.unpack("<I4xQ", agent)
    return RankFile(
        pid=pid,
        start_ticks=ticks,
        rank=rank,
        world_size=world,
        flags=Flag(flags & ALL_FLAGS),
        exiting=exiting != RUNNING,
        cancelled=exiting == CANCELLED,
        steps=steps,
        first_step_ns=first,
        last_step_ns=last,
        capture_in_flight=bool(in_flight),
        capture_deadline_ns=deadline,
    )


@dataclass(frozen=True, kw_only=True)
class RankError:
    """The uncaught exception that ended a process, in the job's words: nothing of it is checked."""

    time_ns: int
    text: str
    is_launcher: bool
    """It is that of torchrun or another starter of ranks, which fails because a rank has."""


def read_error(path: Path, *, uid: int) -> RankError | None:
    """What ended the process of a control file; None where no exception did, or the file is none of `uid`."""
    file = read_rank_file(path, uid=uid)
    if file is None:
        return None
    with _opened(path, os.O_RDONLY, uid) as fd:
        reported = b"" if fd is None else os.pread(fd, OFF_ERROR - OFF_ERROR_NS + ERROR_BYTES, OFF_ERROR_NS)
    time_ns = int.from_bytes(reported[:8], "little")
    text = reported[8:].split(b"\0", 1)[0].decode("utf-8", "replace")
    if not time_ns or not text:
        return None
    return RankError(time_ns=time_ns, text=text, is_launcher=Flag.LAUNCHER in file.flags)


def arm_capture(
    path: Path,
    *,
    uid: int,
    trace: Path,
    deadline_ns: int,
    start_ns: int = 0,
    end_ns: int = 0,
    iterations: int = 0,
) -> bool:
    """Announce a capture to the exit guard, before any config is handed out. See [Note: exit protocol].

    :param trace: the *final* file that Kineto will write; its arrival releases the guard even when no agent lives.
    :param deadline_ns: UTC time after which the guard cancels the recording instead of waiting for its file.
    :param start_ns: when the window opens (UTC), 0 if unknown: a job that ends earlier cancels at once.
    :param end_ns: when the window closes (UTC), 0 if unknown: a job that ends long before cancels at once.
    :param iterations: warm-up plus recorded iterations, when the window is one of iterations: the guard counts on for a
        job that makes no more of them. 0 when the window is one of time.
    :returns: False when the process is ending or its control file is gone: do not arm it.
    :raises Invalid: the trace path does not fit the file.
    """
    encoded = os.fsencode(trace)
    if len(encoded) >= CAPTURE_PATH_BYTES:
        raise Invalid("Trace path", str(trace), f"fewer than {CAPTURE_PATH_BYTES} bytes")
    with _opened(path, os.O_RDWR, uid) as fd:
        if fd is None:
            return False
        os.pwrite(fd, encoded.ljust(CAPTURE_PATH_BYTES, b"\0"), OFF_CAPTURE_PATH)
        os.pwrite(fd, struct.pack("<QQI", start_ns, end_ns, iterations), OFF_CAPTURE_START_NS)
        os.pwrite(fd, struct.pack("<Q", deadline_ns), OFF_CAPTURE_DEADLINE_NS)
        os.pwrite(fd, struct.pack("<I", 1), OFF_CAPTURE_IN_FLIGHT)
        if os.pread(fd, 4, OFF_EXITING) == b"\0\0\0\0":
            return True
        os.pwrite(fd, struct.pack("<I", 0), OFF_CAPTURE_IN_FLIGHT)
    return False


def set_capture_window(path: Path, *, uid: int, start_ns: int, end_ns: int) -> None:
    """Tell the exit guard when the window opens and closes (UTC), for a capture in flight that was armed without."""
    with _opened(path, os.O_RDWR, uid) as fd:
        if fd is not None:
            os.pwrite(fd, struct.pack("<QQ", start_ns, end_ns), OFF_CAPTURE_START_NS)


def extend_capture(path: Path, *, uid: int, deadline_ns: int) -> None:
    """Move the deadline of a capture in flight. A vanished file is no error: its process has ended."""
    with _opened(path, os.O_RDWR, uid) as fd:
        if fd is not None:
            os.pwrite(fd, struct.pack("<Q", deadline_ns), OFF_CAPTURE_DEADLINE_NS)


def clear_capture(path: Path, *, uid: int) -> None:
    """The capture is over, or was never handed out: a waiting guard lets its process end."""
    with _opened(path, os.O_RDWR, uid) as fd:
        if fd is not None:
            os.pwrite(fd, struct.pack("<I", 0), OFF_CAPTURE_IN_FLIGHT)


@contextlib.contextmanager
def _opened(path: Path, mode: int, uid: int) -> Iterator[int | None]:
    fd = open_rank_file(path, mode, uid=uid)
    try:
        yield fd
    finally:
        if fd is not None:
            os.close(fd)
