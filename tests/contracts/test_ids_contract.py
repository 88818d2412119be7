"""Which run, capture, finding or trace a person means; on both databases."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from records import T0, S, ask, ended, started
from sqlalchemy import select
from sqlalchemy.orm import Session

from tightship_platform import captures, ingest
from tightship_platform.database import ids
from tightship_platform.database.engine import Database
from tightship_platform.database.models import Finding
from tightship_platform.database.teams import see_team
from tightship_platform.errors import Ambiguous, Invalid, NotFound
from tightship_platform.queries import findings, runs
from tightship_platform.queries.captures import get_capture, list_captures

Made = Callable[..., list[str]]


@pytest.fixture
def session(database: Database) -> Iterator[Session]:
    with database.session() as opened:
        yield opened


@pytest.fixture
def made(session: Session) -> Made:
    """Makes runs of these ids, a second apart, the last one newest."""

    def make(*keys: str, team: str | None = None) -> list[str]:
        for at, key in enumerate(keys):
            start_ns = T0 + at * S
            ingest.apply_run(session, ended(key, start_ns=start_ns, end_ns=start_ns + S), now=T0 + 3600 * S)
            runs.find_run(session, key).team = team
        session.flush()
        return list(keys)

    return make


def test_a_beginning_that_no_other_has_is_enough(session: Session, made: Made) -> None:
    made("ab10", "ab20", "cd30")
    assert ids.find_key(session, ids.RUN, "ab1") == "ab10"
    assert ids.find_key(session, ids.RUN, "c") == "cd30"
    assert runs.get_run(session, "cd").run == "cd30"
    assert [run.run for run in runs.list_runs(session, after="cd")] == ["ab20", "ab10"]


def test_a_whole_id_is_meant_before_longer_ones(session: Session, made: Made) -> None:
    made("job-1", "job-10", "job-11")
    assert ids.find_key(session, ids.RUN, "job-1") == "job-1"


def test_candidates_are_named_the_newest_first_and_counted(session: Session, made: Made) -> None:
    keys = made(*(f"ab{number}" for number in range(8)))
    with pytest.raises(Ambiguous) as refusal:
        ids.find_key(session, ids.RUN, "ab")
    shown = ", ".join(reversed(keys[3:]))
    assert str(refusal.value) == (f"The run id 'ab' is ambiguous: {shown} and 3 more; give more of it")
    made("xy1", "xy2")
    with pytest.raises(Ambiguous, match=r"'xy' is ambiguous: xy2, xy1; give more of it$"):
        runs.find_run(session, "xy")


@pytest.mark.parametrize(
    "text", ["AB", "a%", "a_1", "_", "%", "", " ab", "ab\n", "-", "a" * 41, "ab1'; DROP TABLE run; --", "é", "@@"]
)
def test_what_is_no_beginning_of_an_id_is_not_found(session: Session, made: Made, text: str) -> None:
    made("ab1", "ab2")
    with pytest.raises(NotFound, match="see `tightship runs`"):
        ids.find_key(session, ids.RUN, text)


def test_newest(session: Session, made: Made) -> None:
    for kind, find in (
        (ids.RUN, ids.find_key),
        (ids.CAPTURE, ids.find_key),
        (ids.FINDING, ids.find_number),
        (ids.TRACE, ids.find_number),
    ):
        with pytest.raises(NotFound, match=f"No {kind.word} named '@'; there is none yet"):
            find(session, kind, "@")  # type: ignore[operator]
    made("older", "newer")
    assert runs.get_run(session, "@").run == "newer"
    run = runs.find_run(session, "older")
    for number in range(2):
        session.add(
            Finding(
                rule=f"r{number}", run_id=run.id, title="t", place="", fix="f", unit="ns", evidence=[], method="bound",
                created_ns=T0 - number, value=1, low=1, high=1,
            )
        )  # fmt: skip
        session.flush()
    newest = session.scalars(select(Finding.id).where(Finding.rule == "r0")).one()
    assert ids.find_number(session, ids.FINDING, "@") == newest
    assert [one.finding for one in findings.list_findings(session, run="old")] == [newest, newest + 1]


def test_newest_of_a_workflow_and_the_ones_before(session: Session) -> None:
    for at, (key, workflow) in enumerate((("a1", "train"), ("b1", "train~1"), ("a2", "train"), ("c1", "eval"))):
        start_ns = T0 + at * S
        ingest.apply_run(session, started(key, workflow, start_ns=start_ns), now=start_ns)
        captures.request(session, ask(key), now=start_ns).key = f"of-{key}"
    session.flush()
    meant = {"@": "c1", "@~0": "c1", "@~1": "a2", "@~3": "a1", "@train": "a2", "@train~1": "a1", "@train~1~0": "b1"}
    assert {text: ids.find_key(session, ids.RUN, text) for text in meant} == meant
    assert ids.find_key(session, ids.CAPTURE, "@train~1") == "of-a1"
    for text in ("@~4", "@train~2", "@trai", "@Train", "@~", "@~x", "@train~-1", "@train~9999999"):
        with pytest.raises(NotFound, match=f"No run named '{text}'; see `tightship runs`"):
            ids.find_key(session, ids.RUN, text)


def test_captures_are_meant_as_runs_are(session: Session) -> None:
    ingest.apply_run(session, started("a1"), now=T0 + S)
    for number in range(2):
        captures.request(session, ask("a1"), now=T0 + (2 + number) * S).key = f"ca{number}"
    session.flush()
    assert get_capture(session, "ca0").capture == "ca0"
    assert get_capture(session, "@").capture == "ca1"
    with pytest.raises(Ambiguous, match="The capture id 'ca' is ambiguous: ca1, ca0;"):
        get_capture(session, "ca")
    assert [one.capture for one in list_captures(session, run="a", after="@")] == ["ca0"]


def test_numbers_are_whole(session: Session, made: Made) -> None:
    assert ids.find_number(session, ids.FINDING, "17") == 17
    for text in ("1x", "", "-1", "1.0", "٣"):
        with pytest.raises(Invalid, match="a whole number, or @ for the newest; see `tightship findings`"):
            ids.find_number(session, ids.FINDING, text)
    with pytest.raises(NotFound):  # more than an id can be
        ids.find_number(session, ids.FINDING, "9" * 19)


def test_what_is_another_teams_is_neither_meant_nor_counted_nor_named(session: Session, made: Made) -> None:
    made("ab1", "ab2", team="red")
    made("ab3", "cd4", team="blue")
    see_team("blue")
    try:
        assert ids.find_key(session, ids.RUN, "ab") == "ab3"
        assert ids.find_key(session, ids.RUN, "@") == "cd4"
        for text in ("ab1", "ab2"):
            with pytest.raises(NotFound):
                ids.find_key(session, ids.RUN, text)
    finally:
        see_team(None)


def test_a_capture_is_asked_for_by_the_beginning_of_a_run(session: Session) -> None:
    for key, workflow in (("ab1", "train"), ("ab2", "f0"), ("f00d", "other")):
        ingest.apply_run(session, started(key, workflow), now=T0 + S)
    assert captures.resolve_run(session, "ab1").key == "ab1"
    assert captures.resolve_run(session, "f00").key == "f00d"
    assert captures.resolve_run(session, "f0").key == "ab2", "a workflow's name comes before the beginning of an id"
    with pytest.raises(Ambiguous, match="ab2, ab1"):
        captures.resolve_run(session, "ab")
    with pytest.raises(NotFound, match="No run or workflow named 'nobody'; running now"):
        captures.resolve_run(session, "nobody")
