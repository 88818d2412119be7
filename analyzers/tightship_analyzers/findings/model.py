"""The form of a rule, of a finding, and of a saving."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar

from tightship_analyzers.facts.memo import Facts, Needs, NotApplicable
from tightship_analyzers.facts.run.held_idle import RunHistory
from tightship_analyzers.graph.edits import Edits
from tightship_analyzers.ranks.compared_ranks import ComparedRanks
from tightship_analyzers.trace.intervals import Intervals
from tightship_platform.results.evidence import Evidence
from tightship_platform.vocabulary import Method, SavingUnit

__all__ = [
    "AnyRule",
    "Failed",
    "Finding",
    "Judgement",
    "NotApplicable",
    "RankRule",
    "Rule",
    "RunRule",
    "Saving",
    "Scope",
    "TraceRule",
]

NOISE_FRAC = 0.01
"""Share of the mean step, or of the recording, below which a finding is not shown: steps of one job differ by more."""


class Scope(StrEnum):
    """What a rule judges."""

    TRACE = "trace"
    """One rank's trace; needs are classes under `facts/`; savings are in ns/step, without steps in ns/recording."""
    RANKS = "ranks"
    """The traces of several ranks, compared; savings are in ns/step."""
    SAMPLES = "samples"
    """A run's samples and steps over its life; savings are in ns of device time."""

    @property
    def unit(self) -> SavingUnit:
        """Unit of the savings; of a trace without steps see `findings.claim.unit_of`."""
        return SavingUnit.DEVICE_TIME if self is Scope.SAMPLES else SavingUnit.STEP


@dataclass(frozen=True, kw_only=True, slots=True)
class Saving:
    """What acting on a finding would give back. `low <= value <= high`, integers in the scope's unit."""

    value: int
    low: int
    high: int
    method: Method = Method.BOUND

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.value <= self.high:
            raise ValueError(f"saving out of order: 0 <= {self.low} <= {self.value} <= {self.high}")

    @classmethod
    def per_step(cls, steps: int, *, value_ns: int, low_ns: int, high_ns: int) -> Saving:
        """From totals over `steps` steps to the mean step (of a recording, 1: the totals); low and high are brought in
        order around the value."""
        value = value_ns // steps
        low, high = max(0, min(low_ns // steps, value)), max(high_ns // steps, value)
        return cls(value=value, low=low, high=high)


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """A rule's judgement."""

    rule: str
    title: str
    """One sentence in plain words, with the figures of this case."""
    place: str
    """`file.py:12 (function)`, operator or device; empty when unknown."""
    fix: str
    """The concrete change."""
    saving: Saving
    unit: SavingUnit
    share_frac: float
    """The saving as a share of the unit: mean step, recording, or the run's device time."""
    evidence: list[Evidence] = field(default_factory=list)
    claims: Intervals = field(default_factory=Intervals.none)
    """The time that would go, absolute ns; of a `bound` its measure is the saving's value times the steps (once
    for a recording)."""
    rank: int | None = None
    """The rank that it is about, of several that are compared; None where one trace was judged."""
    without: Edits | None = None
    """The program without the defect. Where the trace's dependency graph reproduces the measured steps, it is run again
    with these edits and gives the value of the saving (`simulated`); the rule's low and high keep their proportion to
    its value. None: the saving stays as the rule gives it."""
    is_hidden: bool = False
    """Device work that a slow host hides: alone it saves next to nothing, with a faster host up to its high end."""
    most_frac: float = 1.0
    """Share of a step that acting on it gives back at most, whatever a step takes without recording."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A rule broke on this input: a defect of ours, shown as a warning; the other rules are not affected."""

    reason: str


Judgement = Iterable[Finding] | NotApplicable


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """What the catalogue lists of every rule; each form below adds the function that judges."""

    scope: ClassVar[Scope]

    id: str
    title: str
    """The bad pattern in plain words."""
    fix: str
    """What to do, in general."""
    page: str
    """The module's docstring: its public page."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceRule(Rule):
    """Judges one rank's trace."""

    scope: ClassVar[Scope] = Scope.TRACE

    needs: Needs
    """Facts without which it says "not applicable"."""
    judge: Callable[[Facts], Judgement]
    signs: re.Pattern[str] | None = None
    """A trace without a name that it matches holds nothing for this rule: it is clean, and no need is derived."""
    signs_in_frames: bool = False
    """Python frames may show the sign too, not only operators, annotations, runtime calls and device events."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankRule(Rule):
    """Compares the traces of several ranks."""

    scope: ClassVar[Scope] = Scope.RANKS
    needs: ClassVar[tuple[type[ComparedRanks]]] = (ComparedRanks,)

    judge: Callable[[ComparedRanks], Judgement]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRule(Rule):
    """Judges a run's samples and steps over its life."""

    scope: ClassVar[Scope] = Scope.SAMPLES
    needs: ClassVar[tuple[type[RunHistory]]] = (RunHistory,)

    judge: Callable[[RunHistory], Judgement]


AnyRule = TraceRule | RankRule | RunRule
