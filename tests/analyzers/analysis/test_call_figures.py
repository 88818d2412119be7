"""Queues, launches, copies, annotations and sequences as `tightship analyze --json` has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import trace_files
from click.testing import CliRunner
from device_trace import DeviceTrace

from tightship_analyzers.commands.analyze import analyze


def asked(trace: DeviceTrace, path: Path) -> dict[str, Any]:
    path.write_bytes(trace_files.trace_text(trace.events, before={}, after={}))
    done = CliRunner().invoke(analyze, [str(path), "--all-steps", "--json"])
    assert done.exit_code == 0, (done.output, done.exception)
    [rank] = json.loads(done.stdout)["ranks"]
    found: dict[str, Any] = rank
    return found


def test_what_the_host_called_and_what_waited(tmp_path: Path) -> None:
    trace = DeviceTrace()
    trace.host("my range", 0, 100_000, category="user_annotation")
    trace.host("aten::op\x1b[31m", 0, 60_000)
    for number in range(3):
        # Launched at 0, 10 and 20 µs for 5 µs each, begun at 30, 40 and 50 µs.
        begin = number * 10_000
        trace.pair((begin, begin + 5_000), (30_000 + begin, 39_000 + begin), name=f"k{number}")
    link = trace.call(70_000, 72_000, name="cudaMemcpyAsync")
    trace.copy(80_000, 84_000, link=link, bytes=40_000)
    rank = asked(trace, tmp_path / "x.json")

    [queue] = rank["queues"]
    assert (queue["max"], queue["full_ns"], queue["unlinked"]) == (3, 0, 0)
    # Three waits of 30 µs and one of 10 µs.
    assert queue["area_ns"] == 3 * 30_000 + 10_000
    launches = rank["launches"]
    assert launches["host"]["count"] == 4 and launches["host"]["sum_ns"] == 3 * 5_000 + 2_000
    assert launches["delay"]["sum_ns"] == 3 * 25_000 + 8_000
    assert [row["call"] for row in launches["by_call"]] == ["cudaLaunchKernel", "cudaMemcpyAsync"]
    assert launches["short_events"] == 4 and launches["long_calls"] == 0
    [copy] = rank["copies"]
    assert (copy["type"], copy["count"], copy["bytes"], copy["gbps"]) == ("Memcpy HtoD", 1, 40_000, 10.0)
    [own] = [row for row in rank["annotations"] if row["name"] == "my range"]
    assert own["host"]["sum_ns"] == 100_000 and own["device_work_ns"] == 3 * 9_000 + 4_000
    [sequence] = rank["kernel_sequences"]
    assert sequence["kernels"] == ["k0", "k1", "k2"] and (sequence["count"], sequence["length"]) == (1, 3)
    assert "\x1b" not in sequence["operator"]


def test_what_is_not_recorded_is_null_or_empty(tmp_path: Path) -> None:
    trace = DeviceTrace()
    trace.host("aten::op", 0, 60_000)
    rank = asked(trace, tmp_path / "x.json")
    assert rank["launches"] is None
    assert rank["queues"] == rank["copies"] == rank["annotations"] == rank["kernel_sequences"] == []
    trace.copy(80_000, 84_000)
    rank = asked(trace, tmp_path / "x.json")
    assert rank["copies"][0]["bytes"] is None and rank["copies"][0]["gbps"] is None
