"""`tightship why RUN`: two real ranks, one of which never comes to a collective; loader workers; how runs died."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from launching import TIGHTSHIP, run_dirs, start
from waiting import wait_for

from tightship_analyzers.hangs.live import why_it_ended, why_nothing_came
from tightship_analyzers.hangs.stacks import collective_of, judge_stacks, own_place
from tightship_collectors.jobs.stacks import NoStacks, read_stacks
from tightship_platform.results.run import RunDetail
from tightship_platform.results.why import ProcessStack
from tightship_platform.wire import Frame

JOB = """
import os, sys, time
import torch
import torch.distributed as dist


def endless(sums):
    while True:
        sums += 1


dist.init_process_group("gloo")
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    model(torch.ones(2)).sum().backward()
    optimizer.step()
open(os.path.join(sys.argv[1], str(dist.get_rank())), "w").close()
if dist.get_rank() == 1:
    endless(0)
dist.all_reduce(torch.ones(1))
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hang")


@pytest.fixture
def hung(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A hung `torchrun` of two ranks: its run's id and its script."""
    script = tmp_path / "job.py"
    script.write_text(JOB)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environ = os.environ | {"OMP_NUM_THREADS": "1"}
    with start(*torchrun, script, tmp_path, env=environ) as job:
        try:
            wait_for(lambda: (tmp_path / "0").exists() and (tmp_path / "1").exists(), "both ranks' last step")
            yield run_dirs()[0].name, script
        finally:
            # torchrun puts each rank into its own session.
            for process in [*psutil.Process(job.pid).children(recursive=True), job]:
                process.kill()


def why(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*TIGHTSHIP, "why", *arguments], capture_output=True, text=True)


@pytest.mark.torch
@pytest.mark.skipif(os.geteuid() != 0, reason="looking into other processes takes root on many systems")
def test_a_hung_job_names_the_rank_and_its_line(hung: tuple[str, Path]) -> None:
    run, script = hung
    line = JOB.splitlines().index("        sums += 1")

    def answer() -> dict[str, Any]:
        done = why(run[:8], "--json")
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)["run"]
        return found

    found = wait_for(lambda: (a := answer())["processes"][0]["collective"] and a, "rank 0 to be in its collective")
    assert (found["run"], found["state"]) == (run, "running")
    first, second = (one for one in found["processes"] if one["role"] == "rank")
    assert (first["rank"], first["collective"], first["runs"], first["steps"]) == (0, "all_reduce", False, 3)
    assert (second["rank"], second["collective"], second["runs"]) == (1, None, True)
    assert second["place"].startswith(f"{script}:") and second["place"].endswith(" endless")
    assert int(second["place"].rpartition(":")[2].split()[0]) in (line, line + 1)
    assert "Rank 0 waits in all_reduce, which rank 1 has not called" in found["verdict"]
    assert "endless" in found["verdict"] and found["cause"].startswith("It computes there")
    shown = why(run)
    assert shown.returncode == 0 and "Rank 1 (process" in shown.stdout and "endless" in shown.stdout


def test_without_py_spy_or_permission_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoStacks, match="it has ended"):
        read_stacks(2**22 - 1)
    with subprocess.Popen(["sleep", "60"]) as other:
        with pytest.raises(NoStacks, match="py-spy"):
            read_stacks(other.pid)
        other.kill()
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(NoStacks, match="not installed; pip install py-spy"):
        read_stacks(os.getpid())


def test_what_is_neither_a_run_nor_a_path_is_one_line() -> None:
    done = why("no-such-run")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "No tightship server answers" in line or "no-such-run" in line


# ---- what stacks say -------------------------------------------------------------------------------------------------

TORCH = "/x/lib/python3.11/site-packages/torch"
TRAIN = Frame(function="train", file="/job/train.py", line=41)


def rank(number: int, *frames: Frame, steps: int | None = 5, runs: bool = False) -> ProcessStack:
    return process(number, "rank", *frames, steps=steps, runs=runs)


def process(
    number: int | None, role: str, *frames: Frame, steps: int | None = None, runs: bool | None = False
) -> ProcessStack:
    return ProcessStack(
        rank=number,
        role=role,
        pid=100 + (number or 0),
        steps=steps,
        last_step_ns=None,
        collective=collective_of(frames),
        place=own_place(frames),
        runs=runs,
        stack=[str(frame) for frame in frames],
        reason=None if frames else "py-spy is not installed; pip install py-spy",
    )


def frame(function: str, path: str) -> Frame:
    return Frame(function=function, file=f"{TORCH}/{path}", line=7)


ALL_REDUCE = (
    frame("all_reduce", "distributed/distributed_c10d.py"),
    frame("wrapper", "distributed/c10d_logger.py"),
    TRAIN,
)
BARRIER = (frame("barrier", "distributed/distributed_c10d.py"), TRAIN)
LOADER = (frame("_try_get_data", "utils/data/dataloader.py"), frame("__next__", "utils/data/dataloader.py"), TRAIN)
DECODE = Frame(function="decode", file="/job/data.py", line=9)


