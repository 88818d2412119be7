"""The config text that starts a trace, and the instant at which it starts."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightship_collectors.kineto.config import (
    AFTER_TICK_NS,
    COMMON_AHEAD_NS,
    LATER_NS,
    MIN_TICK_AHEAD_NS,
    TICK_NS,
    choose_common_start_ns,
    choose_start_ns,
    final_path,
    render,
)
from tightship_platform.errors import Invalid
from tightship_platform.units import NS_PER_S
from tightship_platform.wire import MAX_CAPTURE_NS, MAX_ITERATIONS, MIN_CAPTURE_NS, CaptureParams

TRACE = Path("/tmp/tightship-0/0123456789abcdef/traces/c1-1-1.json")
NOW = 1_800_000_000 * NS_PER_S
times = st.integers(NOW, NOW + 10**15)


def lines(params: CaptureParams, **kwargs: object) -> dict[str, str]:
    text = render(params, **({"trace": TRACE, "trace_id": "c1-1-1", "start_ns": NOW} | kwargs))  # type: ignore[arg-type]
    assert text.endswith("\n")
    pairs = [line.split("=") for line in text.splitlines()]
    assert all(len(pair) == 2 for pair in pairs)
    assert len({key for key, _ in pairs}) == len(pairs)
    return dict(pairs)


def test_a_duration() -> None:
    reported = lines(CaptureParams(duration_ns=1_500_000_000, stacks=True, shapes=False, memory=True))
    assert reported == {
        "ACTIVITIES_LOG_FILE": str(TRACE),
        "REQUEST_TRACE_ID": "c1-1-1",
        "PROFILE_START_TIME": str(NOW // 1_000_000),
        "ACTIVITIES_DURATION_MSECS": "1500",
        "ACTIVITIES_WARMUP_PERIOD_SECS": "0",
        "PROFILE_REPORT_INPUT_SHAPES": "false",
        "PROFILE_WITH_STACK": "true",
        "PROFILE_PROFILE_MEMORY": "true",
    }


def test_iterations() -> None:
    reported = lines(CaptureParams(duration_ns=None, iterations=7), start_ns=None, start_iteration=120, warmup=1)
    assert reported["ACTIVITIES_ITERATIONS"] == "7"
    assert reported["PROFILE_START_ITERATION"] == "120"
    assert reported["ACTIVITIES_WARMUP_ITERATIONS"] == "1"
    assert reported["ACTIVITIES_DURATION_MSECS"] == "0"
    assert "PROFILE_START_TIME" not in reported


@pytest.mark.parametrize(
    "params",
    [
        CaptureParams(duration_ns=None),
        CaptureParams(iterations=5),
        CaptureParams(duration_ns=MIN_CAPTURE_NS - 1),
        CaptureParams(duration_ns=MAX_CAPTURE_NS + 1),
        CaptureParams(duration_ns=True),
        CaptureParams(duration_ns=1.5e9),  # type: ignore[arg-type]
        CaptureParams(duration_ns="1000000000\nPROFILE_MEMORY=true"),  # type: ignore[arg-type]
        CaptureParams(duration_ns=None, iterations=0),
        CaptureParams(duration_ns=None, iterations=MAX_ITERATIONS + 1),
        CaptureParams(stacks="true\nACTIVITIES_LOG_FILE=/etc/passwd"),  # type: ignore[arg-type]
    ],
)
def test_parameters_out_of_range_reach_no_job(params: CaptureParams) -> None:
    with pytest.raises(Invalid):
        render(params, trace=TRACE, trace_id="c", start_ns=NOW)


@pytest.mark.parametrize(
    "path",
    [
        "relative.json",
        "/tmp/a b.json",
        "/tmp/a\nPROFILE_MEMORY=true.json",
        "/tmp/a=b.json",
        "/tmp/a#b.json",
        "/tmp/../etc/x.json",
        "/tmp/a.json/b.json",
        "/tmp/ä.json",
    ],
)
def test_a_path_that_kineto_would_read_otherwise_is_refused(path: str) -> None:
    with pytest.raises(Invalid):
        render(CaptureParams(), trace=Path(path), trace_id="c", start_ns=NOW)


@pytest.mark.parametrize("trace_id", ["", "a\nB=1", "a=b", "x" * 101, "a b"])
def test_a_trace_id_cannot_smuggle_a_key_in(trace_id: str) -> None:
    with pytest.raises(Invalid):
        render(CaptureParams(), trace=TRACE, trace_id=trace_id, start_ns=NOW)


def test_kineto_puts_the_process_id_before_the_suffix() -> None:
    assert final_path(TRACE, 77) == TRACE.with_name("c1-1-1_77.json")


@given(times, times, st.sampled_from([0, NS_PER_S]))
def test_a_start_lies_well_behind_the_tick_that_takes_it_up(now: int, tick: int, warmup: int) -> None:
    start = choose_start_ns(now, tick, warmup)
    # Kineto looks at each tick after the config has arrived, and takes the request up at the first one from which the
    # start is at most a second (and the warm-up) away.
    first = now + (tick - now) % TICK_NS
    if first - now < MIN_TICK_AHEAD_NS:
        early, first = first, first + TICK_NS
        assert early + TICK_NS < start - warmup  # the tick that may come too early leaves the request alone
    assert first + TICK_NS >= start - warmup
    assert start - warmup - first == AFTER_TICK_NS
    assert start - now <= 2 * TICK_NS + warmup


@given(times)
def test_a_fresh_process_takes_an_early_start_up(now: int) -> None:
    start = choose_start_ns(now, None, 0)
    first_tick = now + TICK_NS  # of the thread that the first request starts
    assert first_tick + AFTER_TICK_NS <= start <= first_tick + TICK_NS


@given(times)
def test_a_start_that_was_refused_is_not_tried_at_the_same_distance_again(now: int) -> None:
    starts = [choose_start_ns(now, None, 0, tries) for tries in (1, 2, 3)]
    # Three distances a fifth of a second apart: a tick that comes just too late for one comes in time for the others.
    assert [later - earlier for earlier, later in itertools.pairwise(starts)] == [LATER_NS, LATER_NS]
    assert starts[-1] - now < 2 * TICK_NS


@given(times, st.lists(times, min_size=1, max_size=8), st.sampled_from([0, NS_PER_S]))
def test_a_common_start_leaves_every_process_time_to_ask(now: int, ticks: list[int], warmup: int) -> None:
    start = choose_common_start_ns(now, ticks, warmup)
    assert COMMON_AHEAD_NS <= start - now - warmup < COMMON_AHEAD_NS + TICK_NS
    if len(ticks) == 1:
        assert (start - warmup - ticks[0]) % TICK_NS >= AFTER_TICK_NS
