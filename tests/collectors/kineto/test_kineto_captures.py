"""Captures end to end: real torch jobs, a real agent and a real server, also when one of them is killed meanwhile."""

from __future__ import annotations

import gzip
import hashlib
import itertools
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from agent_rig import Rig, stop
from capture_jobs import TorchJob, ask, outcome, start_torch_job
from launching import start
from processes import own
from waiting import PATIENCE_S, wait_for

from tightship_collectors.jobs.control_file import read_rank_file
from tightship_platform.units import NS_PER_S

pytest.importorskip("torch")
pytestmark = pytest.mark.torch


class Installation(Rig):
    """A server and an agent that can be killed and started again."""

    def begin(self) -> None:
        self.server = self.start_server()
        self.agent = self.start_agent()

    def start_worker(self) -> None:
        self._start("worker")

    def kill_agent(self) -> None:
        stop(self.agent, signal.SIGKILL)

    def kill_server(self) -> None:
        stop(self.server, signal.SIGKILL)

    def run_dir(self, run: str) -> Path:
        return self.runtime_dir / run

    def fetch(self, rank: dict[str, Any]) -> bytes:
        """The stored file of one rank."""
        response = httpx.get(
            f"http://127.0.0.1:{self.port}{rank['url']}", auth=own(self.environ), trust_env=False, timeout=PATIENCE_S
        )
        assert response.status_code == 200
        assert hashlib.sha256(response.content).hexdigest() == rank["sha256"]
        assert len(response.content) == rank["bytes"]
        return response.content

    def trace(self, rank: dict[str, Any]) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(gzip.decompress(self.fetch(rank)))
        return content

    def in_flight(self, run: str) -> list[bool]:
        folder = self.run_dir(run)
        files = [read_rank_file(path, uid=folder.stat().st_uid) for path in (folder / "ranks").iterdir()]
        return [file.capture_in_flight for file in files if file is not None]


@pytest.fixture(scope="module")
def installation(make_platform_env: Callable[..., Any]) -> Iterator[Installation]:
    made = Installation(variables=make_platform_env().variables)
    made.begin()
    yield made
    made.close()


@pytest.fixture(scope="module")
def lasting(installation: Installation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TorchJob]:
    """A job that outlives the test, whatever happens to the agent and the server, and then ends well."""
    made = start_torch_job(installation, tmp_path_factory.mktemp("lasting"), workflow="lasting")
    yield made
    assert made.process.poll() is None
    assert made.end() == 0


def steps_in(trace: dict[str, Any]) -> list[dict[str, Any]]:
    return [e for e in trace["traceEvents"] if e.get("name", "").startswith("Optimizer.step#")]


def window_ns(trace: dict[str, Any]) -> tuple[int, int]:
    base = int(trace["baseTimeNanoseconds"])
    ops = [e for e in trace["traceEvents"] if e.get("cat") == "cpu_op"]
    return base + int(1000 * min(e["ts"] for e in ops)), base + int(1000 * max(e["ts"] for e in ops))


def test_a_capture_of_a_job_that_knows_nothing_of_us(installation: Installation, lasting: TorchJob) -> None:
    key = ask(installation, lasting.workflow, duration_ns=NS_PER_S)
    capture = outcome(installation, key)
    assert (capture["state"], capture["reason"]) == ("uploaded", None)
    assert sorted(capture["stages"], key=capture["stages"].get) == [
        "requested",
        "leased",
        "armed",
        "recording",
        "written",
        "uploaded",
    ]
    (rank,) = capture["ranks"]
    assert capture["expected"] == [{"rank": 0, "pid": rank["pid"]}]
    trace = installation.trace(rank)
    assert trace["trace_id"].startswith(key)
    assert len(steps_in(trace)) > 3
    begin, end = window_ns(trace)
    assert 0.5 * NS_PER_S < end - begin < 1.2 * NS_PER_S
    assert any(e.get("cat") == "python_function" for e in trace["traceEvents"])  # stacks were asked for
    # Nothing is left on the host, and the job may end whenever it likes; the last test's end is the job's.
    wait_for(lambda: not list((installation.home / "spool" / "captures").iterdir()))
    assert list((installation.run_dir(lasting.run) / "traces").iterdir()) == []
    assert not any(installation.in_flight(lasting.run))


