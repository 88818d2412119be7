"""Batches on both databases: said twice, late, out of order, from several senders, or forged."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from examples import examples
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from records import (
    CPU,
    GPU,
    MIN,
    T0,
    S,
    batch,
    beat,
    ended,
    held,
    host_samples,
    live,
    run_samples,
    samples,
    started,
    steps,
)
from sqlalchemy import select

from tightship_platform import ingest
from tightship_platform.database import upsert
from tightship_platform.database.engine import Database
from tightship_platform.database.models import (
    Allocation,
    Base,
    Device,
    Host,
    HostSample,
    Run,
    RunSample,
    Sample,
    StepStat,
)
from tightship_platform.errors import Invalid, TooLarge
from tightship_platform.queries import runs
from tightship_platform.queries.timeline import run_timeline
from tightship_platform.validation import COUNT_MAX
from tightship_platform.wire import DeviceRecord

NOW = T0 + MIN


def _rows(database: Database, model: type[Base], *without: str) -> list[dict[str, Any]]:
    with database.session() as session:
        columns = [c for c in model.__table__.columns if c.name not in without]
        return [dict(row) for row in session.execute(select(*columns).order_by(*columns)).mappings()]


# ---- batches ---------------------------------------------------------------------------------------------------------


def test_a_batch_of_any_size_is_stored_alike(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many rows go in parts: what is there already stays, nulls stay nulls, repeats count once."""
    monkeypatch.setattr(upsert, "ROWS_AT_ONCE", 1000)
    many = 1007
    times = [T0 + i * S for i in range(many)]
    first = {"util_frac": 0.1 + 0.2, "memory_used_bytes": COUNT_MAX, "power_w": None}
    with database.session() as session:
        known = batch(devices=[CPU], samples=samples(times[:3], util_frac=0.75), run_samples=run_samples(times[:1]))
        ingest.apply_batch(session, known, now=NOW)
        whole = batch(
            samples=samples(times, **first) + samples(times[-3:], util_frac=0.9),
            host_samples=host_samples(times, cpu_frac=0.5),
            run_samples=run_samples(times, cpu_cores=1.5),
        )
        assert ingest.apply_batch(session, whole, now=NOW).rows == 3 * many + 3
        # Again in the same transaction, and the other sizes after it.
        ingest.apply_batch(session, whole, now=NOW)
        ingest.apply_batch(session, batch(samples=samples([times[-1] + S], util_frac=1.0)), now=NOW)
    rows = _rows(database, Sample, "device_id")
    assert [row["time_ns"] for row in rows] == [*times, times[-1] + S]
    assert [row["util_frac"] for row in rows] == [0.75] * 3 + [first["util_frac"]] * (many - 3) + [1.0]
    rest = {(row["memory_used_bytes"], row["power_w"], row["clock_hz"]) for row in rows[3:-1]}
    assert rest == {(COUNT_MAX, None, None)}
    assert [row["cpu_frac"] for row in _rows(database, HostSample)] == [0.5] * many
    assert [row["cpu_cores"] for row in _rows(database, RunSample)] == [None] + [1.5] * (many - 1)


def test_a_batch_said_twice_is_one(database: Database) -> None:
    times = [T0 + i * S for i in range(30)]
    whole = batch(
        devices=[CPU],
        samples=samples(times, util_frac=0.5, power_w=11.5, memory_used_bytes=1 << 40),
        host_samples=host_samples(times, cpu_frac=0.25),
        run_samples=run_samples(times, util_frac=0.1, cpu_cores=1.5),
        steps=steps(times),
        allocations=[held()],
    )
    with database.session() as session:
        ingest.apply_run(session, started(), now=NOW)
        received = vars(ingest.apply_batch(session, whole, now=NOW))
        assert received == {"rows": 121, "too_old": 0, "refused": 0, "refusal": None, "unknown_runs": []}
    tables = (Sample, HostSample, RunSample, StepStat, Allocation, Device, Host)
    before = [_rows(database, table) for table in tables]
    assert [len(rows) for rows in before] == [30, 30, 30, 30, 1, 1, 1]
    with database.session() as session:
        assert ingest.apply_batch(session, whole, now=NOW + S).rows == 121
    assert [_rows(database, table) for table in tables] == before
    assert (before[0][0]["util_frac"], before[0][0]["sm_active_frac"]) == (0.5, None)


