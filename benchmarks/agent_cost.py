"""What the host agent costs: share of a core and resident memory at 1 Hz, with a live job and a real server.

Budget: at most 1 % of a core and 80 MB resident. Starts a server, an agent and a small PyTorch job under
`tightship run`, each as its user would, lets the agent settle, then reads its /proc entries for a while. Processor
time comes from the scheduler's own count in nanoseconds, over all threads: the 10 ms ticks of /proc/<pid>/stat are too
coarse for something that runs for four milliseconds at a time.

    python benchmarks/agent_cost.py [--seconds 60] [--json-only]
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from parts.one_host import OneHost, one_host
from parts.results import keep, options
from rich.console import Console
from rich.table import Table

BUDGET_CORES = 0.01
BUDGET_RSS_BYTES = 80_000_000
SETTLE_S = 10.0

JOB = """
import time, torch
torch.set_num_threads(1)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    model(torch.randn(16, 64)).sum().backward()
    optimizer.step()
    time.sleep(0.02)
"""


def main() -> int:
    """Run it; 0 when the budget is kept."""
    arguments = options(__doc__)
    arguments.add_argument("--seconds", type=float, default=60.0, help="how long the agent is watched")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="ts-bench-") as folder:
        result = measure(Path(folder), given.seconds)
    keep("agent_cost", result, show, json_only=given.json_only)
    return 0 if result["within_budget"] else 1


def measure(folder: Path, seconds: float) -> dict[str, Any]:
    """Start everything, watch, end everything."""
    script = folder / "train.py"
    script.write_text(JOB)
    with one_host(folder) as host:
        run = host.train("agent-cost", str(script))
        time.sleep(SETTLE_S)
        return watch(host, run, seconds)


def watch(host: OneHost, run: str, seconds: float) -> dict[str, Any]:
    """Read the agent's own counters once a second; the job's steps prove that it is an agent at work."""
    pid = host.agent_pid
    steps = host.ask(f"/runs/{run}")["steps"]
    began, before = time.monotonic(), cpu_time(pid)
    resident = []
    while time.monotonic() - began < seconds:
        time.sleep(1.0)
        resident.append(status(pid)["VmRSS"] * 1024)
    took = time.monotonic() - began
    cpu_ns, wakeups = (now - then for now, then in zip(cpu_time(pid), before, strict=True))
    cores = cpu_ns / 1e9 / took
    return {
        "seconds": round(took, 1),
        "cores": round(cores, 5),
        "budget_cores": BUDGET_CORES,
        "rss_max_bytes": max(resident),
        "rss_growth_bytes": resident[-1] - resident[0],
        "budget_rss_bytes": BUDGET_RSS_BYTES,
        "threads": status(pid)["Threads"],
        "wakeups_per_s": round(wakeups / took, 1),
        "processes_on_host": sum(name.name.isdigit() for name in Path("/proc").iterdir()),
        "steps_seen": host.ask(f"/runs/{run}")["steps"] - steps,
        "within_budget": cores <= BUDGET_CORES and max(resident) <= BUDGET_RSS_BYTES,
    }


def cpu_time(pid: int) -> tuple[int, int]:
    """(nanoseconds on a processor, times it got one) of all threads of a process."""
    counts = [file.read_text().split() for file in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(int(count[0]) for count in counts), sum(int(count[2]) for count in counts)


def status(pid: int) -> dict[str, int]:
    """The numbers of /proc/<pid>/status."""
    lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {parts[0].rstrip(":"): int(parts[1]) for parts in lines if len(parts) > 1 and parts[1].isdigit()}


def show(result: dict[str, Any]) -> None:
    """The table."""
    table = Table(
        title=f"Host agent at 1 Hz, {result['seconds']} s, {result['processes_on_host']} processes on the host"
    )
    for column in ("quantity", "measured", "budget"):
        table.add_column(column, justify="left" if column == "quantity" else "right")
    table.add_row("share of a core", f"{100 * result['cores']:.2f} %", f"{100 * BUDGET_CORES:.0f} %")
    table.add_row("resident, largest", f"{result['rss_max_bytes'] / 1e6:.1f} MB", f"{BUDGET_RSS_BYTES / 1e6:.0f} MB")
    table.add_row("resident, growth", f"{result['rss_growth_bytes'] / 1e6:+.1f} MB", "")
    table.add_row("threads", str(result["threads"]), "")
    table.add_row("wake-ups", f"{result['wakeups_per_s']} /s", "")
    table.add_row("steps of the job seen meanwhile", str(result["steps_seen"]), "")
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
