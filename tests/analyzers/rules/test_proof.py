"""`make proof`: every fix fits its job, some cases run from the recording to the table, and the sums are right."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tightship_analyzers.rules.catalogue import find_rule

FOLDER = Path(__file__).parents[3] / "benchmarks" / "proof"
sys.path.insert(0, str(FOLDER))

import proof  # type: ignore[import-not-found]  # noqa: E402
from advice import Prediction  # type: ignore[import-not-found]  # noqa: E402
from agreement import Interval, Row, agreement, calibrated, median_interval, outcomes  # type: ignore[import-not-found]  # noqa: E402
from cases import CONTROLS, PAIRS, Case  # type: ignore[import-not-found]  # noqa: E402
from document import document  # type: ignore[import-not-found]  # noqa: E402
from job_runs import JobFailed, fixed  # type: ignore[import-not-found]  # noqa: E402

sys.path.remove(str(FOLDER))

CASES = (*PAIRS, *CONTROLS)
FIXABLE = [case for case in CASES if case.diff is not None]
SHORT = 4
"""Steps of a run here, and of a recording: nothing is timed, it only has to work."""


@pytest.fixture(autouse=True)
def _kept_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(proof, "KEPT", tmp_path / "kept")
    yield


def test_there_are_pairs_of_rules_that_exist_and_controls() -> None:
    assert len(PAIRS) >= 24 and len(CONTROLS) >= 8
    assert len({case.job for case in CASES}) == len(CASES)
    assert all(case.rule and case.asks and case.diff for case in PAIRS)
    assert all(case.is_control for case in CONTROLS)
    assert all(bool(case.rule) == (case.diff is not None) for case in CASES)
    assert all(find_rule(case.rule) for case in CASES if case.rule)


def test_every_job_and_every_diff_belongs_to_a_case() -> None:
    for name, cases in (("pairs", PAIRS), ("controls", CONTROLS)):
        jobs = {case.job for case in cases}
        assert {path.stem for path in (FOLDER / name).iterdir() if path.is_file()} <= jobs
    assert all(case.script.is_file() for case in CASES)


@pytest.mark.parametrize("case", FIXABLE, ids=lambda case: case.job)
def test_the_fix_fits_the_job(case: Case, tmp_path: Path) -> None:
    changed = fixed(case, tmp_path).read_text()
    compile(changed, case.job, "exec")
    assert changed != case.script.read_text()
    assert all("tightship" not in text for text in (changed, case.script.read_text()))


def test_a_diff_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    first, second = FIXABLE[:2]
    other = tmp_path / f"{first.job}.py"
    other.write_text(second.script.read_text())
    wrong = type("Wrong", (), {"job": first.job, "script": other, "diff": first.diff})()
    (tmp_path / "made").mkdir()
    with pytest.raises(JobFailed, match="does not fit"):
        fixed(wrong, tmp_path / "made")


@pytest.mark.torch
def test_a_case_is_recorded_measured_and_judged() -> None:
    """CI runs two more, drawn from all, when nothing else takes their cores."""
    case = next(case for case in PAIRS if case.job == "printed_tensors")
    row = proof.proved(replace(case, steps=SHORT, recorded=SHORT), alternations=1, afresh=True)
    assert row.failed is None
    assert row.step_ns > 0 and row.cpu_ns is not None  # counted in ticks of 10 ms, of which short steps have none
    assert row.measured is not None and row.predicted is not None
    assert row.predicted.low_frac <= row.predicted.value_frac <= row.predicted.high_frac
    assert proof.proved(replace(case, steps=SHORT, recorded=SHORT), alternations=1, afresh=False) == row


def test_a_draw_is_of_all_cases_and_can_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIGHTSHIP_SLICE", "7")
    first = proof.drawn(2)
    assert len(set(first)) == 2 and proof.drawn(2) == first
    assert set(proof.drawn(len(CASES))) == {case.job for case in CASES}


def test_a_case_without_a_recording_says_so() -> None:
    row = proof.proved(PAIRS[0], alternations=1, afresh=False)
    assert row.failed is not None and "recorded.json" in row.failed


def made(job: str, predicted: float | None, measured: float, *, low: float = 0.0, control: bool = False) -> Row:
    """A row of a rule; `predicted` with `low` and 0.1 above it."""
    saving = None
    if predicted is not None:
        saving = Prediction(
            rule="r", where="", low_frac=low, value_frac=predicted, high_frac=predicted + 0.1, method="simulated"
        )
    return Row(
        job=job,
        rule="r",
        is_control=control,
        step_ns=10**6,
        measured=Interval(low=measured - 0.01, value=measured, high=measured + 0.01),
        predicted=saving,
        certain=[saving] if saving and low > 0 else [],
    )


@pytest.mark.parametrize(("count", "left_out"), [(1, 0), (6, 0), (7, 0), (8, 1), (12, 2), (20, 5)])
def test_the_interval_of_a_median_holds_it_nine_times_in_ten(count: int, left_out: int) -> None:
    interval = median_interval([float(value) for value in range(count)])
    assert (interval.low, interval.high) == (left_out, count - 1 - left_out)
    assert interval.value == (count - 1) / 2
    outside = 2 * sum(math.comb(count, below) for below in range(left_out + 1)) / 2**count
    assert count < 5 or outside <= 0.1


def test_a_pair_is_calibrated_by_the_others_of_its_rule_only() -> None:
    rows = [made(str(number), 0.3, 0.3 + 0.02 * number, low=0.2) for number in range(4)]
    stranger = replace(made("stranger", 0.3, 0.9), rule="another")
    silent = made("silent", None, 0.5)
    interval = calibrated(rows[3], [*rows, stranger, silent])
    assert interval is not None
    assert (interval.low, interval.high) == (pytest.approx(0.3), pytest.approx(0.34))
    assert calibrated(silent, [*rows, silent]) is None
    assert calibrated(rows[0], rows[:3]) is None


def test_the_sum_of_all_cases() -> None:
    rows = [
        made("right", 0.30, 0.32, low=0.25),
        made("wrong", 0.30, 0.60, low=0.25),
        made("missed", None, 0.40),
        made("little", None, 0.02),
        made("worse", 0.20, -0.10, low=0.10),
        made("alarm", 0.20, 0.00, low=0.10, control=True),
        made("quiet", None, 0.00, control=True),
    ]
    result = agreement(rows)
    assert (result.pairs, result.found, result.bounds, result.controls) == (5, 3, 0, 2)
    assert result.overlap_frac == pytest.approx(2 / 5)
    assert result.median_error == pytest.approx(0.30)
    assert (result.notable, result.notable_found, result.notable_certain) == (3, 2, 2)
    assert result.harmful == ["worse"]
    assert result.alarmed == {"alarm": ["r"]}
    assert result.bias["r"] == (3, pytest.approx((-0.02 - 0.30 + 0.30) / 3))
    assert outcomes(rows) == {"r": {"right": True, "wrong": False, "worse": False, "alarm": False}}
    text = document([*rows, Row(job="broken", rule="r", step_ns=0, failed="it fell")], result, 6)
    assert "| right | r |" in text and "broken did not run: it fell" in text
    assert "made the job slower: worse" in text and "alarm (r)" in text
