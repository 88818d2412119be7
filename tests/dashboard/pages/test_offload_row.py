"""What a run's page says of the offload plan that the run used."""

from __future__ import annotations

from made_records import make

from tightship_dashboard.pages.one_run import _offload
from tightship_platform.results.run import RunOffload


def text(**used: object) -> str:
    return str(_offload(make(RunOffload, **used)).children)


def test_predicted_against_measured() -> None:
    said = text(
        plan={
            "slots": 2,
            "resident": 1,
            "layers": 8,
            "predicted_low_ns": 800_000_000,
            "predicted_high_ns": 840_000_000,
        },
        step={"wait_h2d_ns": 5_000_000, "wait_slot_ns": 0, "in_one_pass": 7},
        predicted_ns=820_000_000,
        measured_ns=861_000_000,
    )
    assert said.startswith("2 slots and 1 resident of 8 layers; a step predicted to take 820")
    assert ", measured 861" in said and "(+5.0\N{NO-BREAK SPACE}%)" in said
    assert "it waited 5" in said and "for weights" in said and "a slot" not in said
    assert said.endswith("; of 8 layers 7 are updated in one pass over memory")


def test_what_is_missing_is_said() -> None:
    assert text() == "– slots and – resident of – layers; no step time was predicted, none measured"
