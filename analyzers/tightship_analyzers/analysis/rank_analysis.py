"""Everything about one rank's file, as small as it can be handed from process to process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tightship_analyzers.analysis.judge import Verdict, judge_facts
from tightship_analyzers.analysis.picked_steps import pick_step
from tightship_analyzers.analysis.rank_figures import Figures, rank_figures
from tightship_analyzers.analysis.sources import open_source
from tightship_analyzers.facts.memo import Facts, NotApplicable
from tightship_analyzers.facts.window.steps import Steps
from tightship_analyzers.findings.evidence import Evidence, longest_gaps
from tightship_analyzers.findings.model import Finding, Rule, Scope
from tightship_analyzers.metrics.step_filter import launched_between
from tightship_analyzers.ranks.arrivals import CollectiveArrivals, collective_arrivals
from tightship_analyzers.rules.catalogue import TRACE_RULES, find_rule
from tightship_analyzers.trace.blocks import Progress
from tightship_analyzers.trace.intervals import Intervals
from tightship_analyzers.trace.model import Trace
from tightship_platform.errors import Invalid, TightshipError
from tightship_platform.text import shown


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
    """Mean step while nothing is recorded, where known: savings are told in such steps."""
    gaps: int = 0
    """So many of the longest waits are kept with what happened meanwhile, for a face that draws them."""

    def __post_init__(self) -> None:
        """Checks the values.

        :raises TightshipError: a rule is unknown or judges no traces, or the step takes no time.
        """
        self.chosen_rules()
        if self.untraced_step_ns is not None and self.untraced_step_ns <= 0:
            raise Invalid(
                "Untraced step", f"{self.untraced_step_ns} ns", "the mean step without recording, such as 120ms"
            )

    def chosen_rules(self) -> tuple[Rule, ...]:
        """The rules that judge, in the order of the catalogue."""
        for rule in map(find_rule, self.rules):
            if rule.scope is Scope.SAMPLES:
                raise TightshipError(
                    f"Rule {rule.id!r} judges a run's samples, not traces; `tightship findings` shows what it found"
                )
        return tuple(rule for rule in TRACE_RULES if not self.rules or rule.id in self.rules)


@dataclass(frozen=True, kw_only=True, slots=True)
class FactCost:
    """What one fact cost and who used it."""

    fact: str
    self_ns: int
    """Wall time without that of the facts that it needed itself."""
    used_by: tuple[str, ...]
    """Rules and facts; `(direct)`: the report itself."""
    missing: str | None
    """Why there is none; None where it was derived."""

    def as_dict(self) -> dict[str, Any]:
        """Its form in the JSON."""
        return {"fact": self.fact, "self_ns": self.self_ns, "used_by": list(self.used_by), "missing": self.missing}


@dataclass(frozen=True, kw_only=True)
class RankAnalysis:
    """One file read and judged."""

    source: str
    rank: int | None
    """As the file names it."""
    verdict: Verdict
    figures: Figures
    costs: Sequence[FactCost]
    """By cost, the greatest first."""
    arrivals: CollectiveArrivals | NotApplicable
    gaps: Sequence[Evidence]
    """The longest waits of the device, see `evidence.timeline`."""


def analyze_file(
    source: str, wanted: Wanted, progress: Progress | None = None, processes: int = 1
) -> RankAnalysis | int | None:
    """Read and judge one file; the rank that it names where that is not the one wanted.

    :param processes: that may read it, see `trace.open`.
    :raises TightshipError: it cannot be read, holds no events, or has not the step that is wanted.
    """
    trace = open_source(source, progress, processes)
    if wanted.rank is not None and trace.rank != wanted.rank:
        return trace.rank
    if not trace.events:
        raise TightshipError(f"{shown(source, 200)} holds no event with a duration; record the job while it trains")
    facts = Facts(trace)
    if wanted.step is not None:
        pick_step(facts, wanted.step)
    verdict = judge_facts(facts, untraced_step_ns=wanted.untraced_step_ns, rules=wanted.chosen_rules())
    steps = facts.find(Steps)
    figures = rank_figures(facts, all_steps=wanted.all_steps, only_steps=wanted.step is not None)
    return RankAnalysis(
        source=source,
        rank=trace.rank,
        verdict=replace(verdict, findings=[_told(finding) for finding in verdict.findings]),
        figures=figures,
        costs=_costs(facts),
        arrivals=collective_arrivals(
            _picked(facts) if wanted.step is not None else trace, None if steps is None else steps.bounds_ns
        ),
        gaps=longest_gaps(facts, wanted.gaps),
    )


def _told(finding: Finding) -> Finding:
    """Without the intervals that only the judgement itself needs: of many ranks they would be most of the memory."""
    return replace(finding, claims=Intervals.none(), without=None)


def _picked(facts: Facts) -> Trace:
    steps = facts[Steps]
    return launched_between(facts.trace, steps.start_ns, steps.end_ns)


def _costs(facts: Facts) -> list[FactCost]:
    known = facts.known()
    rows = [
        FactCost(
            fact=name,
            self_ns=cost.self_ns,
            used_by=tuple(cost.used_by),
            missing=found.reason if isinstance(found := known.get(name), NotApplicable) else None,
        )
        for name, cost in facts.costs.items()
    ]
    return sorted(rows, key=lambda row: -row.self_ns)
