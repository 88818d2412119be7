"""The processes of this host, read from /proc cheaply enough for every second.

[Note: what is read how often]
A host may run thousands of processes, of which a handful are jobs. Each second only these are looked at: processes not
seen before, those of runs, those younger than YOUNG_S, and CHECKED_PER_SCAN of the others in turn. The environment is
read once per process, and again only when the process turns out to be another one: its start time or the address of
its environment has changed, which is a recycled pid or an `exec`. A young process may still be the copy that `fork`
made of its launcher, which is why it is looked at again.

Who asks for the processes that claim no run (`others`) has some of them looked at each second, too (`followed`).
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from tightship_platform.units import NS_PER_S, now_ns

YOUNG_S = 5.0
WATCHED_S = 15.0
"""For so long after it was first seen a process's counters are read each second: it may turn out to be a job."""
CHECKED_PER_SCAN = 64
MAX_ENVIRON_BYTES = 4 * 1024 * 1024
MAX_ANCESTORS = 64
MAX_RUN_DIR_BYTES = 100

RUN_KEY = re.compile(rb"[0-9a-f]{16}")
_POD = re.compile(rb"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})")


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """What a process's environment says about the run it belongs to. Only a claim: anybody can set a variable."""

    run: str
    run_dir: Path
    external_id: str | None = None
    """Id in the scheduler: the Slurm job, else `pod/<uid>` of a Kubernetes pod."""


@dataclass(kw_only=True, slots=True)
class Process:
    """One process of a run."""

    pid: int
    uid: int
    start_ns: int
    """UTC; to the kernel's 10 ms."""
    cpu_ticks: int
    """Processor time so far, in clock ticks."""
    private_bytes: int | None
    """Resident memory less what is shared with files and other processes."""


@dataclass(kw_only=True, slots=True)
class ClaimingProcess(Process):
    """One process that claims a run, or descends from one that does."""

    claim: Claim


@dataclass(slots=True)
class Known:
    """What is remembered of any process."""

    ticks: int
    """Start, in clock ticks since boot."""
    environ_at: int
    parent: int
    group: int
    """Its process group."""
    cpu_ticks: int
    seen_s: float
    """Monotonic time at which this identity was first seen."""
    scan: int
    process: ClaimingProcess | None = None


