"""Goodput of runs made by hand: three ratios, each known only where all of its terms are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tightship_platform.queries.goodput import Terms, goodput
from tightship_platform.results.fleet import Goodput

# Of 100 device-hours runs held 80; 60 of these were steps whose work was kept, whose FLOPs need 15 at peak rates.
KNOWN = Terms(held_ns=80, progress_ns=60, rated_ns=60, ideal_ns=15, unallocated_ns=20)


def test_the_product_is_ideal_time_over_capacity() -> None:
    found = goodput(KNOWN)
    assert found == Goodput(scheduling_frac=0.8, runtime_frac=0.75, program_frac=0.25, goodput_frac=pytest.approx(0.15))


@pytest.mark.parametrize(
    ("unknown", "ratio"),
    [
        ({"unallocated_ns": None}, "scheduling_frac"),
        ({"unknown_ns": 1}, "runtime_frac"),
        ({"rated_ns": 59}, "program_frac"),
    ],
)
def test_what_is_not_known_is_null(unknown: dict[str, int | None], ratio: str) -> None:
    found = goodput(replace(KNOWN, **unknown))
    assert found is not None
    assert (getattr(found, ratio), found.goodput_frac) == (None, None)
    others = {"scheduling_frac", "runtime_frac", "program_frac"} - {ratio}
    assert all(getattr(found, other) is not None for other in others)


def test_of_nothing_nothing_is_known() -> None:
    assert goodput(Terms()) is None


def test_work_that_is_unexplained_counts_only_where_steps_were_counted() -> None:
    terms = Terms()
    terms.add("unexplained", 10, progress_ns=10, rated_ns=0)
    assert terms.unknown_ns == 0
    terms.add("unexplained", 7, progress_ns=0, rated_ns=0)
    terms.add("startup", 3, progress_ns=0, rated_ns=0)
    assert (terms.unknown_ns, terms.held_ns, terms.progress_ns) == (7, 20, 10)
