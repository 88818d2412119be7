"""Filters of every list on both databases: what is let through, for whom, and by which index it is found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from records import MIN, T0, S, ask, beat, ended, live, started
from sqlalchemy import event
from sqlalchemy.orm import Session

from tightship_platform import captures, ingest
from tightship_platform.database import models, teams
from tightship_platform.database.engine import Database
from tightship_platform.errors import Invalid
from tightship_platform.queries.captures import list_captures
from tightship_platform.queries.findings import list_findings
from tightship_platform.queries.hosts import list_hosts
from tightship_platform.queries.runs import list_runs
from tightship_platform.queries.workflows import list_workflows
from tightship_platform.results.filters import Filters

NOW = T0 + MIN
A, B = "a" * 40, "ab" * 20
LISTS: dict[str, tuple[Callable[..., list[Any]], str]] = {
    "runs": (list_runs, "run"),
    "captures": (list_captures, "capture"),
    "findings": (list_findings, "rule"),
    "hosts": (list_hosts, "host"),
    "workflows": (list_workflows, "workflow"),
}


@pytest.fixture
def session(database: Database) -> Iterator[Session]:
    """Two runs of two workflows on two hosts, each with all that can be said of it, a capture and a finding."""
    with database.session() as opened:
        fill(opened)
        yield opened


def fill(session: Session) -> None:
    first = {"owner": "ann", "user": "ann", "labels": {"lr": "3e-4", 'a"b$.c': "x%_", "note": ""}}
    second = {"owner": "bob", "user": "bob", "labels": {"lr": "1e-3"}}
    record = started("a1", "train", team="red", host="h1", external_id="47", git_commit=A, **first)
    ingest.apply_run(session, record, now=NOW)
    record = started("b2", "eval", T0 + 5 * S, team="blue", host="h2", external_id="48", git_commit=B, **second)
    ingest.apply_run(session, record, now=NOW)
    for number, (run, host) in enumerate((("a1", "h1"), ("b2", "h2"))):
        ingest.apply_heartbeat(session, beat(live(run), time_ns=NOW, host=host), now=NOW)
        captures.request(session, ask(run), now=T0 + number * S)
    session.query(models.Host).filter_by(name="h2").one().last_seen_ns = NOW - 10 * S
    ids = {run.key: run.id for run in session.query(models.Run).order_by(models.Run.id)}
    for capture, run, rule in zip(
        session.query(models.Capture).order_by(models.Capture.id), ids, ("x", "y"), strict=True
    ):
        capture.key = f"capture of {run}"
        trace = models.Trace(run_id=ids[run], capture_id=capture.id, rank=0, url=run, sha256="", bytes=1, created_ns=1)
        trace.summary = {}
        session.add(trace)
        session.flush()
        finding = models.Finding(
            run_id=ids[run], trace_id=trace.id, rule=rule, title="t", fix="f", unit="ns", evidence=[]
        )
        finding.method, finding.created_ns = "", T0 + S * ids[run]
        session.add(finding)
    end = ended("b2", "eval", end_ns=T0 + 20 * S, start_ns=T0 + 5 * S, host="h2", team="blue", exit_code=1, **second)
    ingest.apply_run(session, end, now=NOW)
    session.flush()


def shown(session: Session, name: str, filters: Filters) -> list[Any]:
    list_some, key = LISTS[name]
    more = {"now": NOW} if name == "hosts" else {}
    return [getattr(one, key) for one in list_some(session, filters, **more)]


FIRST = {"runs": ["a1"], "captures": ["capture of a1"], "findings": ["x"], "hosts": ["h1"], "workflows": ["train"]}
ABOUT_RUNS = [
    {"workflow": "train"},
    {"team": "red"},
    {"owner": "ann"},
    {"user": "ann"},
    {"host": "h1"},
    {"job_id": "47"},
    {"commit": A},
    {"commit": "aaaa"},
    {"labels": (("lr", "3e-4"),)},
    {"labels": (("note", ""), ("lr", "3e-4"))},
    {"labels": (('a"b$.c', "x%_"),)},
    {"rule": "x"},
    {"workflow": "train", "team": "red", "user": "ann", "host": "h1", "job_id": "47", "commit": "aa", "rule": "x"},
]
FOUND = ["a1", "aaaa", "AAAA", "tra", "TRAIN", "re", "ann", "h1", "47", "3e-4", "x%_"]
"""Words that are found in the first run alone."""
NOTHING = [
    *({"words": words} for words in (("3e",), ("%",), ("_",), ("4",), ("a1", "h2"), ("lr",))),
    {"workflow": "tra%"},
    {"team": "green"},
    {"job_id": "4"},
    {"commit": "aab"},
    {"labels": (("lr", "3e-4"), ("lr", "1e-3"))},
    {"labels": (("lr", "3e"),)},
    {"labels": (("3e-4", "lr"),)},
    {"rule": "z"},
    {"workflow": "train", "team": "blue"},
]


@pytest.mark.parametrize("name", LISTS)
def test_a_list_shows_what_meets_all_filters(session: Session, name: str) -> None:
    assert len(shown(session, name, Filters())) == 2
    for given in ABOUT_RUNS:
        assert shown(session, name, Filters(**given)) == FIRST[name], given
    for word in FOUND:
        assert shown(session, name, Filters(words=(word,))) == FIRST[name], word
    for given in NOTHING:
        assert shown(session, name, Filters(**given)) == [], given


@pytest.mark.parametrize(
    ("name", "times", "states"),
    [
        ("runs", (T0, T0 + 5 * S), {"running": ["a1"], "failed": ["b2"], "lost": []}),
        ("captures", (T0, T0 + S), {"requested": ["capture of a1"], "analyzed": []}),
        ("findings", (T0 + S, T0 + 2 * S), {"running": ["x"], "failed": ["y"]}),
        ("hosts", (NOW - 10 * S, NOW), {"alive": ["h1", "h2"], "silent": []}),
        ("workflows", (T0, T0 + 5 * S), {"running": ["train"], "failed": ["eval"]}),
    ],
)
def test_times_and_states_are_those_of_what_is_listed(
    session: Session, name: str, times: tuple[int, int], states: dict[str, list[str]]
) -> None:
    first, second = times
    whole = set(shown(session, name, Filters()))
    assert set(shown(session, name, Filters(since_ns=first))) == whole
    assert shown(session, name, Filters(since_ns=second + 1)) == shown(session, name, Filters(until_ns=first)) == []
    earlier, later = (shown(session, name, Filters(**given)) for given in ({"until_ns": second}, {"since_ns": second}))
    assert len(earlier) == len(later) == 1 and {*earlier, *later} == whole
    for state, expected in states.items():
        assert shown(session, name, Filters(state=state)) == expected
    with pytest.raises(Invalid, match="state is 'dancing'; expected one of "):
        shown(session, name, Filters(state="dancing"))


def test_a_host_is_silent_after_a_while(session: Session) -> None:
    late = NOW + 25 * S
    assert [one.host for one in list_hosts(session, Filters(state="silent"), now=late)] == ["h2"]
    assert [one.alive for one in list_hosts(session, now=late)] == [True, False]


def test_pages_follow_one_another_among_what_is_shown(session: Session) -> None:
    for name, (list_some, _key) in LISTS.items():
        whole = shown(session, name, Filters())
        last = {"findings": lambda: list_findings(session)[0].finding}.get(name, lambda: whole[0])()  # noqa: B023
        assert [
            getattr(one, LISTS[name][1]) for one in list_some(session, Filters(until_ns=NOW + S), after=last)
        ] == whole[1:]


@pytest.mark.parametrize("name", ["hosts", "workflows"])
def test_filters_ask_nothing_of_other_teams(database: Database, name: str) -> None:
    """Hosts belong to all teams. That a run of another team was on one shows in no filter."""
    with database.session() as session:
        fill(session)
        for run in session.query(models.Run):
            run.team = {"a1": "red", "b2": "blue"}[run.key]
    teams.see_team("red")
    try:
        with database.session() as session:
            assert shown(session, name, Filters(job_id="47")) == FIRST[name]
            for given in (
                {"job_id": "48"},
                {"user": "bob"},
                {"labels": (("lr", "1e-3"),)},
                {"rule": "y"},
                {"commit": B},
            ):
                assert shown(session, name, Filters(**given)) == [], given
    finally:
        teams.see_team(None)


INDEXED = {
    "ix_run_workflow_id": {"workflow": "train"},
    "ix_run_host_name_start_ns": {"host": "h1"},
    "ix_run_user_name_start_ns": {"user": "ann"},
    "ix_run_external_id": {"job_id": "47"},
    "ix_run_git_commit": {"commit": "aaaa"},
    "ix_run_start_ns": {},
    "ix_run_labels": {"labels": (("lr", "3e-4"),)},
}


@pytest.mark.parametrize("index", INDEXED)
def test_runs_are_found_by_an_index(session: Session, index: str) -> None:
    """Of a fleet's runs no list reads all. PostgreSQL would read a table as small as this one from its beginning."""
    dialect = session.get_bind().dialect.name
    if dialect == "sqlite" and index == "ix_run_labels":
        pytest.skip("SQLite looks into the labels of each run")
    for number in range(300):
        workflow = models.Workflow(name=f"w{number}", labels={})
        session.add(workflow)
        session.flush()
        run = models.Run(key=f"k{number}", workflow_id=workflow.id, command=[], state="finished", ranks=[])
        run.start_ns = run.last_seen_ns = T0 - number
        run.host_name, run.user_name, run.external_id = f"n{number}", f"u{number}", f"j{number}"
        run.git_commit, run.labels = f"{number:040x}", {"n": str(number)}
        session.add(run)
    session.flush()
    connection = session.connection()
    connection.exec_driver_sql("ANALYZE")
    if dialect == "postgresql":
        connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
    plans: list[str] = []

    def explain(conn: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if statement.startswith("SELECT run.id") and not plans:
            plans.append("")  # the explanation is no such statement
            ask_for = "EXPLAIN QUERY PLAN " if dialect == "sqlite" else "EXPLAIN "
            plans[0] = str(conn.exec_driver_sql(ask_for + statement, parameters).all())

    event.listen(connection, "before_cursor_execute", explain)
    list_runs(session, Filters(**INDEXED[index]), limit=5)  # type: ignore[arg-type]
    assert index in plans[0], plans[0]
