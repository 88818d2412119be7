"""The bootstrap against series whose true saving is known: how often its interval holds it, and how it errs."""

from __future__ import annotations

import random

import pytest

from tightship_platform.ingest.actions import bootstrap
from tightship_platform.ingest.actions.bootstrap import MIN_PERIODS, Period, block_length, saving, student_quantile
from tightship_platform.units import NS_PER_MS

TRIALS = 120
STEPS = 20


def series(count: int, step_ms: float, rng: random.Random, *, rho: float = 0.0, spread: float = 0.05) -> list[Period]:
    """Periods of STEPS steps whose pace is an autoregression of first order around `step_ms`."""
    pace, found = rng.gauss(0, spread), []
    for _ in range(count):
        found.append(Period(round(STEPS * step_ms * (1 + pace) * NS_PER_MS), STEPS))
        pace = rho * pace + rng.gauss(0, spread * (1 - rho * rho) ** 0.5)
    return found


@pytest.fixture(autouse=True)
def _fewer_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "RESAMPLES", 400)


@pytest.mark.parametrize(
    ("count", "rho", "least"), [(10, 0.0, 0.93), (40, 0.5, 0.91), (40, 0.0, 0.93), (120, 0.7, 0.9)]
)
def test_the_interval_holds_the_true_saving_as_often_as_it_says(count: int, rho: float, least: float) -> None:
    rng = random.Random(count)
    held = 0
    for _ in range(TRIALS):
        found = saving(series(count, 10, rng, rho=rho), series(count, 8, rng, rho=rho))
        held += found.low <= 0.2 <= found.high
    assert held / TRIALS >= least


@pytest.mark.parametrize("rho", [0.0, 0.6])
def test_no_saving_is_seen_where_there_is_none(rho: float) -> None:
    """At most one in twenty; without blocks, single periods of this autocorrelation would say so far more often."""
    rng = random.Random(7)
    seen = 0
    for _ in range(TRIALS):
        seen += saving(series(40, 10, rng, rho=rho), series(40, 10, rng, rho=rho)).low > 0
    assert seen / TRIALS <= 0.05


def test_blocks_are_longer_where_neighbours_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(3)
    independent, alike = ([block_length(series(200, 10, rng, rho=rho)) for _ in range(20)] for rho in (0.0, 0.8))
    assert min(independent) >= 6, "the cube root of 200"
    assert sum(alike) / 20 > 1.5 * sum(independent) / 20
    assert max(alike) <= 50
    pair = series(120, 10, rng, rho=0.8), series(120, 10, rng, rho=0.8)
    with_blocks = saving(*pair)
    monkeypatch.setattr(bootstrap, "block_length", lambda _periods: 1)
    single = saving(*pair)
    assert with_blocks.high - with_blocks.low > 1.4 * (single.high - single.low)


def test_the_saving_is_of_time_per_step_and_the_same_each_time() -> None:
    before = [Period(100, 10)] * 10
    found = saving(before, [Period(45, 5)] * 10)
    assert (found.value, found.low, found.high) == pytest.approx((0.1, 0.1, 0.1))
    rng = random.Random(5)
    pair = series(30, 10, rng), series(50, 9, rng)
    assert saving(*pair) == saving(*pair)
    assert saving(*pair[::-1]).value < 0


def test_a_rare_pause_counts_with_what_it_costs() -> None:
    steady = [Period(1000, 10)] * 40
    pausing = [Period(3000 if index % 10 == 0 else 1000, 10) for index in range(40)]
    found = saving(pausing, steady)
    assert found.value == pytest.approx(1 / 6)
    assert found.low < 1 / 6 < found.high


def test_many_periods_are_taken_together_and_few_refused() -> None:
    rng = random.Random(9)
    found = saving(series(5 * bootstrap.MAX_PERIODS, 10, rng), series(5 * bootstrap.MAX_PERIODS, 9, rng))
    assert found.value == pytest.approx(0.1, abs=0.005)
    with pytest.raises(ValueError, match=f"{MIN_PERIODS} periods or more"):
        saving([Period(1, 1)] * (MIN_PERIODS - 1), [Period(1, 1)] * 50)


@pytest.mark.parametrize(("freedom", "expected"), [(1, 12.706), (3, 3.182), (4, 2.776), (10, 2.228), (100, 1.984)])
def test_students_quantiles_are_those_of_the_tables(freedom: int, expected: float) -> None:
    assert student_quantile(0.975, freedom) == pytest.approx(expected, abs=5e-4)
