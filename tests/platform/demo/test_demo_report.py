"""The demo's table: what it puts first, and how it tells a saving that may be nothing."""

from __future__ import annotations

import io

from made_records import make
from rich.console import Console

from tightship_platform.demo.report import print_report
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
