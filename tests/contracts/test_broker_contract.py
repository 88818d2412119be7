"""One contract over both brokers, with a real worker: tasks arrive, and survive what kills workers."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest
from metric_text import figures_of
from services import free_port
from waiting import PATIENCE_S, wait_for
from warm_tightship import Forked

from tightship_platform.client import set_request_id
from tightship_platform.settings import Settings, load_settings
from tightship_platform.tasks.app import PERIODIC_QUEUE, broker_answers, create_celery, send

WORKER = Path(__file__).with_name("broker_worker.py")


@pytest.fixture
def settings(tmp_path: Path, broker_url: str) -> Settings:
    return load_settings({"TIGHTSHIP_HOME": str(tmp_path / "home"), "TIGHTSHIP_BROKER_URL": broker_url})


class Worker(Forked):
    """A worker that runs."""

    def children(self, *, recursive: bool = False) -> list[psutil.Process]:
        """The processes below it."""
        return psutil.Process(self.pid).children(recursive=recursive)


@contextmanager
def worker(settings: Settings, log: Path, *options: str) -> Iterator[Worker]:
    """A running worker; killed with all its processes at the end."""
    env = os.environ | {"TIGHTSHIP_HOME": str(settings.home), "TIGHTSHIP_BROKER_URL": settings.broker_url}
    with log.open("ab") as out:
        process = Worker(*options, env=env, stdout=out, stderr=out, script=WORKER)
    try:
        yield process
    finally:
        family = process.children(recursive=True) if process.poll() is None else []
        process.kill()
        for member in family:
            with_suppressed(member.kill)
        process.wait()


def with_suppressed(action: Callable[[], object]) -> None:
    try:
        action()
    except psutil.NoSuchProcess:
        return


class Notes:
    """What the tasks wrote down."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "notes"
        self.path.touch()

    def __str__(self) -> str:
        return str(self.path)

    def words(self) -> list[str]:
        return [line.split()[0] for line in self.path.read_text().splitlines()]

    def pids(self, word: str) -> list[int]:
        return [int(line.split()[1]) for line in self.path.read_text().splitlines() if line.split()[0] == word]


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(tmp_path)


def test_tasks_sent_before_and_after_the_worker_starts_run_once_each(
    settings: Settings, tmp_path: Path, notes: Notes
) -> None:
    assert broker_answers(settings)
    for word in ("one", "two", "three"):
        assert send(settings, "contract.quick", str(notes), word)
    with worker(settings, tmp_path / "log"):
        wait_for(lambda: len(notes.words()) >= 3, "the tasks sent before")
        assert send(settings, "contract.quick", str(notes), "four")
        wait_for(lambda: "four" in notes.words(), "the task sent after")
    assert notes.words() == ["one", "two", "three", "four"]


def test_a_task_that_expired_while_no_worker_ran_is_dropped(settings: Settings, tmp_path: Path, notes: Notes) -> None:
    app = create_celery(settings)
    app.send_task("contract.quick", args=(str(notes), "late"), expires=0.05)
    time.sleep(0.1)
    assert send(settings, "contract.quick", str(notes), "in-time")
    with worker(settings, tmp_path / "log"):
        wait_for(lambda: "in-time" in notes.words(), "the task behind the expired one")
    assert notes.words() == ["in-time"]


def test_sigterm_ends_a_busy_worker_cleanly_and_gives_its_task_back(
    settings: Settings, tmp_path: Path, notes: Notes
) -> None:
    go = tmp_path / "go"
    assert send(settings, "contract.slow", str(notes), str(go))
    with worker(settings, tmp_path / "log") as first:
        wait_for(lambda: notes.words() == ["begin"], "the task to begin")
        children = first.children(recursive=True)
        first.send_signal(signal.SIGTERM)
        # Far below the task's time limit: the task was not waited for.
        assert first.wait(PATIENCE_S) == 0
        _, alive = psutil.wait_procs(children, timeout=PATIENCE_S)
        assert not alive
    go.touch()
    with worker(settings, tmp_path / "log"):
        wait_for(lambda: "end" in notes.words(), "the task given back")
    assert notes.words() == ["begin", "begin", "end"]


def test_a_worker_whose_end_is_stuck_ends_all_the_same(settings: Settings, tmp_path: Path, notes: Notes) -> None:
    assert send(settings, "contract.slow", str(notes), str(tmp_path / "go"))
    with worker(settings, tmp_path / "log", "--stuck") as stuck:
        wait_for(lambda: notes.words() == ["begin"], "the task to begin")
        children = stuck.children(recursive=True)
        stuck.send_signal(signal.SIGTERM)
        assert stuck.wait(PATIENCE_S) == 0
        _, alive = psutil.wait_procs(children, timeout=PATIENCE_S)
        assert not alive


def test_killing_the_pool_process_runs_the_task_again(settings: Settings, tmp_path: Path, notes: Notes) -> None:
    go = tmp_path / "go"
    assert send(settings, "contract.slow", str(notes), str(go))
    with worker(settings, tmp_path / "log"):
        wait_for(lambda: notes.words() == ["begin"], "the task to begin")
        os.kill(notes.pids("begin")[0], signal.SIGKILL)
        wait_for(lambda: notes.words() == ["begin", "begin"], "the task to begin again")
        go.touch()
        wait_for(lambda: "end" in notes.words(), "the task to end")


def test_after_kill_9_of_the_worker_nothing_of_it_is_left_and_another_works(
    settings: Settings, tmp_path: Path, notes: Notes
) -> None:
    go = tmp_path / "go"
    assert send(settings, "contract.slow", str(notes), str(go))
    with worker(settings, tmp_path / "log") as first:
        wait_for(lambda: notes.words() == ["begin"], "the task to begin")
        children = first.children(recursive=True)
        assert children
        first.kill()
        _, alive = psutil.wait_procs(children, timeout=PATIENCE_S)
        assert not alive, "pool processes outlive their worker"
    with worker(settings, tmp_path / "log"):
        assert send(settings, "contract.quick", str(notes), "next")
        wait_for(lambda: "next" in notes.words(), "the next worker's first task")


