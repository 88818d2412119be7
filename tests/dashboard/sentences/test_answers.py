"""The first line of each page, in words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from made_records import account_groups, make

from tightship_dashboard.sentences import answers
from tightship_dashboard.sentences.formatting import NBSP
from tightship_dashboard.sentences.links import Answer, Link, finding_href, run_href, runs_href, search_href
from tightship_platform.results.finding import Finding
from tightship_platform.results.fleet import NO_TEAM, NOBODY, FleetAccount
from tightship_platform.results.opportunity import Opportunity
from tightship_platform.results.run import Run
from tightship_platform.units import NS_PER_MS, NS_PER_S

H = 3600 * NS_PER_S


def words_of(answer: Answer) -> str:
    return answers.plain(answer).replace(NBSP, " ")


def hrefs(answer: Answer) -> list[str]:
    return [part.href for part in answer if isinstance(part, Link)]


def account(**changes: Any) -> FleetAccount:
    given = {
        "device_ns": 100 * H,
        "buckets": {"productive": 41 * H, "held_idle": 37 * H, "input": 12 * H, "unexplained": 10 * H},
        "groups": account_groups(
            {"vision": {"held_idle": 30 * H, "productive": 10 * H}, "language": {"held_idle": 7 * H}}
        ),
    }
    return make(FleetAccount, given, **changes)


OPPORTUNITY = make(
    Opportunity,
    {
        "title": "The device waits for `DataLoader`.",
        "workflow": "vision-base",
        "recoverable_device_ns": 310 * H,
        "low_ns": 280 * H,
        "high_ns": 330 * H,
        "method": "simulated",
        "findings": [7, 9],
    },
)


def test_fleet_says_what_worked_what_was_lost_whose_it_is_and_what_to_do() -> None:
    answer = answers.fleet(account(), [OPPORTUNITY], "7d")
    assert words_of(answer) == (
        "In the last 7 days, 41 % of 100 device-hours were productive; 37 % were held idle, most of it by team vision. "
        "Top opportunity: vision-base, saves 310 h (280–330), simulated: "
        "The device waits for `DataLoader`."
    )
    assert hrefs(answer) == [
        "#account",
        "/runs",
        "/runs?by=held_idle",
        "#teams",
        "/runs?workflow=vision-base",
        "/findings/7",
    ]


def test_fleet_names_no_team_when_none_has_most_of_it() -> None:
    even = {"vision": {"held_idle": 18 * H}, "language": {"held_idle": 18 * H}}
    assert "most of it" not in words_of(answers.fleet(account(groups=account_groups(even)), [], "24h"))
    unnamed = {NO_TEAM: {"held_idle": 36 * H}, "language": {"held_idle": 1 * H}}
    assert "most of it" not in words_of(answers.fleet(account(groups=account_groups(unnamed)), [], "24h"))
    alone = account(groups=account_groups({"vision": {"held_idle": 37 * H}}))
    assert "most of it" not in words_of(answers.fleet(alone, [], "24h"))


def test_fleet_without_device_time_or_without_losses() -> None:
    assert words_of(answers.fleet(account(device_ns=0, buckets={}), [], "30d")) == (
        "In the last 30 days no run held a device."
    )
    perfect = account(device_ns=H, buckets={"productive": H}, groups=account_groups({"a": {"productive": H}}))
    assert (
        words_of(answers.fleet(perfect, [], "24h"))
        == "In the last 24 hours, 100 % of 1.00 device-hours were productive."
    )


def test_savings_of_several_opportunities_are_never_added_up() -> None:
    answer = words_of(answers.fleet(account(), [OPPORTUNITY, OPPORTUNITY], "7d"))
    assert "310 h" in answer
    assert "620 h" not in answer


def row(state: str, devices: int = 0) -> Run:
    return make(Run, state=state, devices=[{}] * devices)


def test_runs() -> None:
    rows = [row("running", 8), row("running", 2), row("finished"), row("failed"), row("failed"), row("lost")]
    assert words_of(answers.runs(rows)) == ("2 runs are live on 10 devices; of 4 runs that ended, 2 failed and 1 lost.")
    assert words_of(answers.runs([row("finished")])) == "No run is live; of 1 run that ended, none failed."
    assert words_of(answers.runs([row("running")])) == "1 run is live."
    assert words_of(answers.runs([])) == "No run is known yet."


def test_found_runs_are_counted() -> None:
    rows = [row("running"), row("failed"), row("finished")]
    assert words_of(answers.found_runs(rows, "lr=3e-4", most=9)) == "3 runs match `lr=3e-4`; 1 is live and 1 failed."
    assert words_of(answers.found_runs(rows[1:2], "a`b", most=9)) == "1 run matches `ab`; 1 failed."
    assert words_of(answers.found_runs(rows[2:], "x\ny", most=9)) == "1 run matches `x␤y`."
    assert words_of(answers.found_runs([], "x", most=9)) == "0 runs match `x`."
    assert words_of(answers.found_runs(rows[2:] * 9, "x", most=9)) == "9 runs or more match `x`."


def test_runs_behind_filters_are_spoken_of_as_such() -> None:
    assert words_of(answers.runs([row("failed")] * 3, state="failed")) == "3 runs failed."
    assert words_of(answers.runs([row("lost")], state="lost", workflow="mine")) == "1 run of mine was lost."
    assert words_of(answers.runs([], state="failed")) == "No run failed."
    assert words_of(answers.runs([], workflow="mine")) == "No run of mine is known."
    assert hrefs(answers.runs([row("failed"), row("finished")], workflow="a&b")) == [
        "/runs?workflow=a%26b",
        "/runs?workflow=a%26b&state=failed",
    ]


def run(**changes: Any) -> Run:
    given = {
        "run": "a1",
        "state": "running",
        "start_ns": 0,
        "end_ns": None,
        "exit_code": None,
        "device_ns": 8 * H,
        "account": {"productive": 4 * H, "input": 3 * H, "unexplained": H},
    }
    return make(Run, given, **changes)


def test_one_run() -> None:
    saving = {"share_frac": 0.37, "unit": "ns/step"}
    finding = make(Finding, finding=3, title="The device waits.", saving=saving)
    assert words_of(answers.one_run(run(), [finding], 134 * 60 * NS_PER_S)) == (
        "Running for 2 h 14 min: 50 % of its 8.00 device-hours were productive; 38 % waited for input. "
        "Worst finding: The device waits, 37 % of the step."
    )


def test_of_a_live_run_is_said_what_is_counted_so_far() -> None:
    """The sentence and its figures speak of the same time."""
    counted = run(accounted_ns=130 * 60 * NS_PER_S)
    so_far = ". Counted so far, over its first 2 h 10 min: 50 % of its 8.00 device-hours were productive; 38 %"
    assert words_of(answers.one_run(counted, [], 134 * 60 * NS_PER_S)).startswith(f"Running for 2 h 14 min{so_far}")
    ended = replace(counted, state="finished", end_ns=132 * 60 * NS_PER_S)
    assert words_of(answers.one_run(ended, [], 134 * 60 * NS_PER_S)).startswith(f"Finished after 2 h 12 min{so_far}")
    whole = replace(ended, accounted_ns=ended.end_ns)
    assert words_of(answers.one_run(whole, [], 4 * H)).startswith(
        "Finished after 2 h 12 min: 50 % of its 8.00 device-hours"
    )
    lost = replace(counted, state="lost")
    assert "so far" not in words_of(answers.one_run(lost, [], 4 * H))


def test_without_a_trace_nothing_is_claimed_about_work() -> None:
    without_trace = {"startup": 3 * H, "productive": 0, "unexplained": 5 * H}
    assert words_of(answers.one_run(run(account=without_trace), [], H)) == (
        "Running for 1 h 0 min: no trace shows how much of its 8.00 device-hours were productive; 38 % went to "
        "start-up."
    )
    assert words_of(answers.fleet(account(device_ns=8 * H, buckets=without_trace, groups=[]), [], "24h")) == (
        "In the last 24 hours, no trace shows how much of 8.00 device-hours were productive; 38 % went to start-up."
    )


def test_one_run_that_ended_badly_says_how() -> None:
    failed = run(state="failed", end_ns=H, account=None)
    assert words_of(answers.one_run(replace(failed, exit_code=3), [], 5 * H)).startswith(
        "Failed after 1 h 0 min with exit code 3; its device time is not yet accounted for."
    )
    assert "by signal 9" in words_of(answers.one_run(replace(failed, exit_code=137), [], 5 * H))
    assert "Lost after" in words_of(answers.one_run(replace(failed, state="lost"), [], 5 * H))


def finding(**saving: Any) -> Finding:
    given = {"value": 152, "low": 137, "high": 163, "unit": "ns/step", "method": "simulated", "share_frac": 0.37}
    scaled = {k: v * NS_PER_MS if k in ("value", "low", "high") and v else v for k, v in (given | saving).items()}
    return make(Finding, title="The device waits", workflow="vision", saving=scaled)


def test_one_finding() -> None:
    assert words_of(answers.one_finding(finding(), 410 * NS_PER_MS)) == (
        "The device waits. Without it each step of 410 ms would be 152 ms (137–163) shorter (37 %, simulated), "
        "in vision."
    )
    assert "It costs 152 ms (137–163) of device time" in words_of(answers.one_finding(finding(unit="ns"), None))
    recorded = words_of(answers.one_finding(finding(unit="ns/recording"), None))
    assert "Without it the recording would be 152 ms (137–163) shorter (37 %, simulated)" in recorded
    assert "could not be estimated" in words_of(answers.one_finding(finding(value=None, share_frac=None), None))


def test_addresses_quote_what_comes_from_outside() -> None:
    assert run_href("../x?y") == "/runs/..%2Fx%3Fy"
    assert finding_href("1#a") == "/findings/1%23a"
    assert runs_href(workflow="a b", state=None) == "/runs?workflow=a+b"
    assert search_href("lr=3e-4") == "/runs?search=lr%3D3e-4"
    assert search_href("note=a b") == "/runs?search=%22note%3Da+b%22"
    assert search_href('a"b=c') is None


def test_what_no_run_held_is_no_run_to_look_at() -> None:
    """Without a run it is not an answer; else it leads to the bars, as there are no runs behind it."""
    free = {"unallocated": 60 * H}
    assert words_of(answers.fleet(account(device_ns=60 * H, buckets=free), [], "24h")).endswith("no run held a device.")
    teams = {NOBODY: free, "vision": {"productive": 40 * H}}
    whole = account(device_ns=100 * H, buckets={"productive": 40 * H, **free}, groups=account_groups(teams))
    parts = answers.fleet(whole, [], "24h")
    assert "40 % of 100 device-hours were productive; 60 % were held by no run." in words_of(parts)
    assert "#account" in [part.href for part in parts if isinstance(part, Link)][-1]
