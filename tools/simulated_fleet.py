"""Fill a database with a simulated fleet, so that every page of the dashboard has something to show.

Every run is marked `simulated`; nothing here was measured. The shares are made up to look like a fleet that has one
of each problem, and the random numbers are seeded, so that two calls give the same fleet.

    TIGHTSHIP_HOME=/some/folder python tools/simulated_fleet.py && TIGHTSHIP_HOME=/some/folder tightship up
"""

from __future__ import annotations

import random
import sys
from dataclasses import asdict
from typing import Any

from simulated_findings import FINDINGS, OPPORTUNITIES, gap_evidence, summary
from sqlalchemy import Engine, insert
from sqlalchemy.orm import Session

from tightship_platform.database.engine import open_database, upgrade
from tightship_platform.database.models import (
    Allocation,
    Audit,
    Capture,
    Device,
    Finding,
    Host,
    HostSample,
    Opportunity,
    Rollup,
    Run,
    RunAccount,
    RunSample,
    Sample,
    StepStat,
    Trace,
    UnallocatedDay,
    Workflow,
)
from tightship_platform.settings import load_settings
from tightship_platform.units import NS_PER_MS, NS_PER_S, now_ns
from tightship_platform.wire import CaptureParams

MINUTE = 60 * NS_PER_S
HOUR = 60 * MINUTE
DAY = 24 * HOUR
GIB = 1024**3

LIVE_RUN = "11fe000000000001"
IDLE_RUN = "11fe000000000002"

# name: team, owner, devices per run, runs in 30 days, hours per run, shares of the account (the rest is productive)
WORKFLOWS: dict[str, tuple[str, str, int, int, tuple[float, float], dict[str, float]]] = {
    "vision-base": ("vision", "mara", 8, 16, (3, 11), {"input": 0.37, "startup": 0.03, "host": 0.05, "shutdown": 0.01}),
    "gpt-small": ("language", "ivo", 8, 14, (5, 12), {"input": 0.02, "startup": 0.02, "host": 0.04, "host_sync": 0.01}),
    "speech-conformer": ("speech", "lin", 4, 12, (4, 9), {"checkpoint": 0.21, "startup": 0.04, "communication": 0.07}),
    "demand-forecast": ("forecast", "ada", 1, 18, (1, 4), {"host": 0.46, "startup": 0.05, "input": 0.04}),
    "reco-ranker": ("ranking", "tom", 4, 12, (2, 6), {"host_sync": 0.24, "communication": 0.09, "startup": 0.03}),
    "vision-notebooks": ("vision", "mara", 2, 10, (8, 20), {"held_idle": 0.91, "startup": 0.02}),
}


def _account(device_ns: int, shares: dict[str, float], rng: random.Random) -> dict[str, int]:
    """Buckets that sum to `device_ns` exactly."""
    buckets = {name: int(device_ns * share * rng.uniform(0.95, 1.05)) for name, share in shares.items()}
    buckets["unexplained"] = int(device_ns * rng.uniform(0.002, 0.02))
    buckets["productive"] = device_ns - sum(buckets.values())
    return buckets


