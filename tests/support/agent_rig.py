"""A real server, a real agent and small real jobs, for tests that watch them together."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import struct
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from services import free_port
from waiting import PATIENCE_S, wait_for
from warm_tightship import Forked, run_forked

from tightship_collectors.jobs import control_file
from tightship_collectors.jobs.ranks import start_ticks_of
from tightship_platform.client import ApiClient
from tightship_platform.errors import TightshipError
from tightship_platform.settings import load_settings
from tightship_platform.units import now_ns

JOB = """
import mmap, os, struct, sys, time
run_dir, steps_per_s, rank = os.environ["TIGHTSHIP_RUN_DIR"], float(sys.argv[1]), int(sys.argv[2])
path = f"{run_dir}/ranks/{os.getpid()}"
ticks = int(open("/proc/self/stat", "rb").read().rpartition(b")")[2].split()[19])
with open(path + ".new", "wb") as file:
    file.write(struct.pack("<8sIiQiiII", MAGIC, 1, os.getpid(), ticks, rank, -1, FLAGS, 0).ljust(4096, b"\\0"))
os.rename(path + ".new", path)
file = open(path, "r+b")
page = mmap.mmap(file.fileno(), 4096)
count, first = 0, 0
print("up", flush=True)
while True:
    time.sleep(1 / steps_per_s)
    count, now = count + 1, time.time_ns()
    first = first or now
    page[STEPS:STEPS + 24] = struct.pack("<QQQ", count, first, now)
    if os.path.exists(run_dir + "/end"):
        print(count, flush=True)
        sys.exit(0)
"""


@dataclass(kw_only=True)
class SmallJob:
    """Processes that look like a training job to the agent: environment, run directory, step counter; no torch."""

    record: dict[str, Any]
    """The launcher's record of the start."""
    run_dir: Path
    processes: list[subprocess.Popen[str]]

    @property
    def key(self) -> str:
        return str(self.record["run"])

    def end(self) -> list[int]:
        """Let it end by itself, and tidy up as a launcher does; returns the steps of each rank."""
        (self.run_dir / "end").touch()
        steps = [int(process.communicate(timeout=PATIENCE_S)[0].split()[-1]) for process in self.processes]
        assert [process.returncode for process in self.processes] == [0] * len(steps)
        shutil.rmtree(self.run_dir)
        return steps


@dataclass(kw_only=True)
class Rig:
    """Starts and ends the parts; `close` ends whatever still runs."""

    variables: dict[str, str]
    """The TIGHTSHIP_ variables of the installation; the server's address is added by `start_server`."""
    port: int = field(default_factory=free_port)
    children: list[subprocess.Popen[Any] | Forked] = field(default_factory=list)
    clients: dict[str, ApiClient] = field(default_factory=dict)
    """Of `get`, by token: whoever waits asks again and again, and a new one costs more than its question."""

    @property
    def environ(self) -> dict[str, str]:
        own = {**self.variables, "TIGHTSHIP_SERVER": f"http://127.0.0.1:{self.port}"}
        return {k: v for k, v in os.environ.items() if not k.startswith("TIGHTSHIP_")} | own

    @property
    def home(self) -> Path:
        return Path(self.variables["TIGHTSHIP_HOME"])

    @property
    def runtime_dir(self) -> Path:
        return Path(self.variables["TIGHTSHIP_RUNTIME_DIR"])

    @property
    def api(self) -> ApiClient:
        return ApiClient(load_settings(self.environ), timeout_s=PATIENCE_S)

    def get(self, path: str) -> Any:
        """What the server answers; None while it does not, or knows nothing of it."""
        token = self.variables.get("TIGHTSHIP_TOKEN", "")
        if token not in self.clients:
            self.clients[token] = self.api
        try:
            return self.clients[token].get(path)
        except TightshipError:
            return None

    def start_server(self) -> Forked:
        server = self._start("server", "--port", str(self.port))
        wait_for(lambda: self.get("/health"))
        return server

    def start_agent(self, *arguments: str) -> Forked:
        return self._start("agent", *arguments)

    def run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """A `tightship` command to its end."""
        return run_forked(*arguments, env=self.environ | variables, timeout=PATIENCE_S)

    def start_job(self, *, steps_per_s: float = 50, ranks: int = 1, record: dict[str, Any] | None = None) -> SmallJob:
        key = secrets.token_hex(8)
        run_dir = self.runtime_dir / key
        run_dir.parent.mkdir(mode=0o700, exist_ok=True)
        run_dir.mkdir(mode=0o700)
        (run_dir / "ranks").mkdir(mode=0o700)
        content = {"run": key, "workflow": f"small-{key[:4]}", "start_ns": now_ns(), "host": os.uname().nodename}
        content |= record or {}
        (run_dir / "run.json").write_text(json.dumps(content))
        flags = control_file.Flag.GUARD | control_file.Flag.RANK_FROM_ENV | control_file.Flag.STEP_HOOK
        code = f"MAGIC, FLAGS, STEPS = {control_file.MAGIC!r}, {int(flags)}, {control_file.OFF_STEPS}\n{JOB}"
        env = os.environ | {"TIGHTSHIP_RUN": key, "TIGHTSHIP_RUN_DIR": str(run_dir)}
        processes = [
            subprocess.Popen(
                [sys.executable, "-S", "-c", code, str(steps_per_s), str(rank)],
                env=env,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(ranks)
        ]
        self.children += processes
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
        return SmallJob(record=content, run_dir=run_dir, processes=processes)

    def end_job(self, job: SmallJob) -> list[int]:
        """Let it end, and tell the server as a launcher does."""
        steps = job.end()
        with self.api as api:
            api.post("/runs", job.record | {"end_ns": now_ns(), "exit_code": 0})
        return steps

    def log(self) -> str:
        """What the parts wrote."""
        return (self.home / "parts.log").read_text()

    def close(self) -> None:
        for client in self.clients.values():
            client.close()
        for child in self.children:
            if child.poll() is None:
                child.kill()
            child.wait()

    def _start(self, *arguments: str) -> Forked:
        with (self.home / "parts.log").open("ab") as log:
            child = Forked(*arguments, env=self.environ, stdout=log, stderr=log)
        self.children.append(child)
        return child


def stop(process: subprocess.Popen[Any] | Forked, number: int = signal.SIGTERM, timeout_s: float = PATIENCE_S) -> int:
    """Signal a part and wait for its end; returns its exit code."""
    process.send_signal(number)
    return process.wait(timeout_s)


def write_control_file(run_dir: Path, pid: int, *, steps: int, rank: int = 0) -> None:
    """A control file for a process that writes none itself."""
    flags = int(control_file.Flag.RANK_FROM_ENV | control_file.Flag.STEP_HOOK)
    head = struct.pack(
        "<8sIiQiiIIQQQ",
        control_file.MAGIC,
        control_file.VERSION,
        pid,
        start_ticks_of(pid),
        rank,
        -1,
        flags,
        0,
        steps,
        now_ns(),
        now_ns(),
    )
    (run_dir / "ranks" / str(pid)).write_bytes(head.ljust(control_file.SIZE, b"\0"))
