"""The page's sentences, its chart and its form, without a browser."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from made_records import make
from plotly.utils import PlotlyJSONEncoder

from tightship_analyzers.offload_planner.answer import answer
from tightship_analyzers.offload_planner.request import Request
from tightship_dashboard.figures import fit, window
from tightship_dashboard.pages.fit_request import FIELDS, Wanted, checked
from tightship_dashboard.sentences import answers, fit_answers
from tightship_dashboard.sentences.formatting import zone_of
from tightship_dashboard.sentences.links import fit_href
from tightship_platform.errors import Invalid
from tightship_platform.results.plan_answer import PlanAnswer
from tightship_platform.results.run import RunDetail

GIB = 2**30
H100 = "NVIDIA H100 80GB HBM3"
COST = {"forward_ns": 2 * 10**7, "backward_ns": 4 * 10**7, "parameters": 10**8, "trainable": 10**8}
PROFILE = {
    "version": 1,
    "model": {"name": "GPT", "layer_parameters": [10**8] * 5},
    "layers": [COST | {"activation_bytes": 2**28, "input_bytes": 2**20} for _ in range(5)],
    "origin": "measured",
}


def planned(**changes: Any) -> PlanAnswer:
    given = {"profile": json.dumps(PROFILE), "device": H100, "host_bytes": 64 * GIB, "cores": 8} | changes
    return answer(Request(**given))


@pytest.fixture(scope="module")
def windowed() -> PlanAnswer:
    return planned(budget_bytes=7 * GIB // 2)


@pytest.fixture(scope="module")
def refused() -> PlanAnswer:
    return planned(budget_bytes=2**20)


def words_of(of: PlanAnswer) -> str:
    return answers.plain(fit_answers.whether_it_fits(of)).replace("\u00a0", " ")


def test_the_first_line(windowed: PlanAnswer, refused: PlanAnswer) -> None:
    assert words_of(windowed).startswith("GPT does not fit in the budget given as it is (8.7 GiB")
    assert " of 3.5 GiB), but trains in a window of " in words_of(windowed)
    assert ", simulated, " in words_of(windowed)
    assert re.search(r"5\d % \(\d\d–\d\d\) of the speed", words_of(windowed))
    assert words_of(planned()).startswith(f"GPT fits on {H100} without offload: it takes 8.7 GiB")
    assert words_of(refused).startswith(
        "GPT does not fit in the budget given, not even in a window: the smallest window"
    )
    changed = replace(windowed, change="Change the loop first: checkpoint each layer.")
    assert words_of(changed).endswith(" Change the loop first: checkpoint each layer.")


def test_how_many_workflows_can_be_planned() -> None:
    assert answers.plain(fit_answers.plannable(0, 0)).startswith("0 workflows are known yet")
    assert answers.plain(fit_answers.plannable(3, 1)).startswith("1 of 3 workflows has a trace")
    assert answers.plain(fit_answers.plannable(3, 2)).startswith("2 of 3 workflows have a trace")


def test_the_chart_marks_the_chosen_window_and_what_does_not_fit(windowed: PlanAnswer) -> None:
    drawn = window.figure(windowed)
    memory, low, high, step = drawn["data"]
    slots = [point.slots for point in windowed.window.points]
    assert memory["x"] == step["x"] == slots
    chosen = slots.index(windowed.window.chosen)
    assert memory["marker"]["size"][chosen] == max(memory["marker"]["size"])
    fits = [point.fits for point in windowed.window.points]
    assert [symbol == "circle" for symbol in memory["marker"]["symbol"]] == fits
    assert all(a < b < c for a, b, c in zip(low["y"], step["y"], high["y"], strict=True))
    assert all("simulated" in text for text in step["customdata"])
    assert "GiB" in drawn["layout"]["yaxis1"]["ticksuffix"]


def test_without_a_plan_only_memory_is_drawn(refused: PlanAnswer) -> None:
    drawn = window.figure(refused)
    assert len(drawn["data"]) == 1
    assert set(drawn["data"][0]["marker"]["symbol"]) == {"circle-open"}


def test_a_limit_far_above_is_said_and_not_drawn(windowed: PlanAnswer) -> None:
    far = replace(windowed, limits=replace(windowed.limits, device_bytes=10**15))
    drawn = window.figure(far)
    assert "Far above: what may be used, 909.5 TiB" in str(fit.result(far, None, zone_of("UTC")))
    assert len(drawn["layout"]["shapes"]) == 1


def test_names_from_outside_stay_text(windowed: PlanAnswer, refused: PlanAnswer) -> None:
    run = make(RunDetail, run="a1", workflow="it's $HOME", command=["python", "a b.py", "\x1b[31m"])
    drawn = json.dumps(fit.result(windowed, run, zone_of("UTC")), cls=PlotlyJSONEncoder)
    assert "\\u001b" not in drawn
    assert "'it'\\\"'\\\"'s $HOME' -- python 'a b.py'" in drawn
    assert "data:application/yaml" in drawn
    without = json.dumps(fit.result(refused, None, zone_of("UTC")), cls=PlotlyJSONEncoder)
    assert "data:application/yaml" not in without
    assert "nothing was timed" in without


@pytest.mark.parametrize(
    ("field", "value"),
    [("memory", "8 cows"), ("memory", "-1"), ("host", "many"), ("cores", "0"), ("cores", "1e3"), ("cores", "٣")],
)
def test_a_field_that_is_not_acceptable_is_refused(field: str, value: str) -> None:
    with pytest.raises(Invalid):
        checked(dict.fromkeys(FIELDS, "") | {field: value})


def test_empty_fields_are_the_models_own_machine() -> None:
    assert set(vars(checked(dict.fromkeys(FIELDS, ""))).values()) == {None}
    wanted = checked({"workflow": "", "gpu": H100, "memory": "8GiB", "host": "1TiB", "cores": "64"})
    assert wanted == Wanted(device=H100, budget_bytes=8 * GIB, host_bytes=1024 * GIB, cores=64)


def test_the_address_carries_any_name() -> None:
    assert fit_href(workflow="a/b ü&x") == "/will-it-fit?workflow=a%2Fb+%C3%BC%26x"
    assert fit_href(workflow=None) == "/will-it-fit"
