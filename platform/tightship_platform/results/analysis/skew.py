"""How unevenly the ranks of a run arrive at their collectives, and who waits for whom."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class RankSkew:
    """One rank's part: totals over all shared collectives, ns of its device unless said otherwise."""

    rank: int
    """The rank."""
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
    late_exposed_ns: int
    """Of that, the waiting rank in the middle computed nothing meanwhile."""
    clock_offset_ns: int
    """What was added to its times to bring it to the first rank's clock."""
    late_by_step_ns: list[int] | None
    """(steps,) `late_ns` of each common step; null where no steps are known."""


@dataclass(frozen=True, kw_only=True)
class UnevenCollective:
    """The arrivals at one collective."""

    name: str
    """Its kernel."""
    group: str | None
    """Process group, where the trace records it."""
    number: int
    """Its `Seq`; where not recorded, its ordinal among those of this kernel."""
    ranks: int
    """How many took part."""
    skew_ns: int
    """From the first arrival to the last."""
    first_ns: int
    """First arrival, on the clock of the first rank."""
    last_ns: int
    """Last arrival."""
    first_rank: int
    """The rank that arrived first."""
    last_rank: int
    """The rank that arrived last."""


@dataclass(frozen=True, kw_only=True)
class RankComparison:
    """The ranks of one run compared."""

    collectives: int
    """Shared collectives."""
    left_out: int
    """Collectives without a partner in the other traces."""
    steps: int | None
    """Whole steps that all ranks recorded, which the totals are over; null: the totals are over everything."""
    ranks: list[RankSkew]
    """The one that costs most first."""
    worst: list[UnevenCollective]
    """The greatest skew first; the first 20."""
