"""Traces that PyTorch's profiler wrote, in a folder: each becomes a capture of a run, and is analyzed as any other.

[Note: which files are one run] Files of one folder that name ranks are one run, called after the folder; a file that
names none is a run of one rank, called after the file. A rank is named by the trace's `distributedInfo`, or else by the
file's name (`rank_3`, `rank-3`, `worker3`). The workflow is the folder above the run's, where there is one within the
import, else the run's own name. Recordings of different ranks that overlap in time, or begin within ALIGNED_NS, are one
capture.

Here a file is only looked through for its first and last time, its rank and its devices, by patterns and without being
parsed; the server's worker reads it whole.
"""

from __future__ import annotations

import gzip
import hashlib
import re
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from io import BufferedIOBase
from pathlib import Path

from tightship_collectors.importers.source import (
    CHUNK_BYTES,
    GZIP,
    LOOKED_AT,
    NO_NAME,
    Options,
    Recorded,
    Recording,
    Refused,
    Source,
    packed,
    unfit_name,
)
from tightship_collectors.importers.times import OUTSIDE, can_be
from tightship_platform.errors import Invalid
from tightship_platform.results.imported import ImportedDevice, ImportedRun
from tightship_platform.units import NS_PER_S, plural
from tightship_platform.validation import RANK_MAX
from tightship_platform.vocabulary import DeviceKind, FleetFormat, RunState

SUFFIXES = (".json", ".json.gz")
ALIGNED_NS = 60 * NS_PER_S
LONGEST_NS = 86_400 * NS_PER_S
"""A recording is shorter; what lies farther off is a broken time."""
OVERLAP_BYTES = 4096
"""What is looked for is shorter."""
MOST_BYTES = 64 * 1024**3
"""Of a file that was unpacked: a trace is smaller, a bomb is not."""
_MINUTE_NS = 60 * NS_PER_S
_YEAR_2001_NS = 978_307_200 * NS_PER_S
_IS_TRACE = re.compile(rb'"traceEvents"\s*:')
_TIME = re.compile(rb'"ts"\s*:\s*"?(\d{1,19}(?:\.\d{1,9})?)"?(?:\s*,\s*"dur"\s*:\s*"?(\d{1,17}(?:\.\d{1,9})?))?')
_BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d{1,19})')
_RANK = re.compile(rb'"distributedInfo"\s*:\s*\{[^{}]{0,400}?"rank"\s*:\s*(\d{1,8})')
_DEVICE = re.compile(
    rb'"id"\s*:\s*(\d{1,4})\s*,\s*"name"\s*:\s*"([^"\\]{1,200})"\s*,\s*"totalGlobalMem"\s*:\s*(\d{1,15})'
)
_USED = re.compile(rb'"device"\s*:\s*(\d{1,4})\b')
_RANK_IN_NAME = re.compile(r"(?:^|[._-])(?:rank|worker)[._-]?(\d{1,7})(?!\d)", re.IGNORECASE | re.ASCII)
_HANDLER = re.compile(
    r"(?P<host>[A-Za-z0-9][A-Za-z0-9.-]{0,200})_\d{1,10}\.\d{10,20}\.pt\.trace\.json(\.gz)?", re.ASCII
)
"""As `tensorboard_trace_handler` names its files: host, process, time."""


@dataclass
class _Found:
    """What one file says."""

    path: Path
    name: str
    """Its path within the import."""
    sha256: str = ""
    size_bytes: int = 0
    """Compressed."""
    start_ns: int = 0
    end_ns: int = 0
    rank: int | None = None
    host: str = ""
    device: str = "CPU"
    memory_bytes: int | None = None
    kind: DeviceKind = DeviceKind.CPU


@dataclass
class _Run:
    id: str
    workflow: str
    files: list[_Found] = field(default_factory=list)


def open_source(path: Path, options: Options) -> Source:
    """A folder of traces, or one trace.

    :raises Invalid: there is none.
    """
    files = _files(path)
    if not files:
        raise Invalid("Path", str(path), f"traces of PyTorch's profiler: files ending in {' or '.join(SUFFIXES)}")
    refused = Refused()
    dated: list[str] = []
    found = list(_looked_through(path, files, refused, options, dated))
    runs = _runs(path, found, refused)
    recordings = [one for run in runs for one in _recordings(run, refused)]
    assumptions = [
        "files of one folder that name ranks are one run, each other file is a run by itself",
        "a run held its devices while they were recorded: what it did before and after is not known",
        "two runs never share a device, as traces do not say which device of the fleet theirs was",
    ]
    if dated:
        assumptions.append(f"traces without a date ended when their files were written ({plural(len(dated), 'file')})")
    by_run: defaultdict[str, list[Recording]] = defaultdict(list)
    for one in recordings:
        by_run[one.run].append(one)
    return Source(
        format=FleetFormat.KINETO,
        name=path.resolve().name or "traces",
        items=iter([_imported(run, by_run[run.id]) for run in runs if by_run[run.id]]),
        recordings=recordings,
        refused=refused,
        assumptions=assumptions,
        names_devices=False,
        rows=len(files),
    )


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return sorted(one for one in path.rglob("*") if one.name.endswith(SUFFIXES) and one.is_file())


