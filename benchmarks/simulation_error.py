"""How well the dependency graph of a trace, run again unchanged, gives the measured steps.

For each trace with steps: the worst step's error; the same when every delay (launch latency, gap of a stream, return of
a wait) is the median of its kind instead of its own measured one; how far device events drift; waiting without a cause.

    python benchmarks/simulation_error.py [TRACE.json[.gz] or folder …] [--json-only] [--markdown]
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from tightship_analyzers import trace as traces
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.simulation.dependency_graph import MAX_ERROR_FRAC, DependencyGraph
from tightship_analyzers.facts.window.steps import Steps
from tightship_analyzers.graph.build import build
from tightship_analyzers.graph.model import Edge, Graph
from tightship_analyzers.graph.simulate import simulate
from tightship_platform.errors import TightshipError

OUT = Path(__file__).parent / "out" / "simulation_error.json"
REFERENCE = os.environ.get("TIGHTSHIP_REFERENCE", "")
TRACES = Path(REFERENCE) / "traces" if REFERENCE else Path(__file__).parents[1] / "tests" / "data" / "traces"
HEAD = ("TRACE", "STEPS", "NODES", "BUILD + RUN", "WORST STEP", "MEDIAN DELAYS", "DRIFT", "UNEXPLAINED", "DISTRUST")


def main() -> int:
    """Measures and prints; 1 where more than a tenth of the steps is missed by more than the limit."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument(
        "paths",
        nargs="*",
        type=Path,
        metavar="PATH",
        help="default: the reference traces, or our own",
    )
    arguments.add_argument("--json-only", action="store_true", help="print the JSON instead of the table")
    arguments.add_argument("--markdown", action="store_true", help="print the table for a document")
    given = arguments.parse_args()
    results = [row for path in _files(given.paths or [TRACES]) if (row := measured(path)) is not None]
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(results, indent=2) + "\n")
    errors = np.array([error for row in results for error in row["steps_error_frac"]])
    good = int((errors <= MAX_ERROR_FRAC).sum())
    if given.json_only:
        print(json.dumps(results, indent=2))
    elif given.markdown:
        print(
            "\n".join("| " + " | ".join(cells) + " |" for cells in [HEAD, ["---"] * len(HEAD), *map(_cells, results)])
        )
    else:
        table = Table(*HEAD, box=None)
        for row in results:
            table.add_row(*_cells(row))
        Console().print(table)
    print(f"\n{good} of {len(errors)} steps within {MAX_ERROR_FRAC:.0%}")
    return int(good < 0.9 * len(errors))


def measured(path: Path) -> dict[str, Any] | None:
    """The figures of one trace; None where it is no trace or has no steps."""
    try:
        trace = traces.open(path)
    except TightshipError:
        return None
    facts = Facts(trace)
    steps = facts.find(Steps)
    if steps is None:
        return None
    begun = time.perf_counter()
    simulate(build(trace, steps.bounds_ns, steps.tid))
    spent = time.perf_counter() - begun
    known = facts[DependencyGraph]
    typical = replace(known, unchanged=simulate(with_median_delays(known.graph)))
    return {
        "trace": "/".join(path.parts[-2:]),
        "steps": steps.count,
        "nodes": len(known.graph),
        "seconds": spent,
        "steps_error_frac": known.error_frac.tolist(),
        "median_delays_error_frac": typical.error_frac.tolist(),
        "drift_frac": known.drift_frac,
        "unexplained_ns": known.unexplained_ns,
        "distrust": known.distrust,
    }


def with_median_delays(graph: Graph) -> Graph:
    """The graph of a device whose every delay is what is usual for its kind."""
    lag = graph.lag_ns.copy()
    for kind in (Edge.STREAM, Edge.WAIT, Edge.INFERRED, Edge.LAUNCH, Edge.SYNC):
        of_kind = graph.edge == kind
        if of_kind.any():
            lag[of_kind] = int(np.median(lag[of_kind]))
    return replace(graph, lag_ns=lag)


def _files(paths: list[Path]) -> list[Path]:
    found = [inner for path in paths for inner in (sorted(path.rglob("*.json*")) if path.is_dir() else [path])]
    return [path for path in found if not path.is_relative_to(TRACES / "reference")]


def _cells(row: dict[str, Any]) -> list[str]:
    return [
        row["trace"],
        str(row["steps"]),
        str(row["nodes"]),
        f"{row['seconds'] * 1000:.0f} ms",
        f"{max(row['steps_error_frac']):.2%}",
        f"{max(row['median_delays_error_frac']):.2%}",
        f"{row['drift_frac']:.2%}",
        f"{row['unexplained_ns'] / 1e6:.1f} ms",
        row["distrust"] or "",
    ]


if __name__ == "__main__":
    raise SystemExit(main())
