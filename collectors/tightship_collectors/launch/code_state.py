"""Which commit of a git repository a job runs, and whether its tree has changes.

The commit is read from git's own files: no process, no hook. Whether tracked files differ takes git itself, which is
started beside the job and not waited for; without git, or where it takes too long, that stays unknown.
Source: gitrepository-layout(5), git-status(1).
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tightship_collectors.jobs.small_file import small_text

LIMIT_S = 10.0
"""How long git may take."""
MAX_FOLDERS = 64
MAX_LINKS = 5
"""References that name one another."""
SMALL_BYTES = 4096
PACKED_BYTES = 16 * 1024 * 1024
"""Of packed-refs, which has a line for each branch and tag."""
POLL_S = 0.05

_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_REFERENCE = re.compile(r"refs/[\w./+@#=-]{1,200}", re.ASCII)
_STATUS = (
    *("git", "--no-pager", "-c", "core.fsmonitor=", "-c", "core.hooksPath=/dev/null", "-c", "status.renames=false"),
    *("status", "--porcelain", "--untracked-files=no", "--ignore-submodules=dirty"),
)
"""Prints a line for each tracked file that differs. The monitor of the file system is a hook, too."""


def tree_of(folder: Path) -> Path | None:
    """The top of the work tree that a folder is in; None: it is in none."""
    for candidate in [folder, *folder.parents][:MAX_FOLDERS]:
        with contextlib.suppress(OSError):
            os.lstat(candidate / ".git")
            return candidate
    return None


def read_commit(tree: Path) -> str | None:
    """The commit that a work tree has checked out; None: there is none yet, or it is not kept in files of its own."""
    git = tree / ".git"
    if not git.is_dir():  # of a further work tree, or a submodule: it says where
        kind, _, place = small_text(git, SMALL_BYTES).strip().partition(": ")
        if kind != "gitdir" or not place:
            return None
        git = tree / place
    common = git / (small_text(git / "commondir", SMALL_BYTES).strip() or ".")
    found = small_text(git / "HEAD", SMALL_BYTES).strip()
    for _ in range(MAX_LINKS):
        if _COMMIT.fullmatch(found):
            return found
        name = found.removeprefix("ref: ").strip()
        if not _REFERENCE.fullmatch(name) or ".." in name:
            return None
        found = (small_text(git / name, SMALL_BYTES) or small_text(common / name, SMALL_BYTES)).strip() or _packed(
            common, name
        )
    return None


def has_changes(tree: Path, environ: Mapping[str, str], is_over: Callable[[], bool]) -> bool | None:
    """Whether files that git tracks differ from the commit; None: not known.

    :param is_over: ends the wait for git.
    """
    env = {name: value for name, value in environ.items() if not name.startswith("GIT_")}
    env |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1", "LC_ALL": "C"}
    read, write = os.pipe()
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, write, 1),
        (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
    ]
    command = ["git", "-C", str(tree), *_STATUS[1:]]
    try:
        # Its own group, which the terminal does not signal and which ends as a whole.
        pid = os.posix_spawnp("git", command, env, file_actions=actions, setpgroup=0, setsigmask=())
    except OSError:
        os.close(read)
        return None
    finally:
        os.close(write)
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, 19)
    try:
        return _first_line(read, pid, is_over)
    finally:
        os.close(read)


def _first_line(read: int, pid: int, is_over: Callable[[], bool]) -> bool | None:
    """What git's output means; its process is gone afterwards."""
    until_s = time.monotonic() + LIMIT_S
    printed: bytes | None = None
    while printed is None and time.monotonic() < until_s and not is_over():
        if select.select([read], [], [], POLL_S)[0]:
            printed = os.read(read, 1)
    if printed != b"":  # it goes on printing, or takes too long
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if printed:
        return True
    return False if printed == b"" and os.waitstatus_to_exitcode(status) == 0 else None


def _packed(common: Path, name: str) -> str:
    """What packed-refs says of a reference; empty: nothing."""
    end = f" {name}"
    lines = small_text(common / "packed-refs", PACKED_BYTES).splitlines()
    return next((line[: -len(end)] for line in lines if line.endswith(end)), "")
