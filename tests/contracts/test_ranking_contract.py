"""Ranking on both databases: what changed is ranked, in small transactions, and one bad workflow stops no other."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from records import MIN, T0, S, batch, held, started
from sqlalchemy import event, select

from tightship_analyzers.fleet import accounting, ranking
from tightship_platform import ingest
from tightship_platform.database import ranked_workflows
from tightship_platform.database.engine import Database
from tightship_platform.database.models import Opportunity, Run, Trace, Workflow
from tightship_platform.queries.opportunities import list_opportunities

END = T0 + 10 * MIN
CLAIM = {"rules": ["starved-input"], "share_frac": 0.5, "low_frac": 0.4, "high_frac": 0.6, "method": "measured"}


def runs(database: Database, *workflows: str) -> None:
    """A run of each workflow, with a trace in which half a step goes to waste, and its account."""
    for name in workflows:
        with database.session() as session:
            ingest.apply_run(session, started(f"run-{name}", name), now=T0)
            ingest.apply_batch(session, batch(allocations=[held(f"run-{name}", T0, END)]), now=END)
            run = session.scalars(select(Run).where(Run.key == f"run-{name}")).one()
            run.end_ns, run.state = END, "finished"
            stored = {"url": "u", "sha256": "0" * 64, "bytes": 1, "created_ns": T0, "analyzed_ns": T0}
            summary = {"steps": 5, "buckets": {"productive": 1}, "claims": [CLAIM]}
            session.add(Trace(run_id=run.id, rank=0, summary=summary, **stored))
            session.flush()
            accounting.account_run(session, run, now=END)


def ranked(database: Database, now: int = END) -> set[str]:
    """Names of the workflows that are due, which are ranked then."""
    with database.session() as session:
        due = ranking.due_workflows(session, now)
        names = set(session.scalars(select(Workflow.name).where(Workflow.id.in_(due))))
    assert ranking.rank_changed(database, now=now) == len(due)
    return names


def mark(database: Database, name: str) -> None:
    with database.session() as session:
        ranked_workflows.mark(session, session.scalars(select(Workflow.id).where(Workflow.name == name)))


def test_only_what_changed_is_ranked(database: Database) -> None:
    runs(database, "a", "b", "c")
    assert ranked(database) == {"a", "b", "c"}
    assert ranked(database) == set()
    with database.session() as session:
        assert {one.workflow for one in list_opportunities(session)} == {"a", "b", "c"}
        run = session.scalars(select(Run).where(Run.key == "run-b")).one()
        accounting.account_run(session, run, now=END + S)
    assert ranked(database) == {"b"}
    mark(database, "c")
    mark(database, "c")
    assert ranked(database) == {"c"}
    assert ranked(database) == set()
    with database.session() as session:
        assert [one.position for one in list_opportunities(session)] == [1, 2, 3]


def test_what_has_an_opportunity_is_ranked_as_time_passes_whatever_the_clock_said(database: Database) -> None:
    runs(database, "a")
    with database.session() as session:
        session.add(Workflow(name="without a run", labels={}))
    assert ranked(database, END + 1000 * ranking.AGAIN_NS) == {"a", "without a run"}, "by a clock that was ahead"
    assert ranked(database) == {"a", "without a run"}
    with database.session() as session:
        assert len(list_opportunities(session)) == 1
    assert ranked(database, END + ranking.AGAIN_NS) == {"a"}
    assert ranked(database, END + 2 * ranking.AGAIN_NS - 1) == set()


def test_a_mark_that_is_made_meanwhile_stays(database: Database) -> None:
    runs(database, "a", "b")
    with database.session() as session:
        first, _ = ranking.due_workflows(session, END)
    made: list[Any] = []

    def mark_again(session: Any, _context: Any) -> None:
        if not made:
            made.append(None)
            ranked_workflows.mark(session, [first])

    # In the transaction that has just ranked it, after it has looked.
    ranking_session = database._sessions
    event.listen(ranking_session, "after_flush_postexec", mark_again)
    try:
        ranking.rank_changed(database, now=END)
    finally:
        event.remove(ranking_session, "after_flush_postexec", mark_again)
    with database.session() as session:
        assert ranking.due_workflows(session, END) == [first]


def test_one_bad_workflow_stops_no_other_and_holds_no_lock(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    runs(database, "a", "b", "c")
    with database.session() as session:
        bad = session.scalars(select(Trace).join(Run).where(Run.key == "run-b")).one()
        bad.summary = bad.summary | {"claims": [{"rules": ["starved-input"]}]}
    commits: list[Any] = []

    def note(connection: Any) -> None:
        commits.append(connection)

    event.listen(database.engine, "commit", note)
    try:
        with caplog.at_level(logging.ERROR):
            assert ranking.rank_changed(database, now=END) == 3
    finally:
        event.remove(database.engine, "commit", note)
    assert len(commits) >= 4, "a transaction each, and one that numbers"
    assert caplog.text.count("could not be ranked") == 1
    with database.session() as session:
        assert {one.workflow for one in list_opportunities(session)} == {"a", "c"}
        assert session.scalars(select(Opportunity.position).order_by(Opportunity.position)).all() == [1, 2]
    assert ranked(database) == set(), "not again and again"
    with database.session() as session:
        bad = session.scalars(select(Trace).join(Run).where(Run.key == "run-b")).one()
        bad.summary = bad.summary | {"claims": [CLAIM]}
    mark(database, "b")
    assert ranked(database) == {"b"}
    with database.session() as session:
        assert len(list_opportunities(session)) == 3