@pytest.mark.sliced(2, of="jobs")
def test_what_is_recorded_is_what_was_asked_for(installation: Installation, lasting: TorchJob) -> None:
    key = ask(installation, lasting.run, iterations=4, stacks=False, shapes=False)
    capture = outcome(installation, key)
    assert capture["state"] == "uploaded", capture["reason"]
    trace = installation.trace(capture["ranks"][0])
    assert 4 <= len(steps_in(trace)) < 15  # Kineto stops a moment after the last of them; half a second holds more
    assert not any(e.get("cat") == "python_function" for e in trace["traceEvents"])


def test_both_ranks_of_torchrun_and_not_its_launcher(installation: Installation, tmp_path: Path) -> None:
    job = start_torch_job(installation, tmp_path, workflow="both", how="light", ranks=2)
    for params in ({}, {"iterations": 5}):
        capture = outcome(installation, ask(installation, "both", **params))
        assert capture["state"] == "uploaded", capture["reason"]
        assert [rank["rank"] for rank in capture["ranks"]] == [0, 1]
        assert capture["expected"] == [{"rank": rank["rank"], "pid": rank["pid"]} for rank in capture["ranks"]]
        windows = [window_ns(installation.trace(rank)) for rank in capture["ranks"]]
        shared = min(end for _, end in windows) - max(begin for begin, _ in windows)
        assert shared > 0.5 * max(end - begin for begin, end in windows)
    assert job.end() == 0


@pytest.mark.sliced(2, of="jobs")
def test_one_capture_of_a_run_at_a_time(installation: Installation, lasting: TorchJob) -> None:
    first, second = (ask(installation, lasting.run) for _ in range(2))
    assert f"waits for capture {first}" in installation.get(f"/captures/{second}")["reason"]
    ended = [outcome(installation, key) for key in (first, second)]
    assert [capture["state"] for capture in ended] == ["uploaded", "uploaded"]
    assert ended[0]["stages"]["written"] <= ended[1]["stages"]["armed"]


def test_a_job_whose_steps_are_not_counted_can_be_captured_for_a_duration(
    installation: Installation, tmp_path: Path
) -> None:
    job = start_torch_job(installation, tmp_path, workflow="uncounted", how="light", options=("--no-steps",))
    refused = outcome(installation, ask(installation, "uncounted", iterations=3))
    assert refused["state"] == "failed"
    assert "record a duration instead" in refused["reason"]
    assert outcome(installation, ask(installation, "uncounted"))["state"] == "uploaded"
    assert job.end() == 0


@pytest.mark.sliced(2, of="agents that end")
@pytest.mark.sliced(2, of="agents that end")
@pytest.mark.parametrize("stage", ["armed", "recording"])
def test_an_agent_that_is_killed_meanwhile(installation: Installation, lasting: TorchJob, stage: str) -> None:
    key = ask(installation, lasting.run, duration_ns=NS_PER_S)
    states = ("leased", "armed", "recording", "written", "uploaded")
    outcome(installation, key, states=states[states.index(stage) :])
    installation.kill_agent()
    assert lasting.process.poll() is None
    installation.agent = installation.start_agent()
    capture = outcome(installation, key)
    assert capture["state"] == "uploaded" or capture["reason"]
    again = outcome(installation, ask(installation, lasting.run))
    assert again["state"] == "uploaded", again["reason"]
    wait_for(lambda: not any(installation.in_flight(lasting.run)))


def test_a_job_that_ends_while_no_agent_lives_ends_as_it_would_have(installation: Installation, tmp_path: Path) -> None:
    job = start_torch_job(installation, tmp_path, workflow="ends-alone", how="light")
    key = ask(installation, job.run, duration_ns=NS_PER_S)
    outcome(installation, key, states=("armed", "recording"))
    installation.kill_agent()
    assert job.end() == 0
    installation.agent = installation.start_agent()
    capture = outcome(installation, key)
    assert capture["state"] == "uploaded" or capture["reason"].startswith("run ended"), capture["reason"]


