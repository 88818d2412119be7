"""What an importer sends of a fleet's past, and what it gets for an answer."""

from __future__ import annotations

from dataclasses import dataclass, field

from tightship_platform.vocabulary import DeviceKind


@dataclass(kw_only=True)
class FleetRecord:
    """An import as it begins (`is_done` false), and when it has reached the end of its source."""

    format: str
    assumptions: list[str] = field(default_factory=list)
    """What its figures take for granted, a sentence each."""
    names_devices: bool = True
    """Whether the source says which devices a run held; else they are only counted."""
    interval_ns: int | None = None
    """Time that one sample speaks for; null: as of the live fleet."""
    rows: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    """What is wrong with rows that were left out → how many."""
    is_done: bool = False


@dataclass(kw_only=True)
class ImportedDevice:
    """A device and the times at which an imported run held it."""

    host: str
    """As the source names it; empty: it does not."""
    uuid: str
    name: str
    spans: list[list[int]]
    """[start_ns, end_ns] each."""
    memory_bytes: int | None = None
    kind: str = DeviceKind.GPU.value


@dataclass(kw_only=True)
class ImportedRun:
    """A run of another fleet's past, which has ended."""

    id: str
    """What names it in the source; within its fleet it is one run."""
    workflow: str
    state: str
    start_ns: int
    end_ns: int
    devices: list[ImportedDevice]
    reason: str | None = None
    team: str | None = None
    user: str | None = None
    external_id: str | None = None
    exit_code: int | None = None
    labels: dict[str, str] = field(default_factory=dict)
    eligible_ns: int | None = None
    """From when on its scheduler could have started it; null: not known."""


@dataclass(kw_only=True)
class ImportedSamples:
    """Samples of one device, by column; all lists are of one length."""

    host: str
    uuid: str
    time_ns: list[int]
    util_frac: list[float | None]
    memory_used_bytes: list[int | None]


@dataclass(kw_only=True)
class ImportedPart:
    """A part of an import: what it has of runs goes before samples of their devices."""

    part: str
    """Digest of what is in it."""
    runs: list[ImportedRun] = field(default_factory=list)
    samples: list[ImportedSamples] = field(default_factory=list)


@dataclass(kw_only=True)
class FleetStored:
    """An import may go on."""

    parts: list[str]
    """Those that are stored."""
    trace_max_bytes: int | None = None
    """Largest trace file that the server accepts; null: it does not say."""


@dataclass(kw_only=True)
class PartReceived:
    """A part of an import is stored."""

    rows: int
    """Runs and samples in it."""


@dataclass(kw_only=True)
class ImportedTrace:
    """The recording of one rank, as a file that the importer has."""

    rank: int
    sha256: str
    """Of the file, compressed."""
    host: str = ""
    """As the source names it; empty: it does not."""


@dataclass(kw_only=True)
class ImportedCapture:
    """Recordings of a run's ranks over one window."""

    run: str
    """What names the run in the source; a part before named it, too."""
    start_ns: int
    duration_ns: int
    traces: list[ImportedTrace]


@dataclass(kw_only=True)
class CaptureExpected:
    """A capture of an import awaits its files."""

    capture: str
    """Its id."""
    missing: list[int]
    """Ranks whose file is not stored yet."""
