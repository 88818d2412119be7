"""A job that ends while it is being recorded ends with its own exit code, whatever the recording does."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from launching import run_dirs, start
from light_optimizer import LIGHT_OPTIMIZER
from one_shot_daemon import OneShotDaemon, iterations, window
from waiting import PATIENCE_S, wait_for

from tightship_collectors.jobs.control_file import CANCELLED, OFF_EXITING, rank_path, read_rank_file

pytestmark = pytest.mark.torch

JOB = f"""
import os, signal, sys, time
import torch
{LIGHT_OPTIMIZER}
model = torch.nn.Linear(16, 16)
end, how = os.environ["END"], sys.argv[1]
optimizer = Descent(model.parameters()) if sys.argv[2] == "steps" else None
until = time.monotonic() + 300
while not os.path.exists(end) and time.monotonic() < until:
    model(torch.randn(8, 16)).sum().backward()
    if optimizer is not None:
        optimizer.step()
        optimizer.zero_grad()
    elif not os.path.exists(end + ".trains"):
        open(end + ".trains", "w").close()
    time.sleep(0.02)  # it waits for its end; a core is not its own
if how == "return":
    pass
elif how == "exit":
    sys.exit(3)
elif how == "raise":
    raise ValueError("on purpose")
elif how == "_exit":
    os._exit(5)
elif how == "thread":
    import threading
    threading.Thread(target=time.sleep, args=(0.5,)).start()
    sys.exit(4)
elif how == "handler":
    import atexit
    atexit.register(lambda: print("handler", flush=True))
    sys.exit(6)
