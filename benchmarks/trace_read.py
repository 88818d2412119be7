"""Reading a trace: seconds, MB/s and peak memory of the trace reader beside plain JSON parsers, one process each.

Without a file it writes one of the wanted size, in Kineto's layout, from the events of a training step.

With --ranks it measures instead how `tightship analyze` copes with a folder of so many ranks of that size.

    python benchmarks/trace_read.py [TRACE.json[.gz] …] [--megabytes 200] [--repeat 3] [--json-only]
    python benchmarks/trace_read.py --megabytes 5000 --readers tightship --repeat 1
    python benchmarks/trace_read.py --megabytes 50 --ranks 64 --repeat 1
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
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

NS_PER_US = 1000

PREAMBLE = """
import gzip, resource, sys, time
def begin():
    global wall, cpu
    wall, cpu = time.perf_counter(), time.process_time()
def content():
    data = open(sys.argv[1], "rb").read()
    return gzip.decompress(data) if data[:2] == b"\\x1f\\x8b" else data
"""
READERS = {
    "tightship": "from tightship_analyzers import trace\nbegin()\nn = trace.open(sys.argv[1]).events\n",
    "json": "import json\nbegin()\nn = len(json.loads(content())['traceEvents'])\n",
    "msgspec": "import msgspec\nbegin()\nn = len(msgspec.json.decode(content())['traceEvents'])\n",
    "orjson": "import orjson\nbegin()\nn = len(orjson.loads(content())['traceEvents'])\n",
}
REPORT = "print(n, time.perf_counter() - wall, time.process_time() - cpu, resource.getrusage(0).ru_maxrss * 1024)\n"


def main() -> int:
    """Measures and prints; 0 unless the readers disagree on the number of events."""
    arguments = options(__doc__)
    arguments.add_argument("traces", nargs="*", type=Path, metavar="TRACE")
    arguments.add_argument("--megabytes", type=int, default=200, help="size of the text of the trace that it writes")
    arguments.add_argument("--repeat", type=int, default=3, help="runs of each reader; the median counts")
    arguments.add_argument(
        "--readers", nargs="+", choices=READERS, default=list(READERS), help="the others need many times the text"
    )
    arguments.add_argument("--ranks", type=int, help="analyze so many ranks that it writes, and two of them")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="ts-bench-") as folder:
        if given.ranks:
            made = written(Path(folder) / "trace.json.gz", given.megabytes)
            keep("trace_ranks", several(made, Path(folder), given), show_ranks, json_only=given.json_only)
            return 0
        paths = given.traces or [written(Path(folder) / "trace.json.gz", given.megabytes)]
        results = [row for path in paths for row in read_by(path, given.readers, given.repeat)]
    keep("trace_read", results, show, json_only=given.json_only)
    counts = {(row["trace"], row["events"]) for row in results}
    return 0 if len(counts) == len({trace for trace, _ in counts}) else 1


def read_by(path: Path, readers: list[str], repeat: int) -> list[dict[str, Any]]:
    """One row per reader that is installed."""
    text_bytes = size_of_text(path)
    rows = []
    for reader in readers:
        program = READERS[reader]
        if reader not in ("tightship", "json") and importlib.util.find_spec(reader) is None:
            continue
        runs = []
        for _ in range(repeat):
            command = [sys.executable, "-c", PREAMBLE + program + REPORT, str(path)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            runs.append([float(number) for number in done.stdout.split()])
        seconds = statistics.median(run[1] for run in runs)
        rows.append(
            {
                "trace": path.name,
                "reader": reader,
                "text_bytes": text_bytes,
                "events": int(runs[0][0]),
                "seconds": round(seconds, 3),
                "cpu_seconds": round(statistics.median(run[2] for run in runs), 3),
                "bytes_per_s": round(text_bytes / seconds),
                "peak_bytes": int(max(run[3] for run in runs)),
            }
        )
    return rows


def several(path: Path, folder: Path, given: argparse.Namespace) -> list[dict[str, Any]]:
    """`tightship analyze` on two ranks and on many; their traces differ in the rank only."""
    tightship, rows = Path(sys.executable).parent / "tightship", []
    events = path.read_bytes().removeprefix(head_of(0))
    for ranks in (2, given.ranks):
        ranked = folder / f"ranks-{ranks}"
        ranked.mkdir()
        for rank in range(ranks):
            (ranked / f"rank{rank}.json.gz").write_bytes(head_of(rank) + events)
        runs = [measured([tightship, "analyze", ranked, "--json"]) for _ in range(given.repeat)]
        seconds, cpu_seconds = (statistics.median(run[part] for run in runs) for part in (0, 1))
        rows.append(
            {
                "ranks": ranks,
                "text_bytes": ranks * size_of_text(path),
                "seconds": round(seconds, 3),
                "cpu_seconds": round(cpu_seconds, 3),
                "cores_busy": round(cpu_seconds / seconds, 2),
                "peak_bytes": max(run[2] for run in runs),
            }
        )
    return rows


def size_of_text(path: Path) -> int:
    """Bytes after decompression."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    if not packed:
        return path.stat().st_size
    with gzip.open(path) as text:
        return sum(len(block) for block in iter(lambda: text.read(2**20), b""))


