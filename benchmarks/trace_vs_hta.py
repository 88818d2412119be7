"""Our trace engine beside HolisticTraceAnalysis: same files, same run, whole processes, one after the other.

Makes a trace of many times the steps of a real one, installs the peer in its own environment (downloads it once),
and measures seconds, processor seconds and peak memory of

- both programs reading the trace and making the peer's four main analyses (temporal breakdown, overlap of
  communication, idle time per stream, kernel breakdown),
- our whole command with all rules,

each as its own process, taking turns. Without the reference traces it writes its own trace.

    python benchmarks/trace_vs_hta.py [--source TRACE.json.gz] [--times 10] [--repeat 3] [--json-only]
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from parts.results import keep, options
from parts.whole_process import measured
from rich.console import Console
from rich.table import Table
from trace_read import size_of_text, written

HERE = Path(__file__).resolve().parent
REFERENCE = Path(os.environ.get("TIGHTSHIP_REFERENCE") or os.devnull)
REPEATER = REFERENCE.parent / "tools" / "make_big_trace.py"
V100 = REFERENCE / "traces" / "hta" / "df_index_resolver" / "df_index_resolver.json.gz"
PEER = ("HolisticTraceAnalysis==0.5.0", "pandas==2.2.3")
MEGABYTES_A_TIME = 53

OURS_FOUR = """
import sys
from tightship_analyzers import trace
from tightship_analyzers.metrics.idle import idle_by_stream
from tightship_analyzers.metrics.kernel_classes import kernel_classes
from tightship_analyzers.metrics.kernels import kernel_names, kernel_types
from tightship_analyzers.metrics.overlap import overlap
from tightship_analyzers.metrics.step_filter import without_last_step
from tightship_analyzers.metrics.temporal import temporal_breakdown
kept = without_last_step(trace.open(sys.argv[1], processes=2))
classes = kernel_classes(kept)
for analysis in (temporal_breakdown, overlap, kernel_types, kernel_names):
    analysis(kept, classes=classes)
idle_by_stream(kept)
"""
PEER_FOUR = """
import sys
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_files={0: sys.argv[1]})
analysis.get_temporal_breakdown(visualize=False)
analysis.get_comm_comp_overlap(visualize=False)
analysis.get_idle_time_breakdown(ranks=[0], visualize=False)
analysis.get_gpu_kernel_breakdown(visualize=False)
"""
FOUR, RULES, THEIRS = "tightship, 4 analyses", "tightship analyze, all rules", "HolisticTraceAnalysis, 4 analyses"


def main() -> int:
    """Measures and prints."""
    arguments = options(__doc__)
    arguments.add_argument("--source", type=Path, help="trace to repeat; else the V100 reference trace, else our own")
    arguments.add_argument("--times", type=int, default=10, help="how often its steps are repeated")
    arguments.add_argument("--repeat", type=int, default=3, help="rounds; the median counts")
    arguments.add_argument(
        "--peer-env", type=Path, default=HERE / "out" / "hta-env", help="where the peer is installed"
    )
    given = arguments.parse_args()
    peer = installed(given.peer_env)
    with tempfile.TemporaryDirectory(prefix="ts-bench-") as folder:
        results = []
        for times in dict.fromkeys((1, given.times)):
            path = made(given.source or V100, Path(folder) / f"times-{times}.json.gz", times)
            results.append(compared(path, times, given.repeat, peer))
    keep("trace_vs_hta", results, _show_all, json_only=given.json_only)
    return 0


def installed(folder: Path) -> Path:
    """The interpreter of an environment that holds the peer; made where it is not there yet."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    if subprocess.run([python, "-c", "import hta.trace_analysis"], check=False, capture_output=True).returncode:
        subprocess.run([python, "-m", "pip", "install", "-qq", *PEER], check=True)
    return python


def made(source: Path, target: Path, times: int) -> Path:
    """A trace of `times` the steps of `source`, or where there is none, a generated one of about that size."""
    if not (source.exists() and REPEATER.exists()):
        return written(target, MEGABYTES_A_TIME * times)
    subprocess.run([sys.executable, REPEATER, source, target, str(times)], check=True)
    return target


def compared(path: Path, times: int, repeat: int, peer: Path) -> dict[str, Any]:
    """All programs on one trace, `repeat` rounds."""
    commands = {
        FOUR: [sys.executable, "-c", OURS_FOUR, str(path)],
        RULES: [str(Path(sys.executable).parent / "tightship"), "analyze", str(path), "--json"],
        THEIRS: [str(peer), "-c", PEER_FOUR, str(path)],
    }
    runs: dict[str, list[tuple[float, float, int]]] = {name: [] for name in commands}
    for _ in range(repeat):
        for name, command in commands.items():
            runs[name].append(measured(command))
            seconds, cpu_seconds, peak = runs[name][-1]
            said = f"{path.name}: {name}: {seconds:.2f} s, {cpu_seconds:.2f} CPU s, {peak / 1e6:.0f} MB"
            print(said, file=sys.stderr, flush=True)
    rows = {
        name: {
            "seconds": round(statistics.median(run[0] for run in each), 3),
            "cpu_seconds": round(statistics.median(run[1] for run in each), 3),
            "peak_bytes": max(run[2] for run in each),
        }
        for name, each in runs.items()
    }
    theirs = rows[THEIRS]
    for row in rows.values():
        row |= {
            "times_faster": round(theirs["seconds"] / row["seconds"], 2),
            "times_less_cpu": round(theirs["cpu_seconds"] / row["cpu_seconds"], 2),
            "times_less_memory": round(theirs["peak_bytes"] / row["peak_bytes"], 2),
        }
    return {"times": times, "text_bytes": size_of_text(path), "rounds": repeat, "programs": rows}


def _show_all(results: list[dict[str, Any]]) -> None:
    for result in results:
        show(result)


def show(result: dict[str, Any]) -> None:
    """One table."""
    table = Table(title=f"{result['text_bytes'] / 1e6:.0f} MB of trace (whole processes, median of {result['rounds']})")
    for column in ("program", "s", "CPU s", "peak MB", "faster", "less CPU", "less memory"):
        table.add_column(column, justify="left" if column == "program" else "right")
    for name, row in result["programs"].items():
        table.add_row(
            name,
            f"{row['seconds']:.2f}",
            f"{row['cpu_seconds']:.2f}",
            f"{row['peak_bytes'] / 1e6:.0f}",
            *(f"{row[key]:.1f}×" for key in ("times_faster", "times_less_cpu", "times_less_memory")),
        )
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
