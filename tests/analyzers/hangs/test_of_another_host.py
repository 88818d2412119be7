"""`tightship why` for a run of another host: a real server, the agent that waits at it, and a real process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from api_calls import RUN, ok, run_record, serving
from click.testing import CliRunner

from tightship_collectors.jobs.live_run import HostRun, RankView
from tightship_collectors.kineto.executor import CaptureExecutor
from tightship_collectors.kineto.service import KinetoService
from tightship_platform.cli import root
from tightship_platform.settings import load_settings

JOB = "def endless():\n    while True:\n        pass\n\n\nendless()\n"


def host_run(pid: int) -> HostRun:
    rank = RankView(rank=0, pid=pid, guard=True, steps=3, first_step_ns=None, last_step_ns=None, is_rank=True)
    return HostRun(run=RUN, run_dir=Path("/nowhere"), uid=os.getuid(), pids=(pid,), ranks=(rank,), start_ns=1)


@pytest.mark.skipif(os.geteuid() != 0, reason="looking into other processes takes root on many systems")
def test_its_agent_brings_the_stacks_or_why_there_are_none(
    platform_env: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = load_settings()
    script = tmp_path / "spin.py"
    script.write_text(JOB)
    with subprocess.Popen([sys.executable, str(script)]) as job, serving(settings) as served, served.http() as http:
        agent = CaptureExecutor(settings, served.api(served.local_token), KinetoService())
        try:
            ok(http.post("/runs", json=run_record(RUN, host=settings.host_name)))
            agent.update([host_run(job.pid)])
            monkeypatch.setenv("TIGHTSHIP_SERVER", served.url)
            monkeypatch.setenv("TIGHTSHIP_RUNTIME_DIR", "/tmp/no-runs-here")
            shown = CliRunner().invoke(root, ["why", RUN[:6]])
            assert shown.exit_code == 0, shown.exception
            assert f"Run {RUN}: running" in shown.stdout and f"{script}:" in shown.stdout and "endless" in shown.stdout
            monkeypatch.setenv("PATH", "/nowhere")
            monkeypatch.setattr(sys, "executable", "/nowhere/python")
            without = json.loads(CliRunner().invoke(root, ["why", RUN, "--json"]).stdout)["run"]
        finally:
            agent.close()
            job.kill()
    assert without["processes"][0]["reason"] == "py-spy is not installed; pip install py-spy"
    assert without["verdict"] == "Where its ranks are is not known."
