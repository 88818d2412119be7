"""What a rule says a defect costs, from one trace, beside what its fix saves on the clock of this GPU.

    python benchmarks/gpu/pairs.py                           # on a GPU: all pairs
    python benchmarks/gpu/pairs.py --cpu                     # those that mean something without one
    python benchmarks/gpu/pairs.py --keep tests/data/gpu     # keep the recordings of both sides

Each pair is the same work with the defect and without. Both are timed in turns without a profiler, the median counts;
then each is recorded for four steps, fewer where they are large, with stacks and shapes, and judged as `tightship
analyze` judges it. *Predicted* is the saving that the rule tells from the recording with the defect, in steps as they
are without recording; *measured* is the difference of the two medians. `quiet` says whether the rule keeps silent about
the side without its defect.

The table goes to the screen, everything to `benchmarks/out/gpu_pairs.json`, with the GPU's name.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from pair_cases import PAIRS, Pair, Step
from rich.console import Console
from rich.table import Table
from torch.profiler import ProfilerActivity, profile, schedule

from tightship_analyzers.analysis.from_files import analyze_paths
from tightship_analyzers.analysis.wanted import Wanted
from tightship_platform.errors import Invalid
from tightship_platform.results.analysis.finding import TraceFinding

OUT = Path(__file__).parents[1] / "out" / "gpu_pairs.json"
WARM_UP, ROUNDS = 5, 7
RECORDED = (4, 2, 1)
"""Steps of a recording: as many of these as are small enough to keep."""
ROUND_S = 0.3
"""A round has as many steps as take about so long."""
MOST_BYTES = 300_000
"""Recordings that are kept are no larger."""


def waited(device: str) -> None:
    """Until the device has done what was asked of it."""
    if device != "cpu":
        torch.cuda.synchronize()


def round_ns(step: Step, steps: int, device: str) -> float:
    """Mean of one round."""
    waited(device)
    begun = time.perf_counter_ns()
    for _ in range(steps):
        step()
    waited(device)
    return (time.perf_counter_ns() - begun) / steps


def recorded(step: Step, target: Path, device: str) -> Path:
    """The trace of some steps."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device != "cpu" else [])]
    for steps in RECORDED:
        plan = schedule(wait=1, warmup=1, active=steps + 1)
        with profile(activities=activities, schedule=plan, with_stack=True, record_shapes=True) as recording:
            for _ in range(steps + 3):
                step()
                waited(device)
                recording.step()
        recording.export_chrome_trace(str(target))
        if target.stat().st_size <= MOST_BYTES:
            break
    return target


def found_in(trace: Path, rule: str, step_ns: float) -> TraceFinding | None:
    """What the rule says about a recording, in steps of that length; in its own where it has none that are longer."""
    try:
        result = analyze_paths([str(trace)], wanted=Wanted(untraced_step_ns=round(step_ns), assume_proven=True))
    except Invalid:
        result = analyze_paths([str(trace)], wanted=Wanted(assume_proven=True))
    return next((finding for finding in result.findings if finding.rule == rule), None)


def compared(pair: Pair, device: str, folder: Path) -> dict[str, Any]:
    """One pair: timed in turns, recorded, judged."""
    sides = {"before": pair.before(device), "after": pair.after(device)}
    steps = {}
    for name, step in sides.items():
        round_ns(step, WARM_UP, device)
        steps[name] = max(3, round(ROUND_S * 1e9 / round_ns(step, 3, device)))
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(ROUNDS):
        for name, step in sides.items():
            times[name].append(round_ns(step, steps[name], device))
    median = {name: statistics.median(times[name]) for name in sides}
    traces = {name: recorded(step, folder / f"{pair.rule}.{name}.json.gz", device) for name, step in sides.items()}
    finding = found_in(traces["before"], pair.rule, median["before"])
    saved_ns = median["before"] - median["after"]
    saving = finding.saving if finding else None
    return {
        "rule": pair.rule,
        "before_ns": round(median["before"]),
        "after_ns": round(median["after"]),
        "measured_ns": round(saved_ns),
        "predicted_ns": saving.value if saving else None,
        "low_ns": saving.low if saving else None,
        "high_ns": saving.high if saving else None,
        "method": saving.method if saving else None,
        "error_frac": (saving.value - saved_ns) / saved_ns
        if saving and saving.value is not None and saved_ns > 0
        else None,
        "quiet": found_in(traces["after"], pair.rule, median["after"]) is None,
        "bytes": {name: path.stat().st_size for name, path in traces.items()},
    }