"""
CODES = {"return": 0, "exit": 3, "raise": 1, "_exit": 5, "thread": 4, "handler": 6}


class Recorded:
    """A job and the daemon that records it."""

    def __init__(
        self, tmp_path: Path, how: str, config: Callable[[], Any], *, after_steps: int | None = None, **kw: Any
    ):
        self.end_file = tmp_path / "end"
        (tmp_path / "job.py").write_text(JOB)
        env = {**os.environ, "END": str(self.end_file), "OMP_NUM_THREADS": "1"}
        self.process = start(
            sys.executable, str(tmp_path / "job.py"), how, "no" if after_steps is None else "steps", env=env
        )
        (self.run_dir,) = wait_for(run_dirs)
        trains = tmp_path / "end.trains" if after_steps is None else None
        self.daemon = OneShotDaemon(self.run_dir, config, after_steps=after_steps or 0, after_file=trains, **kw)

    def until_recording(self) -> None:
        wait_for(lambda: any(map(self.daemon.is_recording, list(self.daemon.sent))), "a window to open")

    def make_steps(self, count: int) -> None:
        """Until the job has made so many steps more."""
        path = rank_path(self.run_dir, next(iter(self.daemon.sent)))

        def steps() -> int:
            file = read_rank_file(path, uid=os.getuid())
            assert file is not None
            return file.steps

        before = steps()
        wait_for(lambda: steps() >= before + count, "the job's steps")

    def close(self) -> None:
        self.end_file.touch()
        self.daemon.close()
        self.process.kill()
        self.process.communicate()

    def end(self) -> tuple[int, str, str]:
        """Exit code, stdout and stderr."""
        self._control = [os.open(rank_path(self.run_dir, pid), os.O_RDONLY) for pid in self.daemon.sent]
        self.end_file.touch()
        out, errors = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, out, errors

    @property
    def traces(self) -> list[Path]:
        return [path for path in self.daemon.sent.values() if path.exists()]

    def was_cancelled(self) -> bool:
        """What the exit guards said last; the launcher may have removed their files by now."""
        last = [int.from_bytes(os.pread(fd, 4, OFF_EXITING), "little") for fd in self._control]
        assert last
        return set(last) == {CANCELLED}


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Callable[..., Recorded]]:
    """`record(how, config, …)` → Recorded; whatever becomes of the test, nothing is left of it."""
    made: list[Recorded] = []

    def make(how: str, config: Callable[[], Any], **more: Any) -> Recorded:
        made.append(Recorded(tmp_path, how, config, **more))
        return made[-1]

    yield make
    for job in made:
        job.close()


@pytest.mark.sliced(1, of="no exit functions")
@pytest.mark.sliced(2, of="waits")
@pytest.mark.parametrize("how", ["exit", "raise", "thread", "handler"])
def test_a_window_that_is_open_is_waited_for(record: Callable[..., Recorded], how: str) -> None:
    job = record(how, window(ahead_s=1.5, seconds=1.5))
    job.until_recording()
    code, out, errors = job.end()
    assert code == CODES[how], errors
    assert out == ("handler\n" if how == "handler" else "")
    (trace,) = job.traces
    assert json.loads(trace.read_text())["traceEvents"]
    assert not job.was_cancelled()


def test_a_job_that_runs_no_exit_functions_waits_for_nothing(record: Callable[..., Recorded]) -> None:
    """Neither ours nor those of C++, and so it is safe."""
    job = record("_exit", window(ahead_s=1.5, seconds=9))
    job.until_recording()
    code, out, errors = job.end()
    assert (code, out) == (CODES["_exit"], ""), errors
    assert job.traces == [] and not job.was_cancelled()


@pytest.mark.sliced(2, of="cancels")
@pytest.mark.sliced(2, of="waits")
@pytest.mark.parametrize("how", ["raise"])
def test_iterations_that_never_come_are_counted_by_the_guard(record: Callable[..., Recorded], how: str) -> None:
    job = record(how, iterations(9000), after_steps=1)
    job.until_recording()
    job.make_steps(3)
    code, _, errors = job.end()
    assert code == CODES[how], errors
    (trace,) = job.traces
    names = [event.get("name", "") for event in json.loads(trace.read_text())["traceEvents"]]
    steps = sum(name.startswith("Optimizer.step") for name in names)
    assert 1 <= steps < 9000
    # torch's own hook counts one for each of them; those that the guard counts are no part of the job.
    assert sum("_kineto_step" in name for name in names) <= steps + 1


@pytest.mark.sliced(2, of="cancels")
def test_a_window_that_has_not_opened_is_cancelled(record: Callable[..., Recorded]) -> None:
    job = record("exit", window(ahead_s=50, seconds=1))
    wait_for(lambda: job.daemon.sent)
    code, _, errors = job.end()
    assert code == 3, errors
    assert job.traces == []
    assert job.was_cancelled()


@pytest.mark.sliced(2, of="cancels")
def test_an_end_at_the_moment_when_the_window_opens(record: Callable[..., Recorded]) -> None:
    """Kineto's thread may be between its look at the clock and the start of the recorder: nothing may cancel it there,
    or the recorder starts and is never stopped, and its process dies of it."""
    job = record("return", window(ahead_s=2.5, seconds=55))
    (pid,) = wait_for(lambda: list(job.daemon.starts))
    time.sleep(max(0.0, job.daemon.starts[pid] / 1e9 - time.time() - 0.05))
    code, _, errors = job.end()
    assert (code, job.traces) == (0, []), errors
    assert job.was_cancelled()
    assert "PythonTracer" not in errors


@pytest.mark.sliced(2, of="cancels")
def test_a_window_that_stays_open_for_long_is_cancelled(record: Callable[..., Recorded]) -> None:
    job = record("return", window(ahead_s=1.5, seconds=55))
    job.until_recording()
    code, _, errors = job.end()
    assert code == 0, errors
    assert job.traces == []
    assert job.was_cancelled()


@pytest.mark.sliced(2, of="cancels")
def test_a_deadline_ends_the_wait(record: Callable[..., Recorded]) -> None:
    job = record("exit", window(ahead_s=1.5, seconds=9), patience_s=0.0)
    job.until_recording()
    code, _, errors = job.end()
    assert code == 3, errors
    assert job.was_cancelled()


def test_an_impatient_ctrl_c_cancels(record: Callable[..., Recorded]) -> None:
    job = record("exit", window(ahead_s=1.5, seconds=9))
    job.until_recording()
    (pid,) = job.daemon.sent
    job.end_file.touch()
    wait_for(lambda: (file := read_rank_file(rank_path(job.run_dir, pid), uid=os.getuid())) and file.exiting)
    job.process.send_signal(signal.SIGINT)
    code, _, errors = job.end()
    assert code == 3, errors
    assert job.was_cancelled()


@pytest.mark.sliced(1, of="no exit functions")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_that_ends_a_recorded_job_is_its_exit_code(
    record: Callable[..., Recorded], number: signal.Signals
) -> None:
    job = record("exit", window(ahead_s=1.5, seconds=9))
    job.until_recording()
    os.kill(next(iter(job.daemon.sent)), number)
    assert job.end()[0] == 128 + number


def test_a_daemon_that_is_gone_does_not_keep_the_job(record: Callable[..., Recorded]) -> None:
    job = record("exit", window(ahead_s=1.5, seconds=1))
    job.until_recording()
    job.daemon.close()
    (job.run_dir / "dynolog").unlink()
    job.end_file.touch()
    assert job.process.wait(PATIENCE_S) == 3
    assert len(job.traces) == 1


@pytest.mark.parametrize("number", range(int(os.environ.get("TIGHTSHIP_RANDOM_ENDS", "1"))))
def test_any_end_at_any_moment(record: Callable[..., Recorded], number: int) -> None:
    how = random.choice(list(CODES))
    config = random.choice([window(ahead_s=1.5, seconds=1), window(ahead_s=3, seconds=0.3), iterations(5)])
    job = record(how, config, after_steps=random.choice([0, 1]))
    wait_for(lambda: (job.run_dir / "ranks").exists() and any((job.run_dir / "ranks").iterdir()))
    time.sleep(random.uniform(0, 6))
    code, _, errors = job.end()
    assert code == CODES[how], errors
