"""What arrays save where batches reach PostgreSQL: samples inserted from one array per column, and row by row.

Both store batches of samples of eight accelerators with every column, in turn, in their own database on a server
that is started for it. The batches are as long as what an agent delivers that was cut off for a while. Arrays have to
be 1.5 times as fast at 5000 rows to be worth their code.

    python benchmarks/ingest_arrays.py [--rounds 9] [--json-only]
"""

from __future__ import annotations

import dataclasses
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from parts.results import keep, options
from rich.console import Console
from rich.table import Table

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))
import services

from tightship_platform.database import engine as databases
from tightship_platform.database.models import Sample
from tightship_platform.database.reporters import put_host
from tightship_platform.database.upsert import Row, add_missing, add_samples
from tightship_platform.ingest.inventory import put_devices
from tightship_platform.settings import Settings
from tightship_platform.units import NS_PER_S
from tightship_platform.wire import DeviceRecord, DeviceSample

SIZES = (40, 1000, 5000, 50_000)
DECISIVE = 5000
TARGET = 1.5
START_NS = 1_790_000_000 * NS_PER_S
WAYS = {"rows": add_missing, "arrays": lambda session, table, rows: add_samples(session, {table: rows})}


def main() -> int:
    """Run it; 0 when arrays are worth it."""
    arguments = options(__doc__)
    arguments.add_argument("--rounds", type=int, default=9)
    given = arguments.parse_args()
    try:
        with services.postgres_server() as url, tempfile.TemporaryDirectory(prefix="ts-bench-") as folder:
            result = measure(Settings(home=Path(folder), database_url=url), given.rounds)
    except services.Unavailable as why:
        print(f"not measured: {why}")
        return 0
    keep("ingest_arrays", result, show, json_only=given.json_only)
    return 0 if result["within_target"] else 1


def measure(settings: Settings, rounds: int) -> dict[str, Any]:
    """Milliseconds per batch, both ways in turn, by batch size."""
    databases.upgrade(settings)
    found = []
    time_ns = START_NS
    with databases.open_database(settings) as database:
        with database.session() as session:
            host = put_host(session, "h1", time_ns)
            described = [DeviceRecord(uuid=f"GPU-{n}", kind="gpu", name="An accelerator") for n in range(8)]
            devices = list(put_devices(session, host, described, []).values())
        for size in SIZES:
            took: dict[str, list[float]] = {way: [] for way in WAYS}
            for _ in range(rounds):
                for way, store in WAYS.items():
                    rows = samples(size, time_ns, devices)
                    time_ns += size * NS_PER_S
                    began = time.perf_counter()
                    with database.session() as session:
                        store(session, Sample, rows)
                    took[way].append(1000 * (time.perf_counter() - began))
            medians = {way: statistics.median(values) for way, values in took.items()}
            ratio = medians["rows"] / medians["arrays"]
            found.append({"rows": size, **{f"{way}_ms": ms for way, ms in medians.items()}, "ratio": ratio})
    decisive = next(entry["ratio"] for entry in found if entry["rows"] == DECISIVE)
    return {"rounds": rounds, "batches": found, "target_ratio": TARGET, "within_target": decisive >= TARGET}


def samples(count: int, time_ns: int, devices: list[int]) -> list[Row]:
    """Rows as ingest makes them of an agent's records, with a value in every column."""
    names = [field.name for field in dataclasses.fields(DeviceSample) if field.name not in ("time_ns", "device")]
    return [
        {"time_ns": time_ns + number // len(devices) * NS_PER_S, "device_id": devices[number % len(devices)]}
        | {
            name: random.randrange(10**10) if name.endswith(("_bytes", "_hz", "_per_s")) else random.random()
            for name in names
        }
        for number in range(count)
    ]


def show(result: dict[str, Any]) -> None:
    """The table."""
    table = Table(title=f"Batches of samples into PostgreSQL, median of {result['rounds']}")
    for column in ("rows", "row by row", "arrays", "ratio"):
        table.add_column(column, justify="right")
    for entry in result["batches"]:
        times = (f"{entry[f'{way}_ms']:.1f} ms" for way in WAYS)
        table.add_row(str(entry["rows"]), *times, f"{entry['ratio']:.2f}")
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
