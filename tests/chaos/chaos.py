"""Seeded schedules of what goes wrong in a data centre, and whether anything was lost: `make chaos`.

A schedule runs a whole installation (PostgreSQL and Redis, or neither; server, worker with its schedule, agent, one
real job, one simulated host that sends its metrics late, twice and out of order and has captures made) for CHAOS_S,
while parts of it are killed, stopped and continued, meet full and broken disks, or have their clocks stepped by an
hour (troubles.py). Then all is made well again, and this must hold:

- every row that was acknowledged is in the database, once;
- the steps of the real job are all there, whatever became of its agent meanwhile;
- every capture is finished, or failed with a reason;
- every trace that was acknowledged is in the store, whole;
- the account of every run adds up to its device time;
- a job that is launched on a full disk ends as it would have without us;
- no part wrote a traceback.

    make chaos                                 # 100 schedules; writes docs/chaos.md
    make chaos ARGS="--schedules 3 --seed 41"  # three of them
    make chaos ARGS="--drawn 2"                # two by chance
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from installation import TOKEN, Installation
from parts import wait_until
from sqlalchemy import func, select
from table import table
from traffic import RUN, Traffic
from troubles import ALL, draw, is_alone, play

from tightship_platform.captures.artifact_store import open_artifacts
from tightship_platform.database.engine import open_database
from tightship_platform.database.models import Capture, Run, RunAccount, Sample, StepStat, Trace
from tightship_platform.settings import load_settings

ROOT = Path(__file__).parents[2]
SETTLE_S = 60.0
FINAL = ("analyzed", "failed", "expired")


@dataclass(kw_only=True)
class Outcome:
    """One schedule."""

    seed: int
    alone: bool
    troubles: list[str] = field(default_factory=list)
    rows: int = 0
    """Acknowledged samples of the simulated host."""
    steps: int = 0
    """Of the real job."""
    captures: dict[str, int] = field(default_factory=dict)
    """State → captures."""
    settled_s: float = 0.0
    """From the end of the trouble to the last capture and account."""
    took_s: float = 0.0
    """From nothing to nothing."""
    wrong: list[str] = field(default_factory=list)


# ---- what must hold --------------------------------------------------------------------------------------------------


def settled(installation: Installation, job: str, steps: int) -> bool:
    """No capture is on its way, all steps arrived, and both runs have their account."""
    try:
        with open_database(load_settings(installation.rig.environ)) as database, database.session() as session:
            going = session.scalar(select(func.count()).where(Capture.state.not_in(FINAL)))
            runs = session.execute(select(Run.key, Run.state, Run.accounted_ns)).all()
            counted = session.scalar(
                select(func.sum(StepStat.steps)).join(Run, Run.id == StepStat.run_id).where(Run.key == job)
            )
    except Exception:
        return False
    ended = {key for key, state, accounted in runs if state == "finished" and accounted is not None}
    return not going and ended >= {job, RUN} and counted == steps


def check(installation: Installation, outcome: Outcome, traffic: Traffic, job: str) -> None:
    """Compare what is there with what was acknowledged."""
    settings = load_settings(installation.rig.environ)
    artifacts = open_artifacts(settings)
    with open_database(settings) as database, database.session() as session:
        times = session.scalars(select(Sample.time_ns).where(Sample.time_ns.in_(traffic.acknowledged))).all()
        missing = traffic.acknowledged - set(times)
        if missing:
            outcome.wrong.append(f"{len(missing)} of {len(traffic.acknowledged)} acknowledged samples are missing")
        run = session.scalars(select(Run).where(Run.key == RUN)).one()
        counted = session.scalar(select(func.sum(StepStat.steps)).where(StepStat.run_id == run.id)) or 0
        if counted != len(traffic.acknowledged):
            outcome.wrong.append(f"{counted} steps for {len(traffic.acknowledged)} acknowledged buckets of one step")
        real = session.scalars(select(Run).where(Run.key == job)).one()
        counted = session.scalar(select(func.sum(StepStat.steps)).where(StepStat.run_id == real.id)) or 0
        if counted != outcome.steps:
            outcome.wrong.append(f"{counted} of {outcome.steps} steps of the job arrived")
        for capture in session.scalars(select(Capture)):
            outcome.captures[capture.state] = outcome.captures.get(capture.state, 0) + 1
            if capture.state not in FINAL:
                outcome.wrong.append(f"capture {capture.key} is still {capture.state}")
            elif capture.state != "analyzed" and not capture.reason:
                outcome.wrong.append(f"capture {capture.key} is {capture.state} without a reason")
            if digest := traffic.captures.get(capture.key):
                trace = session.scalars(select(Trace).where(Trace.capture_id == capture.id)).one_or_none()
                if trace is None:
                    outcome.wrong.append(f"capture {capture.key}: its acknowledged trace has no row")
                    continue
                with artifacts.open(trace.url) as stored:
                    if hashlib.sha256(stored.read()).hexdigest() != digest:
                        outcome.wrong.append(f"capture {capture.key}: its trace is not what was sent")
        for one in session.scalars(select(Run)):
            rows = session.scalars(select(RunAccount).where(RunAccount.run_id == one.id)).all()
            answer = installation.rig.get(f"/runs/{one.key}")
            if sum(row.device_ns for row in rows) != answer["device_ns"]:
                outcome.wrong.append(f"run {one.key}: its account does not add up to {answer['device_ns']} ns")
    for name in ("server", "worker", "agent"):
        log = installation.parts[name].log.read_text(errors="replace")
        if "Traceback" in log:
            begin = log.index("Traceback")
            outcome.wrong.append(f"{name} wrote a traceback: {log[begin:][-400:]!r}")


def schedule(seed: int, keep: Path | None = None) -> Outcome:
    """One of them, from nothing to nothing."""
    begun, outcome = time.monotonic(), Outcome(seed=seed, alone=is_alone(seed))
    folder = Path(tempfile.mkdtemp(prefix="one-"))
    installation = Installation(folder, alone=outcome.alone)
    try:
        _play(installation, outcome)
    except Exception as error:
        outcome.wrong.append(f"the schedule itself failed: {error!r}")
    finally:
        installation.end()
        if outcome.wrong and keep is not None:
            shutil.copytree(folder, keep / str(seed), ignore=shutil.ignore_patterns("postgres"), dirs_exist_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
    outcome.took_s = round(time.monotonic() - begun, 1)
    return outcome


def _play(installation: Installation, outcome: Outcome) -> None:
    installation.start()
    job = installation.rig.start_job(steps_per_s=5)
    with installation.rig.api as api:
        api.post("/runs", job.record)
    traffic = Traffic(f"http://127.0.0.1:{installation.port}", TOKEN, random.Random(outcome.seed))
    traffic.start()
    wait_until(lambda: bool(traffic.acknowledged), SETTLE_S)  # the trouble comes to something that works
    troubles = draw(outcome.seed)
    outcome.troubles = [str(one) for one in troubles]
    outcome.wrong += play(installation, troubles)
    installation.heal()
    healed = time.monotonic()
    counted = _steps(installation, job.key)
    installation.wait_until(lambda: (_steps(installation, job.key) or 0) > (counted or 0), SETTLE_S / 2)
    [outcome.steps] = job.end()  # only now that its agent is back: it alone reads the counter
    if not traffic.finish(SETTLE_S):
        outcome.wrong.append("the simulated host could not deliver what it had")
    ended = job.record | {"end_ns": time.time_ns(), "exit_code": 0}
    installation.wait_until(lambda: _posted(installation, ended), SETTLE_S / 2)
    if not installation.wait_until(lambda: settled(installation, job.key, outcome.steps), SETTLE_S):
        outcome.wrong.append(f"not settled after {SETTLE_S:.0f} s")
    outcome.settled_s = round(time.monotonic() - healed, 1)
    outcome.rows = len(traffic.acknowledged)
    outcome.wrong += traffic.refused[:3]
    check(installation, outcome, traffic, job.key)


def _steps(installation: Installation, job: str) -> int | None:
    answer = installation.rig.get(f"/runs/{job}")
    return None if answer is None else answer["steps"]


def _posted(installation: Installation, record: dict[str, Any]) -> bool:
    try:
        with installation.rig.api as api:
            api.post("/runs", record)
    except Exception:
        return False
    return True


def _in(folder: str) -> None:
    """In each process that plays schedules: all that they leave goes with that folder."""
    tempfile.tempdir = folder


def main() -> int:
    """Runs, prints and writes; 1 where anything was lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedules", type=int, default=ALL)
    parser.add_argument("--seed", type=int, default=0, help="of the first schedule")
    parser.add_argument("--drawn", type=int, help="so many of the hundred, by TIGHTSHIP_SLICE or chance")
    parser.add_argument("--left", action="store_true", help="only what the runs before did not play, or lost something")
    parser.add_argument("--parallel", type=int, default=os.cpu_count() or 1, help="schedules at a time")
    given = parser.parse_args()
    seeds = list(range(given.seed, given.seed + given.schedules))
    if given.drawn:
        seeds = random.Random(os.environ.get("TIGHTSHIP_SLICE")).sample(range(ALL), given.drawn)
    out = ROOT / "benchmarks" / "out" / "chaos"
    out.mkdir(parents=True, exist_ok=True)
    file = out / "outcomes.json"
    is_all = len(seeds) >= ALL
    known: dict[int, Outcome] = {}
    if file.exists() and (given.left or not is_all):
        known = {one["seed"]: Outcome(**one) for one in json.loads(file.read_text())}
    if given.left:
        seeds = [seed for seed in seeds if seed not in known or known[seed].wrong]
    outcomes: list[Outcome] = []
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="tsc-") as folder:
        Path(folder).chmod(0o711)  # PostgreSQL runs as another user
        with ProcessPoolExecutor(given.parallel, spawn, _in, (folder,)) as pool:
            for done in as_completed([pool.submit(schedule, seed, out) for seed in seeds]):
                outcomes.append(done.result())
                known[outcomes[-1].seed] = outcomes[-1]
                _report(outcomes, len(seeds))
                file.write_text(json.dumps([asdict(known[seed]) for seed in sorted(known)], indent=1) + "\n")
                if is_all:
                    (ROOT / "docs" / "chaos.md").write_text(table([known[seed] for seed in sorted(known)]))
    return int(any(one.wrong for one in outcomes))


def _report(outcomes: list[Outcome], of: int) -> None:
    outcome = outcomes[-1]
    captures = ", ".join(f"{number} {state}" for state, number in sorted(outcome.captures.items())) or "none"
    lines = [
        f"[{len(outcomes)}/{of}] {outcome.seed}: {len(outcome.troubles)} troubles, {outcome.rows} rows, "
        f"{outcome.steps} steps, captures: {captures}; settled in {outcome.settled_s} s of {outcome.took_s} s: "
        f"{'; '.join(outcome.wrong) or 'well'}",
        *(f"    {trouble}" for trouble in outcome.troubles if outcome.wrong),
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
