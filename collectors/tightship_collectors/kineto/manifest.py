"""What an agent has to remember of a capture: written before every step that could not be known after a restart.

The folder `<spool>/captures/<capture>/` holds `manifest.json` and, once complete, `rank-<n>.json.gz` until the server
has them; of a second pass `second-pass.json` and `rank-<n>.second-pass.json.gz` beside them. It is the agent's own; an
agent that follows one that was killed finds here what that had in hand.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from tightship_collectors.kineto.config import check_params
from tightship_platform import validation
from tightship_platform.errors import Invalid
from tightship_platform.wire import CaptureParams, ExpectedRank, Lease

FOLDER = "captures"
FILE = "manifest.json"
SECOND_FILE = "second-pass.json"


class Phase(StrEnum):
    """What has to be done next for a capture."""

    WAITING = "waiting"
    """Its processes are not known or not ready yet, or another capture of the run comes first."""
    ARMED = "armed"
    """The configs lie ready, or Kineto has them and has not begun."""
    RECORDING = "recording"
    WRITTEN = "written"
    """Every rank's file is complete; what remains is to deliver them."""
    LINGERING = "lingering"
    """Given up, but Kineto still records in a process: its exit guard has to hold on."""
    OVER = "over"


@dataclass(kw_only=True)
class RankTrace:
    """One rank's part of a capture."""

    rank: int
    pid: int
    start_ticks: int
    """Start of the process in clock ticks since boot: tells it from a later one with the same id."""
    handed_ns: int | None = None
    """When the config of the present try was handed out."""
    start_ns: int | None = None
    """When Kineto was asked to start."""
    complete: bool = False
    """The trace file of the present try is complete and checked, or none will come any more."""
    complete_ns: int = 0
    """When that was noticed."""
    released: bool = False
    """Its exit guard knows that nothing is recorded any more."""
    bytes: int | None = None
    """Size of the packed file; set when it lies in the capture's folder."""
    sha256: str | None = None
    stored: bool = False
    """The server has it."""


@dataclass(kw_only=True)
class Manifest:
    """A capture in this agent's hands."""

    capture: str
    run: str
    run_dir: str
    uid: int
    params: CaptureParams
    attempt: int
    """Which lease of the capture this is, as the server counts."""
    phase: Phase = Phase.WAITING
    since_ns: int = 0
    """When the present phase began."""
    tries: int = 0
    """How often its processes were armed under this lease; every try writes its own files."""
    reason: str | None = None
    """Why it was given up."""
    ranks: list[RankTrace] = field(default_factory=list)
    is_second: bool = False
    """It is the second pass of its capture: a recording of the same processes, with less."""
    passes: int = 1
    """Of the first pass: how often each rank is recorded. Decided when its files are complete."""
    passes_reason: str | None = None
    """Why twice, or why once after all."""

    @classmethod
    def of_lease(cls, lease: Lease, *, run_dir: Path, uid: int, now_ns: int) -> Manifest:
        """The manifest of a capture just leased.

        :raises Invalid: the server asks for something that cannot be.
        """
        return cls(
            capture=validation.key("Capture", lease.capture),
            run=validation.key("Run", lease.run),
            run_dir=str(run_dir),
            uid=uid,
            params=check_params(lease.params),
            attempt=lease.attempt,
            since_ns=now_ns,
        )

    def second_pass(self, now_ns: int) -> Manifest:
        """The manifest of this capture's second pass: the same processes, and nothing recorded that need not be."""
        return Manifest(
            capture=self.capture,
            run=self.run,
            run_dir=self.run_dir,
            uid=self.uid,
            params=lightest(self.params),
            attempt=self.attempt,
            since_ns=now_ns,
            ranks=[
                RankTrace(rank=rank.rank, pid=rank.pid, start_ticks=rank.start_ticks, complete=True, released=True)
                for rank in self.ranks
            ],
            is_second=True,
        )

    @property
    def prefix(self) -> str:
        """How the names of all its trace files in the run's folder begin."""
        return f"{self.capture}{'.second' if self.is_second else ''}-"

    @property
    def trace_id(self) -> str:
        """Names the present try; comes back inside the trace."""
        return f"{self.prefix}{self.attempt}-{self.tries}"

    @property
    def asked_path(self) -> Path:
        """The file named in Kineto's config; it inserts the process id."""
        return self.traces_dir / f"{self.trace_id}.json"

    @property
    def traces_dir(self) -> Path:
        """Where the run's processes write."""
        return Path(self.run_dir) / "traces"

    @property
    def expected(self) -> list[ExpectedRank]:
        """The ranks of which traces must arrive."""
        return [ExpectedRank(rank=rank.rank, pid=rank.pid) for rank in self.ranks]

    @property
    def latest_start_ns(self) -> int:
        """When the last rank was to start; 0 where no time was given."""
        return max((rank.start_ns or 0 for rank in self.ranks), default=0)

    @property
    def settled(self) -> bool:
        """No process is held back any more."""
        return all(rank.released for rank in self.ranks)

    def enter(self, phase: Phase, now_ns: int) -> None:
        """Move to another phase."""
        self.phase = phase
        self.since_ns = now_ns


