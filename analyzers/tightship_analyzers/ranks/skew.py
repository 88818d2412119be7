"""How unevenly the ranks arrive at their collectives, and what the late ones cost the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tightship_analyzers.ranks.arrivals import CollectiveArrivals
from tightship_analyzers.ranks.clocks import ABSENT, Matched, lower_medians, match
from tightship_analyzers.trace.columns import Int64s
from tightship_analyzers.trace.intervals import Intervals
from tightship_platform.results.analysis.skew import RankComparison, RankSkew, UnevenCollective
from tightship_platform.results.not_applicable import NotApplicable

MOST_OF_IT_FRAC = 0.75
MOST_SHOWN = 20
"""Collectives in the JSON: those with the greatest skew."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ArrivalSkew:
    """What the ranks of one run do to each other."""

    ranks: list[RankSkew]
    """The one that costs most first: by `late_exposed_ns`, then `kept_waiting_ns`."""
    collectives: list[UnevenCollective]
    """All of them, however even, in order of the last arrival."""
    steps: int | None
    """Whole steps that all ranks recorded, which the totals are over; None where a rank's are not known, and the totals
    are over all."""
    left_out: int
    """Collectives of single ranks that have no partner in the other traces."""
    late_at: dict[int, int]
    """rank → the fewest collectives that make up MOST_OF_IT_FRAC of its `late_ns`."""

    def as_record(self) -> RankComparison:
        """The public record, without the collectives that are hardly uneven."""
        return RankComparison(
            collectives=len(self.collectives),
            left_out=self.left_out,
            steps=self.steps,
            ranks=self.ranks,
            worst=sorted(self.collectives, key=lambda row: -row.skew_ns)[:MOST_SHOWN],
        )


def arrival_skew(arrivals: Mapping[int, CollectiveArrivals | NotApplicable]) -> ArrivalSkew | NotApplicable:
    """Compare the ranks; those whose trace holds no collective are left aside.

    :param arrivals: rank → its collectives.
    """
    known = {rank: one for rank, one in arrivals.items() if not isinstance(one, NotApplicable)}
    matched = match(known)
    if isinstance(matched, NotApplicable):
        return matched
    matched, steps, step_of = _within_steps(matched, known)
    start, ranks = matched.start_ns, matched.ranks
    present = start != ABSENT
    last = start.max(axis=1)
    last_column = start.argmax(axis=1)
    first = np.where(present, start, np.iinfo(np.int64).max)
    first_column = first.argmin(axis=1)
    others = start.copy()
    others[np.arange(len(start)), last_column] = ABSENT
    second = others.max(axis=1)
    waited = np.where(present, last[:, None] - start, 0)
    hidden = [known[rank].hidden for rank in ranks]
    offsets = [matched.offset_ns[rank] for rank in ranks]
    exposed = np.column_stack(
        [
            waited[:, column] - _hidden_ns(hidden[column], offsets[column], last - waited[:, column], last)
            for column in range(len(ranks))
        ]
    )
    late_exposed = _late_exposed(hidden, offsets, present, last_column, second, last)
    found, late_at = [], {}
    for column, rank in enumerate(ranks):
        is_last = (last_column == column) & (last > second)
        late_ns = (last - second)[is_last]
        late_at[rank] = _most_of_it(late_ns)
        found.append(
            RankSkew(
                rank=rank,
                collectives=int(present[:, column].sum()),
                last=int(is_last.sum()),
                waited_ns=int(waited[:, column].sum()),
                waited_exposed_ns=int(exposed[:, column].sum()),
                kept_waiting_ns=int(waited[is_last].sum()),
                late_ns=int(late_ns.sum()),
                late_exposed_ns=int(late_exposed[is_last].sum()),
                clock_offset_ns=offsets[column],
                late_by_step_ns=None if steps is None else _by_step(late_ns, step_of[is_last], steps),
            )
        )
    rows = zip(
        matched.keys,
        present.sum(axis=1).tolist(),
        first.min(axis=1).tolist(),
        last.tolist(),
        first_column.tolist(),
        last_column.tolist(),
        strict=True,
    )
    return ArrivalSkew(
        ranks=sorted(found, key=lambda row: (-row.late_exposed_ns, -row.kept_waiting_ns, row.rank)),
        collectives=[
            UnevenCollective(
                name=name,
                group=group or None,
                number=number,
                ranks=count,
                skew_ns=last_ns - first_ns,
                first_ns=first_ns,
                last_ns=last_ns,
                first_rank=ranks[first_of],
                last_rank=ranks[last_of],
            )
            for (name, group, number), count, first_ns, last_ns, first_of, last_of in rows
        ],
        steps=steps,
        left_out=matched.left_out,
        late_at=late_at,
    )


