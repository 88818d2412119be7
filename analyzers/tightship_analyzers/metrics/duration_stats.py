"""Count, sum, least, greatest, mean and spread of durations, overall and by group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightship_analyzers.trace.columns import Int64s


@dataclass(frozen=True, slots=True, kw_only=True)
class DurationStats:
    """Statistics of some durations; all but the ratios are exact."""

    count: int
    sum_ns: int
    min_ns: int
    max_ns: int
    std_ns: float
    """Standard deviation of the sample (n - 1 in the denominator); 0 where there is one duration only."""

    @property
    def mean_ns(self) -> float:
        """`sum_ns / count`."""
        return self.sum_ns / self.count if self.count else 0.0

    @classmethod
    def of(cls, durations_ns: Int64s) -> DurationStats:
        """Of all durations; zeros where there are none."""
        if not len(durations_ns):
            return cls(count=0, sum_ns=0, min_ns=0, max_ns=0, std_ns=0.0)
        return next(iter(grouped(durations_ns, np.zeros(len(durations_ns), dtype=np.int64)).values()))


def grouped(durations_ns: Int64s, groups: NDArray[Any]) -> dict[int, DurationStats]:
    """Statistics of each group; `groups` holds the group number of each duration."""
    if not len(durations_ns):
        return {}
    order = np.argsort(groups, kind="stable")
    values, numbers = durations_ns[order], groups[order]
    first = np.append(0, np.flatnonzero(np.diff(numbers)) + 1)
    counts = np.diff(np.append(first, len(values)))
    sums, least, most = (operation.reduceat(values, first) for operation in (np.add, np.minimum, np.maximum))
    # Deviations from the mean, not squares of the durations: those are beyond int64 and lose digits as floats.
    deviations = values - np.repeat(sums / counts, counts)
    squares = np.add.reduceat(deviations * deviations, first)
    deviation = np.sqrt(squares / np.maximum(counts - 1, 1))
    rows = zip(
        numbers[first].tolist(), counts.tolist(), sums.tolist(), least.tolist(), most.tolist(), deviation.tolist(),
        strict=True,
    )  # fmt: skip
    return {
        group: DurationStats(count=count, sum_ns=total, min_ns=low, max_ns=high, std_ns=spread if count > 1 else 0.0)
        for group, count, total, low, high, spread in rows
    }
