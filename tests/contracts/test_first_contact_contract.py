"""What a host's first deliveries cost: few statements, whatever they hold; a fleet sends them all at once."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from records import T0, S, batch, beat, ended, held, host_samples, live, run_samples, samples, started, steps
from sqlalchemy import func, select
from statements import statements_of

from tightship_platform import ingest
from tightship_platform.api.auth import create_token
from tightship_platform.database.engine import Database
from tightship_platform.database.models import Allocation, DirtyHour, Host
from tightship_platform.database.reporters import Reporter, put_host
from tightship_platform.errors import Forbidden
from tightship_platform.results.run_record import RunRecord
from tightship_platform.samples.dirty_hours import HOUR_NS
from tightship_platform.vocabulary import Scope
from tightship_platform.wire import Batch, DeviceRecord, Heartbeat

NOW = T0 + 100 * S
AGENT = Reporter(name="agent")
RUN, HEARTBEAT, BATCH = 11, 17, 20
"""Most statements of a host's first record of a run, heartbeat and batch, on either database."""
HEARTBEAT_AGAIN, BATCH_AGAIN = 8, 12
"""The same where all that they name is there."""


def _devices(count: int) -> list[DeviceRecord]:
    return [DeviceRecord(uuid=f"GPU-{number}", kind="gpu", name="An accelerator") for number in range(count)]


def _beat(run: str, devices: int, now: int = NOW, start_ns: int = NOW - S) -> Heartbeat:
    uuids = [one.uuid for one in _devices(devices)]
    shown = live(run, devices=uuids, ranks=range(devices), since_ns=start_ns, steps=1)
    return beat(shown, time_ns=now, host=f"host-of-{run}", devices=_devices(devices))


def _batch(run: str, devices: int, now: int = NOW, start_ns: int = NOW - S) -> Batch:
    times = [now - 2 * S, now - S, now]
    uuids = [one.uuid for one in _devices(devices)]
    return batch(
        f"host-of-{run}",
        devices=_devices(devices),
        samples=[one for uuid in uuids for one in samples(times, uuid, util_frac=0.5)],
        host_samples=host_samples(times, cpu_frac=0.25),
        run_samples=[one for uuid in uuids for one in run_samples(times, run, uuid)],
        steps=[one for rank in range(devices) for one in steps([now - 10 * S], run, rank=rank)],
        allocations=[held(run, start_ns, device=uuid) for uuid in uuids],
    )


def _count(database: Database, apply: Callable[..., object], record: object, **more: object) -> int:
    """Statements that it takes to apply a record."""
    with statements_of(database) as sent, database.session() as session:
        apply(session, record, **more)
    return len(sent)


def _announced(run: str, start_ns: int = NOW - S) -> RunRecord:
    return started(run, start_ns=start_ns, host=f"host-of-{run}")


@pytest.mark.parametrize("devices", [1, 16])
def test_first_deliveries_take_few_statements_however_much_they_hold(database: Database, devices: int) -> None:
    with database.session() as session:
        create_token(session, AGENT.name, [Scope.INGEST])
    first = {"reporter": AGENT, "now": NOW}
    for run in "ab":
        assert _count(database, ingest.apply_run, _announced(run), **first) <= RUN
    assert _count(database, ingest.apply_batch, _batch("a", devices), **first) <= BATCH
    assert _count(database, ingest.apply_heartbeat, _beat("b", devices), **first) <= HEARTBEAT
    with database.session() as session:
        assert session.scalar(select(func.count()).select_from(Allocation)) == 2 * devices


def test_what_is_there_already_takes_fewer(database: Database) -> None:
    """As after a restart of the server, which knows nobody."""
    with database.session() as session:
        ingest.apply_run(session, _announced("a"), now=NOW)
        ingest.apply_batch(session, _batch("a", 8), now=NOW)
        ingest.apply_heartbeat(session, _beat("a", 8), now=NOW)
    now = NOW + 5 * S
    assert _count(database, ingest.apply_batch, _batch("a", 8, now=now), now=now) <= BATCH_AGAIN
    assert _count(database, ingest.apply_heartbeat, _beat("a", 8, now=now), now=now) <= HEARTBEAT_AGAIN


def test_what_was_held_for_hours_takes_as_many_for_one_device_as_for_many(database: Database) -> None:
    """An allocation that begins in the past, or ends, has rollups made again."""
    start_ns = NOW - 3 * HOUR_NS
    taken = []
    with database.session() as session:  # the first one of a workflow takes more
        ingest.apply_run(session, _announced("z", start_ns), now=NOW)
    for run, devices in (("a", 2), ("b", 16)):
        with database.session() as session:
            ingest.apply_run(session, _announced(run, start_ns), now=NOW)
        late = _batch(run, devices, start_ns=start_ns)
        end = ended(run, start_ns=start_ns, end_ns=NOW - 2 * HOUR_NS, host=f"host-of-{run}")
        taken.append(
            (_count(database, ingest.apply_batch, late, now=NOW), _count(database, ingest.apply_run, end, now=NOW))
        )
    assert taken[0] == taken[1]
    with database.session() as session:
        hours = session.execute(select(DirtyHour.device_id, DirtyHour.hour_ns)).all()
    assert len(hours) == 18 * len(range(start_ns - start_ns % HOUR_NS, NOW, HOUR_NS))


@pytest.mark.parametrize("database", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)
def test_of_two_tokens_that_report_a_new_host_at_once_one_has_it(database: Database) -> None:
    with database.session() as session:
        for name in ("one", "other"):
            create_token(session, name, [Scope.INGEST])
    refused: list[Exception] = []

    def report() -> None:
        try:
            with database.session() as late:
                put_host(late, "h1", NOW, Reporter(name="other"))
        except Forbidden as error:
            refused.append(error)

    with database.session() as session:
        put_host(session, "h1", NOW, Reporter(name="one"))
        thread = threading.Thread(target=report)
        thread.start()
        thread.join(0.5)  # it waits for this transaction
        assert thread.is_alive()
    thread.join()
    assert ["reported by the token 'one'" in str(error) for error in refused] == [True]
    with database.session() as session:
        assert session.scalars(select(Host.reported_by)).all() == ["one"]
