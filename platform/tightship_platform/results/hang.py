"""Which ranks a hung job waits for, as `tightship why --json` prints it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class HangKind(StrEnum):
    """What a rank that the others wait for does."""

    NOT_ENTERED = "not entered"
    """Its peers are in a collective that it has not called, and nothing of its own is in flight."""
    QUEUED = "queued"
    """It has called a collective that its peers have completed, and its device does not get on with it."""
    MISMATCHED = "mismatched"
    """It calls something else than its peers where they should call the same."""
    DEADLOCKED = "deadlocked"
    """It and another one wait for each other, each in another operation."""
    INSIDE = "inside"
    """All members are in the same operation, and none gets out."""
    NO_DUMP = "no dump"
    """Its peers wait for it, and nothing of it was recorded."""


@dataclass(frozen=True, kw_only=True)
class HangOperation:
    """A collective, or one side of a transfer between two ranks."""

    name: str
    """Such as `all_reduce`, or `send 0->3` with ranks within the group."""
    group: str
    """Description of the process group, else its name."""
    ranks: list[int]
    """Members of the group, by global rank; empty where the dumps do not say."""
    seq: int
    """Number within the group: of its collectives, or of its transfers."""


@dataclass(frozen=True, kw_only=True)
class HangCulprit:
    """A rank that others wait for and that waits for nobody else."""

    rank: int
    """Global rank."""
    kind: HangKind
    """What it does."""
    operation: HangOperation
    """The operation in which it is missed, or with which it does not get on."""
    pending: int
    """Operations that it has called and not completed."""
    place: str | None
    """Where its program called its last known operation, `file:line function`; null where the dumps hold no stacks."""


@dataclass(frozen=True, kw_only=True)
class HangWait:
    """Ranks that wait in one operation."""

    operation: HangOperation
    """Their first one that is not complete."""
    waiting: list[int]
    """Ranks in it."""
    missing: list[int]
    """Ranks that they wait for: not in it, or behind something else."""
    since_ns: int | None
    """When the last of them called it."""
    direct: bool
    """Among those waited for is one that waits for nobody else."""


@dataclass(frozen=True, kw_only=True)
class HangReport:
    """What the dumps of a job's flight recorders say."""

    ranks: int
    """Ranks of the job, as far as its groups name them."""
    dumps: list[int]
    """Ranks of which there is a dump."""
    verdict: str
    """One sentence: which ranks, and what the others wait in."""
    cause: str
    """What of the cause the dumps show."""
    culprits: list[HangCulprit]
    """In order of rank; empty where nobody waits."""
    waits: list[HangWait]
    """Those that wait for a culprit first."""
