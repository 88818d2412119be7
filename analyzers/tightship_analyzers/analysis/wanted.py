"""What is asked of an analysis."""

from __future__ import annotations

from dataclasses import dataclass

from tightship_analyzers.findings.model import RankRule, RunRule, TraceRule
from tightship_analyzers.rules.catalogue import RANK_RULES, TRACE_RULES, find_rule
from tightship_platform.errors import Invalid, TightshipError


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """What is asked of every file; plain values, fit for another process."""

    rank: int | None = None
    """Only the file of this rank is judged; None: all."""
    step: str | None = None
    """Only this step is judged, see picked_steps.py; None: all whole steps."""
    rules: tuple[str, ...] = ()
    """Ids of the rules that judge; empty: all."""
    all_steps: bool = False
    """Device figures count the last marked step too."""
    untraced_step_ns: int | None = None
    """Mean step while nothing is recorded, where known: savings are in such steps."""
    idle_cores_frac: float | None = None
    """Share of the cores that the run could have that stays idle while it steps, where known: it limits what moves to
    other cores, see [Note: room on other cores] in `findings.moved_work`."""
    gaps: int = 0
    """So many of the longest gaps are kept with what happened meanwhile, for a face that draws them."""

    captures: tuple[str, ...] = ()
    """Recordings of the captures of graphs that the files replay; none: those that lie beside each file, see
    named_traces.py."""

    within: str = ""
    """Folder in which the files lie for this analysis alone, with a slash at its end: their names are given without."""

    assume_proven: bool = False
    """Every rule counts as proven, whatever its track record: for programs that find out whether it is."""

    def __post_init__(self) -> None:
        """Check the values.

        :raises TightshipError: a rule is unknown or judges no traces, or the step takes no time.
        """
        self.trace_rules()
        if self.untraced_step_ns is not None and self.untraced_step_ns <= 0:
            raise Invalid(
                "Untraced step", f"{self.untraced_step_ns} ns", "the mean step without recording, such as 120ms"
            )

    def trace_rules(self) -> tuple[TraceRule, ...]:
        """The rules that judge a trace, in the order of the catalogue."""
        for rule in map(find_rule, self.rules):
            if isinstance(rule, RunRule):
                raise TightshipError(
                    f"Rule {rule.id!r} judges a run's samples, not traces; `tightship findings` shows what it found"
                )
        return tuple(rule for rule in TRACE_RULES if not self.rules or rule.id in self.rules)

    def rank_rules(self) -> tuple[RankRule, ...]:
        """The rules that compare ranks."""
        return tuple(rule for rule in RANK_RULES if not self.rules or rule.id in self.rules)
