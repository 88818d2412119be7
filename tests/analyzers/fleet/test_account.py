"""The account of a run: exact in every case, and right in those that can be done by hand."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightship_analyzers.fleet.account import Held, Phases, account, apportion, stepping_ns
from tightship_platform.vocabulary import Bucket

HOUR = 3600 * 10**9

weights = st.dictionaries(st.sampled_from(list(Bucket)), st.integers(0, 10**18), min_size=1).filter(
    lambda found: sum(found.values()) > 0
)


@given(total=st.integers(0, 10**20), shares=weights)
def test_apportioning_is_exact_and_fair(total: int, shares: dict[Bucket, int]) -> None:
    parts = apportion(total, shares)
    whole = sum(shares.values())
    assert sum(parts.values()) == total
    for bucket, weight in shares.items():
        assert abs(parts[bucket] - Fraction(total * weight, whole)) < 1


@pytest.mark.parametrize("shares", [{}, {Bucket.INPUT: 0}, {Bucket.INPUT: 2, Bucket.HOST: -1}])
def test_weights_that_make_no_sense(shares: dict[Bucket, int]) -> None:
    with pytest.raises(ValueError, match="weights must be"):
        apportion(5, shares)


instants = st.integers(0, 1000)


@st.composite
def held_devices(draw: st.DrawFn) -> Held:
    start, end = draw(instants), draw(instants)
    cuts = sorted(draw(st.lists(instants, max_size=8, unique=True)))
    idle = tuple(zip(cuts[::2], cuts[1::2], strict=False))
    return Held(device=1, start_ns=start, end_ns=end, idle=idle, active_ns=draw(st.none() | instants))


@given(
    held=st.lists(held_devices(), max_size=5),
    phases=st.builds(
        Phases,
        first_step_ns=st.none() | instants,
        last_step_ns=st.none() | instants,
        ended=st.booleans(),
    ),
    traced=st.dictionaries(st.sampled_from([str(bucket) for bucket in Bucket]), st.integers(0, 10**12), max_size=5),
)
def test_the_buckets_sum_to_the_device_time(held: list[Held], phases: Phases, traced: dict[str, int]) -> None:
    buckets = account(held, phases, traced)
    assert sum(buckets.values()) == sum(one.device_ns for one in held)
    assert all(ns > 0 for ns in buckets.values())


STEPPED = Phases(first_step_ns=2 * HOUR, last_step_ns=9 * HOUR, ended=True)
ONE = Held(device=1, start_ns=HOUR, end_ns=10 * HOUR)


def test_phases_and_traces() -> None:
    assert account([ONE], STEPPED, {"productive": 5, "input": 2}) == {
        Bucket.STARTUP: HOUR,
        Bucket.SHUTDOWN: HOUR,
        Bucket.PRODUCTIVE: 5 * HOUR,
        Bucket.INPUT: 2 * HOUR,
    }


def test_without_a_trace_stepping_is_unexplained() -> None:
    assert account([ONE], STEPPED, {})[Bucket.UNEXPLAINED] == 7 * HOUR


def test_a_run_without_steps_is_split_as_its_recordings_say() -> None:
    idle = Held(device=1, start_ns=0, end_ns=10 * HOUR, idle=[(4 * HOUR, 7 * HOUR)])
    buckets = account([idle], Phases(), {"productive": 3, "host": 4})
    assert buckets == {Bucket.PRODUCTIVE: 3 * HOUR, Bucket.HOST: 4 * HOUR, Bucket.HELD_IDLE: 3 * HOUR}


def test_a_run_without_steps_starts_until_its_device_is_active() -> None:
    spans = [(0, 2 * HOUR), (4 * HOUR, 7 * HOUR)]
    held = Held(device=1, start_ns=0, end_ns=10 * HOUR, idle=spans, active_ns=2 * HOUR + 5)
    assert account([held], Phases(), {"productive": 1}) == {
        Bucket.STARTUP: 2 * HOUR + 5,
        Bucket.HELD_IDLE: 3 * HOUR,
        Bucket.PRODUCTIVE: 5 * HOUR - 5,
    }
    later = Held(device=1, start_ns=3 * HOUR, end_ns=10 * HOUR, idle=spans[1:], active_ns=2 * HOUR + 5)
    assert Bucket.STARTUP not in account([later], Phases(), {}), "it has started before"


def test_a_device_that_was_never_active_is_held_idle_from_the_start() -> None:
    held = Held(device=1, start_ns=0, end_ns=HOUR, idle=[(0, HOUR)])
    assert account([held], Phases(), {}) == {Bucket.HELD_IDLE: HOUR}


@pytest.mark.parametrize("ended", [True, False])
def test_of_a_run_that_never_stepped_nothing_is_claimed_but_its_idle_time(ended: bool) -> None:
    idle = Held(device=1, start_ns=0, end_ns=10 * HOUR, idle=[(4 * HOUR, 7 * HOUR)])
    buckets = account([idle], Phases(ended=ended), {})
    assert buckets == {Bucket.UNEXPLAINED: 7 * HOUR, Bucket.HELD_IDLE: 3 * HOUR}


def test_idle_time_counts_between_and_after_steps_but_not_before() -> None:
    idle = Held(device=1, start_ns=0, end_ns=12 * HOUR, idle=[(0, HOUR), (3 * HOUR, 5 * HOUR), (8 * HOUR, 12 * HOUR)])
    buckets = account([idle], STEPPED, {"productive": 1})
    assert buckets == {
        Bucket.STARTUP: 2 * HOUR,
        Bucket.HELD_IDLE: 6 * HOUR,
        Bucket.PRODUCTIVE: 4 * HOUR,
    }


def test_a_live_run_is_still_stepping_after_its_last_step() -> None:
    live = Phases(first_step_ns=2 * HOUR, last_step_ns=9 * HOUR, ended=False)
    assert Bucket.SHUTDOWN not in account([ONE], live, {"productive": 1})


def test_several_devices_are_one_account() -> None:
    devices = [Held(device=n, start_ns=HOUR, end_ns=10 * HOUR) for n in range(3)]
    buckets = account(devices, STEPPED, {"productive": 1})
    assert buckets[Bucket.STARTUP] == 3 * HOUR
    assert buckets[Bucket.PRODUCTIVE] == 21 * HOUR


def test_savings_per_step_come_from_the_stepping_phase() -> None:
    assert stepping_ns({"productive": 5, "input": 2, "startup": 10, "shutdown": 10, "held_idle": 10}) == 7
