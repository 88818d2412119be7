"""How much host memory this process may use and pin: the kernel's, the cgroup's and the user's limits. Linux only.

Every reader takes the root of the file system, so that tests can lay out their own.
"""

from __future__ import annotations

import os
import re
import resource
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

CAP_IPC_LOCK = 14
"""A process with this capability may lock memory without limit (capabilities(7))."""
_CGROUP_V1_NONE = 2**62
"""cgroup v1 writes a number near 2**63 where there is no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLimits:
    """Bytes; None where nothing limits."""

    total: int | None
    """Memory of the host."""
    available: int | None
    """What the kernel could give now without swapping."""
    cgroup: int | None
    """The tightest memory limit of the process's control group and those above it."""
    cgroup_free: int | None
    """What is left of it now; pages of files that can be dropped count as free."""
    memlock: int | None
    """RLIMIT_MEMLOCK: what the process may pin."""

    @property
    def usable(self) -> int | None:
        """What a process that starts now can get."""
        known = [one for one in (self.available, self.cgroup_free) if one is not None]
        return min(known, default=None)

    @property
    def capacity(self) -> int | None:
        """What it could get on an otherwise empty machine."""
        known = [one for one in (self.total, self.cgroup) if one is not None]
        return min(known, default=None)

    @property
    def binding(self) -> str:
        """In words, what sets `usable`."""
        if self.cgroup_free is not None and self.usable == self.cgroup_free:
            return "the control group's memory limit"
        return "the host's available memory"


def read_host_limits(root: Path = Path("/")) -> HostLimits:
    """The limits of this process."""
    info = _meminfo(root / "proc" / "meminfo")
    limit, free = _cgroup(root)
    return HostLimits(
        total=info.get("MemTotal"),
        available=info.get("MemAvailable"),
        cgroup=limit,
        cgroup_free=free,
        memlock=memlock(root),
    )


def memlock(root: Path = Path("/")) -> int | None:
    """RLIMIT_MEMLOCK in bytes; None where it does not bind this process."""
    status = _text(root / "proc" / "self" / "status")
    found = re.search(r"^CapEff:\s*([0-9a-fA-F]{1,16})$", status, re.MULTILINE)
    if found and int(found[1], 16) >> CAP_IPC_LOCK & 1:
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft


def own_bytes(root: Path = Path("/")) -> int | None:
    """Host memory of this process; pages of files do not count. None: it cannot be read."""
    found = re.search(r"^RssAnon:\s+(\d{1,15}) kB$", _text(root / "proc" / "self" / "status"), re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def _meminfo(path: Path) -> dict[str, int]:
    found = re.findall(r"^(\w+):\s+(\d{1,15}) kB$", _text(path), re.MULTILINE)
    return {name: int(number) * 1024 for name, number in found}


def _cgroup(root: Path) -> tuple[int | None, int | None]:
    """(limit, free) of the tightest group on the way up; the one with least free memory counts."""
    limits: list[int] = []
    free: list[int] = []
    for line in _text(root / "proc" / "self" / "cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            base, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            base = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        inside = PurePosixPath(path.lstrip("/"))
        if ".." in inside.parts:  # a group outside of the process's namespace: only its root can be seen
            inside = PurePosixPath()
        for group in (inside, *inside.parents):
            limit = _number(base / group / names[0])
            if limit is None or limit >= _CGROUP_V1_NONE:
                continue
            limits.append(limit)
            used = _number(base / group / names[1]) or 0
            droppable = re.search(rf"^{names[2]} (\d{{1,19}})$", _text(base / group / "memory.stat"), re.MULTILINE)
            used -= min(used, int(droppable[1]) if droppable else 0)
            free.append(max(0, limit - used))
    return min(limits, default=None), min(free, default=None)


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if re.fullmatch(r"\d{1,19}", text) else None


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(65536).decode("ascii", "replace")
    except OSError:
        return ""


def cores() -> int:
    """Processors that this process may run on, within its control group's quota."""
    allowed = len(os.sched_getaffinity(0))
    quota = re.match(r"(\d{1,19}) (\d{1,19})", _text(Path("/sys/fs/cgroup/cpu.max")))
    if quota and int(quota[2]):
        return max(1, min(allowed, -(-int(quota[1]) // int(quota[2]))))
    return allowed
