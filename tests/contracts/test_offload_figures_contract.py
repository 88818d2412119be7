"""A plan that a run used, on both databases: reported by the launcher, kept once, read with the run."""

from __future__ import annotations

import pytest
from records import MIN, T0, S, ended, started
from sqlalchemy import func, select

from tightship_platform import ingest
from tightship_platform.database.engine import Database
from tightship_platform.database.models import Action, Plan, Verification
from tightship_platform.errors import Invalid
from tightship_platform.queries import runs

NOW = T0 + MIN
FIGURES = {
    "layers": 8,
    "slots": 2,
    "resident": 1,
    "predicted_step_ns": 820_000_000,
    "predicted_low_ns": 800_000_000,
    "predicted_high_ns": 840_000_000,
    "steps": 40,
    "step_ns": 831_000_000,
    "wait_h2d_ns": 5_000_000,
}


def test_what_a_plan_promised_and_what_came_of_it(database: Database) -> None:
    with database.session() as session:
        ingest.apply_run(session, started(), now=NOW)
        assert runs.get_run(session, "a1").offload is None
        ingest.apply_run(session, ended(end_ns=T0 + 5 * S, offload=FIGURES), now=NOW)
        used = runs.get_run(session, "a1").offload
        assert vars(used) == {
            "plan": {name: value for name, value in FIGURES.items() if name in ("layers", "slots", "resident")}
            | {name: FIGURES[name] for name in ("predicted_step_ns", "predicted_low_ns", "predicted_high_ns")},
            "predicted_ns": 820_000_000,
            "measured_ns": 831_000_000,
            "step": {"steps": 40, "step_ns": 831_000_000, "wait_h2d_ns": 5_000_000},
        }


def test_a_record_that_comes_again_changes_nothing(database: Database) -> None:
    with database.session() as session:
        for step_ns in (1, 2, 3):
            record = ended(end_ns=T0 + 5 * S, offload=FIGURES | {"step_ns": step_ns})
            ingest.apply_run(session, record, now=NOW)
        assert runs.get_run(session, "a1").offload.measured_ns == 1
        for model in (Plan, Action, Verification):
            assert session.scalar(select(func.count()).select_from(model)) == 1


@pytest.mark.parametrize("figures", [{"rm -rf": 1}, {"step_ns": -1}, {"step_ns": 2**53 + 1}])
def test_figures_that_are_none_are_refused(database: Database, figures: dict[str, int]) -> None:
    with database.session() as session, pytest.raises(Invalid):
        ingest.apply_run(session, ended(end_ns=T0 + 5 * S, offload=figures), now=NOW)