def test_of_two_records_of_one_bucket_the_fuller_counts(database: Database) -> None:
    early, full = steps([T0], each=3), steps([T0], each=5)
    early[0].last_step_ns, early[0].first_step_ns = T0 + 1, None
    for order in ([early, full], [full, early]):
        with database.session() as session:
            for part in order:
                ingest.apply_batch(session, batch(steps=part), now=NOW)
        (row,) = _rows(database, StepStat, "run_id")
        assert (row["steps"], row["first_step_ns"], row["last_step_ns"]) == (5, T0 + S, T0 + S // 2)


def test_steps_reported_after_the_end_are_counted(database: Database) -> None:
    with database.session() as session:
        ingest.apply_run(session, started(), now=NOW)
        ingest.apply_heartbeat(session, beat(live(steps=4), time_ns=NOW), now=NOW)
        ingest.apply_batch(session, batch(steps=steps([T0, T0 + S])), now=NOW)
        ingest.apply_run(session, ended(end_ns=T0 + 9 * S), now=NOW)
        assert runs.get_run(session, "a1").steps == 4
        ingest.apply_batch(session, batch(steps=steps([T0 + 2 * S, T0 + 3 * S])), now=NOW)
        assert runs.get_run(session, "a1").steps == 8


def test_steps_that_sum_to_more_than_64_bits_hold_up_nothing(database: Database) -> None:
    """The buckets of a forger: the run still ends, its agent still delivers, its page still loads."""
    with database.session() as session:
        ingest.apply_run(session, started(), now=NOW)
        forged = [T0 + i for i in range(1100)]
        ingest.apply_batch(session, batch(steps=steps(forged, each=COUNT_MAX)), now=NOW)
    with database.session() as session:
        ingest.apply_batch(session, batch(steps=steps([T0 + 5 * S])), now=NOW)
        ingest.apply_run(session, ended(end_ns=NOW), now=NOW)
        ingest.apply_batch(session, batch(steps=steps([T0 + 6 * S])), now=NOW)
    with database.session() as session:
        run = runs.get_run(session, "a1")
        assert (run.state, run.steps) == ("finished", COUNT_MAX)
        (series,) = run_timeline(session, "a1", points=10).steps
        assert series.steps_per_s[0] > COUNT_MAX


def test_a_clock_that_reads_a_little_over_one_is_one(database: Database) -> None:
    with database.session() as session:
        ingest.apply_batch(session, batch(samples=samples([T0], util_frac=1.02)), now=NOW)
    assert _rows(database, Sample)[0]["util_frac"] == 1.0


@pytest.mark.parametrize(
    "parts",
    [
        {"samples": samples([NOW + 2 * 86_400 * S])},
        {"samples": samples([1])},
        {"samples": samples([T0], util_frac=float("nan"))},
        {"samples": samples([T0], util_frac=-0.1)},
        {"samples": samples([T0], util_frac=55.0)},
        {"samples": samples([T0], power_w=float("inf"))},
        {"samples": samples([T0], power_w=1.7e308)},
        {"samples": samples([T0], memory_used_bytes=2**64)},
        {"samples": samples([T0], memory_used_bytes=2**62)},
        {"samples": samples([T0], memory_used_bytes=-1)},
        {"samples": samples([T0], clock_hz="fast")},
        {"samples": samples([T0], device="a\nb")},
        {"samples": samples([T0], temperature_c=-300.0)},
        {"host_samples": host_samples([T0], cpu_frac="half")},
        {"run_samples": run_samples([T0], run="a/../b")},
        {"run_samples": run_samples([T0], cpu_cores=-1.0)},
        {"steps": steps([T0], each=-1)},
        {"steps": steps([T0], each=COUNT_MAX + 1)},
        {"steps": steps([T0], width_ns=0)},
        {"steps": steps([T0], rank=10**9)},
        {"allocations": [held(end_ns=T0 - 1)]},
        {"allocations": [held(start_ns=0)]},
        {"allocations": [held(device="")]},
        {"devices": [DeviceRecord(uuid="GPU-2", kind="toaster", name="x")]},
        {"devices": [DeviceRecord(uuid="a\nb", kind="gpu", name="x")]},
    ],
)
def test_a_row_that_cannot_be_is_left_out_and_the_others_stay(database: Database, parts: dict[str, Any]) -> None:
    good = {"devices": [CPU], "samples": samples([T0 + S], power_w=3.0), "steps": steps([T0], "b2")}
    whole = good | {name: [*rows, *good.get(name, [])] for name, rows in parts.items()}
    with database.session() as session:
        answer = ingest.apply_batch(session, batch(**whole), now=NOW)
    assert (answer.rows, answer.refused, answer.too_old) == (3, 1, 0)
    assert answer.refusal and "; expected " in answer.refusal
    assert [(row["time_ns"], row["power_w"]) for row in _rows(database, Sample)] == [(T0 + S, 3.0)]
    assert [row["uuid"] for row in _rows(database, Device)] == ["cpu"]
    assert [row["key"] for row in _rows(database, Run)] == ["b2"]
    assert len(_rows(database, StepStat)) == 1
    assert _rows(database, Allocation) == _rows(database, HostSample) == _rows(database, RunSample) == []


def test_a_host_that_cannot_be_refuses_its_batch(database: Database) -> None:
    with pytest.raises(Invalid), database.session() as session:
        ingest.apply_batch(session, batch("h\n1", samples=samples([T0])), now=NOW)
    for table in (Host, Device, Sample):
        assert _rows(database, table) == []


def test_a_huge_batch_is_refused(database: Database) -> None:
    with pytest.raises(TooLarge, match="send it in parts"), database.session() as session:
        ingest.apply_batch(session, batch(samples=samples([T0]) * 200_001), now=NOW)


def test_senders_at_once_lose_nothing(database: Database) -> None:
    """Batches of two hosts, each sent by three threads at once: no deadlock, the same rows as when sent once."""
    times = [T0 + i * S for i in range(20)]
    errors: list[BaseException] = []

    def send(host: str, order: int) -> None:
        a, b = f"a-{host}", f"b-{host}"
        parts = batch(
            host,
            devices=[CPU, GPU],
            samples=[*samples(times[::order]), *samples(times[::-order], "GPU-1")],
            run_samples=[*run_samples(times[::order], a), *run_samples(times[::-order], b)],
            steps=[*steps(times[::order], b), *steps(times[::-order], a)],
            allocations=[held(b), held(a), held(a, T0 + 30 * S, device="GPU-1")],
        )
        try:
            for _ in range(3):
                with database.session() as session:
                    ingest.apply_batch(session, parts, now=NOW)
                with database.session() as session:
                    ingest.apply_heartbeat(session, beat(live(b), live(a), time_ns=NOW, host=host), now=NOW)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=send, args=(host, order)) for host in ("h1", "h2") for order in (1, -1, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert [len(_rows(database, t)) for t in (Sample, RunSample, StepStat, Device, Allocation)] == [80, 80, 80, 4, 6]


# ---- any order of batches --------------------------------------------------------------------------------------------

_PIECES = st.lists(
    st.tuples(
        st.sampled_from(["sample", "host", "run", "step"]),
        st.integers(0, 30),
        st.integers(0, 2),
        st.sampled_from(["cpu", "GPU-1"]),
    ),
    min_size=1,
    max_size=20,
)


@examples(20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pieces=_PIECES, data=st.data())
def test_any_order_and_repetition_of_batches_gives_the_same_rows(
    database: Database, pieces: list[tuple[str, int, int, str]], data: st.DataObject
) -> None:
    batches = []
    for kind, second, number, device in pieces:
        at = [T0 + second * S]
        value = (second * 7 + number) % 10 / 10
        parts: dict[str, Any] = {
            "sample": lambda at=at, device=device, value=value: {"samples": samples(at, device, util_frac=value)},
            "host": lambda at=at, value=value: {"host_samples": host_samples(at, cpu_frac=value)},
            "run": lambda at=at, n=number, d=device: {"run_samples": run_samples(at, f"r{n}", d, cpu_cores=n + 1.0)},
            "step": lambda at=at, n=number: {"steps": steps(at, f"r{n}", n, each=n + 1)},
        }[kind]()
        batches.append(batch(devices=[CPU, GPU], **parts))
    # What a device showed at one instant is one fact: pieces that contradict each other are not sent.
    unique = {
        (k, s, d if k != "host" else "", n if k in ("run", "step") else 0): b
        for (k, s, n, d), b in zip(pieces, batches, strict=True)
    }
    once = list(unique.values())
    again = data.draw(st.permutations(once + data.draw(st.lists(st.sampled_from(once), max_size=10))))
    results = []
    for order in (once, again):
        with database.session() as session:
            for table in reversed(Base.metadata.sorted_tables):
                session.execute(table.delete())
            for part in order:
                ingest.apply_batch(session, part, now=NOW)
        results.append([_facts(database, table) for table in (Sample, HostSample, RunSample, StepStat, Run)])
    assert results[0] == results[1]


def _facts(database: Database, model: type[Base]) -> list[str]:
    """Rows without ids, which follow the order of arrival."""
    with database.session() as session:
        names = {row.id: row.key for row in session.execute(select(Run.id, Run.key))}
        uuids = {row.id: row.uuid for row in session.execute(select(Device.id, Device.uuid))}
        found = []
        for row in session.execute(select(model.__table__)).mappings():
            fact = {key: value for key, value in row.items() if key not in ("id", "host_id", "workflow_id")}
            if "run_id" in fact:
                fact["run_id"] = names[fact["run_id"]]
            if "device_id" in fact:
                fact["device_id"] = uuids[fact["device_id"]]
            found.append(repr(sorted(fact.items())))
    return sorted(found)


def test_a_batch_of_another_host_changes_nothing_of_a_run(database: Database) -> None:
    with database.session() as session:
        ingest.apply_run(session, started(), now=NOW)
        ingest.apply_batch(session, batch(steps=steps([T0]), allocations=[held()]), now=NOW)
        forged = batch(
            "h2",
            samples=samples([T0]),
            run_samples=run_samples([T0]),
            steps=[*steps([T0], each=99), *steps([T0 + S])],
            allocations=[held(end_ns=T0 + S)],
        )
        received = ingest.apply_batch(session, forged, now=NOW)
    assert (received.rows, received.refused) == (5, 4)
    assert received.refusal == "Run a1 is of 'h1', so 'h2' cannot report on it"
    assert [row["steps"] for row in _rows(database, StepStat)] == [2]
    assert [row["end_ns"] for row in _rows(database, Allocation)] == [None]
    assert [len(_rows(database, table)) for table in (Sample, RunSample)] == [1, 0]