def lightest(params: CaptureParams) -> CaptureParams:
    """The same window without anything that slows the job more than it must."""
    return dataclasses.replace(params, stacks=False, shapes=False, memory=False, passes=1)


def lease_of(answer: Any) -> Lease:
    """A lease as the server sent it.

    :raises Invalid: it does not have the form of `wire.Lease`.
    """
    try:
        params = CaptureParams(**answer["params"])
        return Lease(
            capture=validation.key("Capture", answer["capture"]),
            run=validation.key("Run", answer["run"]),
            params=check_params(params),
            attempt=int(answer["attempt"]),
            lease_expires_ns=int(answer["lease_expires_ns"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Invalid("Lease", answer, f"a capture with its parameters ({error!r})") from error


class ManifestStore:
    """The folder of all captures in hand."""

    def __init__(self, spool_dir: Path) -> None:
        self.root = spool_dir / FOLDER
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)

    def folder(self, capture: str) -> Path:
        """The folder of one capture."""
        return self.root / validation.key("Capture", capture)

    def packed(self, manifest: Manifest, rank: int) -> Path:
        """Where a rank's compressed trace waits for the server."""
        return self.folder(manifest.capture) / f"rank-{rank}{'.second-pass' if manifest.is_second else ''}.json.gz"

    def save(self, manifest: Manifest) -> None:
        """Replace the manifest on disk, atomically.

        :raises OSError: the disk is full or not writable.
        """
        folder = self.folder(manifest.capture)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = folder / (SECOND_FILE if manifest.is_second else FILE)
        draft = file.with_name(file.name + ".new")
        draft.write_text(json.dumps(dataclasses.asdict(manifest)), encoding="utf-8")
        draft.replace(file)

    def load(self) -> tuple[list[Manifest], list[str]]:
        """The manifest of every capture that a predecessor left, and a line for each folder that could not be read and
        was removed."""
        manifests, faults = [], []
        for folder in sorted(self.root.iterdir()):
            try:
                manifests.append(_decode(json.loads((folder / FILE).read_bytes()), folder.name))
            except (OSError, ValueError, TypeError, KeyError, Invalid) as error:
                faults.append(f"{folder}: {error!r}")
                shutil.rmtree(folder, ignore_errors=True)
        return manifests, faults

    def load_second(self, capture: str) -> Manifest | None:
        """The manifest of a capture's second pass; None where none was begun, or it cannot be read."""
        folder = self.folder(capture)
        try:
            second = _decode(json.loads((folder / SECOND_FILE).read_bytes()), folder.name)
        except (OSError, ValueError, TypeError, KeyError, Invalid):
            return None
        return second if second.is_second else None

    def remove(self, capture: str) -> None:
        """Forget a capture and its packed files."""
        shutil.rmtree(self.folder(capture), ignore_errors=True)


def _decode(values: dict[str, Any], name: str) -> Manifest:
    values["params"] = check_params(CaptureParams(**values["params"]))
    values["phase"] = Phase(values["phase"])
    values["ranks"] = [RankTrace(**rank) for rank in values["ranks"]]
    manifest = Manifest(**values)
    if validation.key("Capture", manifest.capture) != name:
        raise ValueError(f"holds the manifest of {manifest.capture}")
    validation.key("Run", manifest.run)
    return manifest
