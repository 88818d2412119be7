"""What it costs a job to be watched: the same training loop under `tightship run` and without, side by side.

Budget: median overhead below 1 % over at least 10 pairs. The armed job counts its steps, asks for captures once a
second and carries the exit guard; nothing is recorded. Without --agent nobody answers on its socket: its requests fail.
The jobs of a round live at the same time and take turns of some tens of milliseconds (A B C C B A …), so that whatever
else the machine does meets all. One of them is a control: the unarmed job once more. Two processes of the same program
differ by a per cent or two by themselves (where their memory lies, which core they get), so what the control shows is
the resolution: a smaller overhead does not show. Times are those of the loop, taken in the job itself,
without the start of the process.

    python benchmarks/launch_overhead.py [--pairs 12] [--rounds 20] [--agent]
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from parts.results import keep, options
from rich.console import Console
from rich.progress import track
from rich.table import Table

from tightship_platform.client import ApiClient
from tightship_platform.errors import TightshipError
from tightship_platform.settings import load_settings

BUDGET_FRAC = 0.01
MIN_PAIRS = 10

JOB = """
import json, sys, time
import torch
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(*[m for _ in range(4) for m in (torch.nn.Linear(256, 256), torch.nn.GELU())])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
inputs = torch.randn(64, 256)
for line in sys.stdin:
    cpu, began = time.process_time(), time.perf_counter()
    for _ in range(int(line)):
        optimizer.zero_grad(set_to_none=True)
        model(inputs).square().mean().backward()
        optimizer.step()
    print(json.dumps([time.perf_counter() - began, time.process_time() - cpu]), flush=True)
