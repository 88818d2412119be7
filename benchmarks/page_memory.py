"""How much memory the server takes for one request of a page, whatever the run: long, of many ranks, of large traces.

Starts PostgreSQL and a server, and stores a run of `--days` with 8 devices at 1 Hz and the steps of each of `--ranks`
every 10 s, a capture of all ranks with its analysis, and a fleet of `--runs` runs. Each page is asked for as a browser
does; the page of a small run comes first, so that what the process loads once does not count. What counts is how far
its largest resident size (VmHWM) rises above what it had before: 0 where memory that earlier requests left was enough.

    python benchmarks/page_memory.py [--days 7] [--ranks 64] [--runs 5000] [--json-only]
"""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx
from parts.fleet_server import FleetServer, fleet_server
from parts.results import keep, options
from rich.console import Console
from rich.table import Table
from sqlalchemy import text
from sqlalchemy.orm import Session

from tightship_analyzers.analysis.from_files import analyze_paths
from tightship_platform.database.engine import open_database
from tightship_platform.database.models import Capture, CaptureAnalysis, Trace
from tightship_platform.database.time_limits import for_maintenance
from tightship_platform.results.analysis.run import VERSION
from tightship_platform.results.packed import pack
from tightship_platform.units import NS_PER_S, now_ns
from tightship_platform.vocabulary import CaptureState

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))
import services

ROOT = Path(__file__).parents[1]
TRACE = ROOT / "tests/data/traces/starved.json.gz"
TARGET_BYTES = 50 * 10**6
DEVICES = 8
DAY_NS = 86_400 * NS_PER_S


def main() -> int:
    """Run it; 0 when no page takes more than the target."""
    arguments = options(__doc__)
    arguments.add_argument("--days", type=int, default=7)
    arguments.add_argument("--ranks", type=int, default=64)
    arguments.add_argument("--runs", type=int, default=5000)
    given = arguments.parse_args()
    try:
        with (
            services.postgres_server() as url,
            tempfile.TemporaryDirectory(prefix="ts-bench-") as folder,
            fleet_server(Path(folder), url, hosts=0) as server,
        ):
            limits = for_maintenance(server.settings)
            with open_database(server.settings, limits) as database, database.session() as session:
                stored = fill(session, given.days, given.ranks, given.runs)
            pages = measured(server)
    except services.Unavailable as why:
        print(f"not measured: {why}")
        return 0
    result: dict[str, Any] = {"days": given.days, "ranks": given.ranks, "runs": given.runs, **stored, "pages": pages}
    result["within_target"] = all(page["bytes"] <= TARGET_BYTES for page in pages.values())
    keep("page_memory", result, show, json_only=given.json_only)
    return 0 if result["within_target"] else 1


