"""The demo's plot: start the platform, train four jobs under it, capture each, wait for the judgement, show it.

Everything goes through the same commands and the same API that a user has; nothing here reaches into the database.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from tightship_platform.client import ApiClient
from tightship_platform.demo.report import print_report
from tightship_platform.errors import ServerUnreachable, TightshipError
from tightship_platform.processes.login_codes import login_link
from tightship_platform.results.capture import Capture
from tightship_platform.results.codec import decode, fields_of
from tightship_platform.results.demo import DemoResult
from tightship_platform.results.finding import Finding
from tightship_platform.results.opportunity import Opportunity
from tightship_platform.results.run import Run, RunDetail
from tightship_platform.settings import DEFAULT_PORT, LAUNCHED_RUNS, Settings, load_settings
from tightship_platform.units import plural
from tightship_platform.vocabulary import CaptureState
from tightship_platform.wire import CaptureParams, CaptureRequest

MARKER = ".tightship-demo"
CAPTURE_NS = 2_000_000_000
WARM_STEPS = 5
"""Steps that a job must have made before it is captured, so that the trace shows steady state …"""
REPORT_WIDTH = 140
"""Of the table where the output is no terminal."""
SETTLE_S = 180.0
"""Longest wait for the analysis of everything after the last job has ended."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One example script and the workflow it stands for."""

    workflow: str
    script: str
    team: str


@dataclass(frozen=True, kw_only=True)
class Plot:
    """Which jobs, and for how long."""

    jobs: tuple[Job, ...]
    modules: tuple[str, ...]
    """What they import."""
    seconds: int
    """Training time of each."""
    pace_s: float
    """Time that a job must have trained before it is captured: recording slows Python down, and the step counter's
    ten-second buckets before the capture say by how much."""


JOBS = (
    Job(workflow="tiny-gpt", script="tiny_gpt.py", team="language"),
    Job(workflow="digits-classifier", script="digits_classifier.py", team="vision"),
    Job(workflow="frequent-checkpoints", script="frequent_checkpoints.py", team="science"),
    Job(workflow="recurrent-loop", script="recurrent_loop.py", team="language"),
)


WHOLE = Plot(jobs=JOBS, modules=("torch", "sklearn"), seconds=40, pace_s=12.0)
QUICK = Plot(jobs=JOBS[2:3], modules=("torch",), seconds=20, pace_s=4.0)


def run_demo(
    *, home: Path | None, port: int | None, quick: bool, seconds: int | None, leave: bool, as_json: bool
) -> None:
    """Run the demo from an empty folder to the ranked table.

    :raises TightshipError: something that it needs is missing or did not happen in time.
    """
    examples = _find_examples()
    plot = QUICK if quick else WHOLE
    plot = plot if seconds is None else replace(plot, seconds=seconds)
    for module in plot.modules:
        if find_spec(module) is None:
            raise TightshipError(f"The demo trains real jobs and needs {module}; pip install 'tightship[server,demo]'")
    base = load_settings()
    folder = (home or base.home.parent / "tightship-demo").absolute()
    _empty(folder)
    settings = _settings(folder, _choose_port(port))
    console = Console(stderr=True)
    # Asked to stop, it must still stop what it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    platform = _Platform(settings, folder / "platform.log")
    try:
        with ApiClient(settings) as api:
            console.print(f"Starting the platform in {folder} …", highlight=False)
            platform.wait_until_up(api)
            with Progress(
                TextColumn("{task.description:<22}"),
                BarColumn(bar_width=28),
                TimeElapsedColumn(),
                TextColumn("{task.fields[stage]}"),
                console=console,
            ) as progress:
                bars = [progress.add_task(job.workflow, total=None, start=False, stage="waits") for job in plot.jobs]
                captures = [
                    _train(job, examples, settings, plot, api, platform, progress, bar)
                    for job, bar in zip(plot.jobs, bars, strict=True)
                ]
                _settle(api, captures, progress, bars, platform)
            result = _collect(api)
        if as_json:
            sys.stdout.write(json.dumps(result, indent=2, default=fields_of) + "\n")
            sys.stdout.flush()
        else:
            out = Console()
            print_report(result, out if out.is_terminal else Console(width=REPORT_WIDTH))
        if not leave:
            console.print(f"\nDashboard: {login_link(settings.server, folder)}", soft_wrap=True)
            console.print(f"The link works once, within five minutes. Ctrl-C ends the demo; data stay in {folder}")
            platform.wait()
    except KeyboardInterrupt:
        console.print("Stopping …")
    finally:
        platform.stop()