def judged(pair: Pair, device: str, folder: Path) -> dict[str, Any]:
    """`compared`, or the line that says why not: one pair that fails does not cost the others theirs."""
    try:
        return compared(pair, device, folder)
    except Exception as error:
        return {"rule": pair.rule, "failed": (str(error).splitlines() or [type(error).__name__])[0][:300]}


def kept(rows: Sequence[dict[str, Any]], folder: Path, target: Path) -> None:
    """The recordings that are small enough, and what was measured of them."""
    target.mkdir(parents=True, exist_ok=True)
    for row in rows:
        for name, size in row.get("bytes", {}).items():
            file = f"{row['rule']}.{name}.json.gz"
            if size <= MOST_BYTES:
                (target / file).write_bytes((folder / file).read_bytes())
            else:
                sys.stderr.write(f"{file} is not kept: it has {size} bytes, more than {MOST_BYTES}\n")


def show(console: Console, title: str, rows: Sequence[dict[str, Any]]) -> None:
    """One line for each pair."""
    table = Table(title=title)
    for column in ("rule", "before", "after", "measured", "predicted", "from", "to", "method", "error", "quiet"):
        table.add_column(column, justify="left" if column in ("rule", "method") else "right", no_wrap=True)
    for row in rows:
        if "failed" not in row:
            keys = ("before_ns", "after_ns", "measured_ns", "predicted_ns", "low_ns", "high_ns")
            figures = ["–" if row[key] is None else f"{row[key] / 1e6:.3f} ms" for key in keys]
            error = "–" if row["error_frac"] is None else f"{row['error_frac']:+.0%}"
            method = row["method"] or "not found"
            table.add_row(row["rule"], *figures, method, error, "yes" if row["quiet"] else "no")
    console.print(table)
    for row in rows:
        if "failed" in row:
            console.print(f"{row['rule']} did not run: {row['failed']}")
    errors = [abs(row["error_frac"]) for row in rows if row.get("error_frac") is not None]
    if errors:
        found = sum(row.get("method") is not None for row in rows)
        console.print(f"{found} of {len(rows)} found; median error of the saving {statistics.median(errors):.0%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", action="store_true", help="the pairs that mean something on a CPU")
    parser.add_argument("--rule", nargs="+", choices=[pair.rule for pair in PAIRS], metavar="RULE", help="only these")
    parser.add_argument("--keep", type=Path, help=f"folder for the recordings of up to {MOST_BYTES // 1000} KB")
    given = parser.parse_args()
    if not given.cpu and not torch.cuda.is_available():
        parser.error("there is no GPU here; --cpu runs the pairs that need none")
    device = "cpu" if given.cpu else "cuda"
    name = None if given.cpu else torch.cuda.get_device_name()
    chosen = [pair for pair in PAIRS if (pair.anywhere or not given.cpu) and pair.rule in (given.rule or [pair.rule])]
    rows = []
    with tempfile.TemporaryDirectory(prefix="tightship-pairs-") as made:
        for pair in chosen:
            sys.stderr.write(f"{pair.rule}\n")
            rows.append(judged(pair, device, Path(made)))
        if given.keep:
            kept(rows, Path(made), given.keep)
    document = {"gpu": name, "torch": torch.__version__, "pairs": rows}
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(document, indent=1) + "\n")
    if given.keep:
        (given.keep / "measured.json").write_text(json.dumps(document, indent=1) + "\n")
    show(Console(width=max(150, Console().width)), f"Defect and fix on {name or 'a CPU'}", rows)


if __name__ == "__main__":
    main()
