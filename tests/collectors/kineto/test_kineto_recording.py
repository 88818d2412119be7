"""One capture against processes that refuse, drop, stall, die and end: it always comes to an end, with the right
reason, and no process is held back or left armed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE_S

from tightship_collectors.jobs.control_file import Flag, rank_path, read_rank_file
from tightship_collectors.jobs.live_run import HostRun
from tightship_collectors.jobs.ranks import read_ranks
from tightship_collectors.kineto import config, disk_room, progress, readiness, recording
from tightship_collectors.kineto.manifest import Manifest, ManifestStore, Phase
from tightship_collectors.kineto.recording import Recording
from tightship_collectors.kineto.service import KinetoService
from tightship_platform.units import NS_PER_MS, NS_PER_S, now_ns
from tightship_platform.vocabulary import CaptureState
from tightship_platform.wire import CaptureParams

JOB = Path(__file__).parents[2] / "support" / "kineto_job.py"
KEY = "a" * 16
SHORT = CaptureParams(duration_ns=200 * NS_PER_MS)


class Stage:
    """A run directory with processes, a service that answers them, and the reports of the captures taken."""

    def __init__(self, tmp_path: Path) -> None:
        self.run_dir = Path(f"/tmp/tsr-{uuid.uuid4().hex[:8]}") / KEY
        for name in ("ranks", "traces"):
            (self.run_dir / name).mkdir(parents=True)
        self.run_dir.chmod(0o700)
        self.store = ManifestStore(tmp_path)
        self.service = KinetoService()
        self.jobs: list[subprocess.Popen[str]] = []
        self.reports: list[tuple[str, str | None]] = []
        self.ticks: dict[tuple[int, int], int] = {}
        self.serve()

    def serve(self) -> None:
        pids = tuple(job.pid for job in self.jobs)
        self.service.update([HostRun(run=KEY, run_dir=self.run_dir, uid=os.getuid(), pids=pids, ranks=(), start_ns=0)])

    def job(self, **how: Any) -> subprocess.Popen[str]:
        job = subprocess.Popen(
            [sys.executable, str(JOB), str(self.run_dir), json.dumps(how)], stdout=subprocess.PIPE, text=True
        )
        self.jobs.append(job)
        assert job.stdout is not None
        assert job.stdout.readline() == "ready\n"
        self.serve()
        return job

    def capture(self, params: CaptureParams = SHORT, name: str = "c1") -> Recording:
        return self.recording(
            Manifest(
                capture=name,
                run=KEY,
                run_dir=str(self.run_dir),
                uid=os.getuid(),
                params=params,
                attempt=1,
                since_ns=now_ns(),
            )
        )

    def recording(self, manifest: Manifest) -> Recording:
        def report(state: CaptureState, reason: str | None) -> None:
            self.reports.append((state.value, reason))

        return Recording(manifest, service=self.service, store=self.store, report=report, ticks=self.ticks)

    def advance(self, capture: Recording, *until: Phase) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while capture.manifest.phase not in until:
            assert time.monotonic() < deadline, f"still {capture.manifest.phase}; reports {self.reports}"
            capture.advance(now_ns(), pids=[job.pid for job in self.jobs if job.poll() is None])
            time.sleep(0.02)

    def settle(self, capture: Recording) -> None:
        """Until no process is held back for it any more."""
        deadline = time.monotonic() + PATIENCE_S
        while not capture.manifest.settled:
            assert time.monotonic() < deadline
            capture.advance(now_ns(), pids=[1])
            time.sleep(0.02)
        assert not any(self.in_flight)

    @property
    def states(self) -> list[str]:
        return [state for state, _ in self.reports if state != "leased"]

    @property
    def in_flight(self) -> list[bool]:
        files = [read_rank_file(rank_path(self.run_dir, job.pid), uid=os.getuid()) for job in self.jobs]
        return [file.capture_in_flight for file in files if file]

    def close(self) -> None:
        for job in self.jobs:
            job.kill()
            job.wait()
        self.service.close()
        shutil.rmtree(self.run_dir.parent)


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """The scripted process has no controller tick to wait for, so that traces may start earlier."""
    monkeypatch.setattr(config, "UNKNOWN_TICK_AHEAD_NS", 600 * NS_PER_MS)
    monkeypatch.setattr(config, "COMMON_AHEAD_NS", 1_700 * NS_PER_MS)
    made = Stage(tmp_path)
    yield made
    made.close()


def test_a_trace_is_recorded_and_the_process_let_go(stage: Stage) -> None:
    job = stage.job()
    capture = stage.capture()
    stage.advance(capture, Phase.ARMED)
    assert stage.in_flight == [True]
    stage.advance(capture, Phase.WRITTEN)
    assert stage.states == ["armed", "recording", "written"]
    # Held until Kineto says that it is idle again, which on a slow machine it may have said by now.
    assert stage.in_flight == [not capture.manifest.settled]
    stage.settle(capture)
    rank = capture.manifest.ranks[0]
    assert (rank.rank, rank.pid, rank.complete) == (0, job.pid, True)
    assert stage.ticks == {(job.pid, rank.start_ticks): (rank.start_ns or 0) + SHORT.duration_ns}
    assert [path.name for path in (stage.run_dir / "traces").iterdir()] == [f"c1-1-1_{job.pid}.json"]


def test_a_refused_request_is_made_again(stage: Stage) -> None:
    stage.job(acts=["refuse", "refuse", "record"])
    capture = stage.capture()
    stage.advance(capture, Phase.WRITTEN)
    assert capture.manifest.tries == 3
    assert stage.states == ["armed", "armed", "armed", "recording", "written"]


def test_one_that_is_always_refused_fails_and_lets_the_process_go(stage: Stage) -> None:
    stage.job(acts=["refuse"])
    capture = stage.capture()
    stage.advance(capture, Phase.OVER)
    assert stage.reports[-1][0] == "failed"
    reason = stage.reports[-1][1] or ""
    assert "refused to start in rank 0" in reason and "3 times; most likely another profiler" in reason
    assert capture.manifest.tries == recording.MAX_TRIES
    assert stage.in_flight == [False]


def test_a_trace_that_was_dropped_is_recorded_again(stage: Stage) -> None:
    job = stage.job(acts=["drop", "record"])
    capture = stage.capture()
    stage.advance(capture, Phase.WRITTEN)
    assert capture.manifest.tries == 2
    assert capture.manifest.asked_path.with_name(f"c1-1-2_{job.pid}.json").exists()


def test_a_file_that_is_another_trace_fails_the_capture_and_is_removed(stage: Stage) -> None:
    stage.job(acts=["wrong-id"])
    capture = stage.capture()
    stage.advance(capture, Phase.OVER)
    assert "trace id" in (capture.manifest.reason or "")
    assert list((stage.run_dir / "traces").iterdir()) == []
    assert stage.in_flight == [False]


def test_a_process_that_dies_while_it_is_recorded(stage: Stage) -> None:
    stage.job(acts=["die"])
    capture = stage.capture()
    stage.advance(capture, Phase.OVER)
    assert (capture.manifest.reason or "").startswith("run ended: rank 0")
    assert list((stage.run_dir / "traces").iterdir()) == []


def test_a_process_that_ends_before_it_has_the_config_is_let_go_at_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = stage.job(ends_after_s=2.0)
    # The service knows the process, but it will not ask again before its end.
    deadline = time.monotonic() + PATIENCE_S
    while stage.service.client(KEY, job.pid) is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    monkeypatch.setattr(stage.service, "arm", lambda *_: None)
    capture = stage.capture()
    stage.advance(capture, Phase.ARMED)
    stage.advance(capture, Phase.OVER)
    assert (capture.manifest.reason or "").startswith("run ended before rank 0")
    assert job.wait(PATIENCE_S) == 0


def test_a_process_that_is_ending_is_not_armed(stage: Stage) -> None:
    job = stage.job(ends_after_s=0.0)
    job.wait(PATIENCE_S)
    capture = stage.capture()
    stage.advance(capture, Phase.OVER)
    assert stage.states == ["failed"]
    assert (capture.manifest.reason or "").startswith("run ended")


def test_two_ranks_start_together(stage: Stage) -> None:
    jobs = [stage.job(rank=0), stage.job(rank=1)]
    capture = stage.capture()
    stage.advance(capture, Phase.WRITTEN)
    starts = {rank.start_ns for rank in capture.manifest.ranks}
    assert len(starts) == 1
    assert [rank.pid for rank in capture.manifest.ranks] == [job.pid for job in jobs]
    stage.settle(capture)


def test_two_ranks_of_which_one_was_refused_are_both_recorded_again(stage: Stage) -> None:
    stage.job(rank=0, acts=["refuse", "record"])
    stage.job(rank=1)
    capture = stage.capture()
    stage.advance(capture, Phase.WRITTEN)
    assert capture.manifest.tries >= 2  # on a busy machine a process may be late for a common start, which is one more
    assert len({rank.start_ns for rank in capture.manifest.ranks}) == 1


def test_two_ranks_of_which_one_dies_fail_and_both_are_let_go(stage: Stage) -> None:
    stage.job(rank=0, acts=["die"])
    stage.job(rank=1)
    capture = stage.capture(CaptureParams(duration_ns=2 * NS_PER_S))
    stage.advance(capture, Phase.LINGERING)
    assert (capture.manifest.reason or "").startswith("run ended: rank 0")
    assert stage.in_flight[1] is True  # still being recorded: it may not end yet
    stage.advance(capture, Phase.OVER)
    assert stage.in_flight[1] is False


def test_a_launcher_is_no_rank(stage: Stage) -> None:
    stage.job(flags=int(Flag.GUARD | Flag.LAUNCHER))
    rank = stage.job(rank=0)
    capture = stage.capture()
    stage.advance(capture, Phase.WRITTEN)
    assert [entry.pid for entry in capture.manifest.expected] == [rank.pid]


def test_without_an_exit_guard_a_process_is_recorded_only_if_the_user_insists(stage: Stage) -> None:
    stage.job(flags=0)
    capture = stage.capture()
    stage.advance(capture, Phase.OVER)
    assert "no exit guard" in (capture.manifest.reason or "")
    assert stage.states == ["failed"]
    insisting = stage.capture(CaptureParams(duration_ns=SHORT.duration_ns, insist=True), "c2")
    stage.advance(insisting, Phase.WRITTEN)


def test_iterations_need_steps_that_are_counted(stage: Stage) -> None:
    stage.job()
    capture = stage.capture(CaptureParams(duration_ns=None, iterations=3))
    stage.advance(capture, Phase.OVER)
    assert "record a duration instead" in (capture.manifest.reason or "")


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"mute": True}, "waits for rank 0"),
        ({"busy": True}, "busy with another trace"),
        (None, "import torch"),
    ],
)
def test_what_it_waits_for_is_said_and_the_wait_is_bounded(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, how: dict[str, Any] | None, said: str
) -> None:
    monkeypatch.setattr(readiness, "PATIENCE_NS", NS_PER_S)
    if how is not None:
        stage.job(**how)
    capture = stage.capture()
    deadline = time.monotonic() + PATIENCE_S
    while capture.manifest.phase is not Phase.OVER:
        assert time.monotonic() < deadline
        capture.advance(now_ns(), pids=[1])
        time.sleep(0.02)
    leased = [reason for state, reason in stage.reports if state == "leased"]
    assert any(said in (reason or "") for reason in leased)
    assert said in (capture.manifest.reason or "")
    assert stage.in_flight in ([], [False])


def test_the_second_of_two_waits_without_losing_patience(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "PATIENCE_NS", NS_PER_S // 10)
    stage.job()
    capture = stage.capture(name="c2")
    for _ in range(20):
        capture.advance(now_ns(), pids=[1], behind="c1")
        time.sleep(0.02)
    assert capture.manifest.phase is Phase.WAITING
    assert stage.reports == [("leased", "waits for capture c1")]
    monkeypatch.setattr(readiness, "PATIENCE_NS", 60 * NS_PER_S)
    stage.advance(capture, Phase.WRITTEN)


def test_it_does_not_wait_for_ever_behind_one_that_has_failed(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "PATIENCE_NS", NS_PER_S // 2)
    stage.job()
    capture = stage.capture(name="c2")
    deadline = time.monotonic() + PATIENCE_S
    while capture.manifest.phase is not Phase.OVER:
        assert time.monotonic() < deadline
        capture.advance(now_ns(), pids=[1], behind="c1", patient=False)
        time.sleep(0.02)
    assert "waits for capture c1" in (capture.manifest.reason or "")


def test_a_trace_that_never_becomes_complete_is_given_up_but_the_process_held_until_it_ends(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "STALLED_NS", NS_PER_S)
    job = stage.job(acts=["stall"])
    capture = stage.capture()
    stage.advance(capture, Phase.LINGERING)
    assert "did not become complete" in (capture.manifest.reason or "")
    for _ in range(10):
        capture.advance(now_ns(), pids=[1])
    assert stage.in_flight == [True]
    job.kill()
    job.wait()
    stage.advance(capture, Phase.OVER)


def test_too_little_disk_is_a_reason_not_to_begin(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_room, "MIN_FREE_BYTES", 10**18)
    stage.job()
    capture = stage.capture()
    stage.advance(capture, Phase.OVER)
    assert "MB are free" in (capture.manifest.reason or "")
    assert stage.in_flight == [False]


def killed_and_resumed(stage: Stage) -> Recording:
    """What the next agent makes of it: nothing but the manifest survives."""
    stage.service.close()
    stage.service = KinetoService()
    stage.serve()
    (manifest,), faults = stage.store.load()
    assert faults == []
    resumed = stage.recording(manifest)
    resumed.resume(now_ns())
    return resumed


@pytest.mark.parametrize("phase", [Phase.ARMED, Phase.RECORDING])
def test_an_agent_that_follows_a_killed_one_brings_the_capture_to_its_end(stage: Stage, phase: Phase) -> None:
    stage.job()
    capture = stage.capture(CaptureParams(duration_ns=NS_PER_S))
    stage.advance(capture, phase)
    resumed = killed_and_resumed(stage)
    stage.advance(resumed, Phase.WRITTEN)
    stage.settle(resumed)


def test_an_agent_that_follows_a_killed_one_finds_the_run_ended(stage: Stage) -> None:
    job = stage.job(acts=["stall"])
    capture = stage.capture()
    stage.advance(capture, Phase.RECORDING)
    job.kill()
    job.wait()
    resumed = killed_and_resumed(stage)
    stage.advance(resumed, Phase.OVER)
    assert stage.reports[-1][0] == "failed"
    assert (stage.reports[-1][1] or "").startswith("run ended")


def test_a_stopping_agent_gives_back_what_was_not_handed_out(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    job = stage.job()
    armed: list[int] = []
    monkeypatch.setattr(stage.service, "arm", lambda run, pid, compose: armed.append(pid))
    capture = stage.capture()
    stage.advance(capture, Phase.ARMED)
    assert armed == [job.pid]
    assert capture.release(now_ns()) is True
    assert stage.in_flight == [False]


def test_a_stopping_agent_keeps_what_is_being_recorded(stage: Stage) -> None:
    stage.job(acts=["stall"])
    capture = stage.capture()
    stage.advance(capture, Phase.RECORDING)
    assert capture.release(now_ns()) is False
    assert stage.in_flight == [True]


def test_a_capture_that_the_server_no_longer_wants_is_withdrawn(stage: Stage) -> None:
    stage.job(acts=["stall", "record"])
    capture = stage.capture()
    stage.advance(capture, Phase.ARMED)
    capture.abandon("the server does not want it any more")
    capture.advance(now_ns(), pids=[1])
    assert capture.manifest.phase in (Phase.LINGERING, Phase.OVER)
    assert stage.states[-1] == "failed"


def test_every_view_that_it_relies_on_is_real(stage: Stage) -> None:
    """The scripted process is to the agent what a torch process is."""
    job = stage.job(rank=3)
    (view,) = read_ranks(stage.run_dir)
    assert (view.pid, view.rank, view.is_rank, view.guard) == (job.pid, 3, True, True)