def test_a_server_that_is_killed_meanwhile(installation: Installation, lasting: TorchJob) -> None:
    key = ask(installation, lasting.run, duration_ns=NS_PER_S)
    outcome(installation, key, states=("armed", "recording"))
    installation.kill_server()
    packed = installation.home / "spool" / "captures" / key
    wait_for(lambda: list(packed.glob("rank-0.json.gz")))  # recorded and packed without a server
    assert lasting.process.poll() is None
    installation.server = installation.start_server()
    capture = outcome(installation, key)
    assert capture["state"] == "uploaded", capture["reason"]
    again = outcome(installation, ask(installation, lasting.run))
    assert again["state"] == "uploaded", again["reason"]


@pytest.mark.sliced(2, of="agents that end")
@pytest.mark.sliced(2, of="jobs")
def test_an_agent_that_is_stopped_gives_back_what_it_had_not_begun(
    installation: Installation, lasting: TorchJob
) -> None:
    key = ask(installation, lasting.run)
    outcome(installation, key, states=("leased", "armed", "recording"))
    stop(installation.agent)
    installation.agent = installation.start_agent()
    capture = outcome(installation, key)
    assert capture["state"] == "uploaded" or capture["reason"]


@pytest.mark.sliced(2, of="jobs")
def test_a_job_that_profiles_itself_meanwhile_lives(installation: Installation, tmp_path: Path) -> None:
    job = start_torch_job(installation, tmp_path, workflow="own-profiler", how="own-profiler")
    for _ in range(2):
        capture = outcome(installation, ask(installation, job.run, stacks=True))
        # Its own profiler goes first; a capture that it drops is tried again, but not for ever.
        assert capture["state"] == "uploaded" or "the job's own torch.profiler" in capture["reason"], capture["reason"]
        assert job.process.poll() is None, job.printed()
    assert job.end() == 0
    assert "profiled itself" in job.printed()


def test_a_python_that_shuts_us_out_is_named_and_refused(installation: Installation) -> None:
    waits = "import time, torch; print('ready', flush=True); time.sleep(120)"
    options = ("--workflow", "isolated")
    job = start(sys.executable, "-I", "-c", waits, options=options, env=installation.environ, start_new_session=True)
    try:
        assert job.stdout is not None and job.stdout.readline() == "ready\n"
        wait_for(lambda: any(run["workflow"] == "isolated" for run in installation.get("/runs")), "its run")
        capture = outcome(installation, ask(installation, "isolated", insist=True))
        assert capture["state"] == "failed"
        assert "start it without -I; --insist does not help" in capture["reason"]
        assert job.stderr is not None and "start it without -I" in job.stderr.readline()
    finally:
        os.killpg(job.pid, signal.SIGKILL)
        job.communicate()


def test_the_job_says_nothing_about_it(installation: Installation, lasting: TorchJob) -> None:
    assert outcome(installation, ask(installation, lasting.run))["state"] == "uploaded"
    before = lasting.printed()
    installation.kill_agent()
    time.sleep(2.5)  # Kineto polls nobody, each second
    assert lasting.printed() == before
    installation.agent = installation.start_agent()


@pytest.fixture(scope="module")
def worker(installation: Installation) -> None:
    """A worker that analyzes what the tests before it have left, too."""
    installation.start_worker()


@pytest.mark.usefixtures("worker")
def test_profile_waits_until_the_trace_is_analyzed(installation: Installation, lasting: TorchJob) -> None:
    ended = installation.run("profile", "lasting", "--duration", "300ms", "--wait", "--timeout", "55s", "--json")
    assert ended.returncode == 0, ended.stderr
    capture = json.loads(ended.stdout)
    assert (capture["state"], capture["run"]) == ("analyzed", lasting.run)
    (rank,) = capture["ranks"]
    assert rank.keys() >= {"rank", "pid", "bytes", "sha256", "url"}
    assert 0 < capture["latency_s"] < 55
    assert installation.fetch(rank)


DONE = ("uploaded", "analyzed")
"""From here on a worker runs, and may be quick."""


