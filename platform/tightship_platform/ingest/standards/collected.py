"""What of a body can be stored, by place and instant, and how many values cannot, each with its reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from tightship_platform import validation
from tightship_platform.errors import Invalid, TooLarge
from tightship_platform.ingest.standards.names import figure_of, in_our_unit, is_missing
from tightship_platform.ingest.standards.places import Place, is_slice, place_of
from tightship_platform.ingest.standards.series import MAX_VALUES, Fault, Series


class Outcome(StrEnum):
    """What became of a value."""

    STORED = "stored"
    UNKNOWN = "unknown"
    """No metric of ours, or a histogram, a summary, or what was added since the last report."""
    MISSING = "missing"
    """It says that there is no value."""
    SLICE = "slice"
    """Of a MIG slice, which its labels do not name."""
    DOUBLED = "doubled"
    """Another value of the same metric, device and instant in the same body came first."""
    TOO_OLD = "too_old"
    INVALID = "invalid"
    FORBIDDEN = "forbidden"
    """Of a host of another team's."""


REFUSED = (Outcome.TOO_OLD, Outcome.INVALID, Outcome.FORBIDDEN)
"""What the sender should hear of; the other outcomes are what was asked for."""


@dataclass(kw_only=True)
class Collected:
    """The values of a body."""

    rows: dict[Place, dict[int, dict[str, float | int]]] = field(default_factory=dict)
    """Place → UTC nanoseconds → metric → value in our unit."""
    counts: Counter[Outcome] = field(default_factory=Counter)
    reason: str | None = None
    """What is wrong with the first one that was refused."""

    def refuse(self, outcome: Outcome, count: int, reason: str) -> None:
        """Count values that the sender should hear of."""
        self.counts[outcome] += count
        if count:
            self.reason = self.reason or reason

    @property
    def refused(self) -> int:
        """Values that were refused."""
        return sum(self.counts[outcome] for outcome in REFUSED)


def collect(series: Iterable[Series], now: int) -> Collected:
    """Read the values that we know; those of series that cannot be read are refused.

    :raises TooLarge: more than MAX_VALUES.
    """
    found, seen = Collected(), 0
    for one in series:
        seen += max(one.size, 1)
        if seen > MAX_VALUES:
            raise TooLarge(f"A request of more than {MAX_VALUES} values; send it in parts")
        _add(found, one, now)
    return found


def _add(found: Collected, one: Series, now: int) -> None:
    if one.fault is not None:
        found.refuse(Outcome.INVALID, max(one.size, 1), f"A series {one.name[:100]!r} is of no use: {one.fault}")
        return
    found.counts[Outcome.UNKNOWN] += one.others
    labels = {name.replace(".", "_"): value for name, value in one.labels.items()}
    figure = figure_of(one.name, labels)
    if figure is None:
        found.counts[Outcome.UNKNOWN] += len(one.values)
        return
    if is_slice(labels):
        found.counts[Outcome.SLICE] += len(one.values)
        return
    try:
        place = place_of(labels)
    except (Fault, Invalid) as error:
        found.refuse(Outcome.INVALID, len(one.values), f"A series {one.name!r} is of no use: {error}")
        return
    for time_ns, value in one.values:
        if is_missing(value):
            found.counts[Outcome.MISSING] += 1
            continue
        try:
            validation.time_ns(f"Time of {one.name}", time_ns, now)
            ours = in_our_unit(figure, value)
        except Invalid as error:
            found.refuse(Outcome.INVALID, 1, str(error))
            continue
        row = found.rows.setdefault(place, {}).setdefault(time_ns, {})
        if figure.metric in row:
            found.counts[Outcome.DOUBLED] += 1
        else:
            row[figure.metric] = ours