def written(path: Path, megabytes: int) -> Path:
    """A trace of training steps: operators, launches, kernels, flows and frames in the shares of a real one."""
    size, step = 0, 0
    path.write_bytes(head_of(0))
    with gzip.open(path, "ab", compresslevel=6) as file:
        while size < megabytes * 10**6:
            block = ",".join(step_of(step)).encode()
            file.write((b"," if step else b"") + block)
            size += len(block)
            step += 1
        file.write(b"\n  ]\n}\n")
    return path


def head_of(rank: int) -> bytes:
    """What stands before the events, as its own gzip member."""
    info = f'"distributedInfo": {{"backend": "nccl", "rank": {rank}, "world_size": 1024}}'
    head = f'\n{{\n  "schemaVersion": 1,\n  "baseTimeNanoseconds": 1790857026000000000,\n  {info},\n  "traceEvents": ['
    return gzip.compress(head.encode(), mtime=0)


def step_of(step: int) -> list[str]:
    """The events of one step as text."""
    begin = 4_313_986_415_000_000 + step * 20_000_000
    host = '"pid": 4242, "tid": 4242'
    events = [event("user_annotation", f"ProfilerStep#{step}", host, begin, 19_000_000, f'"External id": {step}')]
    for number in range(200):
        serial = step * 200 + number
        at = begin + number * 90_123
        args = f'"External id": {serial}, "Sequence number": {serial}, "Input Dims": [[{number}, 32], []], "Ev Idx": 1'
        events.append(event("python_function", f"nn.Module: Linear_{number % 12}", host, at, 88_001, '"Python id": 3'))
        events.append(event("cpu_op", f"aten::op_{number % 40}", host, at + 7, 80_500, args))
        link = f'"External id": {serial}, "correlation": {serial}'
        events.append(event("cuda_runtime", "cudaLaunchKernel", host, at + 1_000, 9_250, f"{link}, " + '"cbid": 211'))
        events.append(flow("s", host, serial, at + 1_000))
        kernel = f'{link}, "device": 0, "context": 1, "stream": 7, "grid": [{number}, 1, 1], "block": [128, 1, 1]'
        name = f"void at::native::vectorized_elementwise_kernel<{number % 60}, at::native::FillFunctor<float> >(int)"
        events.append(event("kernel", name, '"pid": 0, "tid": 7', at + 20_000, 31_337, kernel))
        events.append(flow("f", '"pid": 0, "tid": 7', serial, at + 20_000))
    return events


def event(category: str, name: str, place: str, at_ns: int, dur_ns: int, args: str) -> str:
    """A complete event in Kineto's layout."""
    return (
        f'\n  {{\n    "ph": "X", "cat": "{category}", "name": "{name}", {place},\n    "ts": {us(at_ns)}, '
        f'"dur": {us(dur_ns)},\n    "args": {{\n      {args}\n    }}\n  }}'
    )


def flow(phase: str, place: str, number: int, at_ns: int) -> str:
    """One end of an arrow in Kineto's layout."""
    start = f'"ph": "{phase}", "id": {number}, {place}, "ts": {us(at_ns)}'
    return f'\n  {{\n    {start},\n    "cat": "ac2g", "name": "ac2g"\n  }}'


def us(ns: int) -> str:
    """Nanoseconds as Kineto prints them: microseconds with three decimals."""
    return f"{ns // NS_PER_US}.{ns % NS_PER_US:03d}"


def show_ranks(results: list[dict[str, Any]]) -> None:
    """The table of --ranks."""
    table = Table(title="tightship analyze (all processes together)")
    for column in ("ranks", "text MB", "s", "CPU s", "CPU s a rank", "cores busy", "peak MB"):
        table.add_column(column, justify="right")
    for row in results:
        table.add_row(
            str(row["ranks"]),
            f"{row['text_bytes'] / 1e6:.0f}",
            f"{row['seconds']:.2f}",
            f"{row['cpu_seconds']:.2f}",
            f"{row['cpu_seconds'] / row['ranks']:.2f}",
            f"{row['cores_busy']:.2f}",
            f"{row['peak_bytes'] / 1e6:.0f}",
        )
    Console().print(table)


def show(results: list[dict[str, Any]]) -> None:
    """The table."""
    table = Table(title="Reading a trace (whole process)")
    for column in ("trace", "text MB", "events", "reader", "s", "CPU s", "MB/s", "peak MB"):
        table.add_column(column, justify="left" if column in ("trace", "reader") else "right")
    for row in results:
        table.add_row(
            row["trace"],
            f"{row['text_bytes'] / 1e6:.0f}",
            str(row["events"]),
            row["reader"],
            f"{row['seconds']:.2f}",
            f"{row['cpu_seconds']:.2f}",
            f"{row['bytes_per_s'] / 1e6:.0f}",
            f"{row['peak_bytes'] / 1e6:.0f}",
        )
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
