"""Old records on both databases: what goes, what stays because it is needed, and what comes too late."""

from __future__ import annotations

import threading
from datetime import UTC, date, datetime
from typing import Any

import pytest
from capture_steps import NOW, armed, store, uploaded
from records import (
    CPU,
    HOUR,
    MIN,
    T0,
    S,
    ask,
    batch,
    ended,
    held,
    host_samples,
    lease_of,
    run_samples,
    samples,
    started,
    steps,
)
from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from tightship_platform import captures, ingest
from tightship_platform.captures import files
from tightship_platform.database import partitions
from tightship_platform.database.engine import Database
from tightship_platform.database.models import HostSample, RemovedDay, Rollup, Run, RunSample, Sample, StepStat, Trace
from tightship_platform.queries.captures import get_capture
from tightship_platform.queries.timeline import run_timeline
from tightship_platform.samples import retention, rollups
from tightship_platform.samples.retention import DAY_NS, remove_minutes, remove_samples

FIRST = retention.day_of(T0)
"""Start of the first day with samples."""
RAW = (Sample, HostSample, RunSample, StepStat)
KEEP = 30


def _date(day_ns: int) -> date:
    return datetime.fromtimestamp(day_ns // S, UTC).date()


def _a_day(session: Session, run: str, day_ns: int, *, host: str = "h1", last: bool = True) -> None:
    """A run of three hours with a sample and a step a minute."""
    begin, end = day_ns + HOUR, day_ns + 4 * HOUR
    times = range(begin, end, MIN)
    ingest.apply_run(session, started(run, start_ns=begin, host=host), now=end)
    parts = batch(
        host,
        devices=[CPU],
        samples=samples(times, util_frac=0.5),
        host_samples=host_samples(times, cpu_frac=0.5),
        run_samples=run_samples(times, run, cpu_cores=1.0),
        steps=steps(times, run),
        allocations=[held(run, begin, end if last else None)],
    )
    ingest.apply_batch(session, parts, now=end)
    if last:
        ingest.apply_run(session, ended(run, start_ns=begin, end_ns=end, host=host), now=end)


def _report(database: Database, now: int) -> None:
    """A host is there: its newest sample is what the age of all others counts from."""
    with database.session() as session:
        ingest.apply_batch(session, batch("alive", host_samples=host_samples([now])), now=now)


def _account(session: Session, *runs: str) -> None:
    """What the analyzers' task does, as far as retention looks at it."""
    changed = update(Run).where(Run.key.in_(runs)).values(accounted_ns=func.coalesce(Run.end_ns, Run.last_seen_ns) + 1)
    session.execute(changed.execution_options(synchronize_session=False))


def _counts(session: Session, day_ns: int) -> list[int]:
    within = [(model.time_ns >= day_ns) & (model.time_ns < day_ns + DAY_NS) for model in RAW]
    return [
        session.scalar(select(func.count()).select_from(model).where(which)) or 0
        for model, which in zip(RAW, within, strict=True)
    ]


def _minutes(session: Session, run: str) -> list[tuple[int, float | None]]:
    found = (
        select(Rollup.samples, Rollup.util_frac).join(Run).where(Run.key == run, Rollup.width_ns == rollups.MINUTE_NS)
    )
    return [(row.samples, row.util_frac) for row in session.execute(found.order_by(Rollup.time_ns))]


ALL = [180] * 4
NONE = [0] * 4


def test_old_days_go_and_leave_their_rollups(database: Database) -> None:
    """Even rollups that nobody had made: the worker may have been away for longer than `roll_up` looks back."""
    with database.session() as session:
        for number in range(3):
            _a_day(session, f"r{number}", FIRST + number * DAY_NS)
        partitions.make_partitions(session, days_ahead=0, now=FIRST + 2 * DAY_NS)
        _account(session, "r0", "r1", "r2")
        session.execute(delete(Rollup))
    just_before, then = FIRST + (KEEP + 2) * DAY_NS - 1, FIRST + (KEEP + 2) * DAY_NS
    _report(database, just_before)
    assert remove_samples(database, keep_days=KEEP, now=just_before).days == 1
    assert remove_samples(database, keep_days=KEEP, now=then).days == 0, "the newest sample does not show it"
    _report(database, then)
    assert remove_samples(database, keep_days=KEEP, now=then).days == 1
    assert remove_samples(database, keep_days=KEEP, now=then).days == 0
    with database.session() as session:
        assert [_counts(session, FIRST + n * DAY_NS) for n in range(3)] == [NONE, NONE, ALL]
        assert _minutes(session, "r0") == _minutes(session, "r1") == [(1, 0.5)] * 180
        if database.dialect == "postgresql":
            for table in partitions.TABLES:
                left = partitions.list_partitions(session, table)
                assert _date(FIRST) not in left
                assert _date(FIRST + 2 * DAY_NS) in left
        assert [row.removed_ns for row in session.scalars(select(RemovedDay).order_by(RemovedDay.day_ns))] == [
            just_before,
            then,
        ]


def _roll_up_marked(session: Session) -> None:
    while rollups.roll_up_dirty(session):
        pass


def test_a_clock_that_is_years_ahead_removes_nothing_and_refuses_nothing(database: Database) -> None:
    """Samples and means stay, and traces; what hosts with right clocks deliver is taken."""
    wrong = FIRST + 4000 * DAY_NS
    with database.session() as session:
        assert retention.days_that_data_show(session, 90, now=wrong) == 0
        _a_day(session, "r0", FIRST)
        _account(session, "r0")
        _roll_up_marked(session)
        minutes = _minutes(session, "r0")
        assert minutes
    assert remove_samples(database, keep_days=KEEP, now=wrong).days == 0
    assert remove_minutes(database, keep_days=400, now=wrong) == 0
    with database.session() as session:
        assert (_counts(session, FIRST), _minutes(session, "r0")) == (ALL, minutes)
        assert wrong - retention.days_that_data_show(session, 90, now=wrong) * DAY_NS <= FIRST - 89 * DAY_NS
        assert retention.days_that_data_show(session, 0, now=wrong) == 0
        fresh = batch(samples=samples([FIRST + DAY_NS]), steps=steps([FIRST + DAY_NS], "r0"))
        assert ingest.apply_batch(session, fresh, keep_days=KEEP, now=wrong).too_old == 0
        assert _counts(session, FIRST + DAY_NS) == [1, 0, 0, 1]


def test_nothing_goes_that_is_kept_for_ever(database: Database) -> None:
    with database.session() as session:
        _a_day(session, "r0", FIRST)
        _account(session, "r0")
    assert remove_samples(database, keep_days=0, now=FIRST + 5000 * DAY_NS).days == 0
    assert remove_minutes(database, keep_days=0, now=FIRST + 5000 * DAY_NS) == 0
    with database.session() as session:
        assert files.give_up_old(session, keep_days=0, now=FIRST + 5000 * DAY_NS) == 0
        assert _counts(session, FIRST) == ALL


@pytest.mark.parametrize("why", ["no account", "an account that is out of date", "running", "imported"])
def test_a_day_stays_while_a_run_needs_it(database: Database, why: str) -> None:
    """And keeps no other day from going."""
    much_later = FIRST + 100 * DAY_NS
    with database.session() as session:
        _a_day(session, "other", FIRST + DAY_NS)
        _a_day(session, "r0", FIRST, last=why != "running")
        _account(session, "other", *(["r0"] if why != "no account" else []))
        changed: dict[str, Any] = {"source": "import:csv"} if why == "imported" else {}
        if why == "an account that is out of date":
            changed = {"accounted_ns": FIRST + 2 * HOUR}
        if changed:
            session.execute(update(Run).where(Run.key == "r0").values(**changed))
    _report(database, much_later)
    removed = remove_samples(database, keep_days=KEEP, now=much_later)
    kept = 2 if why == "running" else 1  # who still runs lives on all days since
    assert (removed.days, removed.kept) == (2 - kept, {"r0": kept})
    with database.session() as session:
        assert _counts(session, FIRST) == ALL
        session.execute(update(Run).where(Run.key == "r0").values(source="launch", state="finished"))
        session.execute(update(Run).where(Run.key == "r0").values(end_ns=FIRST + 4 * HOUR, accounted_ns=much_later))
    assert remove_samples(database, keep_days=KEEP, now=much_later).days == kept
    with database.session() as session:
        assert _counts(session, FIRST) == _counts(session, FIRST + DAY_NS) == NONE


def test_what_comes_too_late_spoils_neither_rollup_nor_account(database: Database) -> None:
    later = FIRST + 40 * DAY_NS
    with database.session() as session:
        _a_day(session, "r0", FIRST)
        _a_day(session, "r2", FIRST + 2 * DAY_NS)
        _account(session, "r0", "r2")
        session.execute(update(Run).where(Run.key == "r2").values(source="import:csv"))
    _report(database, later)
    assert remove_samples(database, keep_days=KEEP, now=later).days == 1
    with database.session() as session:
        accounted = session.scalar(select(Run.accounted_ns).where(Run.key == "r0"))
        spool = [FIRST + 2 * HOUR + S, FIRST + 2 * DAY_NS + 2 * HOUR + S]
        parts = batch(
            samples=samples(spool, util_frac=1.0),
            host_samples=host_samples(spool),
            run_samples=run_samples(spool, "r0"),
            steps=steps(spool, "r0"),
        )
        answer = ingest.apply_batch(session, parts, now=later)
        assert (answer.rows, answer.too_old) == (8, 4)
    with database.session() as session:
        _roll_up_marked(session)
        assert _counts(session, FIRST) == NONE
        assert _counts(session, FIRST + 2 * DAY_NS) == [181] * 4  # of that day everything is taken
        assert _minutes(session, "r0") == [(1, 0.5)] * 180
        assert session.scalar(select(Run.accounted_ns).where(Run.key == "r0")) == accounted
        assert (2, 0.75) in _minutes(session, "r2")


def test_what_is_older_than_samples_are_kept_is_not_stored(database: Database) -> None:
    """Nor makes it a run; what comes with it is stored."""
    later = FIRST + (KEEP + 1) * DAY_NS  # the moment from which the first day may be removed
    old, kept = FIRST + DAY_NS - 1, FIRST + DAY_NS
    parts = batch(
        devices=[CPU],
        samples=samples([FIRST - 4000 * DAY_NS, old, kept], util_frac=0.5),
        host_samples=host_samples([old, kept]),
        run_samples=[*run_samples([old], "r0"), *run_samples([kept], "r1")],
        steps=[*steps([old], "r0"), *steps([kept], "r1")],
        allocations=[held("r1", old)],
    )
    _report(database, later)
    with database.session() as session:
        answer = ingest.apply_batch(session, parts, keep_days=KEEP, now=later)
        assert (answer.rows, answer.too_old, answer.refused, answer.unknown_runs) == (10, 5, 0, ["r1"])
        assert _counts(session, FIRST) == NONE
        assert _counts(session, FIRST + DAY_NS) == [1] * 4
        assert session.scalar(select(func.count()).select_from(Sample)) == 1
        assert ingest.apply_batch(session, parts, keep_days=KEEP, now=later - 1).too_old == 1
        assert _counts(session, FIRST) == [1] * 4
        assert ingest.apply_batch(session, parts, keep_days=0, now=later).too_old == 0  # kept for ever
        assert _counts(session, FIRST - 4000 * DAY_NS) == [1, 0, 0, 0]


def test_the_timeline_of_an_old_run_is_made_of_its_rollups(database: Database) -> None:
    with database.session() as session:
        _a_day(session, "r0", FIRST)
        _account(session, "r0")
        before = run_timeline(session, "r0")
    assert before.width_ns < MIN
    _report(database, FIRST + 400 * DAY_NS + 4 * HOUR + 1)
    remove_samples(database, keep_days=KEEP, now=FIRST + 40 * DAY_NS)
    with database.session() as session:
        after = run_timeline(session, "r0")
        (device,) = after.devices
        assert device.util_frac == before.devices[0].util_frac == [0.5] * 180
        assert after.steps == []
    assert remove_minutes(database, keep_days=400, now=FIRST + 400 * DAY_NS + 4 * HOUR) == 0
    assert remove_minutes(database, keep_days=400, now=FIRST + 400 * DAY_NS + 4 * HOUR + 1) == 1
    with database.session() as session:
        assert _minutes(session, "r0") == []
        (device,) = run_timeline(session, "r0").devices
        assert device.util_frac == [0.5] * 3


def test_a_removal_that_was_killed_is_finished(database: Database) -> None:
    with database.session() as session:
        _a_day(session, "r0", FIRST)
        _account(session, "r0")
        session.add(RemovedDay(day_ns=FIRST))
    assert remove_samples(database, keep_days=KEEP, now=FIRST + DAY_NS).days == 0
    with database.session() as session:
        assert _counts(session, FIRST) == NONE
        assert session.scalars(select(RemovedDay.removed_ns)).all() == [FIRST + DAY_NS]


def test_days_go_while_others_write_and_read(database: Database) -> None:
    """No row of another day is lost, and nobody sees that the database is busy."""
    later = FIRST + 40 * DAY_NS
    with database.session() as session:
        for number in range(4):
            _a_day(session, f"r{number}", FIRST + number * DAY_NS)
        partitions.make_partitions(session, days_ahead=1, now=later)
        _account(session, *(f"r{number}" for number in range(4)))
    _report(database, later - 1)
    errors: list[BaseException] = []
    done = threading.Event()

    def write(host: str) -> None:
        try:
            for second in range(25):
                with database.session() as session:
                    now = later + second * S
                    parts = batch(
                        host,
                        devices=[CPU],
                        samples=samples([now]),
                        run_samples=run_samples([now], host),
                        host_samples=host_samples([now]),
                    )
                    ingest.apply_batch(session, parts, now=now)
        except BaseException as error:
            errors.append(error)

    def read() -> None:
        try:
            while not done.wait(0.05):
                with database.session() as session:
                    run_timeline(session, "r3", points=5000)
                    session.scalar(select(func.count()).select_from(Sample))
                    session.scalar(select(func.count()).select_from(Run))
        except BaseException as error:
            errors.append(error)

    writers = [threading.Thread(target=write, args=(f"w{number}",)) for number in range(2)]
    reader = threading.Thread(target=read)
    for thread in (*writers, reader):
        thread.start()
    days = sum(remove_samples(database, keep_days=KEEP, now=later).days for _ in range(4))
    for thread in writers:
        thread.join()
    done.set()
    reader.join()
    assert errors == []
    days += remove_samples(database, keep_days=KEEP, now=later).days
    with database.session() as session:
        assert session.scalars(select(RemovedDay.removed_ns)).all() == [later] * 4
        assert _counts(session, later)[:3] == [50, 50, 50]
        assert [_counts(session, FIRST + n * DAY_NS) for n in range(4)] == [NONE] * 4


# ---- trace files -----------------------------------------------------------------------------------------------------


def test_old_traces_lose_their_files_and_keep_what_was_found(database: Database) -> None:
    with database.session() as session:
        ingest.apply_run(session, started(), now=NOW)
        old = uploaded(session)
        captures.analyzed(session, old, now=NOW)
        unfinished = captures.request(session, ask("a1"), now=NOW).key
        captures.lease(session, lease_of("a1"), now=NOW)
    with database.session() as session:
        session.execute(update(Trace).values(summary={"steps": 7}))
        end = NOW + 90 * DAY_NS
        assert files.give_up_old(session, keep_days=90, now=end) == 0
        assert files.give_up_old(session, keep_days=90, now=end + 1) == 1
        assert files.give_up_old(session, keep_days=90, now=end + 2) == 0
    with database.session() as session:
        (rank,) = get_capture(session, old).ranks
        assert (rank.url, rank.bytes) == (None, 10)
        assert session.scalars(select(Trace.summary)).all() == [{"steps": 7}]
        assert get_capture(session, unfinished).state == "leased"


def test_traces_of_a_capture_under_way_are_not_old(database: Database) -> None:
    with database.session() as session:
        ingest.apply_run(session, started(), now=NOW)
        store(session, armed(session, (0, 1)), 0)
        assert files.give_up_old(session, keep_days=1, now=NOW + 400 * DAY_NS) == 0
