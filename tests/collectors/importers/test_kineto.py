"""Folders of traces: which files are one run, which recordings one capture, and what is no trace."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tightship_collectors.importers import kineto
from tightship_collectors.importers.source import Options, Source, packed
from tightship_collectors.importers.times import OUTSIDE
from tightship_platform.errors import Invalid
from tightship_platform.results.imported import ImportedRun
from tightship_platform.units import NS_PER_S

T0_US = 1_740_000_000_000_000
SECOND = NS_PER_S
BASE_NS = 1_735_632_360_000_000_000


def trace(start_us: float, end_us: float, **members: Any) -> bytes:
    events = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 7, "tid": 7, "ts": start_us, "dur": 3, "args": {}},
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 7, "tid": 7, "ts": end_us - 5.5, "dur": 5.5},
    ]
    kernel = {"ph": "X", "cat": "kernel", "name": "k", "ts": start_us, "dur": 1, "args": {"device": 3}}
    if "deviceProperties" in members:
        events.append(kernel)
    return json.dumps({"schemaVersion": 1, **members, "traceEvents": events}).encode()


def of_rank(rank: int, size: int = 2) -> dict[str, Any]:
    return {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": size, "pg_config": [{"ranks": [0, 1]}]}}


def put(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.name.endswith(".gz") else content)
    return path


def read(path: Path) -> tuple[dict[str, ImportedRun], Source]:
    source = kineto.open_source(path, Options())
    return {one.id: one for one in source.items if isinstance(one, ImportedRun)}, source


def test_files_that_name_ranks_are_one_run_and_its_windows_are_captures(tmp_path: Path) -> None:
    gpu = {"deviceProperties": [{"id": 3, "name": "NVIDIA H100", "totalGlobalMem": 85_000_000_000, "numSms": 132}]}
    for window, begin_us in enumerate((T0_US, T0_US + 600_000_000)):
        for rank in (0, 1):
            name = f"gpu0{rank}_4711.{begin_us + rank}.pt.trace.json.gz"
            content = trace(begin_us + rank * 20, begin_us + 2_000_000, **gpu, **of_rank(rank))
            put(tmp_path / "llm" / "run7" / name, content)
            assert window in (0, 1)
    runs, source = read(tmp_path)
    run = runs["llm/run7"]
    assert (run.workflow, run.state, run.start_ns) == ("llm", "unknown", T0_US * 1000)
    assert run.end_ns == (T0_US + 602_000_000) * 1000
    assert [(one.name, one.kind, one.host, one.memory_bytes) for one in run.devices] == [
        ("NVIDIA H100", "gpu", "gpu00", 85_000_000_000),
        ("NVIDIA H100", "gpu", "gpu01", 85_000_000_000),
    ]
    assert [sum(end - start for start, end in one.spans) for one in run.devices] == [4 * SECOND, 4 * SECOND - 40_000]
    assert [[file.rank for file in one.files] for one in source.recordings] == [[0, 1], [0, 1]]
    assert not source.names_devices
    assert not source.refused.counts


def test_a_file_without_a_rank_is_a_run_of_its_own(tmp_path: Path) -> None:
    put(tmp_path / "before.pt.trace.json.gz", trace(T0_US, T0_US + 10))
    put(tmp_path / "after.json", trace(T0_US + 20.5, T0_US + 30))
    put(tmp_path / "job" / "trace_rank_2.json", trace(T0_US, T0_US + 10))
    runs, source = read(tmp_path)
    assert sorted(runs) == ["after", "before", "job"]
    assert runs["after"].devices[0].spans == [[T0_US * 1000 + 20_500, T0_US * 1000 + 30_000]]
    assert runs["after"].devices[0].kind == "cpu"
    assert [file.rank for one in source.recordings for file in one.files if one.run == "job"] == [2]
    plain = next(file for one in source.recordings for file in one.files if one.run == "after")
    whole = b"".join(packed(plain.path))
    assert (hashlib.sha256(whole).hexdigest(), len(whole)) == (plain.sha256, plain.size_bytes)
    assert gzip.decompress(whole) == plain.path.read_bytes(), "what is sent is compressed, and the same each time"


def test_times_are_relative_to_the_base_or_to_when_the_file_was_written(tmp_path: Path) -> None:
    put(tmp_path / "based.json", trace(5_000_000, 7_000_000, baseTimeNanoseconds=BASE_NS))
    undated = put(tmp_path / "undated.json", trace(5_000_000, 7_000_000))
    os.utime(undated, ns=(BASE_NS, BASE_NS))
    runs, source = read(tmp_path)
    assert runs["based"].start_ns == BASE_NS + 5 * SECOND
    assert (runs["undated"].start_ns, runs["undated"].end_ns) == (BASE_NS - 2 * SECOND, BASE_NS)
    assert source.assumptions[-1] == "traces without a date ended when their files were written (1 file)"


def test_a_time_that_is_far_off_is_left_out(tmp_path: Path) -> None:
    content = trace(T0_US, T0_US + 10).replace(b'"schemaVersion"', b'"ts": 1740900000000000, "dur": 5, "schemaVersion"')
    put(tmp_path / "a.json", content)
    runs, _ = read(tmp_path)
    assert runs["a"].end_ns - runs["a"].start_ns == 10_000


def test_what_is_no_trace_is_left_out_and_listed(tmp_path: Path) -> None:
    whole = put(tmp_path / "whole.json.gz", trace(T0_US, T0_US + 10))
    (tmp_path / "again.json.gz").write_bytes(whole.read_bytes())
    (tmp_path / "half.json.gz").write_bytes(whole.read_bytes()[:-20])
    put(tmp_path / "settings.json", b'{"lr": 1}')
    put(tmp_path / "empty.json", b"")
    put(tmp_path / "timeless.json", b'{"traceEvents": []}')
    put(tmp_path / "late.json", trace(T0_US * 2, T0_US * 2 + 10))
    put(tmp_path / "job" / "rank_0.json", trace(T0_US, T0_US + 10))
    put(tmp_path / "job" / "copy_rank_0.json", trace(T0_US + 5, T0_US + 10))
    (tmp_path / "bell\x07.json").write_bytes(trace(T0_US, T0_US + 99))
    (tmp_path / "notes.txt").write_text("not looked at")
    runs, source = read(tmp_path)
    assert sorted(runs) == ["again", "job"], "of two that are the same, the first is taken"
    assert source.refused.counts == {
        "the same file as again.json.gz": 1,
        "a compressed file that ends in the middle, or is damaged": 1,
        "no trace of PyTorch's profiler": 2,
        "a trace without any time": 1,
        OUTSIDE: 1,
        "a second recording of rank 0 at the same time": 1,
        kineto.NO_NAME: 1,
    }
    assert {row.place for row in source.refused.listed} >= {"settings.json", "job/copy_rank_0.json"}


def test_a_folder_without_traces_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"files ending in \.json or \.json\.gz"):
        read(tmp_path)
    [run] = read(put(tmp_path / "x.pt.trace.json.gz", trace(T0_US, T0_US + 10)))[0].values()
    assert run.id == "x"


def test_what_is_unpacked_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kineto, "MOST_BYTES", 2**22)
    put(tmp_path / "bomb.json.gz", trace(T0_US, T0_US + 10) + b" " * 2**23)
    _, source = read(tmp_path)
    assert source.refused.counts == {f"more than {2**22} bytes when it is unpacked": 1}
