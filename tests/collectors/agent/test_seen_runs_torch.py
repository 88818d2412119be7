"""A real agent beside a real job that nobody launched with tightship: it becomes a run, with nothing done for it."""

from __future__ import annotations

import getpass
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from agent_rig import Rig
from waiting import wait_for

from tightship_collectors.agent import seen_use
from tightship_collectors.agent.agent import Agent
from tightship_platform.commands.show import SEEN_HINT
from tightship_platform.settings import load_settings

pytestmark = pytest.mark.torch

TRAIN = """
import os, sys, torch
torch.set_num_threads(1)
model = torch.nn.Linear(8, 8)
while not os.path.exists(sys.argv[1]):
    model(torch.randn(4, 8)).sum().backward()
"""


@contextmanager
def agent_of(rig: Rig) -> Iterator[None]:
    stop = threading.Event()
    agent = threading.Thread(target=Agent(load_settings(rig.environ)).run, args=(stop,))
    agent.start()
    try:
        yield
    finally:
        stop.set()
        agent.join()


def test_a_job_that_nobody_launched_from_its_start_to_its_end(
    make_platform_env: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A busy machine gives the job little: it computes from its first look at torch on.
    monkeypatch.setattr(seen_use, "IMPORT_S", 0.2)
    monkeypatch.setattr(seen_use, "IDLE_FRAC", 0.0)
    script, end = tmp_path / f"plain_{os.getpid()}.py", tmp_path / "end"
    script.write_text(TRAIN)
    rig = Rig(variables=make_platform_env().variables | {"TIGHTSHIP_AGENT_RUNS": "all"})

    def the_runs() -> list[Any]:
        return rig.get(f"/runs?workflow={script.stem}") or []

    environ = {name: value for name, value in os.environ.items() if not name.startswith("TIGHTSHIP_")}
    command = [sys.executable, str(script), str(end), "--token=hunter2"]
    try:
        rig.start_server()
        launched = rig.start_job(record={"workflow": "launched"})  # beside it
        with agent_of(rig):
            job = subprocess.Popen(command, env=environ, start_new_session=True)
            rig.children.append(job)
            (listed,) = wait_for(the_runs, timeout_s=300)
            run = wait_for(lambda: (now := rig.get(f"/runs/{listed['run']}")) and now["device_ns"] and now)
            assert (run["source"], run["state"], run["user"]) == ("seen", "running", getpass.getuser())
            assert run["command"][:2] == command[:2]
            assert "hunter2" not in str(run)
            assert (run["steps"], run["ranks"], [one["uuid"] for one in run["devices"]]) == (None, [], ["cpu"])
            shown = rig.run("show", run["run"])
            assert SEEN_HINT in " ".join(shown.stdout.split())
            refused = rig.run("profile", run["run"])
            assert refused.returncode != 0
            assert refused.stderr.count("\n") == 1
            assert "start the job as `tightship run -- CMD`" in refused.stderr
            assert "SOURCE" in rig.run("runs", "--workflow", script.stem).stdout
        with agent_of(rig):  # it starts again: the run is the same, and still one
            wait_for(lambda: rig.get(f"/runs/{run['run']}")["last_seen_ns"] > run["last_seen_ns"])
            end.touch()
            assert job.wait() == 0
            ended = wait_for(lambda: (now := rig.get(f"/runs/{run['run']}")) and now["end_ns"] and now)
        assert (ended["state"], ended["exit_code"]) == ("unknown", None)
        assert ended["device_ns"] == ended["end_ns"] - ended["start_ns"]  # held from its first process to its end
        assert [one["run"] for one in the_runs()] == [run["run"]]
        assert [(one["run"], one["source"]) for one in rig.get("/runs?workflow=launched")] == [(launched.key, "launch")]
        launched.end()
    finally:
        rig.close()
