"""Times of an import are recognised without keeping each."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from tightship_collectors.importers.seen_times import SeenTimes


@given(st.lists(st.integers(min_value=-50, max_value=50), max_size=80))
def test_each_time_is_new_once(times: list[int]) -> None:
    seen, before = SeenTimes(), set[int]()
    for time_ns in times:
        assert seen.add(time_ns) == (time_ns not in before)
        before.add(time_ns)


def test_regular_times_take_no_memory_of_their_own() -> None:
    seen = SeenTimes()
    minutes = range(0, 60 * 20_000, 60)
    assert all(seen.add(at) for at in minutes)
    for gap in (7, 30, 60):  # the sampling changed, or paused
        start = seen._lasts[-1] + 1000
        assert all(seen.add(at) for at in range(start, start + 100 * gap, gap))
    assert seen.kept <= 7
    assert not any(seen.add(at) for at in random.Random(1).sample(minutes, 500))
    assert seen.add(61) and not seen.add(61)
