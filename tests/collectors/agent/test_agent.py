"""The agent as a process, against a real server, with small real jobs."""

from __future__ import annotations

import json
import os
import pwd
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from agent_rig import Rig, stop
from metric_text import figures_of
from services import free_port
from waiting import wait_for

from tightship_collectors.agent import agent as agents
from tightship_collectors.agent.agent import Agent
from tightship_collectors.jobs.attribution import LocalRun
from tightship_collectors.jobs.live_run import HostRun
from tightship_collectors.jobs.run_records import read_run_record
from tightship_platform import __version__
from tightship_platform.settings import load_settings
from tightship_platform.units import NS_PER_S


@pytest.fixture
def rig(make_platform_env: Callable[..., Any]) -> Iterator[Rig]:
    made = Rig(variables=make_platform_env().variables)
    yield made
    made.close()


def steps_of(rig: Rig, key: str) -> int | None:
    run = rig.get(f"/runs/{key}")
    return run["steps"] if run else None


def waiting(rig: Rig) -> list[Path]:
    """What its agent has not delivered yet."""
    queue = rig.home / "spool" / "queue"
    return sorted(path for path in queue.iterdir() if path.suffix != ".new") if queue.is_dir() else []


def looks_in(rig: Rig, entries: list[Path]) -> set[int]:
    """Times of the host's samples in batches that wait."""
    batches = [json.loads(path.read_bytes().partition(b"\n")[2]) for path in entries if path.suffix == ".batches"]
    return {sample["time_ns"] for batch in batches for sample in batch["host_samples"]}


def test_a_run_from_its_start_to_its_end(rig: Rig) -> None:
    rig.start_server()
    agent = rig.start_agent()
    wait_for(lambda: rig.get("/hosts"))
    job = rig.start_job(ranks=2, record={"team": "vision", "command": ["python", "x.py"]})
    run = wait_for(lambda: (r := rig.get(f"/runs/{job.key}")) and len(r["ranks"]) == 2 and r["devices"] and r)
    # The launcher reported to nobody: the agent passed its record on.
    assert (run["workflow"], run["team"], run["host"]) == (f"small-{job.key[:4]}", "vision", os.uname().nodename)
    assert [(r["rank"], r["pid"], r["guard"]) for r in run["ranks"]] == [
        (n, job.processes[n].pid, True) for n in range(2)
    ]
    assert [d["uuid"] for d in run["devices"]] == ["cpu"]
    wait_for(lambda: len(rig.get(f"/runs/{job.key}/timeline")["run_samples"][0]["time_ns"]) >= 3)
    steps = rig.end_job(job)
    wait_for(lambda: steps_of(rig, job.key) == max(steps))
    wait_for(lambda: job.key not in str(rig.get("/hosts")))
    timeline = rig.get(f"/runs/{job.key}/timeline")
    assert [series["device"] for series in timeline["run_samples"]] == ["cpu"]
    (host,) = rig.get("/hosts")
    assert {s["name"]: s["state"] for s in host["sources"]}["attribution"] == "ok"
    assert host["info"]["agent_pid"] == agent.pid
    assert stop(agent) == 0
    assert waiting(rig) == [] or "Kept in the spool" in rig.log()


def test_every_step_counts_once_however_the_agent_dies(rig: Rig) -> None:
    """kill -9 at random moments; the job neither notices nor loses a step in the books."""
    rig.start_server()
    job = rig.start_job(steps_per_s=100)
    agent = rig.start_agent("--interval", "200ms")
    for wait_s in (6.3, 1.1, 2.7):
        wait_for(lambda: steps_of(rig, job.key))
        time.sleep(wait_s)
        agent.kill()
        agent.wait()
        assert job.processes[0].poll() is None
        agent = rig.start_agent("--interval", "200ms")
    alive = wait_for(lambda: (h := rig.get("/hosts")) and h[0]["info"]["agent_pid"] == agent.pid and h)
    assert alive
    time.sleep(1)
    (steps,) = rig.end_job(job)
    wait_for(lambda: (steps_of(rig, job.key) or 0) >= steps)
    stop(agent)
    assert steps_of(rig, job.key) == steps
    from tightship_platform.database.engine import open_database
    from tightship_platform.database.models import Allocation, StepStat

    with open_database(load_settings(rig.environ)) as database, database.session() as session:
        assert sum(row.steps for row in session.query(StepStat)) == steps
        (held,) = session.query(Allocation).all()
        assert held.end_ns is not None


