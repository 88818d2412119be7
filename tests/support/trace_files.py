"""Traces for tests: a small one with an event of every sort, written in any layout."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from tightship_analyzers.trace.model import Table, Trace

Written = Callable[[bytes], Path]
"""Writes a trace's text to a file."""

HOST, STREAM = {"pid": 100, "tid": 100}, {"pid": 0, "tid": 7}
TIME = re.compile(r'("(?:ts|dur)":\s*)"([^"]*)"')
LAYOUTS = ("kineto", "pretty", "compact", "tight")

EVENTS: list[dict[str, Any]] = [
    {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", **HOST, "ts": "4313986415000.000", "dur": "900.5"}
    | {"args": {"External id": 1, "Ev Idx": 0}},
    {"ph": "X", "cat": "cpu_op", "name": 'aten::mm "quoted" \\ {[', **HOST, "ts": "4313986415010.125", "dur": "50"}
    | {"args": {"External id": 2, "Sequence number": 7, "Input Dims": [[8, 32], []], "Input type": ["float", ""]}},
    {"ph": "s", "id": 5, **HOST, "ts": "4313986415010.125", "cat": "fwdbwd", "name": "fwdbwd"},
    {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", **HOST, "ts": "4313986415020.001", "dur": "9.999"}
    | {"args": {"kernel": "mm<Ä>", "External id": 2, "cbid": 211, "correlation": 41}},
    {"ph": "s", "id": 41, **HOST, "ts": "4313986415020.001", "cat": "ac2g", "name": "ac2g"},
    {"ph": "X", "cat": "kernel", "name": "void mm<Ä>(…)", **STREAM, "ts": "4313986415040.007", "dur": "100.003"}
    | {"args": {"External id": 2, "device": 0, "stream": 7, "correlation": 41, "grid": [24, 1, 1]}},
    {"ph": "f", "id": 41, **STREAM, "ts": "4313986415040.007", "cat": "ac2g", "name": "ac2g", "bp": "e"},
    {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pageable -> Device)", **STREAM, "ts": "4313986415200.5"}
    | {"dur": "3.25"}
    | {"args": {"device": 0, "stream": 7, "correlation": 42, "bytes": 4096, "memory bandwidth (GB/s)": 4096 / 3251}},
    {"ph": "X", "cat": "gpu_memset", "name": "Memset (Device)", **STREAM, "ts": "4313986415210.000", "dur": "1.0"}
    | {"args": {"device": 0, "stream": 20, "bytes": 128}},
    {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce", **STREAM, "ts": "4313986415220.000", "dur": "5.0"}
    | {
        "args": {"device": 0, "stream": 20, "correlation": 43, "Collective name": "allreduce", "dtype": "Float"}
        | {"In msg nelems": 64, "Out msg nelems": 64, "Group size": 2, "Process Group Name": "0", "Seq": 3}
    },
    {"ph": "X", "cat": "python_function", "name": "train.py(3): <module>", **HOST, "ts": "4313986415000.001"}
    | {"dur": "900.001", "args": {"Python parent id": None, "Python id": 1}},
    {"ph": "X", "cat": "python_function", "name": "nn.Module: Linear_0", **HOST, "ts": "4313986415005.000", "dur": "80"}
    | {"args": {"Python parent id": 1, "Python id": 2, "Python module id": 0}},
    {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", **HOST, "ts": "4313986415011.000"}
    | {
        "args": {
            "Total Reserved": 512,
            "Total Allocated": 128,
            "Bytes": -64,
            "Device Id": 0,
            "Device Type": 1,
            "Addr": 9,
        }
    },
    {"ph": "X", "cat": "cuda_sync", "name": "Stream Sync", **STREAM, "ts": "4313986415300.000", "dur": "2"}
    | {
        "args": {"device": 0, "stream": 7, "correlation": 44, "wait_on_stream": 20}
        | {"wait_on_cuda_event_record_corr_id": 40}
    },
    {"ph": "X", "cat": "overhead", "name": "Buffer Flush", "pid": -1, "tid": 0, "ts": "4313986415400.0", "dur": "7"},
    {
        "ph": "X",
        "cat": "gpu_user_annotation",
        "name": "ProfilerStep#1",
        **STREAM,
        "ts": "4313986415040.0",
        "dur": "200",
    },
    {
        "ph": "f",
        "id": 5,
        "pid": 100,
        "tid": 101,
        "ts": "4313986415500.250",
        "cat": "fwdbwd",
        "name": "fwdbwd",
        "bp": "e",
    },
    {"name": "thread_name", "ph": "M", "ts": "4313986415000.000", **HOST, "args": {"name": "thread 100 (python)"}},
    {"ph": "X", "cat": "Trace", "ts": "4313986414000.0", "dur": "2000", "pid": "Spans", "tid": "PyTorch Profiler"}
    | {"name": "PyTorch Profiler (0)", "args": {"Op count": 0}},
    {"name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": "", "ts": "99999999999999999999"},
]
"""One event of every sort, in Kineto's own key order; times are text so that they keep their decimals."""

BASE_NS = 1_790_857_026_000_000_000
BEFORE = {
    "schemaVersion": 1,
    "deviceProperties": [{"id": 0, "name": "Tesla V100-SXM2-32GB"}, {"id": 1, "name": "Other"}],
    "trace_id": "AA7F",
    "baseTimeNanoseconds": BASE_NS,
}
AFTER = {"distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8}, "traceName": "x }, ] .json"}


def with_times(text: str) -> str:
    """Times written as strings become the numbers that they spell."""
    return TIME.sub(r"\1\2", text)


def trace_text(
    events: list[dict[str, Any]] | None = None,
    *,
    layout: str = "kineto",
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
) -> bytes:
    """A whole trace as its writer would put it on disk."""
    events = EVENTS if events is None else events
    before = BEFORE if before is None else before
    after = AFTER if after is None else after
    if layout == "kineto":
        blocks = []
        for event in events:
            args = event.get("args")
            if args is not None and not isinstance(args, dict):
                blocks.append("  {\n    " + json.dumps(event)[1:-1] + "\n  }")
                continue
            head = json.dumps({key: value for key, value in event.items() if key != "args"}, ensure_ascii=False)[1:-1]
            tail = "" if args is None else f',\n    "args": {{\n      {json.dumps(args)[1:-1]}\n    }}'
            blocks.append("  {\n    " + head + tail + "\n  }")
        top = "".join(f'  "{key}": {json.dumps(value, indent=2)},\n' for key, value in before.items())
        rest = "".join(f',\n  "{key}": {json.dumps(value)}' for key, value in after.items())
        text = "\n{\n" + top + '  "traceEvents": [\n' + ",\n".join(blocks) + "\n  ]" + rest + "\n}\n"
    else:
        whole = before | {"traceEvents": events} | after
        indent, separators = {"pretty": (4, None), "compact": (None, None), "tight": (None, (",", ":"))}[layout]
        text = json.dumps(whole, indent=indent, separators=separators, ensure_ascii=False)
    return with_times(text).encode()


def assert_sound(trace: Trace) -> None:
    """What every trace fulfils, whatever was in the file."""
    for field in fields(Trace):
        table = getattr(trace, field.name)
        if not isinstance(table, Table):
            continue
        columns = [getattr(table, column.name) for column in fields(table)]
        assert {len(column) for column in columns} == {len(table)}, field.name
        assert (np.diff(table.start_ns) >= 0).all(), field.name
        if field.name != "links":
            assert (table.end_ns >= table.start_ns).all(), field.name
        if len(table) and hasattr(table, "name"):
            assert table.name.min() >= 0 and table.name.max() < len(trace.names), field.name
        if len(table) and hasattr(table, "tid"):
            assert table.tid.min() >= 0 and table.tid.max() < len(trace.threads), field.name
    events, launches = trace.device_events, trace.launches
    joined = events.launch >= 0
    assert (launches.correlation[events.launch[joined]] == events.correlation[joined]).all()
    assert trace.host_ops.shapes.max(initial=-1) < len(trace.shapes)
    assert trace.start_ns <= trace.end_ns
    assert all("\n" not in line and line for line in trace.warnings)


def tables_of(trace: Trace) -> dict[str, list[tuple[object, ...]]]:
    """All rows of all tables with names and threads spelt out, to compare two traces."""
    result = {}
    for field in fields(Trace):
        table = getattr(trace, field.name)
        if isinstance(table, Table):
            columns = []
            for column in fields(table):
                values = getattr(table, column.name).tolist()
                if column.name in ("name", "group", "dtype", "kernel"):
                    values = [trace.names[value] if value >= 0 else None for value in values]
                elif column.name in ("tid", "to_tid"):
                    values = [trace.threads[value] for value in values]
                elif column.name == "shapes":
                    values = [trace.shapes[value] if value >= 0 else None for value in values]
                columns.append(values)
            result[field.name] = list(zip(*columns, strict=True))
    return result


def unmarked(text: bytes, path: Path) -> Path:
    """A trace's text written to a file, its marks of steps left out."""
    said = json.loads(text)
    said["traceEvents"] = [row for row in said["traceEvents"] if not str(row.get("name")).startswith("ProfilerStep#")]
    path.write_text(json.dumps(said), encoding="utf-8")
    return path
