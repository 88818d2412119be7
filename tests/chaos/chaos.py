"""Seeded schedules of what goes wrong in a data centre, and whether anything was lost: `make chaos`.

A schedule runs a whole installation (PostgreSQL, Redis, server, worker with its schedule, agent, one real job, one
simulated host that sends its metrics late, twice and out of order and has captures made) for CHAOS_S, while parts of it
are killed, stopped and continued, meet a full disk, or have their clocks stepped by an hour. Then all is made well
again, and this must hold:

- every row that was acknowledged is in the database, once;
- the steps of the real job are all there, whatever became of its agent meanwhile;
- every capture is finished, or failed with a reason;
- every trace that was acknowledged is in the store, whole;
- the account of every run adds up to its device time.

    make chaos                                 # 100 schedules
    make chaos ARGS="--schedules 3 --seed 41"  # three of them
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from agent_rig import Rig
from parts import Part, clock_library, tightship, wait_until, with_clock
from services import find_postgres, free_port, postgres_answers, redis_answers, unprivileged
from sqlalchemy import func, select
from traffic import RUN, Traffic

from tightship_platform.captures.artifact_store import open_artifacts
from tightship_platform.database.engine import open_database
from tightship_platform.database.models import Capture, Run, RunAccount, Sample, StepStat, Trace
from tightship_platform.settings import load_settings

ROOT = Path(__file__).parents[2]
CHAOS_S = 20.0
SETTLE_S = 120.0
TOKEN = "a-token-for-all-of-the-chaos"
HOUR_S = 3600
FINAL = ("analyzed", "failed", "expired")


@dataclass(kw_only=True)
class Outcome:
    """One schedule."""

    seed: int
    events: list[str] = field(default_factory=list)
    rows: int = 0
    """Acknowledged samples of the simulated host."""
    steps: int = 0
    """Of the real job."""
    captures: dict[str, int] = field(default_factory=dict)
    """State → captures."""
    settled_s: float = 0.0
    """From the end of the trouble to the last capture and account."""
    wrong: list[str] = field(default_factory=list)


class Installation:
    """All parts, on one machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.home.mkdir(mode=0o700)
        self.port = free_port()
        self.database_port, self.broker_port = free_port(), free_port()
        self.runtime = Path(tempfile.mkdtemp(prefix="tsc-"))
        self.variables = {
            "TIGHTSHIP_HOME": str(self.home),
            "TIGHTSHIP_RUNTIME_DIR": str(self.runtime),
            "TIGHTSHIP_DATABASE_URL": f"postgresql+psycopg://tightship@127.0.0.1:{self.database_port}/postgres",
            "TIGHTSHIP_BROKER_URL": f"redis://127.0.0.1:{self.broker_port}/0",
            "TIGHTSHIP_TOKEN": TOKEN,
            "TIGHTSHIP_SERVER": f"http://127.0.0.1:{self.port}",
        }
        self.rig = Rig(variables=self.variables, port=self.port)
        self.parts = {part.name: part for part in self._make()}

    def _make(self) -> Iterator[Part]:
        base = {k: v for k, v in os.environ.items() if not k.startswith("TIGHTSHIP_")}
        yield self._postgres(base)
        redis = shutil.which("redis-server") or shutil.which("valkey-server")
        assert redis is not None, "no redis-server here"
        port = str(self.broker_port)
        command = [redis, "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        url = f"redis://127.0.0.1:{port}"
        yield Part(name="redis", command=command, environ=base, folder=self.folder, answers=lambda: redis_answers(url))
        ours = {
            "server": tightship("server", "--port", str(self.port)),
            "worker": tightship("worker", "--beat", "--concurrency", "1"),
            "agent": tightship("agent", "--interval", "500ms"),
        }
        for name, command in ours.items():
            environ = with_clock(base | self.variables, self.folder / f"{name}.clock")
            yield Part(name=name, command=command, environ=environ, folder=self.folder)

    def _postgres(self, base: dict[str, str]) -> Part:
        account = unprivileged() if os.getuid() == 0 else {}
        data = self.folder / "postgres"
        shutil.copytree(template(), data)
        if account:
            self.folder.chmod(0o711)
            for path in (data, *data.rglob("*")):
                os.chown(path, account["user"], account["group"])
        data.chmod(0o700)
        port = str(self.database_port)
        command = [str(find_postgres() / "postgres"), "-D", str(data), "-p", port, "-c", "listen_addresses=127.0.0.1"]
        command += ["-c", "unix_socket_directories=", "-c", "fsync=off", "-c", "shared_buffers=32MB"]
        url = f"postgresql+psycopg://tightship@127.0.0.1:{port}/postgres"
        return Part(
            name="postgres",
            command=command,
            environ=base,
            folder=self.folder,
            account=account,
            answers=lambda: postgres_answers(url),
        )

    def start(self) -> None:
        """All parts, in the order in which each finds what it needs."""
        for name in ("postgres", "redis"):
            self.parts[name].start()
            assert wait_until(self.parts[name].answers, 60), f"{name} does not start: {self.parts[name].log}"
        self.parts["server"].start()
        assert wait_until(lambda: bool(self.rig.get("/hosts") is not None), 60), "the server does not start"
        self.parts["worker"].start()
        self.parts["agent"].start()

    def heal(self) -> None:
        """Everything runs again, with true clocks and room on its disk."""
        for part in self.parts.values():
            part.send(signal.SIGCONT)
            if "full disk" in KINDS[part.name]:
                part.fill_disk(full=False)
                part.set_clock(0)
            self.restart(part)

    def restart(self, part: Part) -> None:
        """Start it again, where it does not run."""
        if part.process is None or part.process.poll() is not None:
            if part.name == "postgres":  # of a process that was killed; its number may be another's by now
                (self.folder / "postgres" / "postmaster.pid").unlink(missing_ok=True)
            part.start()

    def end(self) -> None:
        """End all parts."""
        for name in ("agent", "worker", "server", "redis", "postgres"):
            self.parts[name].end()
        self.rig.close()
        shutil.rmtree(self.runtime, ignore_errors=True)


_TEMPLATE: list[Path] = []


def template() -> Path:
    """An empty PostgreSQL cluster, made once."""
    if not _TEMPLATE:
        folder = Path(tempfile.mkdtemp(prefix="tightship-chaos-"))
        account = unprivileged() if os.getuid() == 0 else {}
        if account:
            os.chown(folder, account["user"], account["group"])
        command = [find_postgres() / "initdb", "-D", folder / "data", "-U", "tightship", "-A", "trust", "-E", "UTF8"]
        subprocess.run([*command, "--locale=C", "--no-sync"], check=True, capture_output=True, cwd=folder, **account)
        _TEMPLATE.append(folder / "data")
    return _TEMPLATE[0]


# ---- what goes wrong -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trouble:
    """What happens to one part, and how it ends."""

    part: str
    kind: str
    after_s: float
    for_s: float
    offset_s: int = 0

    def __str__(self) -> str:
        what = f"{self.kind} {self.offset_s:+d} s" if self.offset_s else self.kind
        return f"{self.after_s:.1f} s: {self.part} {what} for {self.for_s:.1f} s"


KINDS = {
    "agent": ("killed", "stopped", "full disk", "clock"),
    "server": ("killed", "stopped", "full disk", "clock"),
    "worker": ("killed", "stopped", "full disk", "clock"),
    "postgres": ("killed", "stopped", "restarted"),
    "redis": ("killed", "stopped"),
}


def draw(dice: random.Random) -> list[Trouble]:
    """Two to six of them, one after another or at once."""
    troubles = []
    for _ in range(dice.randint(2, 6)):
        part = dice.choice(list(KINDS))
        kind = dice.choice(KINDS[part])
        if kind == "clock" and clock_library() is None:
            kind = "stopped"
        offset = dice.choice([-HOUR_S, HOUR_S]) if kind == "clock" else 0
        troubles.append(Trouble(part, kind, dice.uniform(0, CHAOS_S - 4), dice.uniform(0.5, 6), offset))
    return sorted(troubles, key=lambda one: one.after_s)


def begin(installation: Installation, trouble: Trouble) -> None:
    """Let it happen."""
    part = installation.parts[trouble.part]
    match trouble.kind:
        case "killed":
            part.kill()
        case "restarted":
            part.end()
        case "stopped":
            part.send(signal.SIGSTOP)
        case "full disk":
            part.fill_disk(full=True)
        case "clock":
            part.set_clock(trouble.offset_s)


def over(installation: Installation, trouble: Trouble) -> None:
    """End it."""
    part = installation.parts[trouble.part]
    match trouble.kind:
        case "stopped":
            part.send(signal.SIGCONT)
        case "full disk":
            part.fill_disk(full=False)
        case "clock":
            part.set_clock(0)
    installation.restart(part)


def play(installation: Installation, troubles: list[Trouble]) -> None:
    """The whole schedule, in real time."""
    moments = [(one.after_s, True, one) for one in troubles]
    moments += [(one.after_s + one.for_s, False, one) for one in troubles]
    started = time.monotonic()
    for after_s, is_begin, trouble in sorted(moments, key=lambda one: one[0]):
        time.sleep(max(0.0, started + after_s - time.monotonic()))
        (begin if is_begin else over)(installation, trouble)
    time.sleep(max(0.0, started + CHAOS_S - time.monotonic()))


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
    dice, outcome = random.Random(seed), Outcome(seed=seed)
    folder = Path(tempfile.mkdtemp(prefix="tightship-chaos-"))
    installation = Installation(folder)
    try:
        installation.start()
        job = installation.rig.start_job(steps_per_s=5)
        with installation.rig.api as api:
            api.post("/runs", job.record)
        traffic = Traffic(f"http://127.0.0.1:{installation.port}", TOKEN, random.Random(seed))
        traffic.start()
        troubles = draw(dice)
        outcome.events = [str(one) for one in troubles]
        play(installation, troubles)
        installation.heal()
        begun = time.monotonic()
        counted = _steps(installation, job.key)
        wait_until(lambda: (_steps(installation, job.key) or 0) > (counted or 0), SETTLE_S / 2)
        [outcome.steps] = job.end()  # only now that its agent is back: it alone reads the counter
        if not traffic.finish(SETTLE_S / 2):
            outcome.wrong.append("the simulated host could not deliver what it had")
        ended = job.record | {"end_ns": time.time_ns(), "exit_code": 0}
        wait_until(lambda: _posted(installation, ended), 30)
        if not wait_until(lambda: settled(installation, job.key, outcome.steps), SETTLE_S):
            outcome.wrong.append(f"not settled after {SETTLE_S:.0f} s")
        outcome.settled_s = round(time.monotonic() - begun, 1)
        outcome.rows = len(traffic.acknowledged)
        outcome.wrong += traffic.refused[:3]
        check(installation, outcome, traffic, job.key)
    finally:
        installation.end()
        if outcome.wrong and keep is not None:
            shutil.copytree(folder, keep / str(seed), ignore=shutil.ignore_patterns("postgres"), dirs_exist_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
    return outcome


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


def main() -> int:
    """Runs, prints and writes; 1 where anything was lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedules", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="of the first schedule")
    given = parser.parse_args()
    out = ROOT / "benchmarks" / "out" / "chaos"
    out.mkdir(parents=True, exist_ok=True)
    outcomes = []
    for seed in range(given.seed, given.seed + given.schedules):
        outcome = schedule(seed, out)
        outcomes.append(outcome)
        state = "; ".join(outcome.wrong) or "well"
        lines = [
            f"{seed}: {len(outcome.events)} events, {outcome.rows} rows, {outcome.steps} steps, captures "
            f"{outcome.captures}, settled in {outcome.settled_s} s: {state}",
            *(f"    {event}" for event in outcome.events if outcome.wrong),
        ]
        sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()
    (out / "chaos.json").write_text(json.dumps([asdict(one) for one in outcomes], indent=1) + "\n")
    return int(any(one.wrong for one in outcomes))


if __name__ == "__main__":
    raise SystemExit(main())
