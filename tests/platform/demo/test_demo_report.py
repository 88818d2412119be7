"""The demo's table: what it puts first, and how it tells a saving that may be nothing."""

from __future__ import annotations

import io

from made_records import make
from rich.console import Console

from tightship_platform.demo.report import print_report, print_tried
from tightship_platform.results.action import Action, Prediction, Verification
from tightship_platform.results.codec import as_json
from tightship_platform.results.demo import DemoResult
from tightship_platform.results.opportunity import Opportunity
from tightship_platform.results.run import Run

S = 10**9


def run(workflow: str) -> Run:
    return make(Run, workflow=workflow, device_ns=30 * S, account={"productive": 20 * S, "input": 10 * S})


def opportunity(workflow: str, rule: str, low_s: int, value_s: int, high_s: int, method: str) -> Opportunity:
    savings = {"recoverable_device_ns": value_s * S, "low_ns": low_s * S, "high_ns": high_s * S}
    return make(
        Opportunity, savings, workflow=workflow, rules=[rule], fix=f"fix {rule}", device_ns=30 * S, method=method
    )


def printed(runs: list[Run], opportunities: list[Opportunity]) -> str:
    out = io.StringIO()
    print_report(DemoResult(runs=runs, findings=[], opportunities=opportunities), Console(file=out, width=160))
    return out.getvalue()


def test_workflows_come_in_the_order_of_their_opportunities() -> None:
    ranked = [opportunity("sure", "a", 6, 8, 10, "simulated"), opportunity("maybe", "b", 0, 15, 15, "bound")]
    text = printed([run("clean"), run("maybe"), run("sure")], ranked)
    assert text.index("sure") < text.index("maybe") < text.index("clean")
    assert "nothing above the thresholds" in text


def test_a_bound_from_nothing_reads_up_to() -> None:
    text = printed([run("maybe"), run("sure")], [opportunity("maybe", "b", 0, 15, 15, "bound")])
    assert "up to 50.0 %" in text and "15.0 s" in text and "(bound)" in text and " to 15.0 s" not in text
    text = printed([run("sure")], [opportunity("sure", "a", 6, 9, 12, "simulated")])
    assert "30.0 %" in text and "6.00 s to 12.0 s" in text and "up to" not in text


def test_what_was_tried_stands_beside_what_was_predicted() -> None:
    predicted = Prediction(saving_frac=0.3, low_frac=0.2, high_frac=0.4, method="simulated")
    better = make(Verification, verdict="verified", saving_frac=0.35, low_frac=0.31, high_frac=0.38, reason="All of it")
    worse = make(
        Verification, verdict="refuted", saving_frac=-0.1, low_frac=-0.2, high_frac=-0.05, reason="It is slower"
    )
    common = {"predicted": as_json(predicted), "workflow": "saves"}
    actions = [
        make(Action, state="refuted", verification=as_json(worse), reason="saves [a copy]", **common),
        make(Action, state="verified", verification=as_json(better), reason="saves seldom", **common),
        make(Action, state="applied", verification=None, reason="no run", waits_for="No run yet", **common),
    ]
    out = io.StringIO()
    print_tried(actions, Console(file=out, width=140))
    text = out.getvalue()
    first, second, third = (" ".join(row.split()) for row in text.split("├")[0:3])
    for row, change, measured, verdict, why in (
        (first, "saves [a copy]", "-10.0 %", "refuted", "It is slower"),
        (second, "saves seldom", "35.0 %", "verified", "All of it"),
        (third, "no run", "–", "applied", "No run yet"),
    ):
        assert all(part in row for part in (change, "30.0 %", measured, verdict, why)), row
    assert text.count("(20.0 % – 40.0 %)") == text.count("simulated") == 3 and "(31.0 % – 38.0 %)" in text


def test_where_nothing_was_tried_it_says_so() -> None:
    out = io.StringIO()
    print_tried([], Console(file=out, width=140))
    assert out.getvalue().startswith("Nothing was found that the demo has a change for")
