"""The short way of batches and heartbeats stores what the long way stores, and leaves to it whatever is not plain."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import MISSING, asdict, fields, is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import pytest
from records import CPU, T0, S, batch, beat, ended, held, live, started, steps
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from stored_rows import full_batch, rows_of, without_nulls

from tightship_platform import ingest
from tightship_platform.database.engine import Database
from tightship_platform.database.locks import locked
from tightship_platform.database.models import Base, DirtyHour, Host, Run
from tightship_platform.database.round_trips import pipelined
from tightship_platform.errors import Invalid
from tightship_platform.ingest import batches, heartbeats, plain, quick
from tightship_platform.ingest.bounds import bounds_of
from tightship_platform.ingest.known import KNOWN_NS, OWN_NS, KnownHost, KnownHosts
from tightship_platform.ingest.quick import Delivery
from tightship_platform.samples.dirty_hours import HOUR_NS
from tightship_platform.wire import (
    Batch,
    DeviceSample,
    Heartbeat,
    HostSampleRecord,
    RankRecord,
    RunSampleRecord,
    StepRecord,
)

NOW = T0 + 100 * S
Body = dict[str, Any]


def _first(database: Database, host: str, run: str) -> KnownHosts:
    """A host that has reported once, the long way."""
    known = KnownHosts()
    stated: list[KnownHost] = []
    with database.session() as session:
        ingest.apply_run(session, started(run, host=host), now=NOW)
        ingest.apply_heartbeat(session, beat(live(run, steps=1), time_ns=NOW, host=host), now=NOW, tell=stated.append)
        ingest.apply_batch(
            session,
            batch(host, devices=[CPU], allocations=[held(run)], steps=steps([NOW - S], run)),
            now=NOW,
            tell=stated.append,
        )
    for one in stated:
        known.keep("agent", one, NOW)
    return known


def _quick_batch(database: Database, known: KnownHosts, body: Body, now: int) -> object:
    delivery = _plain_batch(known, body, now)
    return delivery.answer if delivery is not None and _store(database, delivery) else None


def _plain_batch(known: KnownHosts, body: Body, now: int) -> Delivery | None:
    read = plain.read_batch(json.dumps(without_nulls(body)).encode())
    host = None if read is None else known.get("agent", read.host, now)
    return None if read is None or host is None else quick.plain_batch(read, host, now)


def _store(database: Database, *deliveries: Delivery) -> list[Delivery]:
    """Those that were stored together."""
    with pipelined(database) as session:
        stored = quick.store(session, deliveries)
    for delivery in stored:
        delivery.remember()
    return stored


def test_both_ways_store_the_same(database: Database) -> None:
    """Also when a batch comes twice, overlaps with the one before, or lacks most values."""
    long_known, known = _first(database, "h1", "a1"), _first(database, "h2", "b2")
    assert long_known.get("agent", "h1", NOW)
    for after_s, drop in ((5, ()), (5, ()), (6, ()), (12, ("steps", "samples")), (20, ("run_samples", "allocations"))):
        now = NOW + after_s * S
        body = {name: rows for name, rows in full_batch("h1", "a1", now).items() if name not in drop}
        text = json.dumps(body).replace('"h1"', '"h2"').replace('"a1"', '"b2"')
        with database.session() as session:
            received = ingest.apply_batch(session, quick_as_long(body), now=now)
            ingest.apply_heartbeat(session, beat(live("a1", steps=after_s), time_ns=now, host="h1"), now=now)
        assert _quick_batch(database, known, json.loads(text), now) == received
        assert _quick_beat(database, known, beat(live("b2", steps=after_s), time_ns=now, host="h2"), now)
        assert rows_of(database, "h2", "b2") == rows_of(database, "h1", "a1")


def quick_as_long(body: Body) -> Any:
    """The body as the long way gets it."""
    import pydantic

    from tightship_platform.wire import Batch

    return pydantic.TypeAdapter(Batch).validate_python(body)


def _quick_beat(database: Database, known: KnownHosts, stated: Any, now: int) -> bool:
    read = plain.read_heartbeat(json.dumps(asdict(stated)).encode())
    assert read is not None
    host = known.get("agent", read.host, now)
    assert host is not None
    delivery = quick.plain_heartbeat(read, host, now)
    return delivery is not None and bool(_store(database, delivery))


def _set(*path: str | int, to: Any) -> Callable[[Body], None]:
    def change(body: Body) -> None:
        place: Any = body
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = to

    return change


NOT_PLAIN = {
    "a ratio above one": _set("samples", 0, "util_frac", to=1.2),
    "a ratio below zero": _set("samples", 0, "util_frac", to=-0.1),
    "text for a number": _set("samples", 0, "power_w", to="10"),
    "true for a count": _set("samples", 0, "memory_used_bytes", to=True),
    "a figure too large": _set("samples", 0, "memory_used_bytes", to=2**60),
    "a key that nobody knows": _set("samples", 0, "colour", to=1),
    "a device that is new": _set("samples", 0, "device", to="GPU-7"),
    "a device described again": _set("devices", 0, "name", to="Another"),
    "a run that is new": _set("run_samples", 0, "run", to="c3"),
    "a host that is new": _set("host", to="h9"),
    "a sample of another day": _set("samples", 0, "time_ns", to=NOW - 86_401 * S),
    "a sample far ahead": _set("samples", 0, "time_ns", to=NOW + 400 * S),
    "a step far ahead": _set("steps", 0, "last_step_ns", to=NOW + 400 * S),
    "an allocation that ends": _set("allocations", 0, "end_ns", to=NOW),
    "an allocation that is new": _set("allocations", 0, "start_ns", to=NOW - S),
    "a rank that cannot be": _set("steps", 0, "rank", to=-2),
    "a list that is none": _set("steps", to={}),
}


@pytest.mark.parametrize("change", NOT_PLAIN.values(), ids=NOT_PLAIN)
def test_what_is_not_plain_goes_the_long_way(database: Database, change: Callable[[Body], None]) -> None:
    known = _first(database, "h1", "a1")
    before = rows_of(database, "h1", "a1")
    body = full_batch("h1", "a1", NOW + 5 * S)
    change(body)
    assert _quick_batch(database, known, body, NOW + 5 * S) is None
    assert rows_of(database, "h1", "a1") == before


def test_one_bucket_twice_goes_the_long_way(database: Database) -> None:
    known = _first(database, "h1", "a1")
    before = rows_of(database, "h1", "a1")
    body = full_batch("h1", "a1", NOW + 5 * S)
    body["steps"] *= 2
    assert _quick_batch(database, known, body, NOW + 5 * S) is None
    assert rows_of(database, "h1", "a1") == before


def test_a_run_that_has_ended_goes_the_long_way(database: Database) -> None:
    """The account of such a run is out of date then, which the long way writes down."""
    known = _first(database, "h1", "a1")
    with database.session() as session:
        ingest.apply_run(session, ended("a1", end_ns=NOW, host="h1"), now=NOW)
    before = rows_of(database, "h1", "a1")
    assert _quick_batch(database, known, full_batch("h1", "a1", NOW + 5 * S), NOW + 5 * S) is None
    assert not _quick_beat(database, known, beat(live("a1", steps=9), time_ns=NOW + S, host="h1"), NOW + S)
    assert rows_of(database, "h1", "a1") == before


def test_a_heartbeat_that_says_something_new_goes_the_long_way(database: Database) -> None:
    known = _first(database, "h1", "a1")
    now = NOW + S
    for changed in (
        beat(live("a1", ranks=(0, 1)), time_ns=now),
        beat(live("a1", devices=()), time_ns=now),
        beat(live("a1"), live("c3"), time_ns=now),
        beat(live("a1"), time_ns=now, devices=()),
        beat(live("a1"), time_ns=now, info={"kernel": "9"}),
        beat(live("a1"), time_ns=NOW + 4000 * S),
    ):
        assert not _quick_beat(database, known, changed, now)


def test_figures_of_a_host_are_written_when_they_change(database: Database) -> None:
    known = KnownHosts()
    for number, is_new in ((0, True), (0, False), (3, False), (0, False)):
        stated: list[KnownHost] = []
        said = beat(time_ns=NOW, host="h1", info={"kernel": "6", "spool_entries": number})
        if is_new:
            with database.session() as session:
                ingest.apply_heartbeat(session, said, now=NOW, tell=stated.append)
            known.keep("agent", stated[0], NOW)
        else:
            assert _quick_beat(database, known, said, NOW)
        with database.session() as session:
            assert session.scalars(select(Host)).one().info == {"kernel": "6", "spool_entries": number}


def test_text_that_was_made_fit_for_a_line_is_made_so_each_time(database: Database) -> None:
    known = KnownHosts()
    said = beat(time_ns=NOW, host="h1", info={"kernel": "6\n7"})
    with database.session() as session:
        ingest.apply_heartbeat(session, said, now=NOW, tell=lambda stated: known.keep("agent", stated, NOW))
    assert not _quick_beat(database, known, said, NOW)


def test_what_is_known_is_forgotten_in_time_and_is_one_callers_own(database: Database) -> None:
    known = _first(database, "h1", "a1")
    assert known.get("agent", "h1", NOW) is not None
    assert known.get("somebody", "h1", NOW) is None
    assert known.get("agent", "h1", NOW + KNOWN_NS) is None
    assert known.get("agent", "h1", NOW - KNOWN_NS) is None
    stated = known.get("agent", "h1", NOW)
    known.keep("own agent", stated, NOW, is_own=True)
    assert known.get("own agent", "h1", NOW + 2 * KNOWN_NS) is stated
    assert known.get("own agent", "h1", NOW + OWN_NS) is None


def test_what_comes_together_is_stored_together(database: Database) -> None:
    """A run that has ended, and a second batch of one host, go the long way; nothing else does."""
    now = NOW + 5 * S
    bodies = [(f"h{number}", f"r{number}") for number in range(4)]
    deliveries = []
    for host, run in bodies:
        known = _first(database, host, run)
        for _ in range(2):
            made = _plain_batch(known, full_batch(host, run, now), now)
            assert made is not None
            deliveries.append(made)
    with database.session() as session:
        ingest.apply_run(session, ended("r2", end_ns=NOW, host="h2"), now=NOW)
    before = rows_of(database, "h2", "r2")
    stored = _store(database, *deliveries)
    assert [id(one) for one in stored] == [id(deliveries[number]) for number in (0, 2, 6)]
    assert rows_of(database, "h2", "r2") == before
    for host, run in (bodies[0], bodies[1], bodies[3]):
        assert [row["time_ns"] for row in rows_of(database, host, run)[2]] == [now - 2 * S, now - S, now]


@pytest.mark.parametrize("database", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)
@pytest.mark.parametrize("held", [Host, Run])
def test_who_is_held_by_somebody_else_is_waited_for_by_nobody(database: Database, held: type[Base]) -> None:
    now = NOW + 5 * S
    one, other = (
        _plain_batch(_first(database, host, run), full_batch(host, run, now), now)
        for host, run in (("h1", "a1"), ("h2", "b2"))
    )
    assert one is not None and other is not None
    with database.session() as session:
        locked(session, select(held).order_by(held.id).limit(1))  # type: ignore[attr-defined]
        stored = _store(database, one, other)
        assert [id(delivery) for delivery in stored] == [id(other)]
    assert rows_of(database, "h1", "a1")[2] == []
    assert len(rows_of(database, "h2", "b2")[2]) == 3


def test_a_fault_leaves_nothing_of_those_that_came_together(database: Database) -> None:
    """A device that is gone, as a host's removal leaves it."""
    now = NOW + 5 * S
    made = [
        _plain_batch(_first(database, host, run), full_batch(host, run, now), now)
        for host, run in (("h1", "a1"), ("h2", "b2"))
    ]
    deliveries = [one for one in made if one is not None]
    deliveries[1].device_ids = [10**6] * 3
    with pytest.raises(IntegrityError):
        _store(database, *deliveries)
    assert rows_of(database, "h1", "a1")[2] == rows_of(database, "h2", "b2")[2] == []
    assert len(_store(database, deliveries[0])) == 1


