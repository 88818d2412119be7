"""Daily partitions on PostgreSQL: made ahead, filled from the default partition, given back; nothing on SQLite."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path

import pytest
from records import CPU, T0, S, batch, beat, host_samples, live, run_samples, samples
from sqlalchemy import event, func, insert, select, text
from sqlalchemy.orm import Session

from tightship_platform import ingest
from tightship_platform.database import engine as databases
from tightship_platform.database import partitions
from tightship_platform.database.engine import Database
from tightship_platform.database.models import HostSample, RunSample, Sample
from tightship_platform.errors import NotFound
from tightship_platform.settings import Settings
from tightship_platform.units import now_ns

DAY_NS = 86_400 * S
DAY = date(2026, 9, 21)
"""The day of T0."""
START = T0 - T0 % DAY_NS
TABLES = {"sample": Sample, "host_sample": HostSample, "run_sample": RunSample}


@pytest.fixture
def postgres(make_database_url: Callable[..., str], postgres_url: str, tmp_path: Path) -> Iterator[Database]:
    """A separate PostgreSQL database, with the schema."""
    url = make_database_url("postgres", migrated=True)
    with databases.open_database(Settings(home=tmp_path, database_url=url)) as opened:
        yield opened


def _fill(session: Session, times: list[int]) -> None:
    parts = batch(
        devices=[CPU],
        samples=samples(times, util_frac=0.5),
        host_samples=host_samples(times, cpu_frac=0.5),
        run_samples=run_samples(times, cpu_cores=1.0),
    )
    ingest.apply_batch(session, parts, now=max(times))


def _counts(session: Session) -> list[int]:
    return [session.scalar(select(func.count()).select_from(table)) or 0 for table in TABLES.values()]


def _in(session: Session, table: str) -> int:
    return session.scalar(text(f"SELECT count(*) FROM ONLY {table}")) or 0


def test_upgrade_makes_the_coming_days(postgres: Database) -> None:
    with postgres.session() as session:
        for table in TABLES:
            assert len(partitions.list_partitions(session, table)) == partitions.DAYS_AHEAD + 1


def test_days_are_made_ahead_and_only_once(postgres: Database) -> None:
    with postgres.session() as session:
        made = partitions.make_partitions(session, days_ahead=2, now=T0)
        assert made == [f"{table}_202609{day}" for table in TABLES for day in (21, 22, 23)]
        assert partitions.make_partitions(session, days_ahead=2, now=T0) == []
        assert partitions.make_partitions(session, days_ahead=2, now=T0 + DAY_NS) == [f"{t}_20260924" for t in TABLES]
        times = [START, T0, START + DAY_NS - 1, START + DAY_NS, START + 3 * DAY_NS + 1]
        _fill(session, times)
        assert _counts(session) == [5, 5, 5]
        for table in TABLES:
            assert [_in(session, f"{table}_202609{day}") for day in (21, 22, 23, 24)] == [3, 1, 0, 1]
            assert _in(session, f"{table}_default") == 0


def test_rows_that_wait_in_the_default_partition_move_to_their_day(postgres: Database) -> None:
    with postgres.session() as session:
        _fill(session, [START - 1, START, T0])
        assert _in(session, "sample_default") == 3
        made = partitions.make_partitions(session, days_ahead=0, now=T0 + 40 * DAY_NS)
        assert {"sample_20260920", "host_sample_20260921", "run_sample_20261031"} <= set(made)
    with postgres.session() as session:
        assert _counts(session) == [3, 3, 3]
        for table in TABLES:
            assert [_in(session, f"{table}_{day}") for day in ("default", "20260920", "20260921")] == [0, 1, 2]
        # The key still holds across the move.
        _fill(session, [START - 1, START, T0])
        assert _counts(session) == [3, 3, 3]


def _waiting(database: Database, days: range) -> None:
    """A sample of each of so many days before T0, in the default partition."""
    with database.session() as session:
        _fill(session, [T0])
        device = session.scalar(select(Sample.device_id))
        session.execute(insert(Sample), [{"time_ns": T0 - n * DAY_NS, "device_id": device} for n in days])


def _make(database: Database) -> list[str]:
    with database.session() as session:
        return partitions.make_partitions(session, days_ahead=0, now=T0)


def test_a_call_makes_a_bounded_number_each_for_itself(postgres: Database) -> None:
    """Rows of very many days: the coming days come first, then the newest past ones, and old days stay together."""
    _waiting(postgres, range(1, 1001))
    transactions = []
    with postgres.session() as session:
        event.listen(session, "after_commit", transactions.append)
        made = partitions.make_partitions(session, days_ahead=0, now=T0)
    assert made[:4] == ["sample_20260921", "host_sample_20260921", "run_sample_20260921", "sample_20260920"]
    assert made[-1] == "sample_20260822"
    assert len(made) == 3 + partitions.MOST_PAST
    assert len(transactions) == len(made) + 1  # and the test's own
    calls = [len(_make(postgres)) for _ in range(4)]
    assert calls == [30, 30, 10, 0]
    with postgres.session() as session:
        assert _counts(session) == [1001, 1, 1]
        assert _in(session, "sample_default") == 1000 - partitions.DAYS_BACK


@pytest.mark.parametrize("why", ["busy", "left over", "slow"])
def test_what_cannot_be_made_is_one_line(
    postgres: Database, why: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It neither ends a start, nor keeps hosts from reporting for long; the next call makes it."""
    with postgres.session() as session:
        today = partitions.list_partitions(session, "sample")[0]
        partitions.drop_partition(session, "sample", today)
        if why == "left over":
            session.execute(text(f"CREATE TABLE sample_{today:%Y%m%d} ()"))
        if why == "slow":
            _fill(session, [now_ns()])
            rule = (
                "CREATE FUNCTION nap() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(9); RETURN OLD; END'"
            )
            session.execute(text(rule))
            session.execute(
                text("CREATE TRIGGER nap BEFORE DELETE ON sample_default FOR EACH ROW EXECUTE FUNCTION nap()")
            )
            monkeypatch.setattr(partitions, "MOVE_TIMEOUT", "200ms")
    longest = 0.0
    stop = threading.Event()

    def report() -> None:
        nonlocal longest
        while not stop.wait(0.01):
            begin = time.monotonic()
            with postgres.session() as session:
                ingest.apply_heartbeat(session, beat(live(), time_ns=now_ns()))
            longest = max(longest, time.monotonic() - begin)

    host = threading.Thread(target=report)
    settings = Settings(home=Path("/"), database_url=postgres.engine.url.render_as_string(hide_password=False))
    with postgres.session() as holder:
        if why == "busy":
            holder.execute(text("LOCK TABLE sample_default IN ACCESS SHARE MODE"))
        host.start()
        databases.upgrade(settings)
        stop.set()
        host.join()
    (line,) = [record.getMessage() for record in caplog.records if record.name == partitions.log.name]
    causes = {"busy": "lock timeout", "left over": "already exists", "slow": "statement timeout"}
    assert "Partitions could not be made" in line and causes[why] in line and "\n" not in line
    assert 0 < longest < 5
    with postgres.session() as session:
        assert today not in partitions.list_partitions(session, "sample")
        if why == "left over":
            session.execute(text(f"DROP TABLE sample_{today:%Y%m%d}"))
        if why == "slow":
            assert _in(session, "sample_default") == 1
            session.execute(text("DROP TRIGGER nap ON sample_default"))
        assert partitions.make_partitions(session) == [f"sample_{today:%Y%m%d}"]


