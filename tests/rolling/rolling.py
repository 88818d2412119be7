"""A rolling upgrade under load: servers, worker and agent of an older release give way to those of today.

Two servers of the older release share a PostgreSQL with its worker; hosts send rows to both and remember what was
acknowledged, one of them rows that are half an hour old; somebody asks for pages five times a second. A server of today
is started beside them and moves the schema; then worker, servers and agent are replaced one by one. This must hold:

- every row that was acknowledged is in the database, once, and in the means per minute;
- the steps of a real job are all there, whichever agent counted them;
- no page is away for longer than 5 s, where a client asks the next address if one does not answer;
- every capture is finished, and its trace is what was sent;
- nothing of today's release wrote a traceback.

    make rolling
    make rolling ARGS="--old 0b2b0b5"
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
sys.path.insert(0, str(Path(__file__).parents[1] / "chaos"))

import release
from agent_rig import Rig
from fleet import Host, Reader, drawn
from listener import Listener
from parts import Part, wait_until
from services import free_port, postgres_server, redis_server
from sqlalchemy import func, select
from traffic import RUN, Traffic

from tightship_platform.captures.artifact_store import open_artifacts
from tightship_platform.client import API
from tightship_platform.database.engine import open_database
from tightship_platform.database.models import Capture, Rollup, Run, RunAccount, Sample, StepStat, Trace
from tightship_platform.samples.rollups import MINUTE_NS
from tightship_platform.settings import load_settings
from tightship_platform.units import NS_PER_S

OLD = "0b2b0b5"
"""The last release whose servers do not know [Note: expand, then contract] of schema.py."""
TOKEN = "a-token-for-all-of-the-upgrade"
HOSTS = 10
LATE_NS = 30 * 60 * NS_PER_S
STEADY_S = 8.0
AWAY_S = 5.0
START_S = 240.0
"""A machine may be busy with other things."""
SETTLE_S = 420.0
"""Means of rows that came late are made every few minutes."""
FINAL = ("analyzed", "failed", "expired")


class Upgrade:
    """An installation on one machine, and what happens to it."""

    def __init__(self, old: release.Release, new: release.Release, scratch: Path, urls: tuple[str, str]) -> None:
        self.old, self.new, self.scratch = old, new, scratch
        self.ports = {name: free_port() for name in ("a", "b", "c")}
        self.servers: list[str] = []
        self.listener = Listener()
        home = scratch / "home"
        home.mkdir(mode=0o700)
        self.runtime = Path(tempfile.mkdtemp(prefix="tsr-"))
        self.variables = {
            "TIGHTSHIP_HOME": str(home),
            "TIGHTSHIP_RUNTIME_DIR": str(self.runtime),
            "TIGHTSHIP_AGENT_RUNS": "launched",
            "TIGHTSHIP_DATABASE_URL": urls[0],
            "TIGHTSHIP_BROKER_URL": urls[1],
            "TIGHTSHIP_TOKEN": TOKEN,
            "TIGHTSHIP_SERVER": self.listener.url,
        }
        self.settings = load_settings(self.variables)
        self.rig = Rig(variables=self.variables, port=self.listener.port)
        self.parts: list[Part] = []
        self.events: list[str] = []
        self.started = time.monotonic()

    def say(self, what: str) -> None:
        """What happens now."""
        self.events.append(f"{time.monotonic() - self.started:5.1f} s: {what}")
        sys.stdout.write(self.events[-1] + "\n")
        sys.stdout.flush()

    def start(self, of: release.Release, name: str, *arguments: str) -> Part:
        """Start a part of a release."""
        environ = of.environ(self.variables)
        part = Part(name=f"{of.name}-{name}", command=of.command(*arguments), environ=environ, folder=self.scratch)
        part.start()
        self.parts.append(part)
        return part

    def start_server(self, of: release.Release, name: str) -> Part:
        """Start a server, and tell all clients of it once it answers."""
        port = self.ports[name]
        part = self.start(of, f"server-{name}", "server", "--port", str(port))
        url = f"http://127.0.0.1:{port}"
        assert wait_until(lambda: _answers(url), START_S), f"{part.name} does not start: {part.log}"
        if url not in self.servers:
            self.servers.append(url)
            self.listener.ports.append(port)
        self.say(f"server {name} of {of.name} answers")
        return part

    def replace_server(self, old: Part, name: str) -> Part:
        """As a service manager does: clients still know its address while it is away."""
        old.end()
        self.say(f"server {name} of {self.old.name} ended")
        return self.start_server(self.new, name)

    def end(self) -> None:
        """End all parts."""
        for part in reversed(self.parts):
            part.end()
        self.rig.close()
        self.listener.close()
        shutil.rmtree(self.runtime, ignore_errors=True)


def _answers(url: str) -> bool:
    import httpx

    try:
        return httpx.get(f"{url}{API}/health", timeout=5, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def upgrade(going: Upgrade) -> list[str]:
    """The whole of it; returns what is wrong."""
    old, new = going.old, going.new
    servers = {name: going.start_server(old, name) for name in ("a", "b")}
    worker = going.start(old, "worker", "worker", "--beat", "--concurrency", "1")
    agent = going.start(old, "agent", "agent", "--interval", "500ms")
    job = going.rig.start_job(steps_per_s=5)
    with going.rig.api as api:
        api.post("/runs", job.record)
    hosts = [
        Host(name=f"sim-{number}", run=f"{number:x}".rjust(16, "a"), token=TOKEN, servers=going.servers)
        for number in range(HOSTS)
    ]
    late = Host(name="late", run="1a7e" * 4, token=TOKEN, servers=going.servers[1:2], late_ns=LATE_NS)
    hosts.append(late)
    traffic = Traffic(going.listener.url, TOKEN, random.Random(1))
    pages = ["/", "/runs", f"/runs/{job.key}"]
    readers = [Reader(page=page, token=TOKEN, servers=going.servers) for page in [*pages, f"{API}/health"]]
    readers += [Reader(page=f"{page} drawn", body=drawn(page), token=TOKEN, servers=going.servers) for page in pages]
    for one in [*hosts, traffic, *readers]:
        one.start()
    time.sleep(STEADY_S)
    servers["c"] = going.start_server(new, "c")
    time.sleep(STEADY_S)
    worker.end()
    going.start(new, "worker", "worker", "--beat", "--concurrency", "1")
    going.say("worker replaced")
    time.sleep(4 * STEADY_S)  # its first rollups are made while a server of the older release takes late rows
    assert late.finish(30), "the host that was late could not deliver what it had"
    going.say("the run of the host that was late ended, by a server of the older release")
    for name in ("a", "b"):
        servers[name] = going.replace_server(servers[name], name)
        time.sleep(STEADY_S)
    agent.end()
    going.start(new, "agent", "agent", "--interval", "500ms")
    going.say("agent replaced")
    going.listener.ports.remove(going.ports["c"])
    going.servers.remove(f"http://127.0.0.1:{going.ports['c']}")
    servers["c"].end()
    going.say("server c ended: two are left")
    time.sleep(STEADY_S)
    for reader in readers:
        reader.finish()
    counted = _steps(going, job.key)
    wait_until(lambda: (_steps(going, job.key) or 0) > (counted or 0), 30)
    [steps] = job.end()
    wrong = [f"{host.name} could not deliver what it had" for host in hosts if not host.finish(30)]
    if not traffic.finish(60):
        wrong.append("the host with captures could not deliver what it had")
    with going.rig.api as api:
        api.post("/runs", job.record | {"end_ns": time.time_ns(), "exit_code": 0})
    going.say(f"{sum(len(host.acknowledged) for host in hosts) + len(traffic.acknowledged)} batches acknowledged")
    for reader in readers:
        going.say(
            f"{reader.page}: asked {reader.asked} times, {reader.turned_away} answers by the next server, "
            f"{reader.worst_s:.1f} s between two answers at most (at {reader.worst_at - going.started:.0f} s)"
        )
        if reader.worst_s > AWAY_S:
            wrong.append(f"{reader.page} was away for {reader.worst_s:.1f} s")
    for host in (*hosts, traffic):
        wrong += host.refused[:2]
    if not wait_until(lambda: not unsettled(going, hosts, job.key), SETTLE_S):
        wrong += unsettled(going, hosts, job.key)
    going.say("settled")
    return wrong + faults(going, hosts, traffic, job.key, steps)


def _steps(going: Upgrade, job: str) -> int | None:
    answer = going.rig.get(f"/runs/{job}")
    return None if answer is None else int(answer["steps"])


def unsettled(going: Upgrade, hosts: list[Host], job: str) -> list[str]:
    """What is still on its way: captures, accounts, means per minute."""
    left = []
    with open_database(going.settings) as database, database.session() as session:
        states = session.execute(select(Capture.state, func.count()).group_by(Capture.state))
        left += [f"{count} captures are {state}" for state, count in states if state not in FINAL]
        for key, state, accounted in session.execute(select(Run.key, Run.state, Run.accounted_ns)):
            if state != "finished" or accounted is None:
                left.append(f"run {key} is {state}, accounted for: {accounted is not None}")
        for host in hosts:
            found = _rolled_up(session, host)
            if found != len(host.acknowledged):
                left.append(f"{host.name}: {found} of {len(host.acknowledged)} samples are in the means per minute")
    return left


def _rolled_up(session: Any, host: Host) -> int:
    of_run = select(func.sum(Rollup.samples)).join(Run, Run.id == Rollup.run_id)
    return session.scalar(of_run.where(Run.key == host.run, Rollup.width_ns == MINUTE_NS)) or 0


def faults(going: Upgrade, hosts: list[Host], traffic: Traffic, job: str, steps: int) -> list[str]:
    """Compare what is there with what was acknowledged."""
    wrong = []
    artifacts = open_artifacts(going.settings)
    with open_database(going.settings) as database, database.session() as session:

        def counted(run: str) -> int:
            statement = select(func.sum(StepStat.steps)).join(Run, Run.id == StepStat.run_id).where(Run.key == run)
            return session.scalar(statement) or 0

        for name, run, times in [(h.name, h.run, h.acknowledged) for h in hosts] + [
            ("captures", RUN, traffic.acknowledged)
        ]:
            stored = session.scalars(select(Sample.time_ns).where(Sample.time_ns.in_(times))).all()
            if missing := times - set(stored):
                wrong.append(f"{name}: {len(missing)} of {len(times)} acknowledged samples are missing")
            if counted(run) != len(times):
                wrong.append(f"{name}: {counted(run)} steps for {len(times)} acknowledged buckets of one step")
        if counted(job) != steps:
            wrong.append(f"{counted(job)} of {steps} steps of the job arrived")
        states: dict[str, int] = {}
        for capture in session.scalars(select(Capture)):
            states[capture.state] = states.get(capture.state, 0) + 1
            if capture.state != "analyzed" and not capture.reason:
                wrong.append(f"capture {capture.key} is {capture.state} without a reason")
            if digest := traffic.captures.get(capture.key):
                trace = session.scalars(select(Trace).where(Trace.capture_id == capture.id)).one()
                with artifacts.open(trace.url) as file:
                    if hashlib.sha256(file.read()).hexdigest() != digest:
                        wrong.append(f"capture {capture.key}: its trace is not what was sent")
        going.say(f"captures: {states}; {steps} steps of the job")
        for run in session.scalars(select(Run)):
            of_run = select(func.sum(RunAccount.device_ns)).where(RunAccount.run_id == run.id)
            if (session.scalar(of_run) or 0) != going.rig.get(f"/runs/{run.key}")["device_ns"]:
                wrong.append(f"run {run.key}: its account does not add up")
    for part in going.parts:
        log = part.log.read_text(errors="replace")
        if "Traceback" in log and part.name.startswith(going.new.name):
            wrong.append(f"{part.name} wrote a traceback: {log[log.index('Traceback') :][-400:]!r}")
        elif "Traceback" in log:
            going.say(f"{part.name} wrote {log.count('Traceback')} tracebacks")
    return wrong


def main() -> int:
    """Runs and prints; 1 where anything was lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", default=OLD, help="commit of the release to upgrade from")
    parser.add_argument("--keep", type=Path, help="folder for logs")
    given = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="tightship-rolling-"))
    out = release.ROOT / "benchmarks" / "out"
    try:
        old, new = release.of_commit(given.old, scratch), release.of_today(scratch)
        with ExitStack() as stack:
            urls = stack.enter_context(postgres_server()), stack.enter_context(redis_server()) + "/0"
            going = Upgrade(old, new, scratch, urls)
            try:
                wrong = upgrade(going)
            finally:
                going.end()
        out.mkdir(parents=True, exist_ok=True)
        (out / "rolling.json").write_text(json.dumps({"events": going.events, "wrong": wrong}, indent=1) + "\n")
    finally:
        if given.keep:
            shutil.copytree(scratch, given.keep, ignore=shutil.ignore_patterns("old", "home"), dirs_exist_ok=True)
        shutil.rmtree(scratch, ignore_errors=True)
    sys.stdout.write("\n".join(wrong) + "\n" if wrong else "nothing was lost\n")
    return int(bool(wrong))


if __name__ == "__main__":
    os.umask(0o022)
    raise SystemExit(main())