def test_old_samples_of_the_day_have_their_hours_rolled_up_again(database: Database) -> None:
    known = _first(database, "h1", "a1")
    for after_s in (-4000, -400, 5):
        delivery = _plain_batch(known, full_batch("h1", "a1", NOW + after_s * S), NOW + 5 * S)
        assert delivery is not None and _store(database, delivery)
    with database.session() as session:
        hours = {row.hour_ns for row in session.scalars(select(DirtyHour))}
    assert hours == {(NOW + after_s * S) // HOUR_NS * HOUR_NS for after_s in (-4002, -4000, -402, -400)}


# ---- the records of the wire -----------------------------------------------------------------------------------------


def _example(kind: type[Any]) -> Body:
    """A record of the wire with a value in every field."""
    hints = get_type_hints(kind)
    return {field.name: _value(field.name, hints[field.name]) for field in fields(kind)}


def _value(name: str, kind: Any) -> Any:
    if get_origin(kind) is list:
        (item,) = get_args(kind)
        return [_example(item) if is_dataclass(item) else "x"]
    if get_origin(kind) is dict:
        return {"x": 1}
    if name == "end_ns":
        return None
    plainly = next(one for one in get_args(kind) or (kind,) if one is not type(None))
    if plainly in (int, float):
        return plainly(max(bounds_of(name).least, 1))
    return {str: "x", bool: True}[plainly]


@pytest.mark.parametrize(("read", "kind"), [(plain.read_batch, Batch), (plain.read_heartbeat, Heartbeat)])
def test_the_short_way_reads_every_field_of_the_wire(read: Callable[[bytes], Any], kind: type[Any]) -> None:
    whole = _example(kind)
    found = msgspec.to_builtins(read(json.dumps(whole).encode()))
    assert found == whole
    assert json.dumps(found) == json.dumps(whole), "in the same order: rows are made of it"
    required = {
        field.name: whole[field.name]
        for field in fields(kind)
        if field.default is MISSING and field.default_factory is MISSING
    }
    assert msgspec.to_builtins(read(json.dumps(required).encode())) == asdict(kind(**required))


def _numbers() -> Iterator[tuple[str, type[Any], str]]:
    """List of the batch, type and name of every figure in a batch's rows."""
    for part, kind in PARTS.items():
        for name, hint in get_type_hints(kind).items():
            if {int, float} & set(get_args(hint) or (hint,)):
                yield part, kind, name


PARTS = {"samples": DeviceSample, "host_samples": HostSampleRecord, "run_samples": RunSampleRecord, "steps": StepRecord}


@pytest.mark.parametrize(("part", "kind", "name"), list(_numbers()))
def test_both_ways_agree_on_what_a_figure_may_be(part: str, kind: type[Any], name: str) -> None:
    """The short way takes what is within the bounds, and no more; the long way takes all of that, as it is."""
    bounds = bounds_of(name)
    most = NOW if bounds.most is None else bounds.most  # how far ahead a time may be is looked at later
    values = [bounds.least - 1, bounds.least, 0.5, most]
    if bounds.most is not None:
        values += [2 * most, 2**63]
    for value in values:
        row = _example(kind) | {name: value}
        read = plain.read_batch(json.dumps({"host": "h1", part: [row]}).encode())
        is_plain = bounds.least <= value <= most and not (bounds.is_whole and isinstance(value, float))
        assert (read is not None) == is_plain, value
        if is_plain:
            record = kind(**row)
            long = vars(batches._check_step(record, NOW)) if kind is StepRecord else batches._row(record, NOW)
            assert long[name] == value


def test_ranks_of_a_heartbeat_have_the_same_bounds_both_ways() -> None:
    for name in ("rank", "pid", "steps"):
        bounds = bounds_of(name)
        assert bounds.most is not None
        for value, is_good in ((bounds.least, 1), (bounds.most, 1), (bounds.least - 1, 0), (bounds.most + 1, 0)):
            row = _example(RankRecord) | {name: value}
            body = {"host": "h1", "time_ns": NOW, "agent_version": "x", "runs": [{"run": "a1", "ranks": [row]}]}
            assert (plain.read_heartbeat(json.dumps(body).encode()) is not None) == bool(is_good)
            with nullcontext() if is_good else pytest.raises(Invalid):
                heartbeats._check_rank(RankRecord(**row))
