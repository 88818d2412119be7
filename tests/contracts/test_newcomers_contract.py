"""What many hosts say for the first time is stored together as it is one by one, for whoever may say it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest
from records import CPU, T0, S, batch, beat, ended, held, live, started
from sqlalchemy import func, select
from statements import statements_of
from stored_rows import full_batch, rows_of, without_nulls

from tightship_platform import ingest
from tightship_platform.api.auth import create_token
from tightship_platform.database.engine import Database
from tightship_platform.database.locks import locked
from tightship_platform.database.models import Base, Device, Fleet, Host, RemovedRun, Run, Sample, StepStat
from tightship_platform.database.reporters import ANYBODY, Reporter
from tightship_platform.errors import Forbidden
from tightship_platform.ingest import newcomers, plain, quick
from tightship_platform.ingest.known import KnownHost, KnownHosts
from tightship_platform.ingest.newcomers import Arrival
from tightship_platform.validation import COUNT_MAX
from tightship_platform.vocabulary import Scope
from tightship_platform.wire import Batch, Heartbeat

NOW = T0 + 100 * S
AGENT = Reporter(name="agent")
Body = dict[str, Any]


def _beat(host: str, run: str) -> Body:
    said = beat(live(run, ranks=(0, 1), steps=9), time_ns=NOW, host=host, info={"cpus": 4, "kernel": "6"})
    said.sources = []
    return asdict(said)


def _arrival(body: Body, reporter: Reporter = AGENT, now: int = NOW) -> Arrival | None:
    text = json.dumps(without_nulls(body)).encode()
    if "agent_version" in body:
        beat_read = plain.read_heartbeat(text)
        return beat_read and newcomers.arrival_of(beat_read, reporter, quick.plain_heartbeat, now)
    batch_read = plain.read_batch(text)
    return batch_read and newcomers.arrival_of(batch_read, reporter, quick.plain_batch, now)


def _together(database: Database, *bodies: Body, reporter: Reporter = AGENT) -> list[Arrival]:
    """Those that were stored."""
    arrivals = [one for body in bodies if (one := _arrival(body, reporter)) is not None]
    with database.session() as session:
        return newcomers.store(session, arrivals)


def _alone(database: Database, body: Body, reporter: Reporter = AGENT) -> list[KnownHost]:
    import pydantic

    stated: list[KnownHost] = []
    with database.session() as session:
        if "agent_version" in body:
            said = pydantic.TypeAdapter(Heartbeat).validate_python(body)
            ingest.apply_heartbeat(session, said, reporter=reporter, now=NOW, tell=stated.append)
        else:
            rows = pydantic.TypeAdapter(Batch).validate_python(body)
            ingest.apply_batch(session, rows, reporter=reporter, now=NOW, tell=stated.append)
    return stated


def _announce(database: Database, *pairs: tuple[str, str]) -> None:
    with database.session() as session:
        for host, run in pairs:
            ingest.apply_run(session, started(run, host=host), now=NOW)


def _token(database: Database, name: str = AGENT.name, **of: Any) -> None:
    with database.session() as session:
        create_token(session, name, [Scope.INGEST], **of)


@pytest.mark.parametrize("first", ["batch", "heartbeat"])
def test_many_are_stored_as_each_is_alone(database: Database, first: str) -> None:
    _token(database)
    pairs = [(f"h{number}", f"a{number}") for number in range(4)]
    _announce(database, *pairs)
    made: list[Callable[[str, str], Body]] = [lambda host, run: full_batch(host, run, NOW), _beat]
    alone, together = KnownHosts(), KnownHosts()
    for make in made if first == "batch" else reversed(made):
        for host, run in pairs[:1]:
            for known in _alone(database, make(host, run)):
                alone.keep("agent", known, NOW)
        stored = _together(database, *(make(host, run) for host, run in pairs[1:]))
        assert len(stored) == 3
        for one in stored:
            one.delivery.remember()
            together.keep("agent", one.delivery.known, NOW)
    wanted = rows_of(database, *pairs[0])
    for host, run in pairs[1:]:
        assert rows_of(database, host, run) == wanted
        ours, theirs = together.get("agent", host, NOW), alone.get("agent", "h0", NOW)
        assert ours is not None and theirs is not None
        assert (ours.devices, ours.stated, ours.info) == (theirs.devices, theirs.stated, theirs.info)
        assert (ours.runs[run].held, ours.runs[run].stated) == (theirs.runs["a0"].held, theirs.runs["a0"].stated)
    with database.session() as session:
        assert set(session.scalars(select(Host.reported_by))) == {"agent"}
    # What is known now takes the short way.
    known = together.get("agent", "h1", NOW)
    read = plain.read_batch(json.dumps(without_nulls(full_batch("h1", "a1", NOW + 5 * S))).encode())
    assert known is not None and read is not None and quick.plain_batch(read, known, NOW + 5 * S) is not None


def test_what_a_host_that_is_there_says_that_is_new_is_stored_together(database: Database) -> None:
    """As when a job begins on all hosts at once: new runs, a device that is described again."""
    _token(database)
    pairs = [(f"h{number}", f"a{number}") for number in range(3)]
    _announce(database, *pairs)
    for host, run in pairs:
        _alone(database, _beat(host, run))
    new = [(host, f"b{number}") for number, (host, _) in enumerate(pairs)]
    _announce(database, *new)
    bodies = [_beat(host, run) for host, run in new]
    for body in bodies:
        body["devices"] = [asdict(replace(CPU, name="Another processor"))]
    _alone(database, bodies[0])
    assert len(_together(database, *bodies[1:])) == 2
    assert rows_of(database, *new[1]) == rows_of(database, *new[2]) == rows_of(database, *new[0])
    with database.session() as session:
        assert session.scalars(select(Device.name)).all() == ["Another processor"] * 3


@pytest.mark.parametrize("make", [lambda host, run: full_batch(host, run, NOW), _beat], ids=["batch", "heartbeat"])
def test_many_hosts_take_as_many_statements_as_two(database: Database, make: Callable[[str, str], Body]) -> None:
    _token(database)
    taken = []
    for count in (2, 12):
        pairs = [(f"h{count}-{number}", f"{count}a{number}") for number in range(count)]
        _announce(database, *pairs)
        with statements_of(database) as sent:
            assert len(_together(database, *(make(host, run) for host, run in pairs))) == count
        taken.append(len(sent))
    assert taken[0] == taken[1] <= 28


def _set(*path: str | int, to: Any) -> Callable[[Body], None]:
    def change(body: Body) -> None:
        place: Any = body
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = to

    return change


BATCHES = {
    "a device that is not described": _set("samples", 0, "device", to="GPU-7"),
    "a device named by NUL": _set("devices", 0, "name", to="a\0b"),
    "a device without a name": _set("devices", 0, "uuid", to=""),
    "a kind that nobody knows": _set("devices", 0, "kind", to="abacus"),
    "memory that cannot be": _set("devices", 0, "memory_bytes", to=-1),
    "a device twice": lambda body: body["devices"].append(body["devices"][0] | {"name": "Other"}),
    "a run by no key": _set("run_samples", 0, "run", to="../a1"),
    "a run that nobody announced": _set("run_samples", 0, "run", to="c3"),
    "a host by no name": _set("host", to="a\0b"),
    "a sample of another day": _set("samples", 0, "time_ns", to=NOW - 86_401 * S),
    "a sample far ahead": _set("samples", 0, "time_ns", to=NOW + 400 * S),
    "an allocation far ahead": _set("allocations", 0, "start_ns", to=NOW + 90_000 * S),
    "an allocation before all times": _set("allocations", 0, "start_ns", to=1),
    "an allocation of another device": _set("allocations", 0, "device", to="GPU-7"),
    "nothing": lambda body: body.update({part: [] for part in ("samples", "host_samples", "run_samples", "steps")}),
}
BEATS = {
    "text of two lines": _set("agent_version", to="1\n2"),
    "a fact of two lines": _set("info", "kernel", to="6\n7"),
    "a fact that cannot be": _set("info", "cpus", to=2**60),
    "a source in no state": _set("sources", to=[{"name": "nvml", "state": "well", "detail": ""}]),
    "a device that is not described": _set("runs", 0, "devices", to=["GPU-7"]),
    "a run that nobody announced": _set("runs", 0, "run", to="c3"),
    "a run twice": lambda body: body["runs"].append(body["runs"][0]),
    "a time far ahead": _set("time_ns", to=NOW + 90_000 * S),
    "a process of before all times": _set("runs", 0, "since_ns", to=1),
}


@pytest.mark.parametrize("kind", ["batch", "heartbeat"])
def test_what_needs_a_second_look_changes_nothing_and_costs_no_neighbour(database: Database, kind: str) -> None:
    _token(database)
    _announce(database, ("h1", "a1"), ("h2", "a2"))
    before = _counts(database)
    for why, change in (BATCHES if kind == "batch" else BEATS).items():
        body = full_batch("h1", "a1", NOW) if kind == "batch" else _beat("h1", "a1")
        change(body)
        assert not _together(database, body), why
        assert _counts(database) == before, why
    bad = full_batch("h1", "c3", NOW) if kind == "batch" else _beat("h1", "c3")
    good = full_batch("h2", "a2", NOW) if kind == "batch" else _beat("h2", "a2")
    assert [one.said.host for one in _together(database, bad, good, good)] == ["h2"]
    with database.session() as session:
        assert session.scalars(select(Host.name)).all() == ["h2"]


def _counts(database: Database) -> list[int | None]:
    models: list[type[Base]] = [Host, Device, Sample, StepStat, Run]
    with database.session() as session:
        return [session.scalar(select(func.count()).select_from(model)) for model in models]


def test_runs_that_are_not_the_hosts_or_no_more_go_the_long_way(database: Database) -> None:
    _token(database)
    _announce(database, ("h1", "a1"), ("h1", "e1"), ("h1", "d1"), ("h9", "b1"))
    with database.session() as session:
        ingest.apply_run(session, ended("e1", end_ns=NOW, host="h1"), now=NOW)
        session.add(RemovedRun(key="d1", keeps_names=True, begun_ns=NOW))
    ingest_unknown = _beat("h3", "u1")
    _alone(database, ingest_unknown)  # a placeholder is made, which nobody announced
    before = _counts(database)
    for host, run in (("h1", "b1"), ("h1", "e1"), ("h1", "d1"), ("h3", "u1")):
        assert not _together(database, _beat(host, run)), run
        assert not _together(database, full_batch(host, run, NOW)), run
    assert _counts(database) == before


def test_hosts_that_are_anothers_go_the_long_way_which_refuses(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, of in (("one", {}), ("other", {}), ("enrolled", {"host": "h2"})):
        _token(database, name, **of)
    runs = [(f"h{number}", f"a{number}") for number in range(8)]
    _announce(database, *runs)
    one, other, enrolled = Reporter(name="one"), Reporter(name="other"), Reporter(name="enrolled", host="h2")
    assert _together(database, _beat(*runs[1]), reporter=one)
    before = _counts(database)
    for host, run, reporter in ((*runs[1], other), (*runs[2], one), (*runs[1], enrolled)):
        assert not _together(database, _beat(host, run), reporter=reporter)
        with pytest.raises(Forbidden):
            _alone(database, _beat(host, run), reporter)
    assert _counts(database) == before
    assert _together(database, _beat(*runs[2]), reporter=enrolled)
    assert _together(database, _beat(*runs[1]), reporter=ANYBODY), "an administrator speaks for everybody"
    assert _together(database, _beat(*runs[3]), reporter=ANYBODY)
    assert not _together(database, _beat(*runs[3]), reporter=one), "nobody's yet: it becomes theirs the long way"
    monkeypatch.setattr(newcomers, "HOSTS_PER_TOKEN", 2)
    bodies = [_beat(*pair) for pair in runs[4:7]]
    assert not _together(database, *bodies, reporter=one), "two more would be three"
    assert _together(database, bodies[0], reporter=one)
    with database.session() as session:
        owners = {host.name: host.reported_by for host in session.scalars(select(Host))}
        of_fleet = {"format": "csv", "assumptions": [], "names_devices": True, "rows": 0, "refused": {}}
        session.add(Fleet(id=1, name="theirs", changed_ns=NOW, **of_fleet))
        session.flush()
        session.add(Host(name="h7", first_seen_ns=1, last_seen_ns=1, info={}, sources=[], fleet_id=1))
    assert owners == {"h1": "one", "h2": "enrolled", "h3": None, "h4": "one"}
    assert not _together(database, _beat(*runs[7]), reporter=ANYBODY), "of an imported fleet"


def test_counts_that_no_column_holds_are_cut_as_elsewhere(database: Database) -> None:
    _announce(database, ("h1", "a1"))
    body = full_batch("h1", "a1", NOW)
    first = body["steps"][0]
    body["steps"] = [first | {"time_ns": first["time_ns"] - n, "steps": COUNT_MAX} for n in range(1500)]
    assert _together(database, body, reporter=ANYBODY)
    with database.session() as session:
        assert session.scalars(select(Run.steps)).one() == COUNT_MAX


postgres = pytest.mark.parametrize("database", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)


@postgres
@pytest.mark.parametrize("model", [Host, Run])
def test_who_is_held_by_somebody_else_is_left_out(database: Database, model: Any) -> None:
    _announce(database, ("h1", "a1"), ("h2", "a2"))
    for host, run in (("h1", "a1"), ("h2", "a2")):
        _alone(database, _beat(host, run), ANYBODY)
    bodies = [full_batch(host, run, NOW) for host, run in (("h1", "a1"), ("h2", "a2"))]
    with database.session() as session:
        locked(session, select(model).order_by(model.id).limit(1))
        assert [one.said.host for one in _together(database, *bodies, reporter=ANYBODY)] == ["h2"]


@postgres
def test_two_servers_meet_the_same_new_hosts_at_once(database: Database) -> None:
    """In opposite order: each host is stored once, and none of them for ever."""
    _token(database)
    pairs = [(f"h{number}", f"a{number}") for number in range(12)]
    _announce(database, *pairs)
    bodies = [_beat(host, run) for host, run in pairs]
    stored: list[str] = []
    begin = threading.Barrier(2)

    def meet(ours: list[Body]) -> None:
        begin.wait()
        stored.extend(one.said.host for one in _together(database, *ours))

    threads = [threading.Thread(target=meet, args=(ours,)) for ours in (bodies, bodies[::-1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert set(stored) == {host for host, _ in pairs}
    with database.session() as session:
        assert session.scalar(select(func.count()).select_from(Host)) == len(pairs)
        assert session.scalar(select(func.count()).select_from(Device)) == len(pairs)


@postgres
def test_of_two_tokens_one_has_a_new_host(database: Database) -> None:
    for name in ("one", "other"):
        _token(database, name)
    _announce(database, ("h1", "a1"))
    found: list[list[Arrival]] = []
    with database.session() as session:
        arrival = _arrival(_beat("h1", "a1"), Reporter(name="one"))
        assert arrival is not None and newcomers.store(session, [arrival])
        late = threading.Thread(
            target=lambda: found.append(_together(database, _beat("h1", "a1"), reporter=Reporter(name="other")))
        )
        late.start()
        late.join(0.5)
        assert late.is_alive(), "it waits for this transaction"
    late.join()
    assert found == [[]]
    with database.session() as session:
        assert session.scalars(select(Host.reported_by)).all() == ["one"]


def test_the_first_of_two_allocations_stays(database: Database) -> None:
    """A heartbeat that comes with the batch that tells when the device was taken opens no second allocation."""
    _announce(database, ("h1", "a1"))
    assert _together(database, full_batch("h1", "a1", NOW), reporter=ANYBODY)
    assert _together(database, _beat("h1", "a1"), reporter=ANYBODY)
    again = asdict(batch("h1", devices=[CPU], allocations=[held("a1")])) | {
        "host_samples": [{"time_ns": NOW + S, "cpu_frac": 0.5}]
    }
    assert _together(database, again, reporter=ANYBODY)
    assert len(rows_of(database, "h1", "a1")[-1]) == 1