def _by_step(late_ns: Int64s, step_of: Int64s, steps: int) -> list[int]:
    """(steps,) The sum of each step, in whole nanoseconds."""
    sums = np.zeros(steps, dtype=np.int64)
    np.add.at(sums, np.clip(step_of, 0, steps - 1), late_ns)
    return list(sums.tolist())


def _within_steps(matched: Matched, arrivals: Mapping[int, CollectiveArrivals]) -> tuple[Matched, int | None, Int64s]:
    """The collectives launched in whole steps that all ranks recorded, the number of these steps, and for each
    collective its step, from 0; without steps that all recorded everything, None and zeros."""
    nowhere = np.zeros(len(matched.keys), dtype=np.int64)
    bounds = {rank: arrivals[rank].bounds_ns + matched.offset_ns[rank] for rank in matched.ranks}
    if any(len(own) < 2 for own in bounds.values()):
        return matched, None, nowhere
    # Ranks begin and end their steps within one step of each other: a step is common where its middle is.
    since, until = max(int(own[0]) for own in bounds.values()), min(int(own[-1]) for own in bounds.values())
    counted = np.ones(len(matched.keys), dtype=np.bool_)
    counts = []
    step_of = nowhere.copy()
    for column, rank in enumerate(matched.ranks):
        middle = bounds[rank][:-1] + np.diff(bounds[rank]) // 2
        common = (middle >= since) & (middle < until)
        counts.append(int(common.sum()))
        present = matched.start_ns[:, column] != ABSENT
        counted &= np.append(common, False)[matched.step[:, column]] | ~present
        number = np.append(np.cumsum(common) - 1, 0)[matched.step[:, column]]
        step_of = np.maximum(step_of, np.where(present, number, 0))
    if not min(counts) or not counted.any():
        return matched, None, nowhere
    return matched.take(counted), min(counts), step_of[counted]


def _most_of_it(late_ns: Int64s) -> int:
    sums = np.cumsum(np.sort(late_ns)[::-1])
    return int(np.searchsorted(sums, MOST_OF_IT_FRAC * sums[-1])) + 1 if len(sums) else 0


def _hidden_ns(hidden: Intervals, offset_ns: int, start_ns: Int64s, end_ns: Int64s) -> Int64s:
    """How much of [start, end) on the common clock a rank's device computed."""
    return hidden.overlap_ns(start_ns - offset_ns, end_ns - offset_ns)


def _late_exposed(
    hidden: Sequence[Intervals],
    offsets: Sequence[int],
    present: np.ndarray[tuple[int, int], np.dtype[np.bool_]],
    last_column: Int64s,
    second: Int64s,
    last: Int64s,
) -> Int64s:
    """(collectives,) Of the time from the last but one arrival to the last: what the median waiting rank lost."""
    columns = [
        (last - second) - _hidden_ns(hidden[column], offsets[column], second, last) for column in range(len(hidden))
    ]
    lost = np.column_stack(columns)
    waits = present.copy()
    waits[np.arange(len(last)), last_column] = False
    return lower_medians(np.where(waits, lost, np.iinfo(np.int64).max))
