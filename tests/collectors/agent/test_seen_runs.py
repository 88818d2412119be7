"""Runs that nobody launched, found in recorded trees of /proc as Slurm, Kubernetes and torchrun leave them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from agent_rig import Rig
from nvml_recording import RecordedNvml

from tightship_collectors.agent import seen_runs, seen_use
from tightship_collectors.agent.agent import Agent
from tightship_collectors.agent.seen_runs import MAX_NEW, MAX_RUNS_PER_USER, SeenRuns
from tightship_collectors.agent.state import AgentState, load_state, save_state
from tightship_collectors.jobs.processes import ProcessTable
from tightship_collectors.sources.base import DeviceProcess
from tightship_collectors.sources.devices import HostDevices
from tightship_collectors.sources.nvml import NvmlSource
from tightship_platform.settings import load_settings
from tightship_platform.units import NS_PER_S, now_ns

HERTZ = os.sysconf("SC_CLK_TCK")
TORCH = "7f00-7f01 r-xp 00000000 00:00 1 /venv/torch/lib/libtorch_cpu.so\n"
PYTHON = ("/venv/bin/python", "-u", "/home/a/train.py", "--token", "hf_" + "a" * 34)
SLURM = "0::/system.slice/slurmstepd.scope/job_4711/step_{step}/user/task_0\n"
POD = "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{pod}.slice/cri-containerd-{container}.scope\n"
UID = "0d1c6a52_3c2e_4d42_9a17_1f0e5a3b7c11"


class Host:
    """A tree like /proc, and who looks at it."""

    def __init__(self, proc: Path, *, own_uid: int | None = None) -> None:
        self.proc = proc
        self.boot_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        self.begin(own_uid=own_uid)

    def begin(self, *, own_uid: int | None = None) -> SeenRuns:
        """An agent starts, or starts again."""
        self.table = ProcessTable(self.proc, own_uid=own_uid)
        self.runs = SeenRuns(self.table, "h1", "boot-1", hertz=HERTZ)
        return self.runs

    def process(
        self,
        pid: int,
        *,
        command: Iterable[str] = PYTHON,
        parent: int = 1,
        group: int | None = None,
        uid: int = 61000,
        cpu_s: float = 60.0,
        age_s: float = 100.0,
        environ: str = "PATH=/bin",
        cgroup: str = "0::/user.slice\n",
        maps: str = TORCH,
    ) -> int:
        folder = self.proc / str(pid)
        folder.mkdir(exist_ok=True)
        start = int((self.boot_s - age_s) * HERTZ)
        fields = [
            "S",
            parent,
            group or pid,
            pid,
            *[0] * 7,
            int(cpu_s * HERTZ),
            0,
            *[0] * 6,
            start,
            *[0] * 25,
            4096 + pid,
        ]
        fields += [0] * (52 - len(fields))
        # state is the third field of the file; what follows it is counted from there.
        fields[19], fields[47] = start, 4096 + pid
        (folder / "stat").write_text(f"{pid} (py) S 1 (th) {' '.join(map(str, fields))}\n")
        (folder / "status").write_text(f"Name:\tpy\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
        (folder / "statm").write_text("100 50 20 0 0 0 0\n")
        (folder / "cmdline").write_bytes(b"".join(os.fsencode(word) + b"\0" for word in command))
        (folder / "environ").write_bytes(os.fsencode(environ.replace(" ", "\0")) + b"\0")
        (folder / "cgroup").write_text(cgroup)
        (folder / "maps").write_text(maps)
        (folder / "comm").write_text("py\n")
        return pid

    def end(self, *pids: int) -> None:
        for pid in pids:
            shutil.rmtree(self.proc / str(pid))

    def look(self, *gpu: int) -> seen_runs.SeenTick:
        """A look at a host whose processor is the device, or where these processes hold a GPU."""
        self.table.scan()
        return self.runs.look(now_ns(), [DeviceProcess(pid=pid, device="GPU-0") for pid in gpu] if gpu else None)

    def look_gpu(self, *pids: int) -> seen_runs.SeenTick:
        """A look at a host with a GPU, which these processes hold."""
        self.table.scan()
        return self.runs.look(now_ns(), [DeviceProcess(pid=pid, device="GPU-0") for pid in pids])


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def members(tick: seen_runs.SeenTick) -> list[list[int]]:
    return sorted(sorted(process.pid for process in holder.processes) for holder in tick.holders)


def test_a_plain_job_from_first_sight_to_its_end(host: Host) -> None:
    host.process(10, command=("-bash",), maps="")
    host.process(11, parent=10)
    host.process(12, parent=11, command=("python", "-c", "loader"))
    tick = host.look()
    (record,) = tick.begun
    assert (record.workflow, record.user, record.uid, record.host, record.seen) == ("train", "61000", 61000, "h1", True)
    assert record.command[:3] == list(PYTHON[:3])
    assert PYTHON[-1] not in str(record.command)  # a secret is left out, as the launcher does
    assert abs(record.start_ns - (now_ns() - 100 * NS_PER_S)) < 30 * NS_PER_S
    assert (record.end_ns, record.exit_code, record.external_id) == (None, None, None)
    assert members(tick) == [[11, 12]]  # not the shell
    assert host.look().begun == []
    host.end(11)
    assert members(host.look()) == [[12]]  # what it left still is of it
    host.end(12)
    before_ns = now_ns()
    (ended,) = host.look().ended
    assert (ended.run, ended.exit_code) == (record.run, None)
    assert ended.end_ns is not None
    assert ended.end_ns >= before_ns
    host.process(11, age_s=50)  # the number is another process now
    (another,) = host.look().begun
    assert another.run != record.run


@pytest.mark.parametrize(
    ("cgroups", "environs", "groups", "job"),
    [
        ([SLURM.format(step=0)] * 2, ["SLURM_JOB_NAME=pretrain SLURM_JOB_ID=4711"] * 2, [[1, 2]], "4711"),
        ([SLURM.format(step=0), SLURM.format(step=1)], ["A=1"] * 2, [[1], [2]], "4711"),
        (["0::/\n"] * 2, ["SLURM_JOB_ID=8 SLURM_STEP_ID=0"] * 2, [[1, 2]], "8"),
        (["0::/\n"] * 2, ["SLURM_JOB_ID=8 SLURM_STEP_ID=0", "SLURM_JOB_ID=9 SLURM_STEP_ID=0"], [[1], [2]], "8"),
        ([POD.format(pod=UID, container=name) for name in "ab"], ["A=1"] * 2, [[1, 2]], f"pod/{UID.replace('_', '-')}"),
        (["0::/\n"] * 2, ["PBS_JOBID=../../etc"] * 2, [[1, 2]], "../../etc"),
        (["0::/\n"] * 2, ["SLURM_JOB_ID=\x1b"] * 2, [[1], [2]], None),
    ],
)
def test_the_scheduler_joins_what_is_of_one_job(
    host: Host, cgroups: list[str], environs: list[str], groups: list[list[int]], job: str | None
) -> None:
    for pid, (cgroup, environ) in enumerate(zip(cgroups, environs, strict=True), 1):
        host.process(pid, parent=0, cgroup=cgroup, environ=environ, age_s=200 - pid)
    tick = host.look_gpu(1, 2)
    assert members(tick) == groups
    assert tick.begun[0].external_id == job
    assert tick.begun[0].workflow == ("pretrain" if "pretrain" in environs[0] else "train")


def test_ranks_of_a_torchrun_are_one_run_and_the_launcher_is_no_part(host: Host) -> None:
    host.process(20, command=("/venv/bin/python", "/venv/bin/torchrun", "train.py"), age_s=60)
    for pid in (21, 22):
        rank = f"RANK={pid - 21} LOCAL_RANK=0 MASTER_PORT=29500 TORCHELASTIC_RUN_ID=none"
        host.process(pid, parent=20, environ=rank, age_s=50)  # each leads its own group, as torchrun has it
    tick = host.look()
    assert members(tick) == [[21, 22]]
    assert tick.begun[0].workflow == "train"
    # A launcher of another name, seen by what it started: the ranks have a rank, and it has none.
    host.process(30, command=("python", "start_all.py"), age_s=60, environ="MASTER_PORT=1", cpu_s=0)
    host.process(31, parent=30, environ="RANK=0 MASTER_PORT=1", age_s=50)
    assert members(host.look()) == [[21, 22], [31]]
    host.process(30, command=("python", "start_all.py"), age_s=60, environ="MASTER_PORT=1", cpu_s=900)
    assert members(host.look()) == [[21, 22], [31]]


def test_processes_of_multiprocessing_are_named_by_who_started_them(host: Host) -> None:
    child = ("python", "-c", "from multiprocessing.spawn import spawn_main; spawn_main(1)", "--multiprocessing-fork")
    host.process(40, cpu_s=1, age_s=60)
    for pid in (41, 42):
        host.process(pid, parent=40, group=40, command=child, age_s=50)
    tick = host.look_gpu(41, 42)
    assert [(one.workflow, one.command[2]) for one in tick.begun] == [("train", PYTHON[2])]
    assert members(tick) == [[40, 41, 42]]


def test_users_are_never_joined(host: Host) -> None:
    for pid, uid in ((50, 61000), (51, 61001)):
        host.process(pid, uid=uid, parent=1, group=50, cgroup=SLURM.format(step=0), age_s=100 - pid)
    host.process(52, parent=50, uid=0)  # sudo
    assert members(host.look_gpu(50, 51)) == [[50], [51]]
    assert members(host.look_gpu(50, 51, 52)) == [[50], [51], [52]]


@pytest.mark.parametrize(
    ("change", "is_run"),
    [
        ({}, True),
        ({"cpu_s": 3.0, "age_s": 10.0}, False),  # has imported torch, and no more
        ({"cpu_s": 8.0, "age_s": 3600.0}, False),  # a notebook that waits
        ({"maps": "7f00-7f01 r-xp /usr/lib/libc.so.6\n"}, False),
        ({"command": ("python", "-m", "torch.distributed.run", "train.py")}, False),
        ({"command": ("jupyter-lab", "--no-browser")}, False),
        ({"environ": "TIGHTSHIP_RUN=0123456789abcdef TIGHTSHIP_RUN_DIR=/nowhere/0123456789abcdef"}, False),
    ],
)
def test_who_holds_the_processor(host: Host, change: dict[str, object], is_run: bool) -> None:
    host.process(60, **({"parent": 0} | change))  # type: ignore[arg-type]
    assert len(host.look().begun) == is_run


def test_mappings_are_read_once_until_the_processor_time_has_doubled(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    loads_torch = seen_use.about.loads_torch
    monkeypatch.setattr(seen_use.about, "loads_torch", lambda table, pid: read.append(pid) or loads_torch(table, pid))
    host.process(70, maps="", cpu_s=50)
    for cpu_s, times in ((50, 1), (60, 1), (80, 1), (100, 2), (120, 2)):
        host.process(70, maps=TORCH if cpu_s == 100 else "", cpu_s=cpu_s)
        host.look()
        assert len(read) == times, cpu_s
    assert len(host.runs.live()) == 1


def test_what_may_not_be_read_and_what_is_too_much_is_counted(host: Host) -> None:
    host.process(80, uid=61001)
    (host.proc / "80" / "environ").write_bytes(b"")
    host.begin(own_uid=61002)
    assert host.look_gpu(80).holders == []
    assert "1 process left alone, as this agent may not read their environment" in host.runs.state().detail
    host.begin()
    assert len(host.look_gpu(80).holders) == 1  # started without any environment, which root knows
    for pid in range(1000, 1000 + MAX_RUNS_PER_USER + 3):
        host.process(pid, age_s=3000 - pid)
    pids = [80, *range(1000, 1000 + MAX_RUNS_PER_USER + 3)]
    assert len(host.look_gpu(*pids).begun) == MAX_NEW
    assert f"more than {MAX_NEW} at once wait" in host.runs.state().detail
    for _ in range(MAX_RUNS_PER_USER // MAX_NEW + 1):
        tick = host.look_gpu(*pids)
    assert len(tick.holders) == MAX_RUNS_PER_USER + 1
    assert "3 processes of user 61000 beyond the runs that are reported" in host.runs.state().detail
    host.end(1000)
    host.look_gpu(*pids[2:])
    assert len(host.look_gpu(*pids[2:]).begun) == 1


def test_hostile_names_do_no_harm(host: Host) -> None:
    host.process(90, command=("/tmp/\x1b[31m\n\udcff.py",), environ="SLURM_JOB_ID=1 SLURM_JOB_NAME=\x1b]0;x\x07\u202e")
    host.process(91, command=(), environ="")
    host.process(92, command=["python", "x" * 300_000], parent=0)
    records = host.look().begun
    assert len(records) == 3
    for record in records:
        assert record.workflow.isprintable()
        assert len("".join(record.command)) < 300_000


@pytest.mark.parametrize("boot", ["boot-1", "boot-2"])
def test_a_run_stays_the_same_over_a_restart_of_the_agent(
    host: Host, tmp_path_factory: pytest.TempPathFactory, boot: str
) -> None:
    host.process(100)
    host.process(101)
    records = {record.run: record for record in host.look().begun}
    path = tmp_path_factory.mktemp("state") / "agent.json"
    save_state(path, AgentState(seen=host.runs.snapshot()))
    host.end(101)
    host.process(102, parent=100)
    host.begin()
    host.runs._boot_id = boot
    host.table.scan()
    alive_ns = now_ns() - NS_PER_S
    ended = host.runs.restore(load_state(path).seen, alive_ns)
    tick = host.look()
    if boot == "boot-1":
        (gone,) = ended
        assert tick.begun == []
        assert members(tick) == [[100, 102]]
        assert {gone.run, tick.holders[0].run} == records.keys()
    else:
        assert {record.run for record in ended} == records.keys()
        assert {record.run for record in tick.begun}.isdisjoint(records)
    assert all(record.end_ns == alive_ns for record in ended)


def test_a_lost_state_finds_the_same_run(host: Host) -> None:
    host.process(110)
    (first,) = host.look().begun
    host.begin()
    (again,) = host.look().begun
    assert again.run == first.run


def test_a_gpu_that_a_job_holds_is_allocated_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole way from NVML's process list to the spool, with two real processes under NVML's pids."""
    monkeypatch.setenv("TIGHTSHIP_AGENT_RUNS", "all")
    monkeypatch.setattr(seen_runs, "YOUNG_S", 0.0)
    rig = Rig(variables={name: value for name, value in os.environ.items() if name.startswith("TIGHTSHIP_")})
    rig.home.mkdir(parents=True)
    launched = rig.start_job()
    plain = subprocess.Popen(["sleep", "60"], start_new_session=True)
    rig.children.append(plain)
    pids = [launched.processes[0].pid, plain.pid]
    try:
        nvml = RecordedNvml("h100")
        nvml.gpus[0]["nvmlDeviceGetComputeRunningProcesses"] = [{"pid": pid, "usedGpuMemory": pid} for pid in pids]
        shares = [{"pid": pid, "timeStamp": 1, "smUtil": used} for pid, used in zip(pids, (30, 50), strict=True)]
        nvml.gpus[0]["nvmlDeviceGetProcessUtilization"] = shares
        agent = Agent(load_settings(), devices=HostDevices(accelerators=NvmlSource(nvml)))
        agent.tick()
        plain.kill()
        plain.wait()
        agent.tick()
        agent._flush()
        queue = sorted((rig.home / "spool/queue").iterdir())
        bodies = [json.loads(file.read_bytes().split(b"\n", 1)[1]) for file in queue]
        records = [body for body in bodies if body.get("seen")]
        batches = [body for body in bodies if "host_samples" in body]
        begun, ended = records
        assert (begun["workflow"], begun["command"], begun["end_ns"]) == ("sleep", ["sleep", "60"], None)
        assert ended == begun | {"end_ns": ended["end_ns"]}
        used = [one for batch in batches for one in batch["run_samples"]]
        assert {(one["run"], one["util_frac"], one["memory_used_bytes"]) for one in used[:2]} == {
            (launched.key, 0.3, pids[0]),
            (begun["run"], 0.5, pids[1]),
        }
        held = [one for batch in batches for one in batch["allocations"] if one["run"] == begun["run"]]
        assert [one.get("end_ns") is None for one in held][:1] == [True]
        assert bodies.index(ended) > max(bodies.index(batch) for batch in batches if batch["allocations"])
        assert any(one.get("end_ns") for one in held)
        agent._sender.start()
        agent.close()
    finally:
        launched.end()
        rig.close()
