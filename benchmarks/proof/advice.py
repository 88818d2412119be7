"""What the installed analyzers say about the recording of a case, as `tightship analyze` would."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cases import Case

from tightship_analyzers.analysis.analyze_rank import analyze_rank
from tightship_analyzers.analysis.join_ranks import join_ranks
from tightship_analyzers.analysis.rank_part import RankPart
from tightship_analyzers.analysis.wanted import Wanted
from tightship_platform.results.analysis.finding import TraceFinding
from tightship_platform.results.analysis.rank import is_stretched
from tightship_platform.results.evidence import Change
from tightship_platform.vocabulary import Method


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The saving of one finding; shares are of the step as it is without recording."""

    rule: str
    where: str
    low_frac: float
    value_frac: float
    high_frac: float
    method: str

    @property
    def is_bound(self) -> bool:
        """The saving is no more than an estimate between two limits."""
        return self.method == Method.BOUND


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What was said."""

    predicted: Prediction | None
    """The largest finding of the case's rule; None: it found nothing."""
    as_asked: bool
    """That finding asks for the edit that the diff is."""
    not_judged: str | None
    """Why the rule did not apply; None: it did."""
    certain: list[Prediction] = field(default_factory=list)
    """All findings, of whatever rule, whose saving is certain: with a low end above zero."""


def advice_on(case: Case, traces: Sequence[tuple[Path, Path]], untraced_step_ns: int, idle_cores_frac: float) -> Advice:
    """Analyze the recordings as the platform does: the second of a rank where the first stretched its steps.

    :param traces: of each rank, its recording with stacks and shapes, and the one without.
    :param untraced_step_ns: mean step of the same run while nothing was recorded.
    :param idle_cores_frac: share of the cores that the same run left idle meanwhile, as a platform's samples show it.
    :raises TightshipError: no trace can be read.
    """
    wanted = Wanted(untraced_step_ns=untraced_step_ns, idle_cores_frac=idle_cores_frac, assume_proven=True)
    result = join_ranks([_of_rank(first, second, wanted) for first, second in traces], wanted)
    lengths = [length.mean for rank in result.ranks if (length := rank.summary.step_ns)]
    # Where no step of the recording was longer than those before it, savings are in recorded steps.
    step_ns = min(max(lengths, default=untraced_step_ns), untraced_step_ns)
    predictions = [(one, _prediction(one, step_ns)) for one in result.findings]
    own = [(one, found) for one, found in predictions if found is not None and one.rule == case.rule]
    finding, predicted = max(own, key=lambda pair: pair[1].value_frac, default=(None, None))
    return Advice(
        predicted=predicted,
        as_asked=finding is not None and _asks(finding, case.asks),
        not_judged=result.not_judged.get(case.rule or ""),
        certain=[found for _, found in predictions if found is not None and found.low_frac > 0],
    )


def _of_rank(first: Path, second: Path, wanted: Wanted) -> RankPart:
    part = analyze_rank(str(first), wanted)
    length = part.analysis.summary.step_ns
    if length is None or not is_stretched(length.mean, wanted.untraced_step_ns) or not second.is_file():
        return part
    return analyze_rank(str(first), wanted, second_pass=str(second))


def _prediction(finding: TraceFinding, step_ns: int) -> Prediction | None:
    saving = finding.saving
    if saving.value is None or saving.low is None or saving.high is None or saving.method is None:
        return None
    low, value, high = (ns / step_ns for ns in (saving.low, saving.value, saving.high))
    return Prediction(
        rule=finding.rule, where=finding.where, low_frac=low, value_frac=value, high_frac=high, method=saving.method
    )


def _asks(finding: TraceFinding, code: str) -> bool:
    changed = [one.after for one in finding.evidence if isinstance(one, Change)]
    return any(code in text for text in (finding.fix, *changed))