def test_an_idle_worker_says_that_it_is_alive_and_ends_on_sigterm(
    settings: Settings, tmp_path: Path, notes: Notes
) -> None:
    assert send(settings, "contract.quick", str(notes), "started")
    with worker(settings, tmp_path / "log") as idle:
        alive = settings.home / "liveness" / "worker"
        wait_for(alive.exists, "the worker's sign of life")
        wait_for(lambda: "started" in notes.words(), "its first task")
        idle.send_signal(signal.SIGTERM)
        assert idle.wait(PATIENCE_S) == 0
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_analyses_that_fill_a_worker_stop_no_periodic_task(settings: Settings, tmp_path: Path, notes: Notes) -> None:
    """However many analyses wait, and however long each takes."""
    go, app = tmp_path / "go", create_celery(settings)
    for _ in range(5):
        assert send(settings, "contract.slow", str(notes), str(go))
    with worker(settings, tmp_path / "log"):
        wait_for(lambda: notes.words() == ["begin"], "an analysis that fills the worker")
        for word in ("sweep", "account", "schedule"):
            app.send_task("contract.quick", args=(str(notes), word), queue=PERIODIC_QUEUE, expires=60)
            wait_for(lambda word=word: word in notes.words(), f"{word}, beside the analysis")
        assert notes.words().count("begin") == 1, "the other analyses still wait"
        go.touch()
        wait_for(lambda: notes.words().count("end") == 5, "all analyses")
    assert sorted(set(notes.words())) == ["account", "begin", "end", "schedule", "sweep"]


def test_a_task_logs_under_the_id_of_the_request_that_led_to_it(
    settings: Settings, tmp_path: Path, notes: Notes
) -> None:
    set_request_id("0123abcd-request")
    try:
        assert send(settings, "contract.id", str(notes))
    finally:
        set_request_id("")
    with worker(settings, tmp_path / "log"):
        wait_for(notes.words, "the task")
        assert send(settings, "contract.id", str(notes))
        wait_for(lambda: len(notes.words()) == 2, "one that no request led to")
    first, second = notes.words()
    assert first == "0123abcd-request" and len(second) == 16


def test_a_worker_answers_what_its_processes_did(settings: Settings, tmp_path: Path, notes: Notes) -> None:
    address = f"127.0.0.1:{free_port()}"
    os.environ["TIGHTSHIP_METRICS_ADDRESS"] = address
    try:
        with worker(settings, tmp_path / "log"):
            for number in range(3):
                assert send(settings, "contract.quick", str(notes), str(number))
            create_celery(settings).send_task("contract.quick", args=(str(notes), "p"), queue=PERIODIC_QUEUE)
            name = 'tightship_tasks_total{task="contract.quick",outcome="ended"}'
            wait_for(lambda: scraped(address).get(name) == 4, "the figures of all tasks")
            found = scraped(address)
    finally:
        del os.environ["TIGHTSHIP_METRICS_ADDRESS"]
    assert found['tightship_task_seconds_count{task="contract.quick"}'] == 4
    assert found['tightship_tasks_total{task="contract.quick",outcome="failed"}'] == 0


def scraped(address: str) -> dict[str, float]:
    try:
        return figures_of(httpx.get(f"http://{address}/metrics", trust_env=False).text)
    except httpx.HTTPError:
        return {}


def test_what_an_older_beat_sends_is_done_too(settings: Settings, tmp_path: Path, notes: Notes) -> None:
    """During a rolling upgrade: it knows one queue only, and puts its periodic tasks there."""
    with worker(settings, tmp_path / "log"):
        create_celery(settings).send_task("contract.quick", args=(str(notes), "sweep"), expires=60)
        wait_for(lambda: "sweep" in notes.words(), "a periodic task in the queue of analyses")


def test_a_worker_whose_process_for_periodic_tasks_dies_ends_so_that_both_start_afresh(
    settings: Settings, tmp_path: Path, notes: Notes
) -> None:
    with worker(settings, tmp_path / "log") as ours:
        assert send(settings, "contract.quick", str(notes), "started")
        wait_for(lambda: "started" in notes.words(), "its first task")
        wait_for((settings.home / "liveness" / "worker-periodic").exists, "the sign of life of the periodic process")
        wait_for(lambda: any(child.children() for child in ours.children()), "the pool of the periodic process")
        next(child for child in ours.children() if child.children()).kill()
        assert ours.wait(PATIENCE_S) == 1
    assert "The process for periodic tasks has died" in (tmp_path / "log").read_text()


def test_the_process_for_periodic_tasks_gives_its_task_back_at_the_end(
    settings: Settings, tmp_path: Path, notes: Notes
) -> None:
    go = tmp_path / "go"
    create_celery(settings).send_task("contract.slow", args=(str(notes), str(go)), queue=PERIODIC_QUEUE)
    with worker(settings, tmp_path / "log") as first:
        wait_for(lambda: notes.words() == ["begin"], "the task to begin")
        children = first.children(recursive=True)
        first.send_signal(signal.SIGTERM)
        assert first.wait(PATIENCE_S) == 0
        _, alive = psutil.wait_procs(children, timeout=PATIENCE_S)
        assert not alive
    go.touch()
    with worker(settings, tmp_path / "log"):
        wait_for(lambda: "end" in notes.words(), "the task given back")
    assert notes.words() == ["begin", "begin", "end"]