def test_records_have_no_gap_while_the_server_is_away(rig: Rig) -> None:
    agent = rig.start_agent()  # nobody is there yet: no error
    wait_for(lambda: waiting(rig))
    kept = looks_in(rig, waiting(rig))
    server = rig.start_server()
    wait_for(lambda: rig.get("/hosts"))
    job = rig.start_job()
    wait_for(lambda: steps_of(rig, job.key))
    server.kill()
    server.wait()
    before = waiting(rig)
    wait_for(lambda: len(waiting(rig)) >= len(before) + 2)
    kept |= looks_in(rig, waiting(rig))
    assert len(kept) > 2
    rig.start_server()
    (steps,) = rig.end_job(job)
    wait_for(lambda: steps_of(rig, job.key) == steps)
    assert stop(agent) == 0
    assert "Traceback" not in rig.log()
    from tightship_platform.database.engine import open_database
    from tightship_platform.database.models import HostSample

    with open_database(load_settings(rig.environ)) as database, database.session() as session:
        assert kept <= {row.time_ns for row in session.query(HostSample)}
    log = rig.log()
    assert log.count("records wait in the spool") == 2
    assert log.count("The server answers again") == 2


def test_what_the_spool_holds_at_the_end_is_delivered_by_the_next_agent(rig: Rig) -> None:
    agent = rig.start_agent()
    wait_for(lambda: waiting(rig))
    job = rig.start_job()
    wait_for(lambda: any(path.suffix == ".runs" for path in waiting(rig)))
    assert stop(agent) == 0
    assert job.processes[0].poll() is None
    assert "Kept in the spool" in rig.log()
    (steps,) = job.end()
    rig.start_server()
    done = rig.run("agent", "--once", "--interval", "100ms")
    assert (done.returncode, done.stdout) == (0, "")
    run = rig.get(f"/runs/{job.key}")
    assert run["workflow"] == f"small-{job.key[:4]}"
    assert 0 <= run["steps"] <= steps
    assert waiting(rig) == []


def test_a_second_agent_is_one_clear_line(rig: Rig, tmp_path: Path) -> None:
    agent = rig.start_agent()
    wait_for((rig.home / "liveness" / "agent").exists)
    same_home = rig.run("agent")
    assert same_home.returncode == 2
    assert re.fullmatch(
        rf"tightship: `tightship agent` already runs in \S+ \(pid {agent.pid}\); .*\n", same_home.stderr
    )
    same_runs = rig.run("agent", TIGHTSHIP_HOME=str(tmp_path / "other"))
    assert same_runs.returncode == 2
    assert "TIGHTSHIP_RUNTIME_DIR" in same_runs.stderr
    assert same_runs.stderr.count("\n") == 1
    assert agent.poll() is None


@pytest.mark.parametrize(
    ("arguments", "spoil", "why"),
    [
        (["--interval", "1ms"], None, "expected 100ms to 60s"),
        (["--interval", "often"], None, "Duration is 'often'"),
        (
            [],
            lambda home, runtime: (home / "tightship.toml").write_text('host_name = "a\\nb"'),
            "TIGHTSHIP_HOST_NAME is",
        ),
        ([], lambda home, runtime: runtime.symlink_to("/tmp"), "TIGHTSHIP_RUNTIME_DIR is"),
        ([], lambda home, runtime: runtime.write_text(""), "TIGHTSHIP_RUNTIME_DIR is"),
        ([], lambda home, runtime: (runtime.mkdir(), runtime.chmod(0o777)), "mode drwxrwxrwx"),
        ([], lambda home, runtime: (home / "spool").write_text(""), "cannot use"),
    ],
)
def test_what_cannot_work_is_one_clear_line(
    arguments: list[str], spoil: Callable[[Path, Path], object] | None, why: str, rig: Rig
) -> None:
    if spoil is not None:
        spoil(rig.home, Path(rig.variables["TIGHTSHIP_RUNTIME_DIR"]))
    done = rig.run("agent", *arguments)
    assert done.returncode == 2
    assert why in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1
    runtime = Path(rig.variables["TIGHTSHIP_RUNTIME_DIR"])
    if not runtime.is_dir() or runtime.is_symlink():
        runtime.unlink(missing_ok=True)


# ---- one look --------------------------------------------------------------------------------------------------------


def test_missed_looks_are_skipped_and_the_rhythm_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000 * NS_PER_S]
    took = iter([0.1, 0.2, 2.5, 0.1, 1.0, 0.1, 0.1])
    looks: list[float] = []
    ended = threading.Event()

    class Timed(Agent):
        def tick(self) -> None:
            looks.append(now[0] / NS_PER_S - 1000)
            lasted = next(took, None)
            if lasted is None:
                ended.set()
            else:
                now[0] += int(lasted * NS_PER_S)

    class Waiting:
        def is_set(self) -> bool:
            return ended.is_set()

        def wait(self, seconds: float) -> None:
            now[0] += round(seconds * NS_PER_S)

    monkeypatch.setattr(agents.time, "monotonic_ns", lambda: now[0])
    Timed(load_settings()).run(Waiting())  # type: ignore[arg-type]
    assert looks == pytest.approx([0, 1, 2, 4.5, 5, 6, 7, 8])