def _looked_through(
    root: Path, files: Sequence[Path], refused: Refused, options: Options, dated: list[str]
) -> Iterator[_Found]:
    """Those that can be taken."""
    seen: dict[str, str] = {}
    for number, path in enumerate(files):
        name = path.name if root.is_file() else path.relative_to(root).as_posix()
        found = _Found(path, name)
        why = _look_through(found, dated)
        if why is None and found.sha256 in seen:
            why = f"the same file as {seen[found.sha256]}"
        if why is None:
            seen[found.sha256] = name
            yield found
        else:
            refused.add(name, why)
        options.meter(LOOKED_AT * (number + 1) / len(files))


def _look_through(found: _Found, dated: list[str]) -> str | None:
    """What the file says; text: why it cannot be taken."""
    seen = _Patterns()
    try:
        with found.path.open("rb") as raw, gzip.GzipFile(fileobj=raw) as unpacked:
            is_packed = raw.read(2) == GZIP
            raw.seek(0)
            if (why := seen.read(unpacked if is_packed else raw)) is not None:
                return why
        written_ns = found.path.stat().st_mtime_ns
        digest = hashlib.sha256()
        for chunk in packed(found.path):
            digest.update(chunk)
            found.size_bytes += len(chunk)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        return "a compressed file that ends in the middle, or is damaged"
    except OSError as error:
        return f"it cannot be read ({(error.strerror or str(error)).lower()})"
    window = seen.window()
    if window is None:
        return "a trace without any time"
    base_ns = 0 if seen.base_ns is None or window[0] > _YEAR_2001_NS else seen.base_ns
    found.start_ns, found.end_ns = base_ns + window[0], base_ns + window[1]
    if found.start_ns < _YEAR_2001_NS:
        found.start_ns, found.end_ns = written_ns - (found.end_ns - found.start_ns), written_ns
        dated.append(found.name)
    if not can_be(found.start_ns) or not can_be(found.end_ns):
        return OUTSIDE
    named = _RANK_IN_NAME.search(found.path.name)
    found.rank = seen.rank if seen.rank is not None else int(named[1]) if named else None
    if found.rank is not None and found.rank > RANK_MAX:
        return "a rank that no job has"
    written_by = _HANDLER.fullmatch(found.path.name)
    found.host = written_by["host"] if written_by else ""
    found.sha256 = digest.hexdigest()
    if seen.used:
        found.kind = DeviceKind.GPU
        number = min(seen.used)
        found.device, found.memory_bytes = seen.devices.get(number, ("GPU", None))
    return None


