"""The saving between two series of steps, with an interval, by a circular block bootstrap. Pure functions.

[Note: blocks of steps] Steps are not independent: a slow one is followed by slow ones. Resampling single steps would
give intervals that are too narrow. So whole blocks of neighbours are drawn (Künsch 1989), with the ends of the series
joined so that every period is drawn equally often (Politis and Romano 1992). A period is what the step counter stores:
the steps that one rank ended within ten seconds, and the time that they took.

- Estimate: 1 - (time per step after) / (time per step before), each the sum of its periods' time by the sum of their
  steps, so that a pause every thousandth step counts with what it costs.
- Block length: the choice of Politis and White (2004), as corrected by Patton, Politis and White (2009), for the
  circular bootstrap, on what each period took beyond its steps' mean; at least the cube root of the number of periods,
  at most a quarter of it.
- Interval: the percentile interval of RESAMPLES resamples, its two arms widened by t·√(k/(k-1))/z, where k is the
  smaller number of blocks of the two series, t the quantile of Student's distribution with k-1 degrees of freedom and z
  that of the normal one: percentile intervals of few draws are too narrow (Hesterberg 2015).

The numbers drawn are the same each time, so the answer is, too.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import NormalDist
from typing import NamedTuple

LEVEL = 0.95
"""Of the interval, two-sided."""
RESAMPLES = 2000
MIN_PERIODS = 8
"""Fewer tell nothing of how steps vary."""
MAX_PERIODS = 600
"""Of more, neighbours are taken together."""
MIN_BLOCKS = 4
_SEED = 20_251


class Period(NamedTuple):
    """Consecutive steps of one rank, and the time that they took in ns."""

    time_ns: int
    steps: int


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A saving as a share of the time per step before; negative: it takes longer."""

    value: float
    low: float
    high: float
    blocks: tuple[int, int]
    """Length of a block before and after, in periods."""


def saving(before: Sequence[Period], after: Sequence[Period]) -> Interval:
    """What a step takes less after than before; see [Note: blocks of steps].

    :raises ValueError: a series of fewer than MIN_PERIODS, or without time or steps.
    """
    if min(len(before), len(after)) < MIN_PERIODS:
        raise ValueError(f"{MIN_PERIODS} periods or more of each, not {len(before)} and {len(after)}")
    series = [_joined(before), _joined(after)]
    lengths = [block_length(one) for one in series]
    draw = random.Random(_SEED)  # noqa: S311  # no secret: the same numbers each time are the purpose
    drawn = [_resampled(one, length, draw) for one, length in zip(series, lengths, strict=True)]
    value = 1 - time_per_step(series[1]) / time_per_step(series[0])
    savings = sorted(1 - late / early for early, late in zip(*drawn, strict=True))
    low, high = (_quantile(savings, tail) for tail in ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    wider = _widening(min(len(one) // length for one, length in zip(series, lengths, strict=True)))
    return Interval(
        value=value,
        low=value - wider * max(value - low, 0.0),
        high=value + wider * max(high - value, 0.0),
        blocks=(lengths[0], lengths[1]),
    )


def time_per_step(periods: Sequence[Period]) -> float:
    """Mean time of a step in ns."""
    return sum(period.time_ns for period in periods) / sum(period.steps for period in periods)


def block_length(periods: Sequence[Period]) -> int:
    """How many neighbouring periods are drawn together; see [Note: blocks of steps]."""
    count, mean = len(periods), time_per_step(periods)
    beyond = [period.time_ns - mean * period.steps for period in periods]
    chosen = max(_politis_white(beyond), count ** (1 / 3))
    return int(max(1, min(math.ceil(chosen - 1e-9), count // MIN_BLOCKS)))


def _politis_white(values: Sequence[float]) -> float:
    """The length of a block for the circular bootstrap of a mean; its names are those of the paper, section 3.2."""
    n = len(values)
    centre = sum(values) / n
    x = [value - centre for value in values]
    k_n = max(5, math.ceil(math.sqrt(math.log10(n))))
    m_max = min(math.ceil(math.sqrt(n)) + k_n, n - 1)

    def r(lag: int) -> float:
        return sum(one * other for one, other in zip(x, x[lag:], strict=False)) / n

    variance = r(0)
    if variance <= 0:
        return 1.0
    last = min(2 * m_max, n - 1)
    rho = [r(lag) / variance for lag in range(last + 1)]
    bound = 2 * math.sqrt(math.log10(n) / n)
    large = [lag for lag in range(1, m_max + 1) if abs(rho[lag]) > bound]
    quiet = (m for m in range(m_max) if all(abs(one) < bound for one in rho[m + 1 : min(m + k_n, m_max) + 1]))
    m_hat = max(1, next(quiet, max(large, default=1)))
    big_m = min(2 * m_hat, last)
    window = [1.0 if lag <= big_m / 2 else 2 * (1 - lag / big_m) for lag in range(big_m + 1)]
    g = 2 * sum(window[lag] * lag * rho[lag] for lag in range(1, big_m + 1))
    spectrum = 1 + 2 * sum(window[lag] * rho[lag] for lag in range(1, big_m + 1))
    d = 4 / 3 * spectrum**2
    return 1.0 if d <= 0 else min((2 * g**2 / d * n) ** (1 / 3), 3 * math.sqrt(n), n / 3)


def _joined(periods: Sequence[Period]) -> list[Period]:
    """Neighbours taken together until there are no more than MAX_PERIODS."""
    width = -(-len(periods) // MAX_PERIODS)
    groups = [periods[first : first + width] for first in range(0, len(periods), width)]
    return [Period(sum(one.time_ns for one in group), sum(one.steps for one in group)) for group in groups]


def _resampled(periods: Sequence[Period], length: int, draw: random.Random) -> list[float]:
    """Time per step of each resample: as many whole blocks as make the length of the series, or just more."""
    n = len(periods)
    times, steps = ([0, *accumulate(column)] for column in zip(*periods, *periods[:length], strict=True))
    blocks = [(times[at + length] - times[at], steps[at + length] - steps[at]) for at in range(n)]
    count, found = -(-n // length), []
    for _ in range(RESAMPLES):
        time_ns, made = map(sum, zip(*draw.choices(blocks, k=count), strict=True))
        found.append(time_ns / made)
    return found


def _quantile(ordered: Sequence[float], share: float) -> float:
    at = share * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])


def _widening(blocks: int) -> float:
    tail = (1 + LEVEL) / 2
    return math.sqrt(blocks / (blocks - 1)) * student_quantile(tail, blocks - 1) / NormalDist().inv_cdf(tail)


def student_quantile(share: float, freedom: int) -> float:
    """Quantile of Student's distribution, for a share above a half, by halving on its closed form (Abramowitz and
    Stegun 26.7.3 and 26.7.4)."""
    low, high = 0.0, 1e4
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _student(middle, freedom) < share else (low, middle)
    return high


def _student(t: float, freedom: int) -> float:
    angle = math.atan(t / math.sqrt(freedom))
    odd = freedom % 2
    term, total = (math.cos(angle), 0.0) if odd else (1.0, 0.0)
    for k in range(1 + odd, freedom, 2):
        total += term
        term *= math.cos(angle) ** 2 * k / (k + 1)
    within = 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total
    return (1 + within) / 2
