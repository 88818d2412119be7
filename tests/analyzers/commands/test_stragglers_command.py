"""`tightship stragglers`: the figures in a terminal and as JSON, and one line when there are none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import op_tables
import pytest
from click.testing import CliRunner, Result
from reference_data import STRAGGLERS

from tightship_analyzers.commands.stragglers import stragglers
from tightship_platform.errors import TightshipError


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(stragglers, [str(argument) for argument in arguments])


@pytest.mark.reference
@pytest.mark.parametrize(("name", "slowdown", "stage"), [("AR", 1.9730, 0), ("ST", 1.1787, 3)])
def test_published_jobs(name: str, slowdown: float, stage: int) -> None:
    assert_reported(STRAGGLERS / f"trace-{name}.parquet", slowdown, stage)


def test_a_job_with_a_slow_stage(tmp_path: Path) -> None:
    """Of 4 stages the third takes twice as long, and waits 1 s for its first backward: 2 + 2 · 1 + 4 · 6 + 1 + 2 · 2 s.

    Usual is the mean, 1.25 of an even one: 2 + 7 · 3.75 s.
    """
    rows = op_tables.job_rows(stages=4, cost=lambda *at: op_tables.usual_cost(*at) * (2 if at[2] == 2 else 1))
    assert_reported(op_tables.write(tmp_path / "job.parquet", rows), 33 / 28.25, 2)


def assert_reported(path: Path, slowdown: float, stage: int) -> None:
    result = run(path, "--json")
    assert result.exit_code == 0, result.output
    said: dict[str, Any] = json.loads(result.stdout)
    assert said["slowdown"] == pytest.approx(slowdown, abs=1e-3)
    assert said["stages"][0]["key"] == stage and said["stages"][0]["saving_ns"] > 0
    assert said["workers"][0]["key"].keys() == {"rank", "dp_rank", "stage"}
    assert said["actual_ns"] / said["ideal_ns"] == pytest.approx(said["slowdown"])
    table = run(path, "--limit", "2", "--workers")
    assert f"slowdown {slowdown:.4f}" in table.output and "Workers" in table.output
    assert "Not shown: " in table.output


def test_what_is_no_table_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_text("no table")
    for path in (tmp_path / "x.parquet", tmp_path / "missing.parquet", tmp_path):
        result = run(path)
        assert isinstance(result.exception, TightshipError) and "\n" not in str(result.exception)
