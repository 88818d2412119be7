"""What the threads of a process are at, seen from outside by py-spy, which stops it for some milliseconds."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tightship_platform.errors import TightshipError
from tightship_platform.wire import Frame

PATIENCE_S = 30.0
"""Native stacks of a process with torch take seconds: py-spy reads the symbols of its libraries."""
MAX_FRAMES = 64
MAX_THREADS = 256


class NoStacks(TightshipError):
    """They cannot be had; the message says why."""


@dataclass(frozen=True, kw_only=True)
class ThreadStack:
    """One thread."""

    name: str
    is_main: bool
    runs: bool
    """It ran when it was looked at; else it waited in a system call."""
    frames: tuple[Frame, ...]
    """The innermost first."""


def read_stacks(pid: int, *, native: bool = False, patience_s: float = PATIENCE_S) -> list[ThreadStack]:
    """The threads of a Python process, its main thread first.

    :param native: also frames of C and C++.
    :param patience_s: how long py-spy may take.
    :raises NoStacks: py-spy is not there or may not look, the process is gone, or is no Python.
    """
    command = [_py_spy(), "dump", "--json", "--full-filenames", "--pid", str(pid), *(["--native"] if native else [])]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=patience_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise NoStacks(f"py-spy did not end within {patience_s:.0f} s") from None
    except OSError as error:
        raise NoStacks(f"py-spy does not start: {error.strerror}") from None
    if done.returncode:
        raise NoStacks(_reason(pid, done.stderr))
    try:
        threads = [_thread(raw, pid) for raw in json.loads(done.stdout)[:MAX_THREADS]]
    except (ValueError, TypeError, KeyError) as error:
        raise NoStacks(f"py-spy gave an answer that cannot be read: {error}") from None
    return sorted(threads, key=lambda thread: not thread.is_main)


def _py_spy() -> str:
    beside = Path(sys.executable).with_name("py-spy")
    found = str(beside) if beside.exists() else shutil.which("py-spy")
    if found is None:
        raise NoStacks("py-spy is not installed; pip install py-spy")
    return found


def _reason(pid: int, said: str) -> str:
    if not Path(f"/proc/{pid}").exists():
        return "it has ended"
    if "ermission" in said or "EPERM" in said or "not permitted" in said:
        return "py-spy may not look into it: run this as root, or with the capability SYS_PTRACE"
    last = said.strip().splitlines()[-1:] or ["no reason given"]
    return f"py-spy: {last[0][:200]}"


def _thread(raw: Any, pid: int) -> ThreadStack:
    frames = [
        Frame(function=str(frame["name"]), file=str(frame["filename"]), line=int(frame["line"] or 0))
        for frame in raw["frames"][:MAX_FRAMES]
    ]
    is_main = raw["os_thread_id"] == pid or raw["thread_name"] == "MainThread"
    return ThreadStack(
        name=str(raw["thread_name"] or ""), is_main=is_main, runs=bool(raw["active"]), frames=tuple(frames)
    )