class Fleet:
    """Writes the simulated fleet through one session."""

    def __init__(self, session: Session, end_ns: int) -> None:
        self.session = session
        self.now = end_ns
        self.rng = random.Random(20)
        self.devices: list[Device] = []
        self.runs_of: dict[str, list[Run]] = {}

    def fill(self) -> None:
        """Everything, in the order that foreign keys ask for."""
        self._hosts()
        for name, (team, owner, *_rest) in WORKFLOWS.items():
            self.session.add(Workflow(name=name, team=team, owner=owner, labels={}))
        self.session.flush()
        self._finished_runs()
        self._unallocated()
        live = self._live_run()
        self._idle_run()
        self._captures(live)
        self._findings(live)
        self._opportunities()
        self._audit(live)
        self.session.commit()

    def _audit(self, live: Run) -> None:
        """Who did what: a few entries of each kind that a quiet day has."""
        for minutes, actor, action, target in (
            (4, "sso:mara@example.org", "trace.download", "7"),
            (9, "sso:mara@example.org", "capture.request", live.key),
            (11, "sso:mara@example.org", "session.begin", "sso:mara@example.org"),
            (35, "schedule", "capture.request", live.key),
            (58, "ivo", "opportunity.state", "2"),
            (70, "nobody", "token.refuse", "GET /api/v1/runs"),
            (190, "environment", "token.enrol", "node-04"),
            (192, "enrolment of node-04", "host.enrol", "node-04"),
            (400, "retention", "traces.remove", "31 files"),
            (1441, "environment", "token.create", "ivo"),
        ):
            entry = Audit(time_ns=self.now - minutes * MINUTE, actor=actor, action=action, target=target, detail={})
            self.session.add(entry)

    def _hosts(self) -> None:
        for index in range(1, 5):
            host = Host(
                name=f"node-{index:02}",
                first_seen_ns=self.now - 40 * DAY,
                last_seen_ns=self.now - 2 * NS_PER_S,
                agent_version="0.1.0",
                info={"cpus": 96, "memory_bytes": 1024 * GIB},
                sources=[{"name": "nvml", "state": "ok", "detail": ""}],
            )
            for slot in range(8):
                host.devices.append(
                    Device(
                        uuid=f"GPU-{index:02}{slot:02}", kind="gpu", name="NVIDIA H100 80GB HBM3", memory_bytes=80 * GIB
                    )
                )
            self.session.add(host)
            self.devices.extend(host.devices)
        self.session.flush()

    def _unallocated(self) -> None:
        """No run held one of the devices for some hours of each day; of the others nobody says so."""
        for day_ns in range(self.now // DAY * DAY - 30 * DAY, self.now // DAY * DAY, DAY):
            free_ns = (5 + day_ns // DAY % 5) * HOUR
            self.session.add(
                UnallocatedDay(
                    day_ns=day_ns,
                    since_ns=day_ns,
                    until_ns=day_ns + DAY,
                    device_ns=free_ns,
                    measured_ns=free_ns,
                    busy_ns=0,
                )
            )

    def _run(self, name: str, key: str, start_ns: int, end_ns: int | None, state: str, devices: list[Device]) -> Run:
        workflow = self.session.query(Workflow).filter_by(name=name).one()
        seen = end_ns or self.now
        run = Run(
            key=key,
            workflow_id=workflow.id,
            simulated=True,
            host_name=devices[0].host.name,
            user_name=workflow.owner,
            command=["torchrun", f"--nproc-per-node={len(devices)}", f"train_{name.replace('-', '_')}.py", "--amp"],
            labels={"queue": "main"},
            state=state,
            exit_code={"finished": 0, "failed": 137}.get(state),
            reason="Neither heartbeat nor end record for 10 min" if state == "lost" else None,
            start_ns=start_ns,
            end_ns=end_ns,
            last_seen_ns=seen,
            ranks=[
                {"rank": i, "pid": 4100 + i, "host": devices[0].host.name, "guard": True} for i in range(len(devices))
            ],
            steps=(seen - start_ns) // (420 * NS_PER_MS),
            accounted_ns=seen,
        )
        self.session.add(run)
        self.session.flush()
        for device in devices:
            self.session.add(Allocation(run_id=run.id, device_id=device.id, start_ns=start_ns, end_ns=end_ns))
        shares = WORKFLOWS[name][5]
        account = _account((seen - start_ns) * len(devices), shares, self.rng)
        if state == "failed":
            account["lost"] = account["productive"] // 2
            account["productive"] -= account["lost"]
        for bucket, value in account.items():
            self.session.add(RunAccount(run_id=run.id, bucket=bucket, device_ns=value))
        self.runs_of.setdefault(name, []).append(run)
        return run

    def _finished_runs(self) -> None:
        serial = 0
        for name, (_team, _owner, width, count, hours, shares) in WORKFLOWS.items():
            for index in range(count):
                serial += 1
                length = int(self.rng.uniform(*hours) * HOUR)
                start = self.now - int((index + self.rng.random()) * 30 * DAY / count) - length - HOUR
                first = self.rng.randrange(0, len(self.devices) - width + 1) // width * width
                devices = self.devices[first : first + width]
                state = "failed" if serial % 13 == 0 else "lost" if serial % 31 == 0 else "finished"
                run = self._run(name, f"51a0{serial:012x}", start, start + length, state, devices)
                if self.now - start < 7 * DAY:
                    self._rollups(run, devices, shares)

    def _rollups(self, run: Run, devices: list[Device], shares: dict[str, float]) -> None:
        end_ns = run.end_ns or self.now
        rows = []
        for device in devices:
            for time_ns in range(run.start_ns // MINUTE * MINUTE, end_ns, MINUTE):
                util = self._util(time_ns, run.start_ns, shares)
                rows.append(
                    {
                        "run_id": run.id,
                        "device_id": device.id,
                        "width_ns": MINUTE,
                        "time_ns": time_ns,
                        "samples": 60,
                        "util_frac": util,
                        "memory_used_bytes": int((30 + 20 * util) * GIB),
                        "power_w": 110 + 520 * util,
                    }
                )
        self.session.execute(insert(Rollup), rows)
        self._steps(run, shares, width_ns=MINUTE)

    def _util(self, time_ns: int, start_ns: int, shares: dict[str, float]) -> float:
        if time_ns - start_ns < 3 * MINUTE:
            return self.rng.uniform(0.0, 0.08)
        busy = 1.0 - sum(shares.values())
        return min(1.0, max(0.0, self.rng.gauss(busy, 0.04)))

    def _steps(self, run: Run, shares: dict[str, float], *, width_ns: int) -> None:
        first = run.start_ns + 3 * MINUTE
        rate = 2.4 * (1 - sum(shares.values()))
        rows = []
        for rank in range(len(run.ranks)):
            for time_ns in range(first // width_ns * width_ns, run.end_ns or self.now, width_ns):
                steps = max(0, round(self.rng.gauss(rate, 0.06) * width_ns / NS_PER_S))
                rows.append(
                    {
                        "run_id": run.id,
                        "rank": rank,
                        "time_ns": time_ns,
                        "width_ns": width_ns,
                        "steps": steps,
                        "first_step_ns": first,
                        "last_step_ns": time_ns + width_ns - 90 * NS_PER_MS,
                    }
                )
        self.session.execute(insert(StepStat), rows)

    def _live_run(self) -> Run:
        devices = self.devices[:8]
        run = self._run("vision-base", LIVE_RUN, self.now - 134 * MINUTE, None, "running", devices)
        run.labels = {"queue": "main", "lr": "3e-4"}
        run.external_id, run.git_commit, run.git_dirty = "481516", "5eed" * 10, True
        run.image, run.torch_version, run.cuda_version = "nvcr.io/nvidia/pytorch:25.06-py3", "2.8.0", "12.9"
        shares = WORKFLOWS["vision-base"][5]
        every = 10 * NS_PER_S
        device_rows: list[dict[str, Any]] = []
        run_rows: list[dict[str, Any]] = []
        for device in devices:
            for time_ns in range(run.start_ns // every * every, self.now, every):
                util = self._util(time_ns, run.start_ns, shares)
                memory = int((41 + 2 * util) * GIB)
                device_rows.append(
                    {
                        "time_ns": time_ns,
                        "device_id": device.id,
                        "util_frac": util,
                        "memory_used_bytes": memory,
                        "power_w": 110 + 520 * util,
                        "temperature_c": 38 + 30 * util,
                    }
                )
                run_rows.append(
                    {
                        "time_ns": time_ns,
                        "run_id": run.id,
                        "device_id": device.id,
                        "util_frac": util,
                        "memory_used_bytes": memory,
                        "cpu_cores": 1.1,
                    }
                )
        self.session.execute(insert(Sample), device_rows)
        self.session.execute(insert(RunSample), run_rows)
        self.session.execute(
            insert(HostSample),
            [
                {"time_ns": t, "host_id": devices[0].host_id, "cpu_frac": self.rng.uniform(0.1, 0.2)}
                for t in range(run.start_ns // every * every, self.now, every)
            ],
        )
        self._steps(run, shares, width_ns=every)
        return run

    def _idle_run(self) -> None:
        run = self._run("vision-notebooks", IDLE_RUN, self.now - 300 * MINUTE, None, "running", self.devices[8:10])
        run.steps = None
        run.command = ["jupyter", "lab", "--no-browser"]

    def _captures(self, run: Run) -> None:
        def stages(since_ns: int, *, until: str, pace_ns: int = 700 * NS_PER_MS) -> dict[str, int]:
            words = ["requested", "leased", "armed", "recording", "written", "uploaded", "analyzed"]
            return {word: since_ns + i * pace_ns for i, word in enumerate(words[: words.index(until) + 1])}

        params = asdict(CaptureParams(duration_ns=NS_PER_S))
        expected = [{"rank": rank, "pid": 4100 + rank, "host": "node-01"} for rank in range(8)]
        for key, ago, state, reason in (
            ("ca90000000000001", 70 * MINUTE, "analyzed", None),
            ("ca90000000000002", 40 * MINUTE, "failed", "run ended"),
            ("ca90000000000003", 25 * MINUTE, "expired", "No agent leased it within 10 min"),
            ("ca90000000000004", 3 * NS_PER_S, "recording", None),
        ):
            since = self.now - ago
            until = {"failed": "armed", "expired": "requested"}.get(state, state)
            entered = stages(since, until=until)
            if until != state:
                entered[state] = since + 5 * NS_PER_S
            capture = Capture(
                key=key,
                run_id=run.id,
                requested_by="dashboard" if state == "analyzed" else "cli",
                requested_ns=since,
                expires_ns=since + 10 * MINUTE,
                params=params,
                state=state,
                reason=reason,
                stages=entered,
                expected=expected if state != "expired" else [],
            )
            self.session.add(capture)
            self.session.flush()
            if state == "analyzed":
                for rank in range(8):
                    self.session.add(
                        Trace(
                            run_id=run.id,
                            capture_id=capture.id,
                            rank=rank,
                            pid=4100 + rank,
                            host_name="node-01",
                            url=f"{run.key}/{key}_{rank}.json.gz",
                            sha256=f"{rank:064x}",
                            bytes=1_900_000 + 31_000 * rank,
                            created_ns=since + 4 * NS_PER_S,
                            analyzed_ns=since + 6 * NS_PER_S,
                            summary=summary(),
                        )
                    )
        self.session.flush()

    def _findings(self, live: Run) -> None:
        trace = self.session.query(Trace).filter_by(rank=0).first()
        assert trace is not None
        at = trace.created_ns
        for rule, title, place, fix, share, value, cause in FINDINGS:
            self.session.add(
                Finding(
                    rule=rule,
                    run_id=live.id,
                    trace_id=trace.id,
                    title=title,
                    place=place,
                    fix=fix,
                    value=value,
                    low=int(value * 0.9),
                    high=int(value * 1.07),
                    method="simulated",
                    unit="ns/step",
                    share_frac=share,
                    evidence=gap_evidence(at, value, cause, place),
                    created_ns=at + 2 * NS_PER_S,
                )
            )
        idle = self.session.query(Run).filter_by(key=IDLE_RUN).one()
        held = 2 * (self.now - idle.start_ns)
        self.session.add(
            Finding(
                rule="device-held-idle",
                run_id=idle.id,
                title="2 devices are held and nothing runs on them",
                place="node-02, 2 × NVIDIA H100 80GB HBM3",
                fix="Stop the job when nobody uses it, or start it without devices and attach one per cell.",
                value=int(held * 0.91),
                low=int(held * 0.88),
                high=int(held * 0.91),
                method="bound",
                unit="ns",
                share_frac=0.91,
                evidence=[
                    {"kind": "fact", "text": "Stretches: 3, devices: 2", "value": 3, "unit": "stretches"},
                    {"kind": "fact", "text": "The longest took 43.3 min", "value": 2.6e12, "unit": "ns"},
                ],
                created_ns=self.now - 5 * MINUTE,
            )
        )
        self.session.flush()

    def _opportunities(self) -> None:
        findings = self.session.query(Finding).all()
        rows = []
        for name, rules, title, fix, share, method in OPPORTUNITIES:
            workflow = self.session.query(Workflow).filter_by(name=name).one()
            recent = [r for r in self.runs_of[name] if self.now - r.start_ns < 7 * DAY] or self.runs_of[name][-1:]
            device_ns = sum(((r.end_ns or self.now) - r.start_ns) * len(r.allocations or r.ranks) for r in recent)
            rows.append((int(device_ns * share), workflow, rules, title, fix, device_ns, method))
        rows.sort(key=lambda row: -row[0])
        for position, (value, workflow, rules, title, fix, device_ns, method) in enumerate(rows, start=1):
            ids = [f.id for f in findings if f.rule in rules and f.run.workflow_id == workflow.id]
            self.session.add(
                Opportunity(
                    workflow_id=workflow.id,
                    key="+".join(rules),
                    title=title,
                    rules=rules,
                    findings=ids,
                    fix=fix,
                    device_ns=device_ns,
                    value=value,
                    low=int(value * 0.9),
                    high=int(value * 1.08),
                    method=method,
                    position=position,
                    updated_ns=self.now - 2 * MINUTE,
                )
            )


def fill(engine: Engine, *, end_ns: int | None = None) -> None:
    """Write the simulated fleet into an empty database that has its tables; its live runs end 'now'."""
    with Session(engine) as session:
        Fleet(session, end_ns or now_ns()).fill()


def main() -> int:
    """Bring the database of the settings in force up to date and fill it."""
    settings = load_settings()
    upgrade(settings)
    with open_database(settings) as database:
        fill(database.engine)
        sys.stdout.write(f"Filled {database.shown_url} with a simulated fleet\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
