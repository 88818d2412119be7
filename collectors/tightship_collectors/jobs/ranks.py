"""Which processes of a run train: the control files read, checked and judged.

[Note: which processes are ranks]
Of the live processes that imported torch:
1. those whose RANK is given (environment or torch.distributed). A `multiprocessing` child inherits the variable,
   and a launcher may have that of its node: these count only once they have made a step. Where several claim one
   number (a rank's own subprocess inherits RANK), the one that makes steps and is the oldest has it;
2. else those that made optimizer steps, numbered in the order of their start;
3. else, of those that are neither multiprocessing children nor launchers, the one that descends from no other, if there
   is exactly one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from tightship_collectors.jobs.control_file import FOLDER, Flag, RankFile, read_rank_file
from tightship_collectors.jobs.live_run import RankView
from tightship_collectors.jobs.user_folder import user_folder

MAX_FILES = 4096
"""More control files of one user than this are not jobs but an attack; the rest is not read."""

HELPERS = Flag.MP_CHILD | Flag.FORKED | Flag.LAUNCHER
"""Without a step, such a process is no rank."""


def read_ranks(run_dir: Path, *, uid: int | None = None, most: int | None = None) -> tuple[RankView, ...]:
    """Every live process of the run that imported torch, in order of rank, then pid. Empty when there is none.

    A control file counts only if it belongs to the owner of the run directory, and the process that it names lives,
    belongs to that user and started when the file says (a recycled pid is somebody else).

    :param uid: whose directory it has to be; None: whoever owns it.
    :param most: control files that are read; None: MAX_FILES.
    """
    try:
        uid = os.lstat(run_dir).st_uid if uid is None else uid
        with user_folder(run_dir, uid, FOLDER) as folder, os.scandir(folder) as entries:
            names = [entry.name for _, entry in zip(range(most or MAX_FILES), entries, strict=False)]
    except OSError:
        return ()
    files = []
    for name in names:
        if name.isascii() and name.isdigit():
            file = read_rank_file(run_dir / FOLDER / name, uid=uid)
            if file is not None and is_alive(file.pid, file.start_ticks, uid):
                files.append(file)
    return judge(files)


def is_alive(pid: int, start_ticks: int, uid: int) -> bool:
    """The process `pid` exists, is no zombie, runs as `uid` and started at `start_ticks` (since boot)."""
    try:
        status = Path(f"/proc/{pid}/status").read_bytes()
        return f"\nUid:\t{uid}\t".encode() in status and start_ticks_of(pid) == start_ticks
    except (OSError, ValueError, IndexError):
        return False


def start_ticks_of(pid: int) -> int:
    """Start of a process in clock ticks since boot.

    :raises OSError: there is no such process.
    :raises ValueError: it is a zombie: nothing of it runs any more.
    """
    # The command name may hold spaces and parentheses; everything after its last ')' is numbers but the state.
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    if fields[0] in (b"Z", b"X"):
        raise ValueError(f"process {pid} has ended")
    return int(fields[19])


def ancestors_of(pid: int) -> set[int]:
    """Parent, grandparent and so on, as far as they can be read."""
    found: set[int] = set()
    while pid > 1 and len(found) < 256:
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            break
        found.add(pid)
    return found


def judge(
    files: Iterable[RankFile], ancestors: Callable[[int], Collection[int]] = ancestors_of
) -> tuple[RankView, ...]:
    """Apply [Note: which processes are ranks] to readings of live processes."""
    oldest_first = sorted(files, key=lambda file: (file.start_ticks, file.pid))
    numbers: dict[int, int] = {}
    reported = [f for f in oldest_first if f.rank >= 0 and (f.steps or not f.flags & HELPERS)]
    if reported:
        for file in sorted(reported, key=lambda f: f.steps == 0):
            if file.rank not in numbers.values():
                numbers[file.pid] = file.rank
    else:
        chosen = [f for f in oldest_first if f.steps]
        if not chosen:
            plain = [f for f in oldest_first if not f.flags & HELPERS]
            pids = {f.pid for f in plain}
            top = [f for f in plain if len(plain) == 1 or pids.isdisjoint(ancestors(f.pid))]
            chosen = top if len(top) == 1 else []
        numbers = {file.pid: number for number, file in enumerate(chosen)}
    views = [_view(file, numbers.get(file.pid)) for file in oldest_first]
    return tuple(sorted(views, key=lambda view: (not view.is_rank, view.rank, view.pid)))


def _view(file: RankFile, number: int | None) -> RankView:
    counted = Flag.STEP_HOOK in file.flags
    return RankView(
        rank=-1 if number is None else number,
        pid=file.pid,
        guard=Flag.GUARD in file.flags,
        steps=file.steps if counted else None,
        first_step_ns=file.first_step_ns or None,
        last_step_ns=file.last_step_ns or None,
        is_rank=number is not None,
        world_size=file.world_size if file.world_size > 0 else None,
        exiting=file.exiting,
        capture_in_flight=file.capture_in_flight,
    )
