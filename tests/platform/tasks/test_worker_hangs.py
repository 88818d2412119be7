"""A worker whose broker falls silent takes tasks again afterwards; one that hangs all the same ends itself."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import nap_worker
import pytest
import redis
from processes import Running
from services import Unavailable, redis_server
from waiting import PATIENCE_S, wait_for

from tightship_platform.settings import Settings
from tightship_platform.tasks import watchdog
from tightship_platform.tasks.app import create_celery


@pytest.fixture
def broker_url() -> Iterator[str]:
    """A Redis for one test, which may stop it."""
    try:
        with redis_server() as url:
            yield f"{url}/0"
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def start(tmp_path: Path, broker_url: str) -> Callable[[str], Running]:
    def started(how: str) -> Running:
        environ = {k: v for k, v in os.environ.items() if not k.startswith("TIGHTSHIP_")}
        environ |= {"TIGHTSHIP_HOME": str(tmp_path), "TIGHTSHIP_BROKER_URL": broker_url}
        return Running(environ, command=[sys.executable, nap_worker.__file__, how])

    return started


@pytest.fixture
def nap(tmp_path: Path, broker_url: str) -> Callable[[float], None]:
    """Sends a nap of so many seconds."""
    app = create_celery(replace(Settings(home=tmp_path), broker_url=broker_url))

    def send(seconds: float) -> None:
        app.send_task(nap_worker.NAP, args=[str(tmp_path / "done"), seconds])

    return send


def done(home: Path) -> int:
    file = home / "done"
    return file.read_text().count("done") if file.exists() else 0


def test_a_broker_that_is_silent_when_a_task_ends_leaves_the_worker_its_place(
    tmp_path: Path, broker_url: str, start: Callable[[str], Running], nap: Callable[[float], None]
) -> None:
    with redis.Redis.from_url(broker_url) as client:
        info: Any = client.info()
        pid = int(info["process_id"])
    with start("well") as worker:
        nap(0)
        wait_for(lambda: done(tmp_path) == 1, "a first task")
        nap(0.5)
        with redis.Redis.from_url(broker_url) as client:
            wait_for(lambda: client.hlen("tightship:unacked"), "the task to be taken")
        os.kill(pid, signal.SIGSTOP)
        try:
            line = worker.hear("Redis did not confirm that a task is done")
        finally:
            os.kill(pid, signal.SIGCONT)
        assert "Timeout" in line
        nap(0)
        wait_for(lambda: done(tmp_path) >= 3, "a task after the silence")
        assert worker.end() == 0
        assert "Traceback" not in worker.output()


@pytest.mark.parametrize(
    ("how", "line"),
    [
        ("deaf", "The worker has taken none of 1 waiting tasks for"),
        ("stuck", "The worker's loop has stood still for"),
        ("late", "The schedule has stood still for"),
    ],
)
def test_a_worker_that_hangs_ends_itself(
    tmp_path: Path, start: Callable[[str], Running], nap: Callable[[float], None], how: str, line: str
) -> None:
    with start(how) as worker:
        nap(0)
        wait_for(lambda: done(tmp_path) == 1, "a first task")
        (tmp_path / "hang").touch()
        nap(0)
        assert line in worker.hear("although the broker answers")
        assert worker.process.wait(PATIENCE_S) == 1


@pytest.mark.parametrize(
    ("waiting", "holds"),
    [
        pytest.param(0, 0, id="nothing waits"),
        pytest.param(3, 1, id="it is at work"),
        pytest.param(None, 0, id="the broker is away"),
    ],
)
def test_a_worker_that_can_do_nothing_stays(monkeypatch: pytest.MonkeyPatch, waiting: int | None, holds: int) -> None:
    monkeypatch.setattr(watchdog, "LOOK_S", 0.0)
    looks, enough, faults = itertools.count(), threading.Event(), list[str]()

    def signs() -> watchdog.Signs:
        number = next(looks)
        if number > 5 * watchdog.LOOKS:
            enough.set()
        return watchdog.Signs(ticks=number if waiting is not None else 0, taken=0, holds=holds, beat_s=None)

    dog = watchdog.Watchdog(signs, lambda: waiting, faults.append)
    dog.start()
    assert enough.wait(PATIENCE_S)
    dog.stop()
    assert not faults
