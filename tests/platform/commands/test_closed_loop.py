"""A live job through the whole loop: launched, captured, found, applied, run again, verified; and what did not help,
refuted. Real processes throughout: server, agent, worker, and training jobs that wait more than they compute."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from processes import Running, tightship
from services import free_port
from sqlalchemy import select
from starved_job import STARVED
from waiting import wait_for

from tightship_platform.client import ApiClient
from tightship_platform.database.engine import Database, open_database
from tightship_platform.database.models import Run
from tightship_platform.ingest.actions.bootstrap import MIN_PERIODS
from tightship_platform.ingest.actions.steps import run_steps
from tightship_platform.settings import load_settings

pytestmark = pytest.mark.torch

WORKFLOW = "pictures"
LOADER = "DataLoader(Pictures(), batch_size=8)"
WITH_WORKERS = f"{LOADER[:-1]}, num_workers=3)"
LONG_S = 120.0


@dataclass
class Installed:
    """`tightship up`, and a folder for scripts."""

    environ: dict[str, str]
    folder: Path
    api: ApiClient
    database: Database

    def asked(self, *words: str) -> Any:
        answer = tightship(self.environ, *words, "--json")
        assert answer.returncode == 0, answer.stderr
        return json.loads(answer.stdout)

    def runs(self) -> set[str]:
        return {run["run"] for run in self.api.get("/runs")}

    def periods(self, key: str) -> int:
        """Periods of steps that a comparison may use."""
        with self.database.session() as session:
            run = session.scalar(select(Run).where(Run.key == key))
            return 0 if run is None else len(run_steps(session, run).periods)

    def train(self, script: str, name: str, *, captured: bool = False) -> str:
        """Run it until enough of its steps are counted; returns the run."""
        path, stop = self.folder / f"{name}.py", self.folder / f"{name}.stop"
        path.write_text(script)
        known = self.runs()
        with Running(self.environ, "run", "--workflow", WORKFLOW, "--", sys.executable, str(path), str(stop)) as job:
            [key] = wait_for(lambda: self.runs() - known, "the run")
            if captured:
                wait_for(lambda: self.periods(key) >= 2, "steps before the capture", timeout_s=LONG_S)
                done = tightship(self.environ, "profile", key, "--duration", "1s", "--wait")
                assert done.returncode == 0, done.stderr
            wait_for(lambda: self.periods(key) > MIN_PERIODS, "enough steps", timeout_s=LONG_S)
            stop.touch()
            assert job.process.wait(60) == 0
        return str(key)

    def settled(self) -> dict[str, Any]:
        """The newest application, once the periodic task has decided about it."""

        def decided() -> dict[str, Any] | None:
            found = next(one for one in self.api.get("/actions") if one["kind"] == "apply")
            return found if found["state"] != "applied" else None

        action: dict[str, Any] = wait_for(decided, "a verdict", timeout_s=LONG_S)
        return action


@pytest.fixture
def installed(make_platform_env: Callable[..., Any], tmp_path: Path) -> Iterator[Installed]:
    port = free_port()
    env = make_platform_env(migrated=False).environ
    environ = env | {"TIGHTSHIP_SERVER": f"http://127.0.0.1:{port}", "TIGHTSHIP_STEP_PERIOD_S": "2"}
    with Running(environ, "up", "--port", str(port)) as up:
        up.hear("Dashboard:")
        settings = load_settings(environ)
        with ApiClient(settings) as api, open_database(settings) as database:
            yield Installed(environ, tmp_path, api, database)
        assert up.end() == 0


@pytest.mark.timeout(600)
def test_what_is_found_in_a_live_job_is_applied_and_measured(installed: Installed) -> None:
    assert STARVED.count(LOADER) == 1
    before = installed.train(STARVED, "starved", captured=True)
    [todo] = wait_for(lambda: installed.api.get("/opportunities"), "the opportunity", timeout_s=LONG_S)
    assert "starved-input" in todo["rules"]
    number = str(todo["opportunity"])
    launched = tightship(installed.environ, "run", "--apply", number, "--", "echo", "ran")
    assert (launched.returncode, launched.stdout) == (2, ""), "a loader without workers is for its owner to change"
    assert "which a launcher cannot make" in launched.stderr

    applied = installed.asked("apply", number, "--reason", "another decoder")
    assert applied["before"] == before and "num_workers" in applied["change"]["after"]
    slower = installed.train(STARVED.replace("sleep(0.004)", "sleep(0.012)"), "another_decoder")
    refuted = installed.settled()
    assert (refuted["action"], refuted["state"]) == (applied["action"], "refuted")
    assert (refuted["verification"]["before"]["run"], refuted["verification"]["after"]["run"]) == (before, slower)
    assert refuted["verification"]["high_frac"] < 0

    tightship(installed.environ, "opportunities", "reopen", number, "--reason", "the decoder was not it")
    applied = installed.asked("apply", number, "--reason", "workers")
    fixed = installed.train(STARVED.replace(LOADER, WITH_WORKERS), "with_workers")
    verified = installed.settled()
    assert (verified["action"], verified["state"]) == (applied["action"], "verified")
    measured, predicted = verified["verification"], verified["predicted"]
    assert (measured["before"]["run"], measured["after"]["run"]) == (before, fixed), "not what was refuted"
    assert measured["predicted"] == predicted and predicted["saving_frac"] > 0