def fill(session: Session, days: int, ranks: int, runs: int) -> dict[str, int]:
    """Store a small run and a large one with a capture each, and a fleet of runs that have ended."""
    now = now_ns()
    session.execute(
        text(
            "INSERT INTO workflow (id, name, labels) SELECT n, 'workflow-' || n, '{}' FROM generate_series(1, 50) AS n"
        )
    )
    session.execute(
        text(
            "INSERT INTO host (id, name, first_seen_ns, last_seen_ns, info, sources) "
            "VALUES (1, 'node', 1, :now, '{}', '[]')"
        ),
        {"now": now},
    )
    session.execute(
        text(
            "INSERT INTO device (id, host_id, uuid, kind, name) "
            "SELECT n, 1, 'GPU-' || n, 'gpu', 'NVIDIA H200' FROM generate_series(1, :count) AS n"
        ),
        {"count": DEVICES},
    )
    insert = (
        "INSERT INTO run (key, workflow_id, source, simulated, host_name, state, start_ns, end_ns, last_seen_ns, "
        "labels, command, ranks, steps) "
    )
    session.execute(
        text(
            insert
            + "SELECT CASE n WHEN 1 THEN 'small' WHEN 2 THEN 'large' ELSE 'run-' || n END, 1 + n % 50, 'launch', "
            "false, 'node', CASE WHEN n < 3 THEN 'running' ELSE 'succeeded' END, "
            ":now - CASE n WHEN 1 THEN 600000000000 ELSE :span END, CASE WHEN n < 3 THEN NULL ELSE :now END, :now, "
            "'{}', '[]', '[]', 1000 FROM generate_series(1, :runs) AS n"
        ),
        {"now": now, "span": days * DAY_NS, "runs": runs + 2},
    )
    for run_id, seconds, counted in ((1, 600, DEVICES), (2, days * 86_400, ranks)):
        series(session, run_id, now // NS_PER_S * NS_PER_S - seconds * NS_PER_S, seconds, counted)
    session.execute(text("ANALYZE"))
    sizes = {}
    for key, run_id, counted in (("small", 1, 1), ("large", 2, ranks)):
        sizes[f"{key}_analysis_bytes"] = analysis(session, key, run_id, counted, now)
    for table in ("sample", "run_sample", "step_stat", "rollup"):
        sizes[f"{table}_rows"] = session.execute(text(f"SELECT count(*) FROM {table}")).scalar_one()
    return sizes


def series(session: Session, run_id: int, start_ns: int, seconds: int, ranks: int) -> None:
    """Samples of the last day, rollups and step counts of a run."""
    span = {"run": run_id, "start": start_ns, "devices": DEVICES, "ranks": ranks, "seconds": seconds}
    span |= {"since": max(0, seconds - 86_400)}
    for statement in (
        "INSERT INTO allocation (run_id, device_id, start_ns) "
        "SELECT :run, d, :start FROM generate_series(1, :devices) AS d",
        "INSERT INTO sample (time_ns, device_id, util_frac, sm_active_frac, memory_used_bytes, power_w) "
        "SELECT :start + s * 1000000000::bigint, d, random(), random(), 1e9, 500 "
        "FROM generate_series(:since, :seconds - 1) AS s, generate_series(1, :devices) AS d ON CONFLICT DO NOTHING",
        "INSERT INTO run_sample (time_ns, run_id, device_id, util_frac, memory_used_bytes) "
        "SELECT :start + s * 1000000000::bigint, :run, d, random(), 1e9 "
        "FROM generate_series(:since, :seconds - 1) AS s, generate_series(1, :devices) AS d",
        "INSERT INTO rollup (run_id, device_id, width_ns, time_ns, samples, util_frac, sm_active_frac) "
        "SELECT :run, d, 60000000000, (:start + m * 60000000000::bigint) / 60000000000 * 60000000000, 60, 0.5, 0.5 "
        "FROM generate_series(0, :seconds / 60 - 1) AS m, generate_series(1, :devices) AS d",
        "INSERT INTO step_stat (run_id, time_ns, rank, width_ns, steps) "
        "SELECT :run, :start + b * 10000000000::bigint, r, 10000000000, 10 "
        "FROM generate_series(0, :seconds / 10 - 1) AS b, generate_series(0, :ranks - 1) AS r",
    ):
        session.execute(text(statement), span)


def analysis(session: Session, key: str, run_id: int, ranks: int, now: int) -> int:
    """A capture of the run, analyzed: the recording of the tests, as if every rank had made it. Its size in bytes."""
    one = analyze_paths([str(TRACE)])
    shown = [dataclasses.replace(one.ranks[0], rank=rank) for rank in range(ranks)]
    body = pack(dataclasses.replace(one, ranks=shown), version=VERSION)
    capture = Capture(
        key=f"capture-{key}",
        run_id=run_id,
        requested_ns=now,
        expires_ns=now + DAY_NS,
        requested_by="somebody",
        state=CaptureState.ANALYZED.value,
        params={},
        expected=[],
        stages={state.value: now for state in (CaptureState.REQUESTED, CaptureState.RECORDING, CaptureState.WRITTEN)},
    )
    session.add(capture)
    session.flush()
    session.add(CaptureAnalysis(capture_id=capture.id, body=body, catalogue="1", created_ns=now))
    for rank in range(ranks):
        session.add(
            Trace(
                capture_id=capture.id,
                run_id=run_id,
                rank=rank,
                host_name="node",
                url=f"x/{key}/{rank}",
                sha256="",
                bytes=5 * 10**8,
                created_ns=now,
                analyzed_ns=now,
                summary={},
            )
        )
    session.flush()
    return len(body)


def measured(server: FleetServer) -> dict[str, dict[str, Any]]:
    """Each page: how far the server's memory rose, and the size of its answer."""
    pages = {
        "one run": ("/runs/small", "/runs/large"),
        "one trace": ("/traces/capture-small", "/traces/capture-large"),
        "the fleet": ("/", "/"),
        "all runs": ("/runs", "/runs"),
    }
    calls = {"analysis over the API": ("capture-small", "capture-large")}
    found: dict[str, dict[str, Any]] = {}
    with httpx.Client(
        base_url=f"http://127.0.0.1:{server.port}",
        headers={"authorization": f"Bearer {server.admin}"},
        timeout=300,
        trust_env=False,
    ) as http:
        for name, (small, large) in pages.items():
            page(http, small)
            before = resident(server.process.pid, reset=True)
            size = page(http, large)
            found[name] = {"bytes": max(0, peak(server.process.pid) - before), "answer_bytes": size}
        for name, (small, large) in calls.items():
            fetch(http, small)
            before = resident(server.process.pid, reset=True)
            size = fetch(http, large)
            found[name] = {"bytes": max(0, peak(server.process.pid) - before), "answer_bytes": size}
    return found


def fetch(http: httpx.Client, capture: str) -> int:
    """The whole analysis; the answer's size in bytes."""
    return len(http.get(f"/api/v1/captures/{capture}/analysis").raise_for_status().content)


def page(http: httpx.Client, path: str) -> int:
    """As a browser does: the document, then what its script asks for. The answers' size in bytes."""
    document = http.get(path, headers={"accept": "text/html"}).raise_for_status()
    body = {
        "output": "..page.children...title.data..",
        "outputs": [{"id": "page", "property": "children"}, {"id": "title", "property": "data"}],
        "inputs": [{"id": "url", "property": "pathname", "value": path}],
        "changedPropIds": ["url.pathname"],
        "state": [{"id": "url", "property": "search", "value": ""}],
    }
    return len(document.content) + len(http.post("/_dash-update-component", json=body).raise_for_status().content)


def resident(pid: int, *, reset: bool) -> int:
    """Memory of the process in bytes."""
    if reset:
        Path(f"/proc/{pid}/clear_refs").write_text("5")
    return _status(pid, "VmRSS")


def peak(pid: int) -> int:
    """Most memory of the process since it was reset, in bytes."""
    return _status(pid, "VmHWM")


def _status(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":"))


def show(result: dict[str, Any]) -> None:
    """The table."""
    table = Table(
        title=f"A run of {result['days']} days and {result['ranks']} ranks beside {result['runs']} others: "
        f"{result['step_stat_rows']:,} step counts, {result['run_sample_rows']:,} samples of a run"
    )
    for column in ("page", "memory of one request", "answer", "target"):
        table.add_column(column, justify="left" if column == "page" else "right")
    for name, one in result["pages"].items():
        target = f"≤ {TARGET_BYTES / 1e6:.0f} MB"
        table.add_row(name, f"{one['bytes'] / 1e6:.1f} MB", f"{one['answer_bytes'] / 1e6:.2f} MB", target)
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
