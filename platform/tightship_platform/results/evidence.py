"""The evidence of a finding: figures, the change to make, the worst gap as a small timeline."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Fact:
    """A sentence with the figure that it rests on."""

    kind: Literal["fact"] = "fact"
    """Which kind of evidence it is."""
    text: str
    """The sentence; backticks mark code."""
    value: float | None = None
    """The figure; null: the sentence has none."""
    unit: str = ""
    """What the figure counts; empty where it has none."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """Code as it is and as it should be."""

    kind: Literal["change"] = "change"
    """Which kind of evidence it is."""
    before: str = ""
    """As it is."""
    after: str = ""
    """As it should be."""


@dataclass(frozen=True, kw_only=True)
class Overlay:
    """The change as variables of the job's environment, which `tightship run --apply` sets."""

    kind: Literal["environment"] = "environment"
    """Which kind of evidence it is."""
    variables: dict[str, str]
    """Name → value."""
    numerics: str = ""
    """What changes of the numbers that the job computes, in one sentence; empty: nothing."""


@dataclass(frozen=True, kw_only=True)
class PlanAdvice:
    """Where an offload plan for the workflow comes from."""

    kind: Literal["plan"] = "plan"
    """Which kind of evidence it is."""
    workflow: str
    """The workflow to plan for."""
    command: str
    """The command that computes the plan, quoted for a shell."""


@dataclass(frozen=True, kw_only=True)
class GapSpan:
    """Something that ran around a gap."""

    name: str
    """Kernel, operator or Python frame."""
    start_ns: int
    """Its start in the trace's time, at the earliest where the drawing begins."""
    end_ns: int
    """Its end in the trace's time, at the latest where the drawing ends."""
    depth: int = 0
    """Its row in the lane, from 0: how deep a call is nested, or which stream a kernel ran in."""


@dataclass(frozen=True, kw_only=True)
class GapLane:
    """What one side did around a gap."""

    lane: str
    """`device`, `host` or `frames`."""
    spans: list[GapSpan] = field(default_factory=list)
    """What ran, by start; at most the 200 longest."""


@dataclass(frozen=True, kw_only=True)
class Gap:
    """A stretch of the device's time, and what device, host thread and Python frames did around it."""

    kind: Literal["gap"] = "gap"
    """Which kind of evidence it is."""
    step: int | None = None
    """Number of the step that it lies in; null: in none."""
    start_ns: int
    """Its start in the trace's time."""
    end_ns: int
    """Its end in the trace's time."""
    cause: str = ""
    """Why the device was idle, such as `input`; empty: unknown."""
    place: str | None = None
    """Where in the program most of it was spent; null: not recorded, or said elsewhere."""
    lanes: list[GapLane] = field(default_factory=list)
    """`device`, `host` and `frames`."""


Evidence = Fact | Change | Overlay | Gap | PlanAdvice