def test_a_look_that_fails_does_not_end_the_agent(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stop_now = threading.Event()
    looks: list[int] = []

    class Failing(Agent):
        def tick(self) -> None:
            looks.append(1)
            if len(looks) == 5:
                stop_now.set()
            if len(looks) < 4:
                raise RuntimeError("a defect")

    Failing(load_settings(), interval_ns=10_000_000).run(stop_now)
    assert len(looks) == 5
    assert caplog.text.count("Traceback") == 1


def test_a_heartbeat_goes_out_at_once_when_runs_or_ranks_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Captures wait for it. Steps alone are no reason."""
    monkeypatch.setattr(agents, "FLUSH_S", 1e9)
    rig = Rig(variables={k: v for k, v in os.environ.items() if k.startswith("TIGHTSHIP_")})
    rig.home.mkdir(parents=True)
    agent = Agent(load_settings())
    sent: list[Any] = []
    monkeypatch.setattr(agent._sender, "offer", sent.append)

    def look() -> list[Any]:
        sent.clear()
        agent.tick()
        return list(sent)

    try:
        (first,) = look()
        assert first.runs == []
        assert look() == []
        job = rig.start_job(ranks=2)
        (seen,) = look()
        assert [(r.rank, r.pid) for r in seen.runs[0].ranks] == [(n, job.processes[n].pid) for n in range(2)]
        assert seen.runs[0].devices == ["cpu"]
        time.sleep(0.1)  # it makes steps
        assert look() == []
        job.processes[1].kill()
        job.processes[1].wait()
        (fewer,) = look()
        assert len(fewer.runs[0].ranks) == 1
        job.processes[0].kill()
        job.processes[0].wait()
        (gone,) = look()
        assert gone.runs == []
        agent._sender.start()
        agent.close()
    finally:
        rig.close()


@pytest.mark.parametrize(
    "content",
    [
        b"{ half",
        b"[]",
        b'{"run": "ffffffffffffffff"}',
        b'{"run": KEY, "nonsense": 1}',
        b'{"run": KEY, "labels": {"a": {"b": "c"}}}',
        b'{"run": KEY, "command": ' + b"[" * 990 + b"]" * 990 + b"}",
        b'{"run": KEY, "command": ' + b"[" * 100_000,
        b'{"run": KEY, "workflow": "' + b"x" * 2_000_000 + b'"}',
    ],
)
def test_a_record_that_is_none_stays_where_it_is(content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    settings = load_settings()
    run_dir = settings.runtime_dir / ("a" * 16)
    run_dir.mkdir(mode=0o700, parents=True)
    (run_dir / "run.json").write_bytes(content.replace(b"KEY", b'"' + b"a" * 16 + b'"'))
    view = HostRun(run="a" * 16, run_dir=run_dir, uid=os.getuid(), pids=(), ranks=(), start_ns=1)
    assert read_run_record(LocalRun(view=view, processes=(), external_id="7"), "h1") is None
    assert "is not used" in caplog.text


def test_the_record_of_a_run_says_what_the_host_knows_whatever_stands_in_it() -> None:
    settings = load_settings()
    run_dir = settings.runtime_dir / ("a" * 16)
    run_dir.mkdir(mode=0o700, parents=True)
    known = {"host": "h1", "user": pwd.getpwuid(os.getuid()).pw_name, "uid": os.getuid()}
    record = {"run": "a" * 16, "workflow": "w", "labels": {"k": "v"}, "command": ["x"], "end_ns": None}
    view = HostRun(run="a" * 16, run_dir=run_dir, uid=os.getuid(), pids=(), ranks=(), start_ns=1)
    local = LocalRun(view=view, processes=(), external_id="7")
    assert read_run_record(local, "h1") is None  # not there yet
    (run_dir / "run.json").write_text(json.dumps(record))
    assert read_run_record(local, "h1") == record | known | {"external_id": "7"}
    forged = {"external_id": "8", "host": "node-a", "user": "alice", "uid": 4242}
    (run_dir / "run.json").write_text(json.dumps(record | forged))
    assert read_run_record(local, "h1") == record | known | {"external_id": "8"}
    (run_dir / "run.json").unlink()
    (run_dir / "run.json").symlink_to("/etc/passwd")
    assert read_run_record(local, "h1") is None


def test_a_large_batch_is_split_without_loss() -> None:
    from tightship_collectors.agent.agent import encode, split_batch
    from tightship_platform.wire import AllocationRecord, Batch, DeviceRecord, DeviceSample, StepRecord

    batch = Batch(
        host="h",
        devices=[DeviceRecord(uuid="cpu", kind="cpu", name="x")],
        samples=[DeviceSample(time_ns=n, device="cpu") for n in range(1001)],
        steps=[StepRecord(run="r", rank=0, time_ns=n, width_ns=1, steps=1) for n in range(7)],
        allocations=[AllocationRecord(run="r", device="cpu", start_ns=1)],
    )
    parts = split_batch(batch, 100)
    assert [len(p.samples) + len(p.steps) + len(p.allocations) for p in parts] == [100] * 10 + [9]
    assert [s.time_ns for p in parts for s in p.samples] == list(range(1001))
    assert all(p.devices == batch.devices for p in parts)
    assert split_batch(Batch(host="h"), 100) == []
    decoded = json.loads(encode(parts[0]))
    assert decoded["allocations"] == [{"run": "r", "device": "cpu", "start_ns": 1}]  # null is left out


def test_gpus_and_slices_reach_the_batch_with_their_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole way from NVML's process list to allocations, with a real process under NVML's pid."""
    from nvml_recording import RecordedNvml

    from tightship_collectors.sources.devices import HostDevices
    from tightship_collectors.sources.nvml import NvmlSource

    rig = Rig(variables={k: v for k, v in os.environ.items() if k.startswith("TIGHTSHIP_")})
    rig.home.mkdir(parents=True)
    job = rig.start_job(record={"external_id": None})
    try:
        nvml = RecordedNvml("h100")
        nvml.gpus[0]["nvmlDeviceGetComputeRunningProcesses"] = [
            {"pid": job.processes[0].pid, "usedGpuMemory": 41_000_000_000},
            {"pid": 1, "usedGpuMemory": 1},
        ]
        nvml.gpus[0]["nvmlDeviceGetProcessUtilization"] = [{"pid": job.processes[0].pid, "timeStamp": 1, "smUtil": 80}]
        devices = HostDevices(accelerators=NvmlSource(nvml))
        agent = Agent(load_settings(), devices=devices)
        agent.tick()
        agent.tick()
        agent._flush()
        bodies = [json.loads(f.read_bytes().split(b"\n", 1)[1]) for f in sorted((rig.home / "spool/queue").iterdir())]
        record, *batches = bodies
        assert (record["run"], record["external_id"]) == (job.key, os.environ.get("SLURM_JOB_ID"))
        uuid = "GPU-11111111-aaaa-bbbb-cccc-000000000001"
        assert [d["kind"] for d in batches[0]["devices"]] == ["gpu", "gpu"]
        held = [a for b in batches for a in b["allocations"]]
        assert {(a["run"], a["device"], "end_ns" in a) for a in held} == {(job.key, uuid, False)}
        used = [s for b in batches for s in b["run_samples"]]
        assert {(s["device"], s["memory_used_bytes"]) for s in used} == {(uuid, 41_000_000_000)}
        assert used[0]["util_frac"] == 0.8
        assert "cpu" not in {s["device"] for b in batches for s in b["samples"]}
        agent._sender.start()
        agent.close()
    finally:
        job.end()
        rig.close()


def test_the_agent_is_light() -> None:
    """What it imports is what its memory is made of; a host agent needs neither the server's libraries nor torch."""
    code = (
        "import sys, tightship_collectors.agent.process\n"
        "heavy = {'torch', 'numpy', 'sqlalchemy', 'celery', 'fastapi', 'pydantic', 'dash', 'polars', 'fsspec'}\n"
        "sys.exit(', '.join(sorted(heavy & set(sys.modules))) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_agent_says_what_waits_and_what_the_server_took(rig: Rig) -> None:
    address = f"127.0.0.1:{free_port()}"
    rig.variables["TIGHTSHIP_METRICS_ADDRESS"] = address

    def figures() -> dict[str, float]:
        try:
            return figures_of(httpx.get(f"http://{address}/metrics", trust_env=False).text)
        except httpx.HTTPError:
            return {}

    agent = rig.start_agent()
    unreachable = wait_for(lambda: (f := figures()).get("tightship_spool_entries", 0) >= 2 and f)
    assert unreachable['tightship_deliveries_total{outcome="unreachable"}'] >= 1
    assert unreachable["tightship_spool_bytes"] > 0 == unreachable["tightship_spool_dropped_total"]
    rig.start_server()
    taken = 'tightship_deliveries_total{outcome="taken"}'
    delivered = wait_for(lambda: (f := figures()).get("tightship_spool_entries") == 0 and f.get(taken) and f)
    assert delivered["tightship_look_seconds_count"] >= 2
    assert delivered[f'tightship_build_info{{version="{__version__}",part="agent"}}'] == 1
    stop(agent)


def test_an_agent_whose_metrics_address_is_taken_is_one_line(rig: Rig) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = rig.run("agent", TIGHTSHIP_METRICS_ADDRESS=address)
    assert done.returncode == 2 and len(done.stderr.strip().splitlines()) == 1
    assert f"TIGHTSHIP_METRICS_ADDRESS is '{address}'; expected an address" in done.stderr
