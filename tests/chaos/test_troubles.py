"""The hundred schedules hold every kind of trouble, and a number means the same schedule for ever."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from troubles import ALL, ALONE, FLEET, draw, is_alone

LEAST = 5


def test_every_kind_of_trouble_is_drawn() -> None:
    drawn = Counter((is_alone(seed), one.part, one.kind) for seed in range(ALL) for one in draw(seed))
    both_ways = Counter(one.offset_s > 0 for seed in range(ALL) for one in draw(seed) if one.kind == "clock")
    of = Counter({(part, kind): number for (alone, part, kind), number in drawn.items() if not alone})
    of.update({(part, kind): number for (alone, part, kind), number in drawn.items() if alone})
    expected = {(part, kind) for parts in (FLEET, ALONE) for part, kinds in parts.items() for kind in kinds}
    assert set(of) == expected
    assert min(of.values()) >= LEAST
    assert min(both_ways.values()) >= LEAST


def test_a_number_means_one_schedule() -> None:
    assert draw(41) == draw(41) != draw(42)