def test_the_innermost_frame_of_the_job_s_own_is_its_place() -> None:
    assert own_place(ALL_REDUCE) == "/job/train.py:41 train"
    standard = Frame(function="wait", file="/x/lib/python3.11/threading.py", line=320)
    assert own_place([standard, frame("f", "nn/modules/module.py")]) is None


def test_several_ranks_that_are_away_are_counted_by_place() -> None:
    away = [rank(n, DECODE, runs=True) for n in (1, 3)]
    verdict, cause = judge_stacks([rank(0, *ALL_REDUCE), *away, rank(2, *ALL_REDUCE)])
    assert verdict == (
        "Ranks 0 and 2 wait in all_reduce, which ranks 1 and 3 have not called: at /job/data.py:9 decode."
    )
    assert cause.startswith("It computes there")


def test_all_inside_one_and_in_different_ones() -> None:
    verdict, cause = judge_stacks([rank(n, *ALL_REDUCE) for n in range(4)])
    assert verdict == "All 4 ranks are in all_reduce, and none gets out." and cause.startswith("Unknown")
    verdict, _ = judge_stacks([rank(0, *ALL_REDUCE), rank(1, *BARRIER)])
    assert verdict.endswith("not in the same one: rank 0 in all_reduce; rank 1 in barrier.")


def test_without_collectives_steps_say_who_is_behind() -> None:
    verdict, _ = judge_stacks([rank(0, TRAIN, steps=9), rank(1, DECODE, steps=8), rank(2, TRAIN, steps=9)])
    assert verdict == "Rank 1 has made 8 of 9 steps: at /job/data.py:9 decode."
    verdict, _ = judge_stacks([rank(0, TRAIN), rank(1, DECODE)])
    assert verdict.startswith("Ranks 0 and 1 are in no collective that a stack shows")


def test_a_rank_that_waits_for_its_loader_leads_to_the_workers() -> None:
    worker = process(None, "worker", DECODE, frame("_worker_loop", "utils/data/_utils/worker.py"))
    _, cause = judge_stacks([rank(0, *LOADER), worker, worker])
    assert cause == "It waits for a batch of its loader, whose 2 workers are 2 at /job/data.py:9 decode."


def test_a_rank_that_cannot_be_seen_is_not_taken_to_be_inside() -> None:
    verdict, cause = judge_stacks([rank(0, *ALL_REDUCE), rank(1), rank(2, *ALL_REDUCE)])
    assert verdict == "Ranks 0 and 2 wait in all_reduce; the place of rank 1 is not known."
    assert "py-spy is not installed" in cause


def test_no_stacks_are_no_verdict() -> None:
    verdict, cause = judge_stacks([rank(0)])
    assert verdict == "Where its ranks are is not known." and "pip install py-spy" in cause


# ---- how runs died ---------------------------------------------------------------------------------------------------


def ended(**changes: Any) -> RunDetail:
    known: dict[str, Any] = {
        "run": "a1", "workflow": "w", "team": None, "owner": None, "state": "failed", "reason": None, "exit_code": 1,
        "start_ns": 10**9, "end_ns": 11 * 10**9, "devices": [], "steps": None, "device_ns": 0, "account": None,
        "accounted_ns": None, "simulated": False, "host": "h1", "user": "ann", "command": [], "labels": {},
        "external_id": None, "source": "launch", "fleet": "live", "ranks": [], "error": None, "oom_kills": None,
        "last_seen_ns": 11 * 10**9, "last_step_ns": None, "offload": None,
    }  # fmt: skip
    return RunDetail(**(known | changes))


@pytest.mark.parametrize(
    ("changes", "verdict", "cause"),
    [
        ({"exit_code": 137, "oom_kills": 1}, "by SIGKILL", "killed 1 process of it for lack of memory"),
        ({"error": "ValueError: no"}, "with exit code 1", "first uncaught exception: ValueError: no"),
        ({}, "with exit code 1", "its own output says more"),
        ({"state": "lost", "exit_code": None}, "lost after 10.0 s", "Unknown"),
        ({"state": "finished", "exit_code": 0}, "finished after 10.0 s", "Nothing went wrong"),
    ],
)
def test_how_a_run_ended(changes: dict[str, Any], verdict: str, cause: str) -> None:
    found = why_it_ended(ended(**changes))
    assert verdict in found.verdict and cause in found.cause and found.processes == []


def test_an_agent_that_brings_nothing_is_named() -> None:
    found = why_nothing_came(ended(state="running", end_ns=None, exit_code=None), 65.0)
    assert "It runs on h1, whose agent brought no stacks within 65 s" in found.verdict
    assert "tightship why a1" in found.cause and found.processes == []