"""
STEPS = 40
"""Of one turn."""
WARMUP_STEPS = 100
MEASURES = {"wall": "loop, wall time", "fastest": "fastest turn, wall time", "cpu": "loop, processor time"}
PLAIN, CONTROL, ARMED = "unarmed", "control", "armed"
JOBS = (PLAIN, CONTROL, ARMED)


def main() -> int:
    """Run it; 0 when the budget is kept."""
    parser = options(__doc__)
    parser.add_argument("--pairs", type=int, default=12, help=f"at least {MIN_PAIRS}")
    parser.add_argument("--rounds", type=int, default=20, help="each has two turns of either job")
    parser.add_argument("--agent", action="store_true", help="with a server and an agent that answers the job")
    given = parser.parse_args()
    if given.pairs < MIN_PAIRS:
        parser.error(f"--pairs is {given.pairs}; expected at least {MIN_PAIRS}")
    with tempfile.TemporaryDirectory(prefix="ts-bench-") as folder, environment(Path(folder), given.agent) as env:
        result = measure(Path(folder), env, given.pairs, given.rounds) | {"agent": given.agent}
    name = f"launch_overhead{'_agent' if given.agent else ''}"
    keep(name, result, show, json_only=given.json_only)
    return 0 if result["within_budget"] else 1


def measure(folder: Path, env: dict[str, str], pairs: int, rounds: int) -> dict[str, Any]:
    """Run the pairs, each in fresh processes."""
    script = folder / "train.py"
    script.write_text(JOB)
    runs = [run_pair(script, env, rounds) for _ in track(range(pairs), "pairs", console=Console(stderr=True))]
    ratios = {m: [pair[ARMED][m] / unwatched(pair, m) for pair in runs] for m in MEASURES}
    medians = {m: statistics.median(values) for m, values in ratios.items()}
    controls = {m: [pair[CONTROL][m] / pair[PLAIN][m] for pair in runs] for m in MEASURES}
    return {
        "pairs": pairs,
        "steps": rounds * 2 * STEPS,
        "ratio_median": medians,
        "ratio_min": {m: min(values) for m, values in ratios.items()},
        "ratio_max": {m: max(values) for m, values in ratios.items()},
        "control_median": {m: statistics.median(values) for m, values in controls.items()},
        "control_min": {m: min(values) for m, values in controls.items()},
        "control_max": {m: max(values) for m, values in controls.items()},
        "step_ms": {name: {m: statistics.median(pair[name][m] for pair in runs) for m in MEASURES} for name in JOBS},
        "budget_frac": BUDGET_FRAC,
        "within_budget": medians["wall"] < 1 + BUDGET_FRAC,
        "runs": runs,
    }


def unwatched(pair: dict[str, dict[str, float]], measure_name: str) -> float:
    """What a step takes without us: the mean of the two unarmed jobs."""
    return (pair[PLAIN][measure_name] + pair[CONTROL][measure_name]) / 2


def run_pair(script: Path, env: dict[str, str], rounds: int) -> dict[str, dict[str, float]]:
    """Milliseconds per step of an unarmed job, a second one and an armed one that take turns."""
    plain = [sys.executable, str(script)]
    armed = [sys.executable, "-m", "tightship_platform.cli", "run", "--workflow", "overhead", "--", *plain]
    log = (script.parent / "jobs.log").open("a")
    jobs = {
        name: subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
        for name, command in zip(JOBS, (plain, plain, armed), strict=True)
    }
    turns: dict[str, list[list[float]]] = {name: [] for name in JOBS}
    try:
        for job in jobs.values():
            turn(job, WARMUP_STEPS)
        for number in range(rounds):
            first = number % len(JOBS)
            order = JOBS[first:] + JOBS[:first]
            for name in order + order[::-1]:
                turns[name].append(turn(jobs[name], STEPS))
    finally:
        for job in jobs.values():
            job.communicate()
        log.close()
    return {name: per_step(values) for name, values in turns.items()}


def turn(job: subprocess.Popen[str], steps: int) -> list[float]:
    """Let one job make so many steps; wall and processor time in seconds."""
    assert job.stdin is not None and job.stdout is not None
    job.stdin.write(f"{steps}\n")
    job.stdin.flush()
    answer = job.stdout.readline()
    if not answer:
        raise SystemExit(f"{job.args} ended with {job.wait()}")
    return list(json.loads(answer))


def per_step(turns: list[list[float]]) -> dict[str, float]:
    """Milliseconds per step by each measure."""
    walls = [wall for wall, _ in turns]
    return {
        "wall": 1e3 * sum(walls) / len(walls) / STEPS,
        "fastest": 1e3 * min(walls) / STEPS,
        "cpu": 1e3 * sum(cpu for _, cpu in turns) / len(turns) / STEPS,
    }


def show(result: dict[str, Any]) -> None:
    """Print the table."""
    who = "an agent answers" if result["agent"] else "no agent"
    table = Table(title=f"An armed, idle job against the same job unarmed ({result['pairs']} rounds, {who})")
    for heading in ("per step", "job", "median", "ratio", "lowest", "highest"):
        table.add_column(heading, justify="left" if heading in {"per step", "job"} else "right", no_wrap=True)
    for measure_name, label in MEASURES.items():
        for job, key in ((PLAIN, None), (CONTROL, "control"), (ARMED, "ratio")):
            ratios = (
                [f"{result[f'{key}_{part}'][measure_name]:.4f}" for part in ("median", "min", "max")] if key else []
            )
            step = f"{result['step_ms'][job][measure_name]:.3f} ms"
            table.add_row("" if key else label, job, step, *ratios, end_section=job == ARMED)
    console = Console()
    console.print(table)
    verdict = "within" if result["within_budget"] else "OVER"
    overhead = 100 * (result["ratio_median"]["wall"] - 1)
    console.print(f"median overhead {overhead:+.2f} % of wall time: {verdict} the budget of {100 * BUDGET_FRAC:.0f} %")


@contextlib.contextmanager
def environment(folder: Path, with_agent: bool) -> Iterator[dict[str, str]]:
    """A separate installation; with `with_agent`, a server and an agent run in it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = {k: v for k, v in os.environ.items() if not k.startswith(("TIGHTSHIP_", "KINETO_"))} | {
        "TIGHTSHIP_HOME": str(folder / "home"),
        "TIGHTSHIP_RUNTIME_DIR": f"/tmp/tso-{os.getpid()}",
        "TIGHTSHIP_SERVER": f"http://127.0.0.1:{port}",
    }
    parts = (("server", "--port", str(port)), ("agent",)) if with_agent else ()
    children = []
    try:
        with (folder / "parts.log").open("ab") as log:
            for part in parts:
                command = [sys.executable, "-m", "tightship_platform.cli", *part]
                children.append(subprocess.Popen(command, env=env, stdout=log, stderr=log))
        if with_agent:
            wait_for_host(env)
        yield env
    finally:
        for child in reversed(children):
            child.send_signal(signal.SIGTERM)
            child.wait(20)
        shutil.rmtree(env["TIGHTSHIP_RUNTIME_DIR"], ignore_errors=True)


def wait_for_host(env: dict[str, str]) -> None:
    """Until the server has heard of the agent."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        with contextlib.suppress(TightshipError), ApiClient(load_settings(env)) as api:
            if api.get("/hosts"):
                return
        time.sleep(0.2)
    raise SystemExit("the server or the agent did not come up within 60 s")


if __name__ == "__main__":
    sys.exit(main())
