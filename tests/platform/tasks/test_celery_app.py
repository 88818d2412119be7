"""The Celery application's settings, its schedule, and the platform's periodic tasks on a real database."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from api_calls import RUN, Capture, Served, ok, run_record, trace_file
from celery import Celery
from full_disk import no_file_beyond
from processes import Running, tightship
from services import free_port
from sqlalchemy import select, update
from waiting import PATIENCE_S, wait_for

from tightship_analyzers.offload_planner.requests import PLAN_OFFLOAD
from tightship_platform import captures, ingest
from tightship_platform.database.models import Capture as CaptureRow
from tightship_platform.database.models import Run
from tightship_platform.database.per_process import process_database
from tightship_platform.errors import Invalid
from tightship_platform.processes.steady_clock import SteadyClock
from tightship_platform.settings import load_settings
from tightship_platform.tasks import periodic
from tightship_platform.tasks.app import (
    ANALYZE_CAPTURE,
    HARD_LIMIT_S,
    PERIODIC_QUEUE,
    SOFT_LIMIT_S,
    broker_answers,
    create_celery,
    send,
    shown_url,
)
from tightship_platform.tasks.registry import periods_s
from tightship_platform.tasks.worker import Schedule
from tightship_platform.units import NS_PER_S, now_ns


@pytest.fixture
def app(tmp_path: Path) -> Celery:
    return create_celery(load_settings({"TIGHTSHIP_HOME": str(tmp_path)}))


def test_only_json_travels_and_a_task_is_done_before_it_is_forgotten(app: Celery) -> None:
    conf = app.conf
    assert conf.accept_content == ["json"]
    assert conf.task_serializer == "json"
    assert conf.task_acks_late
    assert conf.task_reject_on_worker_lost
    assert conf.worker_prefetch_multiplier == 1
    assert conf.task_ignore_result
    assert conf.broker_connection_retry_on_startup
    assert 0 < conf.task_soft_time_limit == SOFT_LIMIT_S < conf.task_time_limit == HARD_LIMIT_S
    assert not conf.worker_enable_remote_control


def test_periodic_tasks_expire_with_their_period(app: Celery) -> None:
    schedule = app.conf.beat_schedule
    assert {name: entry["schedule"] for name, entry in schedule.items()} == {
        "tightship_platform.sweep_captures": 5,
        "tightship_platform.close_lost_runs": 15,
        "tightship_platform.roll_up": 30,
        "tightship_platform.request_scheduled_captures": 10,
        "tightship_platform.make_partitions": 3600,
        "tightship_platform.remove_old_records": 3600,
        "tightship_platform.remove_old_files": 3600,
        "tightship_platform.remove_old_runs": 3600,
        "tightship_platform.finish_removals": 30,
        "tightship_analyzers.account_runs": 10,
        "tightship_analyzers.judge_samples": 15,
        "tightship_analyzers.rank_opportunities": 10,
        "tightship_analyzers.verify_applications": 15,
        "tightship_analyzers.sweep_plan_requests": 5,
    }
    for name, entry in schedule.items():
        assert entry["task"] == name
        assert entry["options"] == {"expires": entry["schedule"], "queue": PERIODIC_QUEUE}


def test_the_worker_knows_every_task_that_anybody_sends(app: Celery) -> None:
    app.loader.import_default_modules()
    assert set(periods_s()) | {ANALYZE_CAPTURE, PLAN_OFFLOAD} <= set(app.tasks)
    limit_s = app.tasks[PLAN_OFFLOAD].soft_time_limit
    assert 0 < limit_s < app.tasks[PLAN_OFFLOAD].time_limit <= HARD_LIMIT_S


@pytest.mark.parametrize(
    "url",
    [
        "amqp://x",
        "memory://",
        "nonsense",
        "file:///x",
        "sqla+sqlite:///x",
        ";",
        "http://x",
        "redis://h:x/0",
        "redis://[",
    ],
)
def test_a_broker_of_another_kind_is_one_line(tmp_path: Path, url: str) -> None:
    settings = load_settings({"TIGHTSHIP_HOME": str(tmp_path), "TIGHTSHIP_BROKER_URL": url})
    with pytest.raises(Invalid, match="TIGHTSHIP_BROKER_URL"):
        create_celery(settings)


def test_a_broker_that_is_down_is_a_line_and_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    url = f"redis://user:secret@127.0.0.1:{free_port()}/0"
    settings = load_settings({"TIGHTSHIP_HOME": str(tmp_path), "TIGHTSHIP_BROKER_URL": url})
    assert send(settings, ANALYZE_CAPTURE, "key") is False
    assert broker_answers(settings) is False
    assert "a sweep will" in caplog.text
    assert "secret" not in caplog.text


def test_passwords_are_not_shown() -> None:
    assert shown_url("redis://:pa%40ss@h:1/0") == "redis://:***@h:1/0"
    assert shown_url("filesystem://") == "filesystem://"


# ---- the platform's tasks --------------------------------------------------------------------------------------------


def queued(home: Path) -> list[tuple[str, list[Any]]]:
    """Tasks in the queue of the folder broker; takes them."""
    found = []
    for file in sorted((home / "broker/queue").glob("*.msg")):
        message = json.loads(file.read_text())
        found.append((message["headers"]["task"], json.loads(b64decode(message["body"]))[0]))
        file.unlink()
    return found


@pytest.fixture
def folder_env(make_platform_env: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A platform whose broker is a folder, so that the test can look into it."""
    env = make_platform_env(broker="folder")
    for name, value in env.variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("tightship_platform.database.per_process._opened", {})
    return env


