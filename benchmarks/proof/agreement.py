"""Do predicted and measured savings agree? Intervals, their coverage, bias, and calibration without the pair itself.

All savings are shares of the step.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from advice import Prediction

COVERAGE = 0.90
"""Of the interval of a measured median."""
SILENT_FRAC = 0.05
"""A rule that says nothing says that there is no more than this to save: no rule's threshold for a CPU is higher."""
NOTABLE_FRAC = 0.10
"""A saving that must not be missed."""
MIN_OTHERS = 3
"""Fewer other pairs of a rule than this do not calibrate its interval."""


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A saving with its limits."""

    low: float
    value: float
    high: float

    @property
    def width(self) -> float:
        """Distance of the limits."""
        return self.high - self.low

    def overlaps(self, other: Interval) -> bool:
        """Have they anything in common?"""
        return self.low <= other.high and other.low <= self.high


def median_interval(values: Sequence[float]) -> Interval:
    """The median and the order statistics around it that hold it with a probability of COVERAGE or more.

    Of n values the k-th smallest and the k-th largest hold the median with 1 - 2 * P(B <= k - 1) for a binomial B of n
    trials with 1/2 (David & Nagaraja, Order Statistics, 7.1): for 6 to 7 values the extremes, for 8 those but one.
    """
    ordered, n = sorted(values), len(values)
    chosen = 0
    while 2 * sum(math.comb(n, i) for i in range(chosen + 2)) / 2**n <= 1 - COVERAGE and 2 * (chosen + 1) < n - 1:
        chosen += 1
    return Interval(low=ordered[chosen], value=statistics.median(ordered), high=ordered[n - 1 - chosen])


@dataclass(frozen=True, kw_only=True)
class Row:
    """One case: what was predicted, and what was measured."""

    job: str
    rule: str | None
    is_control: bool = False
    step_ns: int
    """Median of the runs as the job is; of the recording's run where there are none."""
    fixed_ns: int | None = None
    """Median of the runs with the fix; None: there is none."""
    cpu_ns: int | None = None
    """Processor time per step, as `step_ns`."""
    fixed_cpu_ns: int | None = None
    measured: Interval | None = None
    """The saving; None: there is nothing to measure."""
    predicted: Prediction | None = None
    as_asked: bool = False
    not_judged: str | None = None
    certain: list[Prediction] = field(default_factory=list)
    failed: str | None = None
    """Why there are no figures."""

    @property
    def raw(self) -> Interval:
        """What the report says; what a silent rule says is that there is next to nothing."""
        if self.predicted is None:
            return Interval(low=0.0, value=0.0, high=SILENT_FRAC)
        return Interval(low=self.predicted.low_frac, value=self.predicted.value_frac, high=self.predicted.high_frac)


def calibrated(row: Row, rows: Sequence[Row]) -> Interval | None:
    """The prediction with limits from the other pairs of its rule: the value plus their least and largest residual.

    Of n residuals the extremes hold the next one with a probability of (n - 1) / (n + 1) (split conformal prediction,
    Vovk et al. 2005). None where the rule found nothing, or has fewer than MIN_OTHERS other pairs.
    """
    if row.predicted is None:
        return None
    residuals = [
        other.measured.value - other.predicted.value_frac
        for other in rows
        if other is not row and other.rule == row.rule and other.predicted is not None and other.measured is not None
    ]
    if len(residuals) < MIN_OTHERS:
        return None
    value = row.predicted.value_frac
    return Interval(low=value + min(residuals), value=value, high=value + max(residuals))


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """All pairs and controls together; shares are of 1, None: there is nothing to say."""

    pairs: int
    found: int
    bounds: int
    """Pairs whose finding is a bound; they are left out of error and width."""
    overlap_frac: float | None
    """Pairs whose predicted and measured intervals overlap."""
    calibrated_overlap_frac: float | None
    """The same of the calibrated intervals, where there are any."""
    median_error: float | None
    """Distance of predicted and measured value, in shares of the step."""
    median_width: float | None
    notable: int
    """Pairs that measure NOTABLE_FRAC or more."""
    notable_found: int
    notable_certain: int
    """Of those found, how many with a low end above zero."""
    harmful: list[str]
    """Jobs that the fix of a finding with a low end above zero made slower."""
    controls: int
    alarmed: dict[str, list[str]]
    """Control → rules of its findings with a low end above zero."""
    bias: dict[str, tuple[int, float]]
    """Rule → pairs found, mean of predicted less measured."""

    def as_json(self) -> dict[str, Any]:
        """For a file."""
        return asdict(self)


def agreement(rows: Sequence[Row]) -> Agreement:
    """Sum up."""
    pairs = [row for row in rows if not row.is_control and row.measured is not None]
    controls = [row for row in rows if row.is_control and row.failed is None]
    found = [row for row in pairs if row.predicted is not None]
    exact = [row for row in found if row.predicted is not None and not row.predicted.is_bound]
    narrowed = [(row, interval) for row in found if (interval := calibrated(row, pairs)) is not None]
    notable = [row for row in pairs if _measured(row).value >= NOTABLE_FRAC]
    by_rule: dict[str, list[float]] = {}
    for row in found:
        by_rule.setdefault(row.rule or "", []).append(row.raw.value - _measured(row).value)
    fixable = [row for row in rows if row.measured is not None]
    return Agreement(
        pairs=len(pairs),
        found=len(found),
        bounds=len(found) - len(exact),
        overlap_frac=_share(row.raw.overlaps(_measured(row)) for row in pairs),
        calibrated_overlap_frac=_share(interval.overlaps(_measured(row)) for row, interval in narrowed),
        median_error=_median(abs(row.raw.value - _measured(row).value) for row in exact),
        median_width=_median(row.raw.width for row in exact),
        notable=len(notable),
        notable_found=sum(row.predicted is not None for row in notable),
        notable_certain=sum(row.predicted is not None and row.predicted.low_frac > 0 for row in notable),
        harmful=[row.job for row in fixable if row.predicted and row.raw.low > 0 and _measured(row).value < 0],
        controls=len(controls),
        alarmed={row.job: sorted({one.rule for one in row.certain}) for row in controls if row.certain},
        bias={rule: (len(errors), statistics.fmean(errors)) for rule, errors in sorted(by_rule.items())},
    )


def outcomes(rows: Sequence[Row]) -> dict[str, dict[str, bool]]:
    """Rule → job → was its advice right: did it agree with what was measured, and did a control not lose by it?

    Jobs of which the rule said nothing are no cases of its advice.
    """
    known: dict[str, dict[str, bool]] = {}
    for row in rows:
        if row.measured is None or row.predicted is None or row.rule is None:
            continue
        is_right = row.raw.overlaps(row.measured) and not (row.is_control and row.raw.low > 0)
        known.setdefault(row.rule, {})[row.job] = is_right
    return known


def delivered(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Rule → job → where the measured saving lay in the predicted interval: 0 at its low end or below, 1 at its high
    end or above."""
    known: dict[str, dict[str, float]] = {}
    for row in rows:
        if row.measured is None or row.predicted is None or row.rule is None or not row.raw.width:
            continue
        frac = (row.measured.value - row.raw.low) / row.raw.width
        known.setdefault(row.rule, {})[row.job] = min(1.0, max(0.0, frac))
    return known


def _measured(row: Row) -> Interval:
    assert row.measured is not None
    return row.measured


def _share(given: Any) -> float | None:
    values = list(given)
    return sum(values) / len(values) if values else None


def _median(given: Any) -> float | None:
    values = list(given)
    return statistics.median(values) if values else None