def test_a_dropped_day_goes_with_its_rows_and_may_come_back(postgres: Database) -> None:
    with postgres.session() as session:
        partitions.make_partitions(session, days_ahead=1, now=T0)
        _fill(session, [T0, T0 + S, T0 + DAY_NS])
        partitions.drop_partition(session, "sample", DAY)
        assert _counts(session) == [1, 3, 3]
        assert DAY not in partitions.list_partitions(session, "sample")
        with pytest.raises(NotFound, match="No partition named 'sample_20260921'"):
            partitions.drop_partition(session, "sample", DAY)
        _fill(session, [T0, T0 + 2 * S])
        assert _in(session, "sample_default") == 2
        assert "sample_20260921" in partitions.make_partitions(session, days_ahead=0, now=T0)
        assert (_in(session, "sample_default"), _in(session, "sample_20260921")) == (0, 2)


def test_partitions_carry_the_keys_and_references_of_their_parent(postgres: Database) -> None:
    with postgres.session() as session:
        partitions.make_partitions(session, days_ahead=0, now=T0)
        shape = text(
            "SELECT contype::text, conrelid::regclass::text FROM pg_constraint"
            " WHERE conrelid IN ('sample_20260921'::regclass, 'sample_default'::regclass)"
        )
        found: dict[str, list[str]] = {}
        for kind, table in session.execute(shape):
            found.setdefault(table, []).append(kind)
        assert sorted(found["sample_20260921"]) == sorted(found["sample_default"]) == ["f", "p"]


def test_partitions_are_made_while_others_write(postgres: Database) -> None:
    """No row is lost, none appears twice, nobody deadlocks. Rows of one past day after another come, and go to their
    partitions while others write beside them."""
    days = 40
    errors: list[BaseException] = []
    made: list[str] = []
    done = threading.Event()

    def write(number: int) -> None:
        try:
            for back in range(days):
                time_ns = T0 - back * DAY_NS
                with postgres.session() as session:
                    parts = batch(
                        f"h{number}",
                        devices=[CPU],
                        samples=samples([time_ns, time_ns + S]),
                        run_samples=run_samples([time_ns], f"r{number}"),
                        host_samples=host_samples([time_ns]),
                    )
                    ingest.apply_batch(session, parts, now=T0)
        except BaseException as error:
            errors.append(error)

    def partition() -> None:
        try:
            while not done.wait(0.02):
                with postgres.session() as session:
                    made.extend(partitions.make_partitions(session, days_ahead=1, now=T0))
        except BaseException as error:
            errors.append(error)

    writers = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    maker = threading.Thread(target=partition)
    for thread in (*writers, maker):
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    maker.join()
    assert errors == []
    assert len(made) > len(TABLES) * 4 and len(set(made)) == len(made)
    with postgres.session() as session:
        assert _counts(session) == [240, 120, 120]


def test_sqlite_has_none(make_database_url: Callable[..., str], tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, database_url=make_database_url("sqlite", migrated=True))
    with databases.open_database(settings) as database, database.session() as session:
        assert partitions.make_partitions(session) == partitions.list_partitions(session, "sample") == []
