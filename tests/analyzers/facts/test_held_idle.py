"""Held-idle devices, from minutes of samples."""

from __future__ import annotations

from dataclasses import replace

from tightship_analyzers.facts.run.held_idle import (
    MAX_ACTIVITY_FRAC,
    MIN_WINDOW_NS,
    MINUTE_NS,
    DeviceMinute,
    RunHistory,
    held_idle,
)
from tightship_analyzers.findings.model import NotApplicable
from tightship_analyzers.rules.runs.device_held_idle import RULE

START = 1_790_000_040 * 1_000_000_000
assert START % MINUTE_NS == 0


def history(
    activity: list[float | None], *, stepped: set[int] | None = None, first_step: int | None = None
) -> RunHistory:
    """A device held for len(activity) minutes; None: no samples in that minute."""
    return RunHistory(
        held={1: [(START, START + len(activity) * MINUTE_NS)]},
        device_names={1: "h1/GPU-1"},
        minutes=[
            DeviceMinute(1, START + n * MINUTE_NS, 60, value) for n, value in enumerate(activity) if value is not None
        ],
        stepped={START + n * MINUTE_NS for n in stepped or set()},
        first_step_ns=None if first_step is None else START + first_step * MINUTE_NS,
    )


def minutes(history: RunHistory) -> list[tuple[float, float]]:
    return [((start - START) / MINUTE_NS, (end - START) / MINUTE_NS) for start, end in held_idle(history).get(1, [])]


def test_idle_minutes_join() -> None:
    assert minutes(history([1.0, 0.0, 0.01, 0.0, 0.9, 0.0])) == [(1, 4), (5, 6)]


def test_a_minute_at_the_threshold_is_busy() -> None:
    below = MAX_ACTIVITY_FRAC - 1e-9
    assert minutes(history([MAX_ACTIVITY_FRAC, below])) == [(1, 2)]


def test_a_minute_with_steps_is_no_idle_one() -> None:
    assert minutes(history([0.0, 0.0, 0.0], stepped={1})) == [(0, 1), (2, 3)]


def test_a_minute_without_samples_is_unknown() -> None:
    assert minutes(history([0.0, None, 0.0])) == [(0, 1), (2, 3)]


def test_before_the_first_step_is_start_up() -> None:
    assert minutes(history([0.0, 0.0, 0.0, 0.0], first_step=2)) == [(2, 4)]


def test_before_the_first_activity_a_run_without_steps_starts_up() -> None:
    loading = replace(history([0.0, 0.0, 0.9, 0.0]), active_ns={1: START + 2 * MINUTE_NS + 1})
    assert minutes(loading) == [(3, 4)]
    assert minutes(replace(loading, first_step_ns=START + MINUTE_NS)) == [(1, 2), (3, 4)], "steps say it better"
    assert minutes(replace(loading, active_ns={1: START + 9 * MINUTE_NS})) == [(0, 2), (3, 4)], "never while it held it"


def test_what_is_cut_below_a_minute_does_not_count() -> None:
    cut = history([0.0, 0.9])
    cut = replace(cut, first_step_ns=START + 1)
    assert held_idle(cut) == {}


def test_only_while_held() -> None:
    one = history([0.0, 0.0, 0.0, 0.0])
    held = replace(one, held={1: [(START, START + MINUTE_NS), (START + 2 * MINUTE_NS, START + 4 * MINUTE_NS)]})
    assert minutes(held) == [(0, 1), (2, 4)]


def test_the_rule_finds_it() -> None:
    [finding] = RULE.judge(history([1.0, 0.0, 0.0, 0.0, 1.0, 0.0], first_step=0))
    assert finding.saving.value == 4 * MINUTE_NS
    assert finding.saving.low == finding.saving.value - 2 * MIN_WINDOW_NS
    assert finding.unit == "ns"
    assert finding.share_frac == 4 / 6
    assert finding.place == "h1/GPU-1"
    assert [entry.value for entry in finding.evidence] == [2, 3 * MINUTE_NS, MINUTE_NS], "the longest first"
    assert finding.evidence[1].text == "h1/GPU-1: 3.00 min from 2026-09-21 14:15 UTC"


def test_the_rule_leaves_busy_devices_alone() -> None:
    assert RULE.judge(history([1.0, 0.5, 0.06, 1.0])) == []


def test_without_samples_it_does_not_apply() -> None:
    assert isinstance(RULE.judge(history([None, None])), NotApplicable)
