"""Settings: read from the environment or the file, refused when they make no sense."""

from __future__ import annotations

from pathlib import Path

import pytest

from tightship_platform.errors import Invalid
from tightship_platform.settings import Settings, load_settings


def test_what_is_kept_is_a_number_of_days(tmp_path: Path) -> None:
    home = {"TIGHTSHIP_HOME": str(tmp_path)}
    found = load_settings(home | {"TIGHTSHIP_KEEP_DAYS": "7", "TIGHTSHIP_KEEP_TRACE_DAYS": "0"})
    assert (found.keep_days, found.keep_trace_days) == (7, 0)
    (tmp_path / "tightship.toml").write_text("keep_days = 8\n")
    assert load_settings(home).keep_days == 8
    for text in ("-1", "1.5", "a week", "36501", "١"):
        with pytest.raises(Invalid, match=r"TIGHTSHIP_KEEP_DAYS is .*; expected a whole number of days"):
            load_settings(home | {"TIGHTSHIP_KEEP_DAYS": text})


def test_limits_of_the_database_are_seconds(tmp_path: Path) -> None:
    home = {"TIGHTSHIP_HOME": str(tmp_path)}
    assert load_settings(home | {"TIGHTSHIP_DATABASE_STATEMENT_S": "0"}).database_statement_s == 0
    for text in ("-1", "20s", "86401"):
        with pytest.raises(Invalid, match=r"TIGHTSHIP_DATABASE_LOCK_S is .*; expected a whole number of seconds"):
            load_settings(home | {"TIGHTSHIP_DATABASE_LOCK_S": text})


@pytest.mark.parametrize(("samples", "rollups"), [(30, 29), (0, 400)])
def test_means_are_kept_at_least_as_long_as_what_they_are_made_of(samples: int, rollups: int) -> None:
    with pytest.raises(Invalid, match="TIGHTSHIP_KEEP_ROLLUP_DAYS is"):
        Settings(keep_days=samples, keep_rollup_days=rollups)
    for days in (0, 30):
        assert Settings(keep_days=30, keep_rollup_days=days).keep_rollup_days == days
    assert Settings(keep_days=0, keep_rollup_days=0).keep_days == 0


def test_steps_are_counted_together_for_two_seconds_at_least(tmp_path: Path) -> None:
    home = {"TIGHTSHIP_HOME": str(tmp_path)}
    assert load_settings(home).step_period_s == 10
    assert load_settings(home | {"TIGHTSHIP_STEP_PERIOD_S": "2"}).step_period_s == 2
    for text in ("0", "1", "3601", "2.5"):
        with pytest.raises(Invalid, match="TIGHTSHIP_STEP_PERIOD_S is"):
            load_settings(home | {"TIGHTSHIP_STEP_PERIOD_S": text})
