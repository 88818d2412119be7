"""What a worker needs for a capture of many ranks: peak memory and processor seconds of each piece of its analysis.

Uploads captures of 1, 2 and --ranks ranks whose traces differ in the rank only, and does their pieces as a worker does,
each in its own process: one piece per rank, and the one that joins them. The largest piece of the large capture
has to fit the memory of two ranks read at once.

    python benchmarks/capture_ranks.py [--ranks 64] [--megabytes 50] [--json-only]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from parts.results import keep, options
from rich.console import Console
from rich.table import Table
from trace_read import head_of, written

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))
from captured import a_capture, begin

from tightship_platform.captures.artifact_store import open_artifacts
from tightship_platform.database import engine as databases
from tightship_platform.settings import Settings
from tightship_platform.units import format_bytes, now_ns

PIECE = """
import resource, sys
from pathlib import Path
from tightship_analyzers.fleet.capture_analysis import work_on
from tightship_platform.captures.artifact_store import open_artifacts
from tightship_platform.database import engine as databases
from tightship_platform.settings import Settings
settings = Settings(home=Path(sys.argv[1]), database_url=f"sqlite:///{sys.argv[1]}/tightship.db")
with databases.open_database(settings) as database:
    work = work_on(database, open_artifacts(settings), sys.argv[2])
usage = resource.getrusage(resource.RUSAGE_SELF)
# Not ru_maxrss: it counts what the process that started this one held.
[peak] = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM:")]
if work is not None:
    print("join" if work.rank is None else work.rank, int(peak) * 1024, usage.ru_utime + usage.ru_stime)
"""


def main() -> int:
    """Measures and prints; 0 when the large capture needs no more than two ranks read at once."""
    arguments = options(__doc__)
    arguments.add_argument("--ranks", type=int, default=64, help="of the large capture")
    arguments.add_argument("--megabytes", type=int, default=50, help="size of the text of each rank's trace")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="ts-bench-") as folder:
        home = Path(folder)
        events = written(home / "trace.json.gz", given.megabytes).read_bytes().removeprefix(head_of(0))
        rows = [captured(home / str(ranks), ranks, events) for ranks in (1, 2, given.ranks)]
    keep("capture_ranks", rows, show, json_only=given.json_only)
    return 0 if rows[-1]["peak_bytes"] <= 2 * rows[0]["rank_peak_bytes"] else 1


def captured(home: Path, ranks: int, events: bytes) -> dict[str, Any]:
    """The pieces of one capture, one after the other."""
    home.mkdir()
    settings = Settings(home=home, database_url=f"sqlite:///{home}/tightship.db")
    databases.upgrade(settings)
    with databases.open_database(settings) as database:
        with database.session() as session:
            begin(session)
        files = {rank: head_of(rank) + events for rank in range(ranks)}
        key = a_capture(database, open_artifacts(settings), "a1", files, now=now_ns())
    peaks: dict[str, int] = {}
    seconds = 0.0
    while said := _piece(home, key):
        name, peak, used = said.split()
        peaks[name] = int(peak)
        seconds += float(used)
    join = peaks.pop("join")
    return {
        "ranks": ranks,
        "rank_peak_bytes": max(peaks.values()),
        "join_peak_bytes": join,
        "peak_bytes": max(join, *peaks.values()),
        "cpu_seconds": round(seconds, 2),
    }


def _piece(home: Path, key: str) -> str:
    command = [sys.executable, "-c", PIECE, str(home), key]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TIGHTSHIP_")}
    return subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def show(rows: list[dict[str, Any]]) -> None:
    """The table."""
    table = Table("ranks", "largest piece", "of a rank", "that joins", "processor seconds", box=None)
    for row in rows:
        sizes = [format_bytes(row[name]) for name in ("peak_bytes", "rank_peak_bytes", "join_peak_bytes")]
        table.add_row(str(row["ranks"]), *sizes, f"{row['cpu_seconds']:,.1f}")
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