class ProcessTable:
    """Remembers what it has read. Call `scan` once a second.

    :param proc: where procfs is mounted.
    """

    def __init__(self, proc: Path = Path("/proc"), *, own_uid: int | None = None) -> None:
        self.proc = proc
        self._proc = str(proc)
        self._own_uid = os.geteuid() if own_uid is None else own_uid
        self._known: dict[int, Known] = {}
        self._looked: list[int] = []
        self.followed: Collection[int] = ()
        """Processes without a claim that are looked at each time, too."""
        self._turn: Iterator[int] = iter(())
        self._scan = 0
        self._hertz = os.sysconf("SC_CLK_TCK")
        self._page = os.sysconf("SC_PAGE_SIZE")

    def scan(self) -> list[ClaimingProcess]:
        """Every live process that claims a run, oldest first."""
        self._scan += 1
        try:
            live = [int(name) for name in os.listdir(self._proc) if name.isdigit()]  # noqa: PTH208 (four times as fast)
        except OSError:
            live = []
        now_s = time.monotonic()
        due = self._due(live, now_s)
        self._looked = [pid for pid in live if pid in due]
        fresh = [pid for pid in self._looked if self._look(pid, now_s)]
        for pid in fresh:
            self._inherit(pid)
        for pid in self._known.keys() - set(live):
            del self._known[pid]
        found = [k.process for k in self._known.values() if k.process is not None]
        return sorted(found, key=lambda p: (p.start_ns, p.pid))

    def others(self) -> list[tuple[int, Known]]:
        """The processes without a claim that the last `scan` looked at."""
        looked = ((pid, self._known.get(pid)) for pid in self._looked)
        return [(pid, known) for pid, known in looked if known is not None and known.process is None]

    def all_others(self) -> list[tuple[int, Known]]:
        """Every live process without a claim, as it was when it was looked at last."""
        return [(pid, known) for pid, known in self._known.items() if known.process is None]

    def other(self, pid: int) -> Known | None:
        """A live process without a claim; None: there is none of this number."""
        known = self._known.get(pid)
        return None if known is None or known.process is not None else known

    def measured(self, pid: int, known: Known, uid: int) -> Process:
        """A process without a claim as one of a run."""
        return Process(
            pid=pid,
            uid=uid,
            start_ns=self._start_ns(known),
            cpu_ticks=known.cpu_ticks,
            private_bytes=self._private_bytes(pid),
        )

    def measure(self, process: Process, known: Known) -> None:
        """Take over what the last look at it has read."""
        process.cpu_ticks, process.private_bytes = known.cpu_ticks, self._private_bytes(process.pid)

    def may_read(self, pid: int) -> bool:
        """Whether what is private to a process may be read, even where it is empty."""
        try:
            return self._own_uid in (0, os.stat(f"{self._proc}/{pid}").st_uid)  # noqa: PTH116 (no Path for each)
        except OSError:
            return False

    def age_s(self, known: Known) -> float:
        """Seconds since a process started."""
        return time.clock_gettime(time.CLOCK_BOOTTIME) - known.ticks / self._hertz

    def _start_ns(self, known: Known) -> int:
        age_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - known.ticks * NS_PER_S // self._hertz
        return now_ns() - max(0, age_ns)

    def _due(self, live: list[int], now_s: float) -> set[int]:
        known = self._known
        due = {
            pid
            for pid in live
            if (k := known.get(pid)) is None or k.process is not None or now_s - k.seen_s < WATCHED_S
        }
        due.update(self.followed)
        for _ in range(CHECKED_PER_SCAN):
            pid = next(self._turn, None)
            if pid is None:
                self._turn = iter(list(known))
                break
            due.add(pid)
        return due

    def _look(self, pid: int, now_s: float) -> bool:
        """Read a process's counters. True when its environment was read: it is new, another one, or young."""
        stat = self.read(pid, "stat", 4096)
        # The command name may hold blanks, newlines and parentheses; what follows the last one is state and numbers.
        fields = stat.rpartition(b")")[2].split() if stat else []
        try:
            parent, group, ticks, environ_at = int(fields[1]), int(fields[2]), int(fields[19]), int(fields[47])
            cpu_ticks = int(fields[11]) + int(fields[12])
            if fields[0] in (b"Z", b"X", b"x"):
                raise ValueError("it has ended")
        except (IndexError, ValueError):
            self._known.pop(pid, None)
            return False
        known = self._known.get(pid)
        if known is None or (known.ticks, known.environ_at) != (ticks, environ_at):
            known = self._known[pid] = Known(ticks, environ_at, parent, group, cpu_ticks, now_s, self._scan)
        known.parent, known.group, known.cpu_ticks = parent, group, cpu_ticks
        if known.process is not None:
            known.process.cpu_ticks = cpu_ticks
            known.process.private_bytes = self._private_bytes(pid)
        elif known.scan == self._scan or now_s - known.seen_s < YOUNG_S:
            claim = self._read_claim(pid)
            known.process = self._process(pid, known, claim) if claim is not None else None
            return True
        return False

    def _inherit(self, pid: int) -> None:
        """A process without its own claim, such as one started with an empty environment, has its parent's."""
        fresh = self._known.get(pid)
        if fresh is None or fresh.process is not None:
            return
        parent = fresh.parent
        for _ in range(MAX_ANCESTORS):
            ancestor = self._known.get(parent)
            if ancestor is None:
                return
            parent = ancestor.parent
            if ancestor.process is not None:
                own = self._process(pid, fresh, ancestor.process.claim)
                # Another user's process in the family tree (sudo, a login) is not the run owner's.
                fresh.process = own if own is not None and own.uid == ancestor.process.uid else None
                return
            if ancestor.scan != self._scan:
                # It was there before and has no claim, so none of its elders had one.
                return

    def _process(self, pid: int, known: Known, claim: Claim) -> ClaimingProcess | None:
        uid = self.uid(pid)
        if uid is None:
            return None
        return ClaimingProcess(
            pid=pid,
            uid=uid,
            start_ns=self._start_ns(known),
            claim=claim,
            cpu_ticks=known.cpu_ticks,
            private_bytes=self._private_bytes(pid),
        )

    def uid(self, pid: int) -> int | None:
        """Who a process runs as; None: it is gone."""
        for line in self.read(pid, "status", 4096).splitlines():
            if line.startswith(b"Uid:"):
                return int(line.split()[1])
        return None

    def _private_bytes(self, pid: int) -> int | None:
        fields = self.read(pid, "statm", 256).split()
        try:
            return max(0, int(fields[1]) - int(fields[2])) * self._page
        except (IndexError, ValueError):
            return None

    def _read_claim(self, pid: int) -> Claim | None:
        environ = self.read(pid, "environ", MAX_ENVIRON_BYTES)
        if b"TIGHTSHIP_RUN=" not in environ:
            return None
        values: dict[bytes, bytes] = {}
        for entry in environ.split(b"\0"):
            name, _, value = entry.partition(b"=")
            values.setdefault(name, value)
        run, run_dir = values.get(b"TIGHTSHIP_RUN", b""), values.get(b"TIGHTSHIP_RUN_DIR", b"")
        if not RUN_KEY.fullmatch(run) or not run_dir.startswith(b"/") or len(run_dir) > MAX_RUN_DIR_BYTES:
            return None
        try:
            place = run_dir.decode()
        except UnicodeDecodeError:
            return None
        if not place.isprintable():
            return None
        return Claim(run=run.decode(), run_dir=Path(place), external_id=self._external_id(pid, values))

    def _external_id(self, pid: int, values: dict[bytes, bytes]) -> str | None:
        job = values.get(b"SLURM_JOB_ID", b"")
        if re.fullmatch(rb"[0-9_]{1,40}", job):
            return job.decode()
        pod = _POD.search(self.read(pid, "cgroup", 16384))
        return f"pod/{pod[1].decode().replace('_', '-')}" if pod else None

    def read(self, pid: int, name: str, limit: int) -> bytes:
        """Contents of /proc/<pid>/<name>; empty when the process is gone or not ours to read."""
        try:
            fd = os.open(f"{self._proc}/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return b""
        try:
            data = os.read(fd, min(limit, 65536))
            if len(data) < 4096:
                return data
            parts = [data]
            total = len(data)
            while total < limit and (data := os.read(fd, min(65536, limit - total))):
                parts.append(data)
                total += len(data)
            return b"".join(parts)
        except OSError:
            return b""
        finally:
            os.close(fd)
