"""What every importer makes of its source, and the rows that it left out."""

from __future__ import annotations

import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import tzinfo
from pathlib import Path

from tightship_platform import validation
from tightship_platform.errors import Invalid
from tightship_platform.results.imported import ImportedRun, ImportedSamples
from tightship_platform.validation import NAME_MAX
from tightship_platform.vocabulary import FleetFormat

MAX_LISTED = 10_000
"""Refused rows that are listed; all are counted."""
NO_NAME = f"a name of more than {NAME_MAX} characters, or with control characters"
GZIP = b"\x1f\x8b"
"""How a compressed file begins."""
CHUNK_BYTES = 4 * 1024 * 1024
_LEVEL = 6
_GZIP_WINDOW = 31
"""zlib's window of 2^15 bytes, with gzip's head and tail."""
Span = tuple[int, int]
Meter = Callable[[float], None]
"""Gets the share of the source that has been read, 0..1."""


@dataclass(frozen=True)
class RefusedRow:
    """A row that was left out."""

    place: str
    """`file:line`."""
    why: str
    value: str


@dataclass
class Refused:
    """Rows that were left out, by reason."""

    counts: dict[str, int] = field(default_factory=dict)
    listed: list[RefusedRow] = field(default_factory=list)
    is_cut_off: bool = False
    """The source ends in the middle."""

    def add(self, place: str, why: str, value: object = "") -> None:
        """Count a row, and list it."""
        self.counts[why] = self.counts.get(why, 0) + 1
        if len(self.listed) < MAX_LISTED:
            self.listed.append(RefusedRow(place, why, str(value)[:200]))

    @property
    def count(self) -> int:
        """All of them."""
        return sum(self.counts.values())


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a person says beside the path."""

    zone: tzinfo | None = None
    """Of times that name none; None: nobody said, UTC is taken, and that is among the assumptions."""
    meter: Meter = lambda _: None


LOOKED_AT = 0.5
"""Share of an import of traces that is done when all of them were looked at; the rest is to send them."""


@dataclass(frozen=True)
class Recorded:
    """The trace of one rank."""

    path: Path
    name: str
    """Of the file, within the source."""
    rank: int
    sha256: str
    """Of what `packed` makes of it."""
    size_bytes: int
    """Of what `packed` makes of it."""
    host: str = ""


@dataclass(frozen=True, kw_only=True)
class Recording:
    """Traces of a run's ranks over one window."""

    run: str
    """Its id in the source."""
    start_ns: int
    end_ns: int
    files: Sequence[Recorded]


def packed(path: Path) -> Iterator[bytes]:
    """A trace file, compressed (gzip), the same each time."""
    with path.open("rb") as file:
        is_packed = file.read(2) == GZIP
        file.seek(0)
        packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP_WINDOW)
        while chunk := file.read(CHUNK_BYTES):
            if piece := chunk if is_packed else packer.compress(chunk):
                yield piece
        if not is_packed:
            yield packer.flush()


@dataclass(kw_only=True)
class Source:
    """An opened source. `items` is read once; `assumptions` and `rows` are complete after it."""

    format: FleetFormat
    name: str
    """What the fleet is called unless a person says otherwise."""
    items: Iterator[ImportedRun | ImportedSamples]
    refused: Refused
    recordings: Sequence[Recording] = ()
    """Traces of the runs, to be stored after them."""
    assumptions: list[str] = field(default_factory=list)
    names_devices: bool = True
    interval_ns: int | None = None
    length: int | None = None
    """Items, where that is known before they are read: what is left to do then is to store them."""
    rows: int = 0


Open = Callable[[Path, Options], Source]
"""Opens a source. :raises Invalid: it is not of this format."""


def unfit_name(texts: Iterable[str | None]) -> str | None:
    """The first that is to be a name and is none that the server takes; None: all can be."""
    for text in texts:
        try:
            validation.optional_name("Name", text)
        except Invalid:
            return text
    return None


class HeldDevices:
    """When each device is held, to see whether a row would have it held by two runs at once."""

    def __init__(self) -> None:
        self._spans: dict[object, list[Span]] = {}

    def take(self, device: object, start_ns: int, end_ns: int) -> bool:
        """Hold the device from start to end; False: it is held at some time of that, and nothing is changed."""
        spans = self._spans.setdefault(device, [])
        at = bisect_left(spans, (start_ns, end_ns))
        before = spans[at - 1][1] if at else start_ns
        after = spans[at][0] if at < len(spans) else end_ns
        if before > start_ns or after < end_ns:
            return False
        if end_ns > start_ns:
            spans.insert(at, (start_ns, end_ns))
        return True
