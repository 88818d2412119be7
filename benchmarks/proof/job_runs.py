"""Runs of a case's job as a user would start it: as it is and with its fix, timed or recorded."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from cases import HERE, Case
from watched_job import Plan, Timed

WARM_UP = 8
"""Steps of a job that do not count: the first ones allocate, start workers and compile."""
PATIENCE_S = 300.0
"""The longest run takes a tenth of it on two cores."""


class JobFailed(Exception):
    """A run of a job did not come to its end; the message holds the end of what it printed."""


def fixed(case: Case, folder: Path) -> Path:
    """A copy of the job with its diff applied.

    :raises JobFailed: the diff does not fit the job.
    """
    assert case.diff is not None
    target = Path(shutil.copy(case.script, folder))
    command = ["git", "apply", "--whitespace=nowarn", str(case.diff)]
    # Inside a repository git would leave out what does not belong to it.
    env = os.environ | {"GIT_CEILING_DIRECTORIES": str(folder.parent)}
    done = subprocess.run(command, check=False, cwd=folder, env=env, capture_output=True, text=True)
    if done.returncode:
        raise JobFailed(f"{case.diff.name} does not fit {case.script}: {done.stderr.strip()}")
    return target


def timed(case: Case, script: Path, folder: Path) -> Timed:
    """One run of the job, or of its copy with the fix, without recording.

    :param folder: for what the job writes.
    :raises JobFailed: see there.
    """
    return _run(case, script, folder, Plan(warm_up=WARM_UP, steps=case.steps))


def recorded(case: Case, folder: Path, traces: list[tuple[Path, Path]]) -> Timed:
    """One run of the job as it is; first steps without recording, then those that are recorded.

    :param traces: of each rank, where its two recordings go.

    :raises JobFailed: see there.
    """
    return _run(case, case.script, folder, Plan(warm_up=WARM_UP, steps=case.steps, recorded=case.recorded), traces)


def _run(case: Case, script: Path, folder: Path, plan: Plan, traces: list[tuple[Path, Path]] | None = None) -> Timed:
    folder.mkdir(parents=True, exist_ok=True)
    env = os.environ | {"TMPDIR": str(folder), "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}
    if case.ranks > 1:
        env |= {"WORLD_SIZE": str(case.ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    results = [folder / f"result{rank}.json" for rank in range(case.ranks)]
    processes = []
    try:
        for rank, result in enumerate(results):
            chosen = asdict(plan) | {"traces": [str(path) for path in traces[rank]] if traces else []}
            command = [sys.executable, str(HERE / "watched_job.py"), str(result), json.dumps(chosen), str(script)]
            command += case.arguments
            with (folder / f"rank{rank}.log").open("wb") as log:
                process = subprocess.Popen(
                    command, env=env | {"RANK": str(rank)}, stdout=log, stderr=log, start_new_session=True
                )
            processes.append(process)
        codes = [process.wait(PATIENCE_S) for process in processes]
    except subprocess.TimeoutExpired:
        codes = [-1]
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if any(codes) or not all(result.is_file() for result in results):
        said = [(folder / f"rank{rank}.log").read_text(errors="replace")[-1500:] for rank in range(case.ranks)]
        raise JobFailed(f"{script.name} ended with {codes}: {' | '.join(said)}")
    of_ranks = [Timed(**json.loads(result.read_text())) for result in results]
    shutil.rmtree(folder)
    return Timed(steps=plan.steps, wall_ns=of_ranks[0].wall_ns, cpu_ns=sum(one.cpu_ns for one in of_ranks))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
