"""What was applied and what came of it, in words."""

from __future__ import annotations

from typing import Any

import pytest
from made_records import make

from tightship_dashboard.sentences import actions as words
from tightship_dashboard.sentences import answers
from tightship_dashboard.sentences.formatting import NBSP
from tightship_dashboard.sentences.links import Answer, Link
from tightship_platform.results.action import Action

PREDICTED = {"saving_frac": 0.3, "low_frac": 0.25, "high_frac": 0.4, "method": "simulated"}


def applied(state: str, measured: tuple[float, float | None, float | None] | None = None, **more: Any) -> Action:
    given: dict[str, Any] = {"workflow": "vision", "kind": "apply", "by": "ann", "state": state, "predicted": PREDICTED}
    if measured is not None:
        value, low, high = measured
        agreement = None
        if low is not None and high is not None:
            agreement = "more than predicted" if low > 0.4 else "less than predicted" if high < 0.25 else "as predicted"
        verdict = "undecided" if state == "applied" else state
        found = {"saving_frac": value, "low_frac": low, "high_frac": high, "verdict": verdict, "agreement": agreement}
        given["verification"] = found
    return make(Action, given, **more)


def text_of(answer: Answer) -> str:
    return answers.plain(answer).replace(NBSP, " ")


def summed_up(*rows: Action, most: int = 500, **filters: str | None) -> str:
    return text_of(words.did_it_work(rows, most=most, **filters))


WELL = applied("verified", (0.294, 0.271, 0.318))


def test_changes_are_counted_by_what_came_of_them_and_never_added() -> None:
    more = applied("verified", (0.5, 0.45, 0.55))
    less = applied("refuted", (-0.021, -0.043, 0.002))
    near = applied("applied", (0.24, 0.1, 0.38), waits_for="longer runs would tell")
    short = applied("applied", (0.3, None, None))
    undone = make(Action, {"kind": "dismiss", "workflow": "vision"})
    assert summed_up(WELL, more, less, near, short, applied("withdrawn"), undone) == (
        "Of 6 applied changes, 2 are verified, 1 is refuted, 2 wait for runs that tell and 1 was withdrawn. "
        "1 of 4 measured savings lies in the predicted interval; the two intervals overlap in 2."
    )


@pytest.mark.parametrize(
    ("rows", "filters", "sentence"),
    [
        ([], {}, "0 changes were applied."),
        ([], {"workflow": "a", "team": "b"}, "0 changes of a of team b were applied."),
        ([], {"state": "refuted"}, "0 changes are refuted."),
        (
            [applied("applied")],
            {},
            "Of 1 applied change, 1 waits for a run that tells. No saving has been measured yet.",
        ),
        (
            [WELL],
            {"opportunity": "7"},
            "Of 1 applied change for opportunity 7, 1 is verified. Its measured saving is 29.4 % (27.1–31.8) of the "
            "step; the prediction (simulated) was 30.0 % (25.0–40.0).",
        ),
    ],
)
def test_few_changes(rows: list[Action], filters: dict[str, str | None], sentence: str) -> None:
    assert summed_up(*rows, **filters) == sentence


def test_a_list_that_is_cut_says_so_and_links_keep_the_filters() -> None:
    answer = words.did_it_work([WELL, WELL], most=2, team="red", state=None)
    assert text_of(answer).startswith("Of the newest 2 applied changes of team red, 2 are verified.")
    hrefs = [part.href for part in answer if isinstance(part, Link)]
    assert hrefs == ["/did-it-work?team=red&state=verified", "#calibration"]


@pytest.mark.parametrize(
    ("action", "sentence"),
    [
        (
            WELL,
            "Yes: a step of vision takes 29.4 % (27.1–31.8) less device time than before; the prediction (simulated) "
            "was 30.0 % (25.0–40.0).",
        ),
        (
            applied("refuted", (-0.021, -0.043, -0.002)),
            "No: a step of vision takes 2.1 % (0.2–4.3) more device time than before; the prediction (simulated) was "
            "30.0 % (25.0–40.0).",
        ),
        (
            applied("refuted", (-0.001, -0.004, 0.003), predicted=None),
            "No: a step of vision takes 0.1 % (−0.3 to 0.4) more device time than before.",
        ),
        (applied("applied", waits_for="No run has ended yet."), "Not known yet for vision. No run has ended yet."),
        (applied("withdrawn"), "Nobody knows: this change of vision was withdrawn before a run could tell."),
        (
            make(Action, {"kind": "dismiss", "by": "ann", "workflow": "vision", "reason": "not\nnow."}),
            "ann dismissed an opportunity of vision: not␤now.",
        ),
        (make(Action, {"kind": "reopen", "by": "ann", "workflow": "vision"}), "ann reopened an opportunity of vision."),
    ],
)
def test_one_action_says_whether_it_worked(action: Action, sentence: str) -> None:
    assert text_of(words.one_action(action)) == sentence


def test_what_was_not_measured_is_missing_and_never_zero() -> None:
    assert words.measured_text(None) == words.predicted_text(None) == "–"
    short = applied("applied", (-0.02, None, None)).verification
    assert words.measured_text(short).replace(NBSP, " ") == "−2.0 %"
