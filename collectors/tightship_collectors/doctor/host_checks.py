"""This host: Python, torch, the runtime directory, the sources of samples, the spool."""

from __future__ import annotations

import mmap
import os
import platform
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from tightship_collectors.delivery.spool import KINDS
from tightship_collectors.doctor.check import NOTE, OK, WRONG, Check
from tightship_collectors.jobs.run_directory import make_private, taken_runtime_dir
from tightship_collectors.sources.base import ABSENT, ERROR
from tightship_collectors.sources.devices import HostDevices
from tightship_collectors.sources.host import HostSource
from tightship_platform import __version__
from tightship_platform.errors import Invalid
from tightship_platform.extras import NAMES, lacking
from tightship_platform.settings import Settings
from tightship_platform.units import NS_PER_S, format_bytes, format_ns, now_ns, plural

OLD_BACKLOG_NS = 60 * NS_PER_S
SOCKET_DIR_VARIABLE = b"KINETO_IPC_SOCKET_DIR"


def host_checks(settings: Settings) -> Iterator[Check]:
    """Everything that can be seen without the server."""
    yield _python()
    yield _extras()
    yield _torch()
    yield _runtime_dir(settings.runtime_dir)
    yield from _sources()
    yield _spool(settings.spool_dir)


def _python() -> Check:
    version = platform.python_version()
    detail = f"tightship {__version__} in Python {version}, {sys.executable}"
    return Check(check="python", state=OK, detail=detail)


def _extras() -> Check:
    """What of this installation can be used; a command names the extra that it lacks."""
    lacks = {extra: lacking(extra) for extra in NAMES}
    there = ", ".join(extra for extra, packages in lacks.items() if not packages) or "none"
    missing = "; ".join(f"{extra} lacks {', '.join(packages)}" for extra, packages in lacks.items() if packages)
    return Check(check="extras", state=OK, detail=f"{there}; {missing}" if missing else there)


def _torch() -> Check:
    """Whether torch here takes part in on-demand captures. Jobs may run in another environment; then ask there."""
    try:
        found = metadata.distribution("torch")
    except metadata.PackageNotFoundError:
        detail = f"not installed in {sys.prefix}"
        return Check(check="torch", state=NOTE, detail=detail, advice="run doctor in the environment of your jobs, too")
    version = found.version
    library = Path(str(found.locate_file("torch/lib/libtorch_cpu.so")))
    try:
        honoured = names_socket_dir(library)
    except (OSError, ValueError) as error:
        detail = f"{version}; cannot look into {library}: {error}"
        return Check(check="torch", state=NOTE, detail=detail)
    if honoured:
        return Check(check="torch", state=OK, detail=f"{version}; honors KINETO_IPC_SOCKET_DIR, so captures work")
    detail = f"{version}; does not know KINETO_IPC_SOCKET_DIR, so its jobs cannot be captured"
    return Check(check="torch", state=WRONG, detail=detail, advice="install a newer torch (2.13 is known to work)")


def names_socket_dir(library: Path) -> bool:
    """Whether this build of libkineto reads the variable: its name stands in the library. torch is not imported."""
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as content:
        return content.find(SOCKET_DIR_VARIABLE) >= 0


def _runtime_dir(path: Path) -> Check:
    seen = f"{path}, {len(os.fsencode(path))} characters long"
    taken = taken_runtime_dir(path)
    if taken is not None:
        detail = f"{taken} is another user's, so runs are in {path}, which goes with this user's last login"
        advice = f"have root remove {taken}, or set TIGHTSHIP_RUNTIME_DIR"
        return Check(check="runtime dir", state=NOTE, detail=detail, advice=advice)
    if not os.path.lexists(path):
        if _can_be_made(path):
            return Check(check="runtime dir", state=OK, detail=f"{seen}, is made when it is needed")
        advice = "set TIGHTSHIP_RUNTIME_DIR to a directory that you can make"
        return Check(check="runtime dir", state=WRONG, detail=f"{path} cannot be made", advice=advice)
    try:
        make_private(path)
    except (Invalid, OSError) as error:
        advice = "remove it, or set TIGHTSHIP_RUNTIME_DIR to a directory of your own that nobody else can write"
        return Check(check="runtime dir", state=WRONG, detail=str(error), advice=advice)
    return Check(check="runtime dir", state=OK, detail=f"{seen}, not writable for others")


def _can_be_made(path: Path) -> bool:
    for parent in path.parents:
        if parent.exists():
            return parent.is_dir() and os.access(parent, os.W_OK | os.X_OK)
    return False


def _sources() -> Iterator[Check]:
    host = HostSource()
    list(host.read())
    devices = HostDevices()
    devices.read()
    advice = {
        "nvml": "check the driver with nvidia-smi; after a driver update, reboot or reload it",
        "host": "check that /proc is mounted and readable",
        "cpu": "check that /proc is mounted and readable",
    }
    for state in (host.state(), *devices.states()):
        where = f"source {state.name}"
        if state.state == ERROR:
            yield Check(check=where, state=WRONG, detail=state.detail, advice=advice[state.name])
        elif state.state == ABSENT:
            yield Check(check=where, state=NOTE, detail=f"absent: {state.detail}")
        else:
            yield Check(check=where, state=OK, detail=state.detail)


def _spool(folder: Path) -> Check:
    try:
        waiting = sorted(p for p in _files(folder / "queue") if p.name.partition(".")[2] in KINDS)
        left = [p for p in _files(folder / "runs") if p.suffix == ".json"]
        aside = list(_files(folder / "aside"))
        size = sum(p.stat().st_size for p in (*waiting, *left))
    except PermissionError:
        detail = f"{folder} is not readable for user {os.geteuid()}"
        return Check(check="spool", state=NOTE, detail=detail, advice="run doctor as the user that the agent runs as")
    except OSError as error:
        return Check(check="spool", state=WRONG, detail=f"{folder}: {error.strerror}", advice="make it a folder")
    count = len(waiting) + len(left)
    detail = f"{plural(count, 'record')} ({format_bytes(size)}) {'waits' if count == 1 else 'wait'} in {folder}"
    if aside:
        detail += f"; {len(aside)} that the server refused lie in {folder / 'aside'}"
    age_ns = now_ns() - int(waiting[0].name.partition(".")[0]) if waiting else 0
    if age_ns > OLD_BACKLOG_NS:
        advice = "the agent delivers them once it runs and the server answers"
        return Check(check="spool", state=WRONG, detail=f"{detail}, the oldest for {format_ns(age_ns)}", advice=advice)
    if aside:
        return Check(check="spool", state=NOTE, detail=detail, advice="read the agent's log, then delete them")
    return Check(check="spool", state=OK, detail=detail)


def _files(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if path.is_file()]
    except FileNotFoundError:
        return []
