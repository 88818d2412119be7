"""What is counted of an account: groups, and slices of the period.

[Note: runs that only partly lie in the period] An account says how much of a run's device time went where, not when.
It is taken to be spread evenly over the run's life, in whole nanoseconds by cumulative division: what is before and
after any instant adds up to the whole exactly, so periods and slices of periods always sum. Of runs that
were removed the sums of each day are left, which are spread over the day; as runs they count where they began in the
period. What no run held is known as a sum of each day, too, and is spread over the part of it that was counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

from tightship_platform.queries.goodput import Terms
from tightship_platform.samples.past_accounts import spent_until
from tightship_platform.units import NS_PER_S

SLICES = 60
"""Slices of a period, at most."""
WIDTHS_S = (1, 5, 10, 30, 60, 300, 600, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400, 7 * 86_400, 30 * 86_400)
Counts = defaultdict[str, int]


@dataclass
class Group:
    runs: int = 0
    devices: int | None = 0
    busy_ns: int = 0
    idle_ns: int = 0
    is_measured: bool = False
    waiting_ns: int = 0
    waiting_runs: int = 0
    terms: Terms = field(default_factory=Terms)
    buckets: Counts = field(default_factory=lambda: defaultdict(int))

    def add_activity(self, activity: tuple[int, int]) -> None:
        """Busy and idle time that was measured."""
        self.is_measured = True
        self.busy_ns += activity[0]
        self.idle_ns += activity[1]


@dataclass
class Part:
    """What of something lies in the period."""

    before_ns: int = 0
    """Device time before the period, of all buckets."""
    until_ns: int = 0
    """Device time until its end."""
    buckets: dict[str, int] = field(default_factory=dict)
    """In it."""

    def activity(self, device_ns: int, busy_ns: int, idle_ns: int) -> tuple[int, int]:
        """Busy and idle time in it, evenly spread. Parts add up to the whole, and neither what was busy nor what was
        idle or unmeasured is ever below zero.

        :param device_ns: of the whole, as are the others.
        """
        before = _activity_until(self.before_ns, device_ns, busy_ns, idle_ns)
        until = _activity_until(self.until_ns, device_ns, busy_ns, idle_ns)
        return until[0] - before[0], until[1] - before[1]


@dataclass
class Sums:
    """What is counted so far."""

    since_ns: int
    until_ns: int
    groups: defaultdict[str, Group] = field(default_factory=lambda: defaultdict(Group))
    slices: defaultdict[int, Counts] = field(default_factory=lambda: defaultdict(lambda: defaultdict(int)))
    is_simulated: bool = False

    @cached_property
    def width_ns(self) -> int:
        """Of a slice: one that people know, such that there are at most SLICES of them."""
        least = -(-(self.until_ns - self.since_ns) // SLICES)
        return next((width * NS_PER_S for width in WIDTHS_S if width * NS_PER_S >= least), least)

    def spread(self, group: Group, start_ns: int, end_ns: int, buckets: Mapping[str, int]) -> Part:
        """Spread what was spent from start to end over the period."""
        edges = self._edges(max(start_ns, self.since_ns), min(end_ns, self.until_ns))
        part = Part()
        for bucket, device_ns in buckets.items():
            before = counted = spent_until(device_ns, edges[0], start_ns, end_ns)
            for slice_ns, edge_ns in pairwise(edges):
                until = spent_until(device_ns, edge_ns, start_ns, end_ns)
                self.slices[(slice_ns - self.since_ns) // self.width_ns][bucket] += until - counted
                counted = until
            group.buckets[bucket] += counted - before
            part.buckets[bucket] = counted - before
            part.before_ns, part.until_ns = part.before_ns + before, part.until_ns + counted
        return part

    def _edges(self, first: int, last: int) -> list[int]:
        """first, the borders of slices between, last; an instant is one nanosecond."""
        last = max(last, first + 1)
        border = first - (first - self.since_ns) % self.width_ns + self.width_ns
        return [first, *range(border, last, self.width_ns), last]


def _activity_until(part_ns: int, device_ns: int, busy_ns: int, idle_ns: int) -> tuple[int, int]:
    measured_ns = part_ns * (busy_ns + idle_ns) // device_ns
    busy = measured_ns * busy_ns // (busy_ns + idle_ns) if measured_ns else 0
    return busy, measured_ns - busy
