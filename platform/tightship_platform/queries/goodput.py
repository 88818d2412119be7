"""How much of a fleet's device time became progress, as the product of three ratios. docs/account.md defines them.

Each ratio's numerator is the next one's denominator: what was held, what of it were steps whose work was kept, and what
these would take at peak rates. Source: Google Cloud, "Introducing ML Productivity Goodput" (2024).
"""

from __future__ import annotations

from dataclasses import dataclass

from tightship_platform.results.fleet import Goodput
from tightship_platform.vocabulary import Bucket


@dataclass
class Terms:
    """Device-ns of a group of runs."""

    held_ns: int = 0
    progress_ns: int = 0
    """Of steps whose work was kept."""
    unknown_ns: int = 0
    """Of which nobody knows whether it is of such steps."""
    rated_ns: int = 0
    """Of `progress_ns`, that of runs whose traces tell their FLOPs."""
    ideal_ns: int = 0
    """What the FLOPs of `rated_ns` need at peak rates, at least."""
    unallocated_ns: int | None = None
    """What no run held; None: not known, or of no such group."""

    def add(self, bucket: str, device_ns: int, *, progress_ns: int, rated_ns: int) -> None:
        """What runs spent in one bucket."""
        self.held_ns += device_ns
        self.progress_ns += progress_ns
        self.rated_ns += rated_ns
        if bucket == Bucket.UNEXPLAINED:
            self.unknown_ns += device_ns - progress_ns

    def include(self, other: Terms) -> None:
        """What another group spent; what no run held is of no group."""
        self.held_ns += other.held_ns
        self.progress_ns += other.progress_ns
        self.unknown_ns += other.unknown_ns
        self.rated_ns += other.rated_ns
        self.ideal_ns += other.ideal_ns


def goodput(terms: Terms) -> Goodput | None:
    """The ratios of which all terms are known; None: there is none."""
    capacity_ns = None if terms.unallocated_ns is None else terms.held_ns + terms.unallocated_ns
    scheduling = _ratio(terms.held_ns, capacity_ns)
    runtime = None if terms.unknown_ns else _ratio(terms.progress_ns, terms.held_ns)
    program = None if terms.rated_ns < terms.progress_ns else _ratio(terms.ideal_ns, terms.progress_ns)
    if scheduling is None and runtime is None and program is None:
        return None
    product = None if scheduling is None or runtime is None or program is None else scheduling * runtime * program
    return Goodput(scheduling_frac=scheduling, runtime_frac=runtime, program_frac=program, goodput_frac=product)


def _ratio(part_ns: int, whole_ns: int | None) -> float | None:
    return part_ns / whole_ns if whole_ns else None
