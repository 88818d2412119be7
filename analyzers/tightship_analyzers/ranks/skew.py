"""How unevenly the ranks arrive at their collectives, and what the late ones cost the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tightship_analyzers.ranks.arrivals import CollectiveArrivals
from tightship_analyzers.ranks.clocks import ABSENT, Matched, lower_medians, match
from tightship_analyzers.trace.columns import Int64s
from tightship_analyzers.trace.intervals import Intervals
from tightship_platform.results.analysis import skew as results
from tightship_platform.results.not_applicable import NotApplicable

MOST_OF_IT_FRAC = 0.75
MOST_SHOWN = 20
"""Collectives in the JSON: those with the greatest skew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSkew:
    """One rank's part; totals over all collectives, ns of its device unless said otherwise."""

    rank: int
    collectives: int
    """Those it took part in."""
    last: int
    """How often it arrived last, and alone."""
    waited_ns: int
    """It had arrived and others had not."""
    waited_exposed_ns: int
    """Of that, its device computed nothing meanwhile."""
    kept_waiting_ns: int
    """Time that all other ranks waited for this one, the last: device time, summed over them."""
    late_ns: int
    """Time by which collectives would begin sooner, had it arrived with the last but one."""
    late_at: int
    """The fewest collectives that make up MOST_OF_IT_FRAC of that."""
    late_exposed_ns: int
    """Of that, the (lower) median of the waiting ranks computed nothing meanwhile: what its repair alone would give
    back of the run's wall time, at most."""
    offset_ns: int
    """What was added to its times to bring it to the first rank's clock."""
    late_by_step_ns: tuple[int, ...] | None
    """(steps,) `late_ns` of each common step; None where no steps are known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveSkew:
    """The arrivals at one collective."""

    name: str
    group: str
    """Process group; empty where the trace does not record it."""
    number: int
    """Its `Seq`; where not recorded, the ordinal of this kernel."""
    ranks: int
    """How many took part."""
    first_ns: int
    """First arrival, on the clock of the first rank."""
    last_ns: int
    end_ns: int
    """The last rank left it."""
    first_rank: int
    last_rank: int

    @property
    def skew_ns(self) -> int:
        """From the first arrival to the last."""
        return self.last_ns - self.first_ns


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ArrivalSkew:
    """What the ranks of one run do to each other."""

    ranks: tuple[RankSkew, ...]
    """The one that costs most first: by `late_exposed_ns`, then `kept_waiting_ns`."""
    collectives: tuple[CollectiveSkew, ...]
    """In order of the last arrival."""
    steps: int | None
    """Whole steps that all ranks recorded, which the totals are over; None where a rank's are not known, and the totals
    are over all."""
    left_out: int
    """Collectives of single ranks that have no partner in the other traces."""
    late: dict[int, Intervals]
    """rank → when collectives waited for it alone, on the first rank's clock."""

    def as_record(self) -> results.RankComparison:
        """The public record, without the collectives that are hardly uneven."""
        skews = sorted(self.collectives, key=lambda row: -row.skew_ns)
        return results.RankComparison(
            collectives=len(self.collectives),
            left_out=self.left_out,
            steps=self.steps,
            ranks=[
                results.RankSkew(
                    rank=row.rank,
                    collectives=row.collectives,
                    last=row.last,
                    waited_ns=row.waited_ns,
                    waited_exposed_ns=row.waited_exposed_ns,
                    kept_waiting_ns=row.kept_waiting_ns,
                    late_ns=row.late_ns,
                    late_exposed_ns=row.late_exposed_ns,
                    clock_offset_ns=row.offset_ns,
                    late_by_step_ns=None if row.late_by_step_ns is None else list(row.late_by_step_ns),
                )
                for row in self.ranks
            ],
            worst=[
                results.UnevenCollective(
                    name=row.name,
                    group=row.group or None,
                    number=row.number,
                    ranks=row.ranks,
                    skew_ns=row.skew_ns,
                    first_ns=row.first_ns,
                    last_ns=row.last_ns,
                    first_rank=row.first_rank,
                    last_rank=row.last_rank,
                )
                for row in skews[:MOST_SHOWN]
            ],
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
    found = []
    for column, rank in enumerate(ranks):
        is_last = (last_column == column) & (last > second)
        found.append(
            RankSkew(
                rank=rank,
                collectives=int(present[:, column].sum()),
                last=int(is_last.sum()),
                waited_ns=int(waited[:, column].sum()),
                waited_exposed_ns=int(exposed[:, column].sum()),
                kept_waiting_ns=int(waited[is_last].sum()),
                late_ns=int((last - second)[is_last].sum()),
                late_at=_most_of_it((last - second)[is_last]),
                late_exposed_ns=int(late_exposed[is_last].sum()),
                offset_ns=offsets[column],
                late_by_step_ns=None if steps is None else _by_step((last - second)[is_last], step_of[is_last], steps),
            )
        )
    ends = matched.end_ns.max(axis=1)
    rows = zip(
        matched.keys,
        present.sum(axis=1).tolist(),
        first.min(axis=1).tolist(),
        last.tolist(),
        ends.tolist(),
        first_column.tolist(),
        last_column.tolist(),
        strict=True,
    )
    return ArrivalSkew(
        ranks=tuple(sorted(found, key=lambda row: (-row.late_exposed_ns, -row.kept_waiting_ns, row.rank))),
        collectives=tuple(
            CollectiveSkew(
                name=name,
                group=group,
                number=number,
                ranks=count,
                first_ns=first_ns,
                last_ns=last_ns,
                end_ns=end_ns,
                first_rank=ranks[first_of],
                last_rank=ranks[last_of],
            )
            for (name, group, number), count, first_ns, last_ns, end_ns, first_of, last_of in rows
        ),
        steps=steps,
        left_out=matched.left_out,
        late=_late_spans(matched, last_column, second, last),
    )


def _by_step(late_ns: Int64s, step_of: Int64s, steps: int) -> tuple[int, ...]:
    """(steps,) The sum of each step, in whole nanoseconds."""
    sums = np.zeros(steps, dtype=np.int64)
    np.add.at(sums, np.clip(step_of, 0, steps - 1), late_ns)
    return tuple(sums.tolist())


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


def _late_spans(matched: Matched, last_column: Int64s, second: Int64s, last: Int64s) -> dict[int, Intervals]:
    return {
        rank: Intervals.of(second[last_column == column], last[last_column == column])
        for column, rank in enumerate(matched.ranks)
    }
