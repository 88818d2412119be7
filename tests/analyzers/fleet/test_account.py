"""The account of a run: exact in every case, and right in those that can be done by hand."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from random import Random

import pytest
from examples import EXPLORE
from hypothesis import given, settings
from hypothesis import strategies as st

from tightship_analyzers.fleet.account import Held, Phases, account, apportion, stepping_ns
from tightship_platform.vocabulary import Bucket

HOUR = 3600 * 10**9
TRACED = [bucket for bucket in Bucket if bucket not in (Bucket.LOST, Bucket.NEVER_STARTED, Bucket.UNALLOCATED)]

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


RUNS = 200
"""Random runs; `make explore` draws EXPLORED new ones, as the whole of them takes half a minute."""
EXPLORED = 10_000
MOST = 10**19


def random_spans(random: Random, most: int) -> tuple[tuple[int, int], ...]:
    """Disjoint and ascending; some touch."""
    cuts = sorted(random.randrange(most) for _ in range(random.randrange(9)))
    return tuple((a, b) for a, b in zip(cuts[::2], cuts[1::2], strict=False) if a < b)


def random_run(random: Random) -> tuple[list[Held], Phases, dict[str, int]]:
    """Any run: nothing in it has to make sense. On short scales instants coincide, on long ones integers are large."""
    most = random.choice([8, 1000, MOST])

    def maybe() -> int | None:
        return random.randrange(most) if random.randrange(3) else None

    held = [
        Held(
            device=random.randrange(3),
            start_ns=random.randrange(most),
            end_ns=random.randrange(most),
            idle=random_spans(random, most),
            sampled=random_spans(random, most),
            active_ns=maybe(),
        )
        for _ in range(random.randrange(6))
    ]
    phases = Phases(
        first_step_ns=maybe(),
        last_step_ns=maybe(),
        ended=random.random() < 0.5,
        loses_work=random.random() < 0.5,
        saved_ns=maybe(),
    )
    seen = random.sample(TRACED, random.randrange(6))
    return held, phases, {str(bucket): random.randrange(10**12) for bucket in seen}


@settings(max_examples=EXPLORED if EXPLORE else RUNS)
@given(seed=st.integers(0, 2**64 - 1))
def test_the_buckets_of_any_run_sum_to_its_device_time(seed: int) -> None:
    """Drawn from one number, which costs far less than drawing each part of a run by itself."""
    held, phases, traced = random_run(Random(seed))
    buckets = account(held, phases, traced)
    assert sum(buckets.values()) == sum(one.device_ns for one in held)
    assert all(ns > 0 for ns in buckets.values())
    assert Bucket.UNALLOCATED not in buckets
    assert phases.loses_work or Bucket.LOST not in buckets
    if Bucket.NEVER_STARTED in buckets:
        assert buckets.keys() <= {Bucket.NEVER_STARTED, Bucket.UNEXPLAINED} and phases.first_step_ns is None
    # What is lost is taken out of other buckets, and nothing is put into any.
    kept = account(held, replace(phases, loses_work=False), traced)
    assert all(buckets.get(bucket, 0) <= kept.get(bucket, 0) for bucket in Bucket if bucket is not Bucket.LOST)


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


FAILED = replace(STEPPED, loses_work=True)
SPLIT = {"productive": 5, "input": 2}


def test_a_failed_run_loses_what_it_did_after_its_last_checkpoint() -> None:
    """It steps from 2 to 9 o'clock and saved at 6: three hours are lost, out of whatever they were spent on."""
    buckets = account([ONE], replace(FAILED, saved_ns=6 * HOUR), {"productive": 3, "input": 1})
    assert buckets == {
        Bucket.STARTUP: HOUR,
        Bucket.PRODUCTIVE: 3 * HOUR,
        Bucket.INPUT: HOUR,
        Bucket.LOST: 3 * HOUR,
        Bucket.SHUTDOWN: HOUR,
    }


def test_without_a_checkpoint_all_work_of_a_failed_run_is_lost() -> None:
    lost = {Bucket.STARTUP: HOUR, Bucket.LOST: 7 * HOUR, Bucket.SHUTDOWN: HOUR}
    assert account([ONE], FAILED, SPLIT) == lost
    assert account([ONE], FAILED, {}) == lost, "out of what is unexplained, too"


@pytest.mark.parametrize(("saved", "lost"), [(9, 0), (10, 0), (2, 7), (0, 7)])
def test_a_checkpoint_at_the_ends_of_the_work(saved: int, lost: int) -> None:
    assert account([ONE], replace(FAILED, saved_ns=saved * HOUR), SPLIT).get(Bucket.LOST, 0) == lost * HOUR


def test_what_was_held_idle_is_not_lost() -> None:
    idle = replace(ONE, idle=[(5 * HOUR, 8 * HOUR)])
    buckets = account([idle], replace(FAILED, saved_ns=4 * HOUR), {"productive": 1})
    assert buckets == {
        Bucket.STARTUP: HOUR,
        Bucket.PRODUCTIVE: 2 * HOUR,
        Bucket.LOST: 2 * HOUR,
        Bucket.HELD_IDLE: 3 * HOUR,
        Bucket.SHUTDOWN: HOUR,
    }


def test_a_run_that_did_not_fail_loses_nothing() -> None:
    assert Bucket.LOST not in account([ONE], replace(STEPPED, saved_ns=6 * HOUR), SPLIT)


def test_a_failed_run_of_which_no_step_was_seen_loses_all_that_followed_its_start_up() -> None:
    held = Held(device=1, start_ns=0, end_ns=10 * HOUR, active_ns=HOUR)
    buckets = account([held], Phases(ended=True, loses_work=True), {})
    assert buckets == {Bucket.STARTUP: HOUR, Bucket.LOST: 9 * HOUR}


SILENT = Held(device=1, start_ns=0, end_ns=10 * HOUR, idle=[(HOUR, 10 * HOUR)], sampled=[(HOUR, 10 * HOUR)])


def test_a_run_that_never_started() -> None:
    """Two devices for ten hours; samples speak for nine of the first and one of the second."""
    other = Held(device=2, start_ns=0, end_ns=10 * HOUR, sampled=[(9 * HOUR, 11 * HOUR)])
    buckets = account([SILENT, other], Phases(ended=True, loses_work=True), {})
    assert buckets == {Bucket.NEVER_STARTED: 10 * HOUR, Bucket.UNEXPLAINED: 10 * HOUR}


@pytest.mark.parametrize(
    ("more", "phases", "traced"),
    [
        ([], Phases(), {}),
        ([], Phases(ended=True, first_step_ns=9 * HOUR), {}),
        ([], Phases(ended=True), {"host": 1}),
        ([Held(device=2, start_ns=0, end_ns=HOUR)], Phases(ended=True), {}),
        ([Held(device=2, start_ns=0, end_ns=HOUR, sampled=[(0, HOUR)], active_ns=5)], Phases(ended=True), {}),
    ],
    ids=["it lives", "it stepped", "it was traced", "a device was not sampled", "a device was active"],
)
def test_what_may_have_started_did(more: list[Held], phases: Phases, traced: dict[str, int]) -> None:
    assert Bucket.NEVER_STARTED not in account([SILENT, *more], phases, traced)


def test_lost_work_is_work_and_what_never_started_is_not() -> None:
    assert stepping_ns({"productive": 5, "lost": 2, "never_started": 10, "unallocated": 10}) == 7