def step_ns(trace: dict[str, Any]) -> float:
    """The median time from one optimizer step to the next."""
    ends = sorted(event["ts"] for event in steps_in(trace))
    return 1000 * statistics.median(after - before for before, after in itertools.pairwise(ends))


@pytest.fixture(scope="module")
def stretched(installation: Installation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TorchJob]:
    """A job that takes several times as long while its stacks are recorded."""
    made = start_torch_job(installation, tmp_path_factory.mktemp("slow"), workflow="stretched", how="stretched")
    yield made
    if made.process.poll() is None:
        assert made.end() == 0


@pytest.mark.sliced(1, of="passes")
@pytest.mark.usefixtures("worker")
def test_a_job_that_recording_stretches_is_recorded_twice(installation: Installation, stretched: TorchJob) -> None:
    capture = outcome(installation, ask(installation, stretched.run, duration_ns=NS_PER_S))
    assert (capture["reason"], capture["passes"]) == (None, 2), capture
    assert capture["passes_reason"].startswith("recorded twice: recording made steps ")
    (rank,) = capture["ranks"]
    full, light = installation.trace(rank), installation.trace(rank["second_pass"])
    assert any(e.get("cat") == "python_function" for e in full["traceEvents"])
    assert not any(e.get("cat") == "python_function" for e in light["traceEvents"])
    assert not any("Input Dims" in e.get("args", {}) for e in light["traceEvents"])
    assert step_ns(light) < step_ns(full) / 1.5
    assert window_ns(light)[0] > window_ns(full)[1]
    assert 0 < capture["latency_s"] < (capture["stages"]["uploaded"] - capture["requested_ns"]) / NS_PER_S
    wait_for(lambda: not list((installation.home / "spool" / "captures").iterdir()))
    assert list((installation.run_dir(stretched.run) / "traces").iterdir()) == []
    assert not any(installation.in_flight(stretched.run))
    outcome(installation, capture["capture"], states=("analyzed",))
    (judged,) = installation.get(f"/captures/{capture['capture']}/analysis")["ranks"]
    assert judged["summary"]["warnings"][0].startswith("recorded twice: times are of the second recording")
    assert judged["summary"]["step_ns"]["mean"] < step_ns(full)


@pytest.mark.sliced(1, of="passes")
def test_one_pass_is_enough_where_nobody_wants_two_or_the_first_is_light(
    installation: Installation, stretched: TorchJob
) -> None:
    for params in ({"passes": 1}, {"stacks": False, "shapes": False}):
        capture = outcome(installation, ask(installation, stretched.run, duration_ns=NS_PER_S, **params))
        assert (capture["state"] in DONE, capture["passes"], capture["passes_reason"]) == (True, 1, None)
        assert capture["ranks"][0]["second_pass"] is None


@pytest.mark.sliced(1, of="passes")
def test_an_agent_that_is_killed_between_two_passes(installation: Installation, stretched: TorchJob) -> None:
    key = ask(installation, stretched.run, duration_ns=NS_PER_S)
    written = outcome(installation, key, states=("written", *DONE))
    assert written["passes"] == 2, written
    installation.kill_agent()
    installation.agent = installation.start_agent()
    capture = outcome(installation, key)
    assert (capture["state"] in DONE, capture["passes"]) == (True, 2), capture["passes_reason"]
    assert installation.trace(capture["ranks"][0]["second_pass"])["trace_id"].startswith(f"{key}.second-")


def test_a_run_that_ends_between_two_passes_gives_the_first(installation: Installation, stretched: TorchJob) -> None:
    key = ask(installation, stretched.run, duration_ns=NS_PER_S)
    written = outcome(installation, key, states=("written", *DONE))
    assert written["passes"] == 2, written
    assert stretched.end() == 0
    capture = outcome(installation, key)
    assert capture["state"] in DONE, capture["reason"]
    (rank,) = capture["ranks"]
    assert installation.trace(rank)["trace_id"].startswith(f"{key}-")
    if capture["passes"] == 1:  # on a slow machine the second may have come nevertheless
        assert capture["passes_reason"].startswith("recorded once: "), capture["passes_reason"]
        assert rank["second_pass"] is None
