"""Predicted → applied → measured on both databases: what an opportunity's action leads to, by the runs that follow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from records import GPU, HOUR, T0, S
from sqlalchemy import select
from stepping_runs import CODE, opportunity, record

from tightship_analyzers.fleet import verifying
from tightship_platform.database.engine import Database
from tightship_platform.database.models import Opportunity, OpportunityAction, Run
from tightship_platform.errors import Conflict, Invalid, NotFound
from tightship_platform.ingest.actions.act import NO_RUN_YET, act
from tightship_platform.ingest.actions.later_runs import OUTSIDE
from tightship_platform.ingest.actions.verify import predicted_between, verify
from tightship_platform.queries.actions import (
    actions_comparing,
    compared_runs_left,
    list_actions,
    workflows_acted_on,
)
from tightship_platform.queries.opportunities import get_opportunity, list_opportunities, opportunity_of_finding
from tightship_platform.results.action import Action, Verification
from tightship_platform.results.filters import Filters
from tightship_platform.vocabulary import ActionKind

APPLIED = T0 + HOUR
LATER = T0 + 2 * HOUR


def do(database: Database, row: int, kind: ActionKind, now: int = APPLIED, reason: str | None = "so") -> None:
    with database.session() as session:
        act(session, row, kind, actor="ann", reason=reason, now=now)


def actions(database: Database, row: int) -> list[Action]:
    with database.session() as session:
        return list_actions(session, opportunity=row)


def compared(database: Database, before: str, after: str) -> Verification:
    with database.session() as session:
        pair = [session.scalars(select(Run).where(Run.key == key)).one() for key in (before, after)]
        return verify(session, *pair, predicted_between(session, *pair))


def test_an_application_keeps_what_was_predicted_and_where(database: Database, tmp_path: Path) -> None:
    row = opportunity(database, tmp_path)
    do(database, row, ActionKind.APPLY)
    [action] = actions(database, row)
    assert action.change is not None and action.predicted is not None
    assert (action.change.fix, action.change.places) == ("Give the loader workers", ["train.py:7"])
    assert (action.change.before, action.change.after) == (CODE["before"], CODE["after"])
    assert action.predicted.saving_frac == pytest.approx(0.3, abs=1e-6)
    assert action.predicted.low_frac <= 0.3 <= action.predicted.high_frac == pytest.approx(0.4, abs=1e-6)
    assert (action.before, action.state, action.waits_for) == ("before", "applied", NO_RUN_YET)
    assert (action.by, action.time_ns, action.reason, action.verification) == ("ann", APPLIED, "so", None)
    assert verifying.verify_applications(database) == 0, "no later run"


@pytest.mark.parametrize(
    ("step_ms", "verdict", "agreement"),
    [
        (14.0, "verified", "as predicted"),
        (20.0, "refuted", "less than predicted"),
        (23.0, "refuted", "less than predicted"),
    ],
)
def test_a_later_run_settles_it_once(
    database: Database, tmp_path: Path, step_ms: float, verdict: str, agreement: str
) -> None:
    row = opportunity(database, tmp_path)
    do(database, row, ActionKind.APPLY)
    record(database, tmp_path, "live", start_ns=LATER, step_ms=9, is_ended=False)
    assert verifying.verify_applications(database) == 0, "it has not ended"
    record(database, tmp_path, "after", start_ns=LATER + HOUR, step_ms=step_ms, seconds=900, spread=0.004, seed=2)
    assert verifying.verify_applications(database) == 1
    [action] = actions(database, row)
    found = action.verification
    assert found is not None
    assert (action.state, found.verdict, action.waits_for, found.agreement) == (verdict, verdict, None, agreement)
    assert (found.before.run, found.after.run) == ("before", "after")
    assert found.low_frac is not None and found.high_frac is not None
    assert found.low_frac <= 1 - step_ms / 20 + 0.02 and found.high_frac >= 1 - step_ms / 20 - 0.02
    assert found.before.step_device_ns == pytest.approx(20e6, rel=0.03)
    with database.session() as session:
        assert get_opportunity(session, row).state == verdict
    assert found == compared(database, "before", "after"), "what `tightship verify` says"
    record(database, tmp_path, "again", start_ns=LATER + 2 * HOUR, step_ms=40, seed=3)
    assert verifying.verify_applications(database) == 0, "settled"
    assert actions(database, row) == [action]


def test_actions_are_found_by_workflow_team_state_run_and_finding(database: Database, tmp_path: Path) -> None:
    row = opportunity(database, tmp_path, seconds=120, team="red")
    do(database, row, ActionKind.APPLY, reason=None)
    record(database, tmp_path, "after", start_ns=LATER, step_ms=14, seconds=120, spread=0.004, seed=2, team="red")
    record(database, tmp_path, "alone", start_ns=LATER, step_ms=14, seconds=20, workflow="other")
    verifying.verify_applications(database)
    with database.session() as session:
        [action] = list_actions(session)
        for filters in (Filters(workflow="train"), Filters(team="red"), Filters(state="verified", workflow="train")):
            assert list_actions(session, filters=filters) == [action]
        for filters in (Filters(workflow="other"), Filters(team="blue"), Filters(state="refuted")):
            assert list_actions(session, filters=filters) == []
        with pytest.raises(Invalid, match="one of applied, verified, refuted, withdrawn"):
            list_actions(session, filters=Filters(state="dismissed"))
        assert actions_comparing(session, "before") == actions_comparing(session, "after") == [action]
        assert actions_comparing(session, "alone") == actions_comparing(session, "gone") == []
        assert workflows_acted_on(session) == [("train", "red")]
        assert action.verification is not None and action.simulated is False
        assert compared_runs_left(session, action.verification) == {"before", "after"}
        session.scalars(select(Run).where(Run.key == "after")).one().key = "another"
        session.flush()
        assert compared_runs_left(session, action.verification) == {"before"}
        found = opportunity_of_finding(session, get_opportunity(session, row).findings[0])
        assert found == get_opportunity(session, row)
        assert opportunity_of_finding(session, 999_999) is None


def test_what_does_not_tell_leaves_it_applied_and_says_why(database: Database, tmp_path: Path) -> None:
    row = opportunity(database, tmp_path)
    do(database, row, ActionKind.APPLY)
    record(database, tmp_path, "short", start_ns=LATER, step_ms=14, seconds=50)
    assert verifying.verify_applications(database) == 1
    [action] = actions(database, row)
    assert action.state == "applied" and action.verification is not None
    assert action.verification.verdict == "undecided" and action.verification.low_frac is None
    assert action.waits_for is not None and "Run short has" in action.waits_for
    assert verifying.verify_applications(database) == 0, "nothing has come since"
    record(database, tmp_path, "other", start_ns=LATER + HOUR, step_ms=14, device=GPU)
    assert verifying.verify_applications(database) == 1
    [action] = actions(database, row)
    assert action.state == "applied" and action.waits_for is not None
    assert "not alike (devices: 1 × Test processor before, 1 × Test accelerator after)" in action.waits_for
    record(database, tmp_path, "noisy", start_ns=LATER + 2 * HOUR, step_ms=19.8, seconds=120, spread=0.2, seed=8)
    verifying.verify_applications(database)
    [action] = actions(database, row)
    assert action.verification is not None and action.verification.verdict == "undecided"
    assert action.waits_for is not None and "longer runs would tell" in action.waits_for
    record(database, tmp_path, "long", start_ns=LATER + 3 * HOUR, step_ms=14, seed=5)
    assert verifying.verify_applications(database) == 1
    [action] = actions(database, row)
    assert (action.state, action.waits_for) == ("verified", None)


def test_a_saving_outside_of_the_steps_is_no_runs_to_verify(database: Database, tmp_path: Path) -> None:
    row = opportunity(database, tmp_path, unit="ns")
    do(database, row, ActionKind.APPLY)
    record(database, tmp_path, "after", start_ns=LATER, step_ms=14)
    verifying.verify_applications(database)
    [action] = actions(database, row)
    assert (action.predicted, action.state, action.waits_for) == (None, "applied", OUTSIDE)


def test_states_follow_the_actions_and_the_history_stays(database: Database, tmp_path: Path) -> None:
    row = opportunity(database, tmp_path)
    do(database, row, ActionKind.DISMISS, APPLIED)
    with database.session() as session:
        assert list_opportunities(session) == []
        assert [one.state for one in list_opportunities(session, dismissed=True)] == ["dismissed"]
    for kind in (ActionKind.DISMISS, ActionKind.APPLY):
        with pytest.raises(Conflict, match=f"Opportunity {row} is dismissed"):
            do(database, row, kind)
    do(database, row, ActionKind.REOPEN, APPLIED + S)
    do(database, row, ActionKind.APPLY, APPLIED + 2 * S)
    with pytest.raises(Conflict, match="is applied"):
        do(database, row, ActionKind.APPLY)
    do(database, row, ActionKind.REOPEN, APPLIED + 3 * S, "reverted")
    with pytest.raises(Conflict, match="is open already"):
        do(database, row, ActionKind.REOPEN)
    history = [(one.kind, one.state, one.reason) for one in actions(database, row)]
    assert history == [
        ("reopen", None, "reverted"),
        ("apply", "withdrawn", "so"),
        ("reopen", None, "so"),
        ("dismiss", None, "so"),
    ]
    record(database, tmp_path, "after", start_ns=LATER, step_ms=14)
    assert verifying.verify_applications(database) == 0, "withdrawn"
    with pytest.raises(NotFound, match="No opportunity named '999'"):
        do(database, 999, ActionKind.APPLY)


def test_one_bad_application_stops_no_other_and_a_workflow_takes_its_own_along(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    row = opportunity(database, tmp_path)
    do(database, row, ActionKind.APPLY)
    record(database, tmp_path, "after", start_ns=LATER, step_ms=14)
    with database.session() as session:
        good = session.scalars(select(OpportunityAction)).one()
        same: dict[str, Any] = {"workflow_id": good.workflow_id, "title": "t", "kind": "apply", "actor": "a"}
        session.add(OpportunityAction(**same, time_ns=APPLIED - 1, state="applied", predicted={"no": "prediction"}))
    assert verifying.verify_applications(database) == 2
    assert "could not be verified" in caplog.text
    assert [one.state for one in actions(database, row)] == ["verified"]
    with database.session() as session:
        session.delete(session.scalars(select(Opportunity)).one())
    with database.session() as session:
        kept = session.scalars(select(OpportunityAction).order_by(OpportunityAction.id)).first()
        assert kept is not None and kept.opportunity_id is None and kept.verification is not None


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ({}, {"workflow": "other"}, "are of two workflows, 'train' and 'other'"),
        ({"ranks": 2}, {}, r"not alike \(ranks: 2 ranks before, 1 rank after\)"),
        (
            {"labels": {"batch_size": "32"}},
            {"command": ["t.py", "--batch-size", "64"]},
            r"\(batch: 32 before, 64 after\)",
        ),
        ({"command": ["t", "--seq_len=512"]}, {"labels": {"tokens": "1024"}}, r"\(tokens: 512 before, 1024 after\)"),
        ({}, {"seconds": 0}, "Run b counted no steps"),
    ],
)
def test_what_is_not_alike_is_refused_in_one_line(
    database: Database, tmp_path: Path, before: dict[str, Any], after: dict[str, Any], reason: str
) -> None:
    record(database, tmp_path, "a", **{"start_ns": T0, "step_ms": 20, "seconds": 100} | before)
    record(database, tmp_path, "b", **{"start_ns": LATER, "step_ms": 14, "seconds": 100} | after)
    with pytest.raises(Conflict, match=reason) as refusal:
        compared(database, "a", "b")
    assert "\n" not in str(refusal.value)
    with pytest.raises(Conflict, match="Both are run a"):
        compared(database, "a", "a")


def test_what_is_unknown_of_two_runs_is_said(database: Database, tmp_path: Path) -> None:
    sizes = {"batch": "8"}
    record(database, tmp_path, "a", start_ns=T0, step_ms=20, labels=sizes)
    record(database, tmp_path, "b", start_ns=LATER, step_ms=14, labels=sizes)
    found = compared(database, "a", "b")
    assert found.remarks == [
        "neither labels nor options of both commands say the tokens: they are taken to be the same"
    ]
    assert (found.predicted, found.agreement, found.verdict) == (None, None, "verified")