def _find_examples() -> Path:
    """The scripts lie at the top of a checkout, and among the environment's shared data after an installation."""
    checkout = Path(__file__).resolve().parents[3] / "examples"
    installed = Path(sysconfig.get_path("data")) / "share" / "tightship" / "examples"
    for folder in (checkout, installed):
        if all((folder / job.script).is_file() for job in JOBS):
            return folder
    raise TightshipError(f"No example scripts in {checkout} or {installed}; reinstall tightship or run from a checkout")


def _empty(folder: Path) -> None:
    """Start from nothing, but never delete a folder that the demo did not make."""
    if folder.exists() and any(folder.iterdir()):
        if not (folder / MARKER).exists():
            raise TightshipError(f"{folder} is not empty and was not made by the demo; name another folder with --home")
        shutil.rmtree(folder)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)  # its logs hold a link that logs a browser in
    (folder / MARKER).touch()


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _choose_port(port: int | None) -> int:
    chosen = port or DEFAULT_PORT
    if _is_free(chosen):
        return chosen
    raise TightshipError(f"Port {chosen} is in use; stop what listens there or choose another with --port")


def _settings(folder: Path, port: int) -> Settings:
    """Nothing of the user's own installation: the demo's folder, port and embedded defaults."""
    return load_settings(
        {
            "TIGHTSHIP_HOME": str(folder),
            "TIGHTSHIP_SERVER": f"http://127.0.0.1:{port}",
            "TIGHTSHIP_RUNTIME_DIR": str(load_settings().runtime_dir) + "-d",
            "TIGHTSHIP_AGENT_RUNS": LAUNCHED_RUNS,
        }
    )


def _environment(settings: Settings) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("TIGHTSHIP_")}
    env["TIGHTSHIP_HOME"] = str(settings.home)
    env["TIGHTSHIP_SERVER"] = settings.server
    env["TIGHTSHIP_RUNTIME_DIR"] = str(settings.runtime_dir)
    env["TIGHTSHIP_AGENT_RUNS"] = settings.agent_runs
    return env


class _Platform:
    """`tightship up` as a child process."""

    def __init__(self, settings: Settings, log: Path) -> None:
        self._log = log
        port = settings.server.rpartition(":")[2]
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tightship_platform.cli", "up", "--port", port],
                env=_environment(settings),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def check(self) -> None:
        """:raises TightshipError: it has ended."""
        if self._process.poll() is not None:
            lines = self._log.read_text(errors="replace").strip().splitlines() or ["no output"]
            raise TightshipError(
                f"The platform ended with code {self._process.returncode}: {lines[-1]} (see {self._log})"
            )

    def wait_until_up(self, api: ApiClient, limit_s: float = 60.0) -> None:
        deadline = time.monotonic() + limit_s
        while True:
            self.check()
            try:
                api.get("/health")
            except ServerUnreachable:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
            else:
                return

    def wait(self) -> None:
        """Until it ends, or Ctrl-C."""
        self._process.wait()

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()


