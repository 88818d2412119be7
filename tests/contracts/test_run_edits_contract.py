"""Names and labels that people edit, on both databases: what is kept, found and refused."""

from __future__ import annotations

from typing import Any

import pytest
from records import MIN, T0, S, ended, started

from tightship_platform import ingest
from tightship_platform.database.engine import Database
from tightship_platform.database.teams import see_team
from tightship_platform.errors import Invalid, NotFound
from tightship_platform.ingest.labels import MAX_LABELS
from tightship_platform.queries import runs
from tightship_platform.results.filters import Filters
from tightship_platform.wire import RunEdit

NOW = T0 + MIN


def edit(database: Database, **change: Any) -> None:
    with database.session() as session:
        ingest.edit_run(session, "a1", RunEdit(**change))


def report(database: Database, **labels: str) -> None:
    with database.session() as session:
        ingest.apply_run(session, started(labels=labels), now=NOW)


def labels(database: Database) -> dict[str, str]:
    with database.session() as session:
        return runs.get_run(session, "a1").labels


def found(database: Database, **filters: Any) -> bool:
    with database.session() as session:
        return bool(runs.list_runs(session, Filters(**filters)))


def test_no_report_undoes_what_a_person_edits(database: Database) -> None:
    report(database, lr="3e-4", seed="1", draft="")
    edit(database, labels={"lr": "1e-3", "status": "good <b>", "draft": None}, name="best [red]<i>")
    edited = {"lr": "1e-3", "seed": "1", "status": "good <b>"}
    assert labels(database) == edited
    report(database, lr="3e-4", seed="1", draft="")
    assert labels(database) == edited
    report(database, lr="3e-4", seed="2", draft="again", epoch="9")
    with database.session() as session:
        end = ended(end_ns=T0 + S, labels={"lr": "3e-4", "seed": "2", "epoch": "9"})
        ingest.apply_run(session, end, now=NOW)
    assert labels(database) == edited | {"seed": "2", "epoch": "9"}, "what its launcher adds comes through"
    assert found(database, labels=(("lr", "1e-3"),)) and not found(database, labels=(("lr", "3e-4"),))
    assert found(database, words=("[RED]",)) and not found(database, words=("worst",))
    edit(database, labels={"draft": "2"})
    assert labels(database)["draft"] == "2", "a label that was taken away is given again"
    with database.session() as session:
        assert runs.get_run(session, "a1").name == "best [red]<i>"
    edit(database, name="")
    with database.session() as session:
        assert runs.list_runs(session)[0].name is None


def test_secrets_in_edits_are_hidden(database: Database) -> None:
    report(database)
    edit(database, labels={"api_key": "hunter2"}, name="https://me:hunter2@h/x")
    report(database)
    with database.session() as session:
        run = runs.get_run(session, "a1")
    assert (run.labels, run.name) == ({"api_key": "***"}, "https://***@h/x")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, "Edit of a run is 'nothing'"),
        ({"name": "x" * 201}, "Name is"),
        ({"name": " "}, "Name is"),
        ({"name": "a\nb"}, "Name is"),
        ({"labels": {"": "1"}}, "Label is"),
        ({"labels": {"lr": "\x1b[31m"}}, "Label lr is"),
        ({"labels": {"lr": "x" * 201}}, "Label lr is"),
        ({"labels": {"nosuch": None}}, "Label to remove is 'nosuch'; expected one that run a1 has: lr"),
        ({"labels": {f"n{number}": "" for number in range(MAX_LABELS + 1)}}, "Number of labels is 65"),
        ({"labels": {f"n{number}": "" for number in range(MAX_LABELS)}}, "Number of labels of the run is 65"),
    ],
)
def test_what_cannot_be_changes_nothing(database: Database, change: dict[str, Any], message: str) -> None:
    report(database, lr="3e-4")
    with pytest.raises(Invalid, match=message):
        edit(database, **{"name": "new", **change} if "labels" in change else change)
    with database.session() as session:
        run = runs.get_run(session, "a1")
    assert (run.labels, run.name) == ({"lr": "3e-4"}, None)


def test_edits_do_not_grow_without_end(database: Database) -> None:
    report(database)
    for number in range(MAX_LABELS):
        edit(database, labels={f"n{number}": ""})
        edit(database, labels={f"n{number}": None})
    with pytest.raises(Invalid, match="Number of edited labels of the run is 65; expected at most 64"):
        edit(database, labels={"one more": ""})


def test_another_team_s_run_does_not_exist(database: Database) -> None:
    report(database)
    see_team("blue")
    try:
        with pytest.raises(NotFound, match="a1"):
            edit(database, name="seized")
    finally:
        see_team(None)
    assert not found(database, words=("seized",))
