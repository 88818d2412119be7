"""How long `tightship --help` takes, beside a bare interpreter in the same run.

    python benchmarks/cli_start.py [--pairs 15]

Each pair starts both, one after the other. Prints median, and least, seconds of wall and processor time; writes
benchmarks/out/cli_start.json. The budget of 0.3 s is for a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

BUDGET_S = 0.3
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "tightship --help": [str(Path(sys.executable).with_name("tightship")), "--help"],
}


def run_once(command: list[str]) -> tuple[float, float]:
    """Wall and processor seconds of one whole process."""
    started = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    wall = time.perf_counter() - started
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{command} ended with code {child.returncode}")
    return wall, usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=15)
    pairs = parser.parse_args().pairs
    for command in COMMANDS.values():
        run_once(command)
    runs: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    for _ in range(pairs):
        for name, command in COMMANDS.items():
            runs[name].append(run_once(command))
    result = {}
    print(f"{'':<20}{'wall s':>10}{'least':>10}{'cpu s':>10}{'least':>10}")
    for name, seconds in runs.items():
        walls, cpus = zip(*seconds, strict=True)
        row = [statistics.median(walls), min(walls), statistics.median(cpus), min(cpus)]
        result[name] = dict(zip(("wall_s", "wall_least_s", "cpu_s", "cpu_least_s"), row, strict=True))
        print(f"{name:<20}" + "".join(f"{value:>10.3f}" for value in row))
    print(f"budget {BUDGET_S} s; processor time {result['tightship --help']['cpu_s']:.3f} s over {pairs} pairs")
    out = Path(__file__).parent / "out"
    out.mkdir(exist_ok=True)
    (out / "cli_start.json").write_text(json.dumps({"pairs": pairs, "budget_s": BUDGET_S, **result}, indent=2) + "\n")


if __name__ == "__main__":
    main()