class _Patterns:
    """What patterns find in a trace, piece by piece."""

    def __init__(self) -> None:
        self.is_trace = False
        self._minutes: dict[int, list[int]] = {}
        """Minute → how many times lie in it, the first of them, the end of the last."""
        self.base_ns: int | None = None
        self.rank: int | None = None
        self.devices: dict[int, tuple[str, int | None]] = {}
        self.used: set[int] = set()

    def read(self, text: BufferedIOBase) -> str | None:
        """Look through the whole of it; text: why it cannot be taken."""
        total, rest = 0, b""
        while chunk := text.read(CHUNK_BYTES):
            total += len(chunk)
            if total > MOST_BYTES:
                return f"more than {MOST_BYTES} bytes when it is unpacked"
            rest = self._piece(rest + chunk)
        return None if self.is_trace else "no trace of PyTorch's profiler"

    def window(self) -> tuple[int, int] | None:
        """First and last time, without those that lie half a day or more from the middle one; None: there is none."""
        if not self._minutes:
            return None
        counted = sorted(self._minutes)
        left = sum(minute[0] for minute in self._minutes.values()) // 2
        middle = counted[-1]
        for number in counted:
            left -= self._minutes[number][0]
            if left < 0:
                middle = number
                break
        near = [self._minutes[n] for n in counted if abs(n - middle) * _MINUTE_NS < LONGEST_NS // 2]
        start_ns = min(minute[1] for minute in near)
        return start_ns, min(max(minute[2] for minute in near), start_ns + LONGEST_NS)

    def _piece(self, piece: bytes) -> bytes:
        """What of it belongs to the next piece, too."""
        self.is_trace = self.is_trace or _IS_TRACE.search(piece) is not None
        for ts, dur in _TIME.findall(piece):
            start_ns = _micros(ts)
            end_ns = start_ns + (_micros(dur) if dur else 0)
            minute = self._minutes.setdefault(start_ns // _MINUTE_NS, [0, start_ns, end_ns])
            minute[:] = minute[0] + 1, min(minute[1], start_ns), max(minute[2], end_ns)
        if self.base_ns is None and (base := _BASE.search(piece)):
            self.base_ns = int(base[1])
        if self.rank is None and (rank := _RANK.search(piece)):
            self.rank = int(rank[1])
        for number, name, memory in _DEVICE.findall(piece):
            self.devices.setdefault(int(number), (name.decode("utf-8", "replace"), int(memory)))
        self.used.update(int(number) for number in set(_USED.findall(piece)))
        return piece[-OVERLAP_BYTES:]


def _micros(text: bytes) -> int:
    whole, _, part = text.partition(b".")
    return int(whole) * 1000 + int(part[:3].ljust(3, b"0") or b"0")


def _runs(root: Path, found: Sequence[_Found], refused: Refused) -> list[_Run]:
    """See [Note: which files are one run]."""
    runs: dict[str, _Run] = {}
    for one in found:
        folder, _, file = one.name.rpartition("/")
        stem = re.sub(r"(\.pt)?(\.trace)?\.json(\.gz)?$", "", file) or file
        if one.rank is not None:
            run, above = folder or root.resolve().name, folder.rpartition("/")[0]
            workflow = above or run
        else:
            one.rank, run = 0, f"{folder}/{stem}" if folder else stem
            workflow = folder or stem
        if unfit_name((run, workflow, one.host or None, one.device)) is not None:
            refused.add(one.name, NO_NAME)
        else:
            runs.setdefault(run, _Run(run, workflow)).files.append(one)
    return [runs[name] for name in sorted(runs)]


def _recordings(run: _Run, refused: Refused) -> Iterator[Recording]:
    """The run's captures, as they were taken."""
    ranked: dict[int, int] = {}
    group: list[_Found] = []
    for one in sorted(run.files, key=lambda one: (one.start_ns, one.rank or 0)):
        assert one.rank is not None
        if ranked.get(one.rank, 0) > one.start_ns:
            refused.add(one.name, f"a second recording of rank {one.rank} at the same time")
            continue
        ranked[one.rank] = one.end_ns
        if group and not _goes_with(group, one):
            yield _recording(run, group)
            group = []
        group.append(one)
    if group:
        yield _recording(run, group)


def _goes_with(group: Sequence[_Found], one: _Found) -> bool:
    if one.rank in {other.rank for other in group}:
        return False
    return one.start_ns < max(group[0].start_ns + ALIGNED_NS, *(other.end_ns for other in group))


def _recording(run: _Run, group: Sequence[_Found]) -> Recording:
    start_ns = group[0].start_ns
    return Recording(
        run=run.id,
        start_ns=start_ns,
        end_ns=max(one.end_ns for one in group),
        files=[Recorded(one.path, one.name, one.rank or 0, one.sha256, one.size_bytes, one.host) for one in group],
    )


def _imported(run: _Run, recordings: Sequence[Recording]) -> ImportedRun:
    taken = {file.name for recording in recordings for file in recording.files}
    devices: dict[int, ImportedDevice] = {}
    files = [one for one in run.files if one.name in taken]
    for one in sorted(files, key=lambda one: one.start_ns):
        rank = one.rank or 0
        device = devices.setdefault(
            rank,
            ImportedDevice(
                host=one.host,
                uuid=f"{run.id[:150]}/{rank}",
                name=one.device,
                spans=[],
                memory_bytes=one.memory_bytes,
                kind=one.kind.value,
            ),
        )
        device.spans.append([one.start_ns, one.end_ns])
    return ImportedRun(
        id=run.id,
        workflow=run.workflow,
        state=RunState.UNKNOWN.value,
        start_ns=min(one.start_ns for one in files),
        end_ns=max(one.end_ns for one in files),
        devices=[devices[rank] for rank in sorted(devices)],
        reason="traces do not say how the run ended",
    )
