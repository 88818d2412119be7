"""The package's C++: compiled on first use where there is a compiler, kept for later processes, else done without.

[Note: the compiled part] native.cpp knows nothing of torch or Python, so any C++17 compiler makes it, in seconds, for
the very processor that runs it. What it made is kept under a name that holds all that it was made from (source,
command, compiler, processor), in a folder that is this user's alone: a library that another user could have put there
would run as us. Where no such folder can be had, the library serves this process only. Where there is no compiler,
or it fails, torch does the same work in more passes over memory, and `Native.reason` says why.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("native.cpp")
FLAGS = (
    *("-std=c++17", "-O3", "-march=native", "-fPIC", "-shared", "-pthread"),
    *("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"),
)
TIMEOUT_S = 120
SWITCH = "TIGHTSHIP_OFFLOAD_NATIVE"
"""0 in this variable: do without."""
_COMPILERS = ("c++", "g++", "clang++")
_lock = threading.Lock()
_found: list[Native] = []


@dataclass(frozen=True, slots=True)
class Native:
    """The compiled part, or why there is none."""

    library: ctypes.CDLL | None
    reason: str = ""


class _CannotCompileError(Exception):
    """In one line, why."""


def native() -> Native:
    """This process's; the first call may take as long as a compiler does."""
    with _lock:
        if not _found:
            _found.append(load())
        return _found[0]


def load() -> Native:
    """Find the kept library, or compile it."""
    if os.environ.get(SWITCH) == "0":
        return Native(None, f"{SWITCH} is 0")
    try:
        return Native(_open(_command()))
    except (_CannotCompileError, OSError, ValueError) as error:  # of values: CXX may be anything
        return Native(None, " ".join(str(error).split())[:200])


def _command() -> list[str]:
    given = shlex.split(os.environ.get("CXX", ""))
    for command in [given] if given else [[name] for name in _COMPILERS]:
        if shutil.which(command[0]):
            return [*command, *FLAGS]
    raise _CannotCompileError(f"there is no C++ compiler ({' '.join(given) or ', '.join(_COMPILERS)})")


def _open(command: list[str]) -> ctypes.CDLL:
    folder = _private_folder()
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="tightship-") as scratch:  # what is open stays when its name goes
            return ctypes.CDLL(str(_compile(command, Path(scratch) / "native.so")))
    kept = folder / f"native-{_identity(command)}.so"
    if _is_ours_alone(kept, stat.S_IFREG):
        with suppress(OSError):  # cut short, by a full disk or the end of a machine
            return ctypes.CDLL(str(kept))
    return ctypes.CDLL(str(_compile(command, kept)))


def _identity(command: list[str]) -> str:
    """Of all that the library depends on: a folder may be shared by machines of several kinds."""
    compiler = Path(shutil.which(command[0]) or command[0]).resolve()
    status = compiler.stat()
    parts = (SOURCE.read_text(), *command, str(compiler), str(status.st_size), str(status.st_mtime_ns), _processor())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return platform.machine() + platform.processor()
    names = ("model name", "flags", "Features", "CPU part")
    return platform.machine() + "".join(sorted({line for line in text.splitlines() if line.startswith(names)}))


def _private_folder() -> Path | None:
    """Where libraries are kept; None where they would not be safe there, or cannot be written."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        folder = (base if base.is_absolute() else Path.home() / ".cache") / "tightship" / "native"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return None
    return folder if _is_ours_alone(folder, stat.S_IFDIR) and os.access(folder, os.W_OK) else None


def _is_ours_alone(path: Path, kind: int) -> bool:
    """Whether it is there, no link, and nobody else may write to it (a folder: look into it)."""
    try:
        status = path.lstat()
    except OSError:
        return False
    others = 0o077 if kind == stat.S_IFDIR else 0o022
    return stat.S_IFMT(status.st_mode) == kind and status.st_uid == os.geteuid() and not status.st_mode & others


def _compile(command: list[str], target: Path) -> Path:
    """:raises _CannotCompileError: it cannot be compiled; the line is the compiler's first."""
    handle, name = tempfile.mkstemp(dir=target.parent, suffix=".new")
    os.close(handle)
    draft = Path(name)
    try:
        done = subprocess.run(
            [*command, "-o", name, str(SOURCE)],
            check=False,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode:
            first = next((line for line in done.stderr.splitlines() if "error" in line), "no message")
            raise _CannotCompileError(f"{command[0]} failed with {done.returncode}: {first}")
        draft.chmod(0o700)
        draft.replace(target)  # of several ranks that compile at once, each replaces the same by the same
        return target
    except subprocess.TimeoutExpired:
        raise _CannotCompileError(f"{command[0]} took more than {TIMEOUT_S} s") from None
    finally:
        draft.unlink(missing_ok=True)
