"""From claims to ranked opportunities: nothing is counted twice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightship_analyzers.fleet.opportunities import Claim, FindingText, RunEvidence, SampleSaving, rank_workflow
from tightship_platform.vocabulary import Method

HOUR = 3600 * 10**9


def claim(*rules: str, share: float, low: float | None = None, high: float | None = None) -> Claim:
    return Claim(
        rules=rules,
        share_frac=share,
        low_frac=share if low is None else low,
        high_frac=share if high is None else high,
        method="bound",
    )


def run(*claims: Claim, hours: int = 10, findings: tuple[FindingText, ...] = ()) -> RunEvidence:
    """A run with one trace of one rank."""
    return RunEvidence(
        stepping_device_ns=hours * HOUR, device_ns=(hours + 1) * HOUR, captures=[[list(claims)]], findings=findings
    )


def text(number: int, rule: str, share: float) -> FindingText:
    return FindingText(id=number, rule=rule, title=f"title of {rule}", fix=f"fix {rule}", share_frac=share)


def test_a_share_of_the_step_is_a_share_of_the_stepping_time() -> None:
    [one] = rank_workflow([run(claim("a", share=0.5, low=0.25, high=0.75))])
    assert (one.value_ns, one.low_ns, one.high_ns, one.device_ns) == (
        5 * HOUR,
        5 * HOUR // 2,
        15 * HOUR // 2,
        10 * HOUR,
    )


def test_the_largest_comes_first() -> None:
    ranked = rank_workflow([run(claim("a", share=0.125), claim("b", share=0.5))])
    assert [one.rules for one in ranked] == [("b",), ("a",)]


def test_an_upper_end_does_not_come_before_what_is_sure() -> None:
    ranked = rank_workflow(
        [run(claim("maybe", share=0.5, low=0.0), claim("sure", share=0.3), claim("less", share=0.2))]
    )
    assert [one.rules for one in ranked] == [("sure",), ("maybe",), ("less",)]
    maybe = ranked[1]
    assert (maybe.low_ns, maybe.value_ns, maybe.high_ns) == (0, 5 * HOUR, 5 * HOUR)


def test_rules_that_claim_the_same_time_are_one_opportunity() -> None:
    findings = (text(1, "a", 0.2), text(2, "b", 0.4), text(3, "c", 0.1))
    ranked = rank_workflow([run(claim("a", "b", share=0.5), claim("c", share=0.125), findings=findings)])
    assert [one.rules for one in ranked] == [("a", "b"), ("c",)]
    assert ranked[0].value_ns == 5 * HOUR
    assert ranked[0].title.startswith("title of b") and "a" in ranked[0].title
    assert ranked[0].fix == "fix b; or fix a"
    assert ranked[0].findings == (1, 2)
    assert ranked[0].key == "a+b"


def test_what_overlaps_in_one_run_is_one_opportunity_in_all() -> None:
    ranked = rank_workflow(
        [
            run(claim("a", "b", share=0.5)),
            run(claim("b", "c", share=0.5)),
            run(claim("a", share=0.25), claim("c", share=0.25)),
        ]
    )
    assert [(one.rules, one.value_ns) for one in ranked] == [(("a", "b", "c"), 15 * HOUR)]


def test_runs_that_were_not_traced_count_for_the_estimate_but_not_for_its_low_end() -> None:
    untraced = RunEvidence(stepping_device_ns=30 * HOUR, device_ns=30 * HOUR)
    [one] = rank_workflow([run(claim("a", share=0.5)), untraced])
    assert (one.value_ns, one.low_ns, one.device_ns) == (20 * HOUR, 5 * HOUR, 40 * HOUR)


def test_a_traced_run_without_the_defect_counts_against_it() -> None:
    [one] = rank_workflow([run(claim("a", share=0.5), hours=10), run(hours=30)])
    assert one.value_ns == 5 * HOUR


def test_the_slowest_rank_sets_the_pace() -> None:
    two_ranks = RunEvidence(
        stepping_device_ns=10 * HOUR,
        device_ns=10 * HOUR,
        captures=[[[claim("a", share=0.5)], [claim("a", share=0.25)]]],
    )
    [one] = rank_workflow([two_ranks])
    assert (one.value_ns, one.low_ns) == (5 * HOUR, 15 * HOUR // 4)


def test_captures_of_a_run_are_averaged() -> None:
    two = RunEvidence(
        stepping_device_ns=10 * HOUR,
        device_ns=10 * HOUR,
        captures=[[[claim("a", share=0.5)]], [[]]],
    )
    [one] = rank_workflow([two])
    assert one.value_ns == 5 * HOUR // 2


def test_held_idle_devices_are_counted_in_ns() -> None:
    idle = RunEvidence(
        stepping_device_ns=HOUR,
        device_ns=3 * HOUR,
        from_samples=[SampleSaving(rule="device-held-idle", value_ns=HOUR, low_ns=HOUR // 2, high_ns=HOUR)],
        findings=[text(7, "device-held-idle", 0.3)],
    )
    [one] = rank_workflow([idle, idle])
    assert (one.rules, one.value_ns, one.low_ns, one.device_ns) == (("device-held-idle",), 2 * HOUR, HOUR, 6 * HOUR)


def test_what_is_not_known_is_ranked_last_and_reported_as_missing() -> None:
    risk, lost = SampleSaving(rule="risk"), SampleSaving(rule="lost", value_ns=1, low_ns=1, high_ns=HOUR)
    runs = [
        RunEvidence(stepping_device_ns=0, device_ns=HOUR, from_samples=[risk], findings=[text(1, "risk", 0.0)]),
        RunEvidence(stepping_device_ns=0, device_ns=HOUR, from_samples=[risk, lost, SampleSaving(rule="lost")]),
    ]
    first, last = rank_workflow(runs)
    assert (first.rules, first.value_ns, first.low_ns, first.high_ns) == (("lost",), 1, 1, HOUR)
    assert (last.rules, last.value_ns, last.low_ns, last.high_ns, last.method) == (("risk",), None, None, None, "")
    assert (last.fix, last.findings, last.device_ns) == ("fix risk", (1,), 2 * HOUR)


def test_without_savings_there_is_nothing_to_do() -> None:
    assert rank_workflow([]) == []
    assert rank_workflow([run()]) == []
    assert rank_workflow([run(claim("a", share=0.5), hours=0)]) == []


@pytest.mark.usefixtures("proven")
def test_a_group_is_as_sure_as_its_least_sure_claim() -> None:
    sure = Claim(rules=("a",), share_frac=0.5, low_frac=0.5, high_frac=0.5, method="simulated")
    assert rank_workflow([run(sure)])[0].method == Method.SIMULATED
    assert rank_workflow([run(sure), run(claim("a", share=0.5))])[0].method == Method.BOUND


rules = st.lists(st.sampled_from("abcdef"), min_size=1, max_size=3, unique=True).map(tuple)


@given(
    st.lists(
        st.lists(st.tuples(rules, st.floats(0, 0.2), st.floats(0, 1), st.floats(1, 3)), max_size=5),
        min_size=1,
        max_size=4,
    )
)
def test_never_more_than_there_is(traces: list[list[tuple[tuple[str, ...], float, float, float]]]) -> None:
    runs = [
        run(*(claim(*names, share=share, low=share * low, high=share * high) for names, share, low, high in trace))
        for trace in traces
    ]
    ranked = rank_workflow(runs)
    seen = [rule for one in ranked for rule in one.rules]
    assert len(seen) == len(set(seen)), "no rule is in two opportunities"
    total = sum(one.stepping_device_ns for one in runs)
    for one in ranked:
        assert 0 <= one.low_ns <= one.value_ns <= one.high_ns <= total
    claimed = sum(share for trace in traces for _, share, _, _ in trace) * 10 * HOUR
    assert sum(one.value_ns for one in ranked) <= claimed + 1000 or claimed == pytest.approx(0)