def test_an_analysis_that_nobody_does_is_sent_again(folder_env: Any, serve: Callable[..., Served]) -> None:
    served = serve(folder_env.settings)
    with served.http() as http:
        capture = Capture(http)
        capture.write()
        ok(capture.put(trace_file()))
    assert queued(folder_env.home) == [(ANALYZE_CAPTURE, [capture.key])]
    periodic.sweep_captures()
    assert queued(folder_env.home) == []  # it was sent a moment ago
    with served.database.session() as session:
        session.execute(update(CaptureRow).values(lease_expires_ns=now_ns() - 1))
    periodic.sweep_captures()
    assert queued(folder_env.home) == [(ANALYZE_CAPTURE, [capture.key])]


def test_a_request_that_no_agent_takes_expires(folder_env: Any, serve: Callable[..., Served]) -> None:
    with serve(folder_env.settings).http() as http:
        capture = Capture(http)
        with process_database().session() as session:
            session.execute(update(CaptureRow).values(expires_ns=now_ns() - 1))
        periodic.sweep_captures()
        assert capture.now()["state"] == "expired"
        assert "agent" in capture.now()["reason"]


def test_a_run_that_fell_silent_is_lost_but_not_when_the_clock_was_set(
    folder_env: Any, serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step of the clock makes every run look silent. So does the start of a worker that was away."""
    mono, ahead = [0], [0]
    clock = SteadyClock(wall=lambda: mono[0] + ahead[0], monotonic=lambda: mono[0])
    monkeypatch.setattr(periodic, "clock", clock)

    def state() -> str:
        periodic.close_lost_runs()
        found: str = ok(http.get(f"/runs/{RUN}"))["state"]
        return found

    with serve(folder_env.settings).http() as http:
        ok(http.post("/runs", json=run_record()))
        mono[0] += ingest.LOST_AFTER_NS
        assert state() == "running"
        with process_database().session() as session:
            session.execute(update(Run).values(last_seen_ns=now_ns() - ingest.LOST_AFTER_NS - 1))
        for _ in range(3):
            ahead[0] += 3600 * NS_PER_S
            assert state() == "running"
            mono[0] += ingest.LOST_AFTER_NS - 1
            assert state() == "running"
        mono[0] += 1
        assert state() == "lost"


def test_what_a_schedule_is_due_is_asked_for(folder_env: Any, serve: Callable[..., Served]) -> None:
    with serve(folder_env.settings).http() as http:
        ok(http.post("/runs", json=run_record(start_ns=now_ns() - 3600 * 10**9)))
        with process_database().session() as session:
            captures.set_schedule(session, "vision", 60 * 10**9)
        periodic.request_scheduled_captures()
        (capture,) = ok(http.get("/captures"))
        assert capture["requested_by"] == "schedule"


def test_rolling_up_and_partitions_run_on_an_empty_database(folder_env: Any) -> None:
    periodic.roll_up()
    periodic.make_partitions()


def test_trouble_with_the_database_is_one_line(
    folder_env: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with process_database().session() as session:
        session.connection().exec_driver_sql("DROP TABLE capture_schedule")
    for task in (periodic.sweep_captures, periodic.request_scheduled_captures):
        task()
    monkeypatch.setattr("tightship_platform.database.per_process._opened", {})
    monkeypatch.setenv("TIGHTSHIP_DATABASE_URL", "sqlite:////proc/nowhere/x.db")
    periodic.sweep_captures()
    lines = [record.getMessage() for record in caplog.records]
    assert any(line.startswith("request_scheduled_captures could not run: ") for line in lines)
    assert any(line.startswith("sweep_captures could not run: ") for line in lines)
    assert all("\n" not in line for line in lines)


# ---- the processes ---------------------------------------------------------------------------------------------------


def test_a_worker_with_beat_sweeps_by_itself(make_platform_env: Any, serve: Callable[..., Served]) -> None:
    env = make_platform_env()
    served = serve(env.settings)
    with served.http() as http, Running(env.environ, "worker", "--concurrency", "1", "--beat") as worker:
        capture = Capture(http)
        with served.database.session() as session:
            session.execute(update(CaptureRow).values(expires_ns=now_ns() - 1))
        wait_for(lambda: capture.now()["state"] == "expired", "the sweep")
        worker.hear(f"Capture {capture.key}: expired")
        assert worker.end() == 0
        assert "Traceback" not in worker.output()
    assert not (env.home / "celerybeat-schedule").exists()


def test_the_schedule_exists_once_in_a_home(make_platform_env: Any) -> None:
    env = make_platform_env()
    with Running(env.environ, "beat") as beat:
        beat.hear("Beat on")
        for command in (["beat"], ["worker", "--beat"]):
            second = tightship(env.environ, *command)
            assert second.returncode == 2
            (line,) = second.stderr.strip().splitlines()
            assert f"(pid {beat.process.pid})" in line
        wait_for((env.home / "liveness" / "beat").exists, "beat's sign of life")
        assert beat.end() == 0
        assert "Traceback" not in beat.output()
    assert not list(Path.cwd().glob("celerybeat-schedule*"))


def test_a_worker_whose_beat_dies_ends_so_that_both_start_afresh(make_platform_env: Any) -> None:
    import psutil

    env = make_platform_env()
    with Running(env.environ, "worker", "--concurrency", "1", "--beat") as worker:
        worker.hear("Worker of")
        wait_for((env.home / "liveness" / "beat").exists, "beat's sign of life")
        # Beat, pool process and the one for periodic tasks look alike; that all die is the hardest case.
        for child in psutil.Process(worker.process.pid).children():
            child.kill()
        assert worker.process.wait(PATIENCE_S) != 0
        # Which of the two deaths the worker sees first is chance; a pool that dies as it starts ends it too.
        reasons = (
            "The embedded beat has died",
            "The process for periodic tasks has died",
            "Could not start worker processes",
        )
        assert any(reason in worker.output() for reason in reasons)


@pytest.fixture
def schedule(folder_env: Any) -> Iterator[Schedule]:
    """A schedule all of whose entries ran a moment ago."""
    app = create_celery(folder_env.settings)
    app.tightship_home = folder_env.home
    schedule = Schedule(app, schedule_filename=str(folder_env.home / "beat-schedule"))
    yield schedule
    schedule.close()


def sent(schedule: Schedule, home: Path) -> set[str]:
    """What it sends of what is due now."""
    while schedule.tick() == 0:
        pass
    return {task for task, _ in queued(home)}


def test_the_schedule_goes_on_after_the_clock_was_set_back(schedule: Schedule, folder_env: Any) -> None:
    now, hour = schedule.app.now(), timedelta(hours=1)
    for entry in schedule.schedule.values():
        entry.last_run_at = now + hour  # as it was set then
    assert sent(schedule, folder_env.home) == set()
    for entry in schedule.schedule.values():
        assert entry.last_run_at < now + hour / 2
        entry.last_run_at -= timedelta(seconds=30)  # half a minute later
    schedule.populate_heap()
    assert sent(schedule, folder_env.home) >= {"tightship_platform.sweep_captures", "tightship_analyzers.account_runs"}


def test_a_broker_or_disk_that_takes_nothing_does_not_end_the_schedule(
    schedule: Schedule, folder_env: Any, caplog: pytest.LogCaptureFixture
) -> None:
    for entry in schedule.schedule.values():
        entry.last_run_at -= timedelta(seconds=30)
    with no_file_beyond(1):
        assert sent(schedule, folder_env.home) == set()
        schedule.sync()
    lines = [record for record in caplog.records if record.levelname == "WARNING"]
    assert any("sweep_captures is not sent" in record.getMessage() for record in lines)
    assert not any(record.exc_info for record in caplog.records)
    for entry in schedule.schedule.values():
        entry.last_run_at -= timedelta(seconds=30)
    schedule.populate_heap()
    assert "tightship_platform.sweep_captures" in sent(schedule, folder_env.home)


def test_a_broken_schedule_file_is_made_again(make_platform_env: Any) -> None:
    env = make_platform_env()
    for suffix in ("", ".dat", ".dir", ".bak", ".db"):
        (env.home / f"beat-schedule{suffix}").write_bytes(b"\x00garbage\xff" * 50)
    with Running(env.environ, "beat") as beat:
        wait_for((env.home / "liveness" / "beat").exists, "beat's sign of life")
        assert beat.end() == 0


def test_the_worker_brings_the_schema_up_to_date(make_platform_env: Any) -> None:
    env = make_platform_env(migrated=False)
    with Running(env.environ, "worker", "--concurrency", "1") as worker:
        worker.hear("Worker of 1 process on")
        wait_for((env.home / "liveness" / "worker").exists, "the worker's sign of life")
        assert worker.end() == 0
    assert tightship(env.environ, "db", "status").returncode == 0


def test_rows_of_the_database_name_no_session_left_open(folder_env: Any) -> None:
    """A task that forgot to end its transaction would hold SQLite's lock against everybody."""
    for name in periods_s():
        if name.startswith("tightship_platform."):
            getattr(periodic, name.partition(".")[2])()
    with process_database().session() as session:
        session.execute(update(Run).values(reason=None))
        assert session.scalars(select(Run)).all() == []
