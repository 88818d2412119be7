"""How long a capture takes: from the request to the complete trace on disk, 1 s of one rank, and whether any is lost.

Target: median at most 5 s, 95th percentile at most 6.5 s, none lost. Starts a server, an agent and a training job of
examples/ under `tightship run`, each as its user would, then asks for one capture after another, at random moments. The
time is the server's: from the arrival of the request to the agent's report that the file is complete, so it holds the
agent's lease, the job's own polling (1 s), the recording, Kineto's export, and the report.

    python benchmarks/capture_latency.py [--captures 30] [--job examples/tiny_gpt.py] [--json-only]
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from parts.one_host import OneHost, one_host
from parts.results import keep, options
from rich.console import Console
from rich.progress import track
from rich.table import Table

from tightship_platform.client import ApiClient
from tightship_platform.units import NS_PER_S

HERE = Path(__file__).parent
DURATION_NS = NS_PER_S
TARGET_MEDIAN_S = 5.0
TARGET_P95_S = 6.5
ENDED = ("uploaded", "analyzed", "failed", "expired")
"""No worker runs here, so `uploaded` is the end."""


def main() -> int:
    """Run it; 0 when the targets are met."""
    arguments = options(__doc__)
    arguments.add_argument("--captures", type=int, default=30)
    arguments.add_argument("--job", type=Path, default=HERE.parent / "examples" / "tiny_gpt.py")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="ts-bench-") as folder:
        captures = measure(Path(folder), given.job.absolute(), given.captures, quiet=given.json_only)
    result = summary(captures, given.job.name)
    keep("capture_latency", result, show, json_only=given.json_only)
    return 0 if result["within_target"] else 1


def measure(folder: Path, job: Path, count: int, *, quiet: bool) -> list[dict[str, Any]]:
    """Start everything, take the captures, end everything; returns the captures as the server tells them."""
    with one_host(folder) as host:
        run = host.train("capture-latency", str(job), "--seconds", "36000")
        rounds = range(count)
        return [
            capture(host, run) for _ in (rounds if quiet else track(rounds, description="captures", transient=True))
        ]


def capture(host: OneHost, run: str) -> dict[str, Any]:
    """One capture to its end. The pause before it keeps it out of step with everything that happens once a second."""
    time.sleep(random.uniform(0.3, 1.3))
    with ApiClient(host.settings) as api:
        key = api.post("/captures", {"target": run, "params": {"duration_ns": DURATION_NS}})["capture"]
    found: dict[str, Any] = host.wait_for(f"/captures/{key}", lambda capture: capture["state"] in ENDED)
    return found


def summary(captures: list[dict[str, Any]], job: str) -> dict[str, Any]:
    """The figures of all captures."""
    written = [c for c in captures if c["state"] in ("uploaded", "analyzed")]
    latencies = sorted(since_request(c, "written") for c in written)
    lost = [f"{c['state']}: {c['reason']}" for c in captures if c not in written]
    median = statistics.median(latencies) if latencies else None
    p95 = quantile(latencies, 0.95)
    return {
        "job": job,
        "captures": len(captures),
        "lost": lost,
        "duration_s": DURATION_NS / NS_PER_S,
        "median_s": median and round(median, 3),
        "p95_s": p95 and round(p95, 3),
        "max_s": round(latencies[-1], 3) if latencies else None,
        "target_median_s": TARGET_MEDIAN_S,
        "target_p95_s": TARGET_P95_S,
        "median_of_stages_s": {
            stage: round(statistics.median(since_request(c, stage) for c in written), 3)
            for stage in ("leased", "armed", "recording", "written", "uploaded")
            if written
        },
        "attempts": sum(c["attempts"] for c in captures),
        "median_upload_bytes": statistics.median(c["ranks"][0]["bytes"] for c in written) if written else None,
        "within_target": bool(not lost and median and p95 and median <= TARGET_MEDIAN_S and p95 <= TARGET_P95_S),
    }


def since_request(capture: dict[str, Any], stage: str) -> float:
    """Seconds from the request to a stage."""
    return float(capture["stages"][stage] - capture["requested_ns"]) / NS_PER_S


def quantile(values: list[float], share: float) -> float | None:
    """The smallest value that at least this share of the sorted values does not exceed."""
    return values[max(0, -int(-share * len(values) // 1) - 1)] if values else None


def show(result: dict[str, Any]) -> None:
    """The table."""
    table = Table(
        title=f"Request to complete trace on disk: {result['captures']} captures of {result['duration_s']:.0f} s, "
        f"one rank, {result['job']}"
    )
    for column in ("quantity", "measured", "target"):
        table.add_column(column, justify="left" if column == "quantity" else "right")
    table.add_row("median", seconds(result["median_s"]), f"≤ {TARGET_MEDIAN_S} s")
    table.add_row("95th percentile", seconds(result["p95_s"]), f"≤ {TARGET_P95_S} s")
    table.add_row("largest", seconds(result["max_s"]), "")
    table.add_row("lost", str(len(result["lost"])), "0")
    for stage, median in result["median_of_stages_s"].items():
        table.add_row(f"median until {stage}", seconds(median), "")
    table.add_row("upload, median", f"{(result['median_upload_bytes'] or 0) / 1e6:.1f} MB", "")
    Console().print(table)
    for line in result["lost"]:
        print(f"lost: {line}")


def seconds(value: float | None) -> str:
    """Two decimals; a dash when missing."""
    return "–" if value is None else f"{value:.2f} s"


if __name__ == "__main__":
    sys.exit(main())