def _train(
    job: Job,
    examples: Path,
    settings: Settings,
    plot: Plot,
    api: ApiClient,
    platform: _Platform,
    progress: Progress,
    bar: TaskID,
) -> str:
    """Run one job to its end with a capture in the middle, and say what that shows; the key of the capture."""
    command = [sys.executable, "-m", "tightship_platform.cli", "run", "--workflow", job.workflow, "--team", job.team]
    command += ["--label", "demo=yes", "--", sys.executable, str(examples / job.script), "--seconds", str(plot.seconds)]
    env = _environment(settings)
    # One core stays free for the platform; on a small machine OpenMP's spinning threads would otherwise fight it.
    env.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 2) // 2)))
    log = settings.home / f"{job.workflow}.log"
    progress.start_task(bar)
    progress.update(bar, stage="starts")
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
    capture, first_step, is_shown = "", None, False
    try:
        while process.poll() is None:
            platform.check()
            run = _newest_run(api, job.workflow)
            steps = (run.steps if run else None) or 0
            if steps and first_step is None:
                first_step = time.monotonic()
            warm = steps >= WARM_STEPS and first_step is not None and time.monotonic() - first_step > plot.pace_s
            if run and not capture and warm:
                params = CaptureParams(duration_ns=CAPTURE_NS)
                answer = api.post("/captures", CaptureRequest(target=run.run, params=params))
                capture = decode(Capture, answer).capture
            state = decode(Capture, api.get(f"/captures/{capture}")).state if capture else None
            progress.update(bar, stage=plural(steps, "step") + (f", trace {state}" if state else ""))
            if run and state == CaptureState.ANALYZED and not is_shown:
                is_shown = _tell(api, run, progress)
            time.sleep(0.5)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait()
    if process.returncode != 0:
        raise TightshipError(f"Job {job.workflow} ended with code {process.returncode}; see {log}")
    if not capture:
        raise TightshipError(
            f"Job {job.workflow} made no {WARM_STEPS} steps in {plot.seconds} s; try --seconds {plot.seconds * 3}"
        )
    progress.stop_task(bar)
    progress.update(bar, stage="trained")
    return capture


def _tell(api: ApiClient, run: Run, progress: Progress) -> bool:
    """The verdict on a job as soon as it is there."""
    found = decode(list[Finding], api.get("/findings", {"run": run.run}))
    verdict = f"{found[0].title.rstrip('.')}. {found[0].fix}" if found else "nothing to change"
    progress.console.print(Text(f"{run.workflow}: {verdict}"), soft_wrap=True)
    return True


def _newest_run(api: ApiClient, workflow: str) -> Run | None:
    runs = decode(list[Run], api.get("/runs", {"workflow": workflow, "limit": 1}))
    return runs[0] if runs else None


def _settle(api: ApiClient, captures: list[str], progress: Progress, bars: list[TaskID], platform: _Platform) -> None:
    """Wait until every capture is judged, every run accounted for, and the ranking made of them."""
    deadline = time.monotonic() + SETTLE_S
    waiting: Callable[[], list[str]] = lambda: _unsettled(api, captures, progress, bars)  # noqa: E731
    while missing := waiting():
        platform.check()
        if time.monotonic() > deadline:
            raise TightshipError(
                f"The analysis did not end within {SETTLE_S:.0f} s; still missing: {', '.join(missing)}"
            )
        time.sleep(0.5)


def _unsettled(api: ApiClient, captures: list[str], progress: Progress, bars: list[TaskID]) -> list[str]:
    missing = []
    opportunities = {item.workflow for item in decode(list[Opportunity], api.get("/opportunities"))}
    for key, bar in zip(captures, bars, strict=True):
        capture = decode(Capture, api.get(f"/captures/{key}"))
        state = CaptureState(capture.state)
        if state.is_final and state != CaptureState.ANALYZED:
            raise TightshipError(f"The capture of {capture.workflow} {state}: {capture.reason}")
        run = decode(RunDetail, api.get(f"/runs/{capture.run}"))
        counted_ns = run.accounted_ns or 0  # null: something arrived since that changes it
        stage = f"trace {state}"
        if state != CaptureState.ANALYZED:
            missing.append(f"analysis of {capture.workflow}")
        elif run.end_ns is None or counted_ns < run.end_ns:
            missing.append(f"account of {capture.workflow}")
        elif capture.workflow not in opportunities and any(
            finding.saving.value for finding in decode(list[Finding], api.get("/findings", {"run": run.run}))
        ):
            missing.append(f"ranking of {capture.workflow}")
        else:
            stage = "done"
            progress.update(bar, total=1, completed=1)
        progress.update(bar, stage=stage)
    return missing


def _collect(api: ApiClient) -> DemoResult:
    return DemoResult(
        runs=decode(list[Run], api.get("/runs")),
        findings=decode(list[Finding], api.get("/findings")),
        opportunities=decode(list[Opportunity], api.get("/opportunities")),
    )
