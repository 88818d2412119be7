"""What the command line costs by itself: `tightship --help`, and the launcher around a job, beside plain Python.

    python benchmarks/cli_start.py [--rounds 15]

Each round starts all, one after the other, and begins with another one each time. The launcher's own time is that of
`tightship run -- python -c pass` less that of `python -c pass`: before the job, in it (what the launcher injects) and
after it. Processor time counts the job and all that was waited for; nobody listens at the server's address, so records
wait in the spool. Prints medians and the least of wall and processor time, and writes benchmarks/out/cli_start.json.
The aims are for the processor time of a machine that does nothing else: where a plain Python takes longer than usual
because of others, so does everything here.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from parts.results import keep, options
from rich.console import Console
from rich.table import Table

PLAIN, HELP, LAUNCHED = "python -c pass", "tightship --help", "the same under tightship run"
TIGHTSHIP = [sys.executable, "-m", "tightship_platform"]
COMMANDS = {
    PLAIN: [sys.executable, "-c", "pass"],
    HELP: [*TIGHTSHIP, "--help"],
    LAUNCHED: [*TIGHTSHIP, "run", "--", sys.executable, "-c", "pass"],
}
OWN = "the launcher's own"
AIMS_S = {HELP: 0.3, OWN: 0.25}
"""Most processor time."""
NOWHERE = "http://127.0.0.1:9"


def main() -> None:
    """Run it."""
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    # The path of a run's socket has a limit: see Settings.
    with tempfile.TemporaryDirectory(prefix="ts-bench-") as home, tempfile.TemporaryDirectory(prefix="tsr") as runs:
        environ = {k: v for k, v in os.environ.items() if not k.startswith("TIGHTSHIP_")} | {
            "TIGHTSHIP_HOME": home,
            "TIGHTSHIP_RUNTIME_DIR": runs,
            "TIGHTSHIP_SERVER": NOWHERE,
        }
        environ.pop("PYTHONDONTWRITEBYTECODE", None)
        keep("cli_start", measure(environ, given.rounds), show, json_only=given.json_only)


def measure(environ: dict[str, str], rounds: int) -> dict[str, Any]:
    """Seconds of wall and processor time by command, and of the launcher by itself."""
    names = list(COMMANDS)
    for name in names:  # what was never compiled is compiled now
        run_once(name, environ)
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            seconds[name].append(run_once(name, environ))
            shutil.rmtree(Path(environ["TIGHTSHIP_HOME"]) / "spool", ignore_errors=True)
    launched, plain = seconds[LAUNCHED], seconds[PLAIN]
    seconds[OWN] = [(a[0] - b[0], a[1] - b[1]) for a, b in zip(launched, plain, strict=True)]
    figures = {}
    for name, pairs in seconds.items():
        walls, cpus = zip(*pairs, strict=True)
        row = (statistics.median(walls), min(walls), statistics.median(cpus), min(cpus))
        figures[name] = dict(zip(("wall_s", "wall_least_s", "cpu_s", "cpu_least_s"), row, strict=True))
    met = {name: figures[name]["cpu_s"] <= aim for name, aim in AIMS_S.items()}
    return {"rounds": rounds, "aims_s": AIMS_S, "met": met, "figures": figures}


def run_once(name: str, environ: dict[str, str]) -> tuple[float, float]:
    """Wall and processor seconds of one whole process and of all that it waited for."""
    started = time.perf_counter()
    child = subprocess.Popen(COMMANDS[name], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environ)
    _, status, usage = os.wait4(child.pid, 0)
    wall = time.perf_counter() - started
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{name} ended with code {child.returncode}")
    return wall, usage.ru_utime + usage.ru_stime


def show(result: dict[str, Any]) -> None:
    """Print the table."""
    table = Table(title=f"Seconds, medians of {result['rounds']} rounds and the least")
    for heading in ("", "wall", "least", "processor", "least", "aim"):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for name, row in result["figures"].items():
        aim = result["aims_s"].get(name)
        shown = "" if aim is None else f"{aim} {'met' if result['met'][name] else 'MISSED'}"
        table.add_row(name, *(f"{value:.3f}" for value in row.values()), shown)
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
