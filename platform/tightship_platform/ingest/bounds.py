"""What figures of the wire may be, by their names: both ways of ingest look here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from tightship_platform import validation
from tightship_platform.units import NS_PER_S
from tightship_platform.validation import COUNT_MAX, EARLIEST_NS, INT32_MAX, RANK_MAX

MAX_BUCKET_NS = 86_400 * NS_PER_S
"""Longest bucket of step counts."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Least and largest value of a figure that needs no second look."""

    least: float = 0
    most: float | None = COUNT_MAX
    """None: it depends on the time."""
    is_whole: bool = True


TIME = Bounds(least=EARLIEST_NS, most=None)
COUNT = Bounds()
RATIO = Bounds(most=1, is_whole=False)
AMOUNT = Bounds(is_whole=False)
_OF_NAMES = {
    "time_ns": TIME,
    "first_step_ns": TIME,
    "last_step_ns": TIME,
    "width_ns": Bounds(least=1, most=MAX_BUCKET_NS),
    "rank": Bounds(least=-1, most=RANK_MAX),
    "pid": Bounds(least=1, most=INT32_MAX),
    "power_w": AMOUNT,
    "wait_s": AMOUNT,
    "cpu_cores": AMOUNT,
    "temperature_c": Bounds(least=-273.15, is_whole=False),
}


def bounds_of(name: str) -> Bounds:
    """Of the field of this name."""
    return RATIO if name.endswith("_frac") else _OF_NAMES.get(name, COUNT)


def check_of(name: str) -> Callable[[Any], Any]:
    """The check of a sample's column: returns the value, or None where it is missing, or raises `Invalid`."""
    if name == "device":
        return partial(validation.name, "Device uuid")
    if name == "run":
        return partial(validation.key, "Run")
    bounds = bounds_of(name)
    check: Callable[[Any], Any] = partial(validation.number, name, least=bounds.least)
    if bounds is RATIO:
        check = partial(validation.ratio, name)
    elif bounds.is_whole:
        check = partial(validation.count, name, least=int(bounds.least))
    return lambda value: None if value is None else check(value)
