"""Recorded traces with random damage, through everything that `tightship analyze` does.

Whatever is in the file: a verdict that keeps the rules of the numbers, or one line. Never a rule that breaks.
`TIGHTSHIP_FUZZ=300` runs 300 cases a trace instead of a slice; a failure prints the seed that makes it again.
"""

from __future__ import annotations

import gzip
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trace_files
from device_trace import DeviceTrace

from tightship_analyzers.analysis.from_files import analyze_paths
from tightship_analyzers.analysis.wanted import Wanted
from tightship_analyzers.report.html.page import page
from tightship_analyzers.report.json import analysis_json
from tightship_platform.errors import TightshipError
from tightship_platform.results.codec import fields_of

RECORDED = Path(__file__).parents[2] / "data" / "traces"
CASES = int(os.environ.get("TIGHTSHIP_FUZZ", "3"))
EXPLORE = os.environ.get("TIGHTSHIP_EXPLORE") == "1"
SEED = int(os.environ.get("TIGHTSHIP_FUZZ_SEED", random.SystemRandom().randrange(10**9) if EXPLORE else 1))

Event = dict[str, Any]
Dice = random.Random

STRANGE: tuple[Any, ...] = (None, -1, 0, 2**63, -(2**63), 1e308, "", "nan", "0x7", [], {}, [[]], True, "ProfilerStep#2")
BYTES = (b"", b'"', b"\\", b"{", b"}", b"]", b",", b"\x00", b"\xff", b"\n  },\n  {", b"e400", b"-", b"9" * 30)


def device_events() -> list[Event]:
    """Five steps with everything that the recorded traces of a CPU lack: launches, kernels, copies, collectives."""
    trace = DeviceTrace()
    for step in range(5):
        begin = step * 1_000_000
        trace.step(step, begin, begin + 990_000)
        trace.host("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", begin, begin + 90_000)
        trace.host("Optimizer.step#SGD.step", begin + 900_000, begin + 950_000, category="user_annotation")
        for number in range(12):
            at = begin + 100_000 + number * 50_000
            reported = {"Input Dims": [[64, 128], [128, 64]], "Input type": ["float", "float"], "External id": number}
            trace.host(("aten::mm", "aten::add", "aten::item")[number % 3], at, at + 30_000, **reported)
            trace.pair((at + 2_000, at + 9_000), (at + 10_000, at + 40_000), name=f"kernel_{number}", grid=[4, 1, 1])
        trace.call(begin + 700_000, begin + 800_000, name="cudaStreamSynchronize")
        trace.copy(begin + 810_000, begin + 850_000, name="Memcpy HtoD (Pageable -> Device)", bytes=4096)
        reported = {"Collective name": "allreduce", "Process Group Name": "0", "Seq": step, "In msg nelems": 64}
        trace.on_device(begin + 860_000, begin + 930_000, name="ncclDevKernel_AllReduce", stream=20, **reported)
        trace.memory(begin + 5_000, 1 << 20, allocated=1 << 20, reserved=1 << 21)
    return trace.events


def texts() -> dict[str, bytes]:
    """Name → a sound trace as text."""
    found = {path.name: gzip.decompress(path.read_bytes()) for path in sorted(RECORDED.glob("*.json.gz"))}
    before = {"deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "numSms": 132}]}
    return found | {"device": trace_files.trace_text(device_events(), before=before, after={})}


TEXTS = texts()


def damaged_bytes(text: bytes, dice: Dice) -> bytes:
    """A few places overwritten, cut out or doubled."""
    for _ in range(dice.randrange(1, 6)):
        at, length = dice.randrange(len(text)), dice.choice((0, 1, 3, 40, 5000))
        new = dice.choice((*BYTES, text[at : at + length] * 2))
        text = text[:at] + new + text[at + length :]
    return text if dice.random() < 0.8 else text[: dice.randrange(len(text))]


def damaged_events(text: bytes, dice: Dice) -> bytes:
    """A sound file of unsound events: lost, doubled, moved, with strange values, out of order."""
    whole = json.loads(text)
    events: list[Event] = whole["traceEvents"]
    share = dice.choice((0.002, 0.05, 0.5))
    changed: list[Event] = []
    for event in events:
        if dice.random() >= share:
            changed.append(event)
            continue
        change = dice.randrange(6)
        if change == 1:
            changed += [event, dict(event)]
        elif change == 2 and "ts" in event:
            changed.append(event | {"ts": _number(event["ts"]) + dice.choice((-1e6, -7.5, 0.001, 1e6, 1e15))})
        elif change == 3 and "dur" in event:
            changed.append(event | {"dur": dice.choice((0, -5, 1e-3, 1e9, 1e18))})
        elif change == 4:
            key = dice.choice(list(event) or ["name"])
            changed.append(event | {key: dice.choice(STRANGE)})
        elif change == 5 and isinstance(event.get("args"), dict) and event["args"]:
            key = dice.choice(list(event["args"]))
            changed.append(event | {"args": event["args"] | {key: dice.choice(STRANGE)}})
    if dice.random() < 0.3:
        dice.shuffle(changed)
    whole["traceEvents"] = changed
    if dice.random() < 0.2:
        whole["distributedInfo"] = dice.choice(STRANGE)
    return json.dumps(whole).encode()


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


@pytest.mark.sliced(12)
@pytest.mark.parametrize("damage", [damaged_bytes, damaged_events])
@pytest.mark.parametrize("name", sorted(TEXTS))
def test_damage_gives_a_verdict_or_one_line(
    tmp_path: Path, name: str, damage: Callable[[bytes, Dice], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    for case in range(CASES):
        seed = SEED + case
        text = damage(TEXTS[name], random.Random(f"{name} {seed}"))
        path = tmp_path / "damaged.json"
        path.write_bytes(text)
        made = f"TIGHTSHIP_FUZZ=1 TIGHTSHIP_FUZZ_SEED={seed}"
        try:
            result = analyze_paths([str(path)], wanted=Wanted(gaps=2))
        except TightshipError as error:
            assert "\n" not in str(error), made
            continue
        said = json.loads(json.dumps(analysis_json(result, facts=True), default=fields_of))
        json.dumps(said, allow_nan=False)
        page(result)
        [rank] = said["ranks"]
        assert sum(rank["buckets"].values()) == rank["window_ns"] or not rank["buckets"], made
        if rank["temporal"] is not None:
            time = rank["temporal"]
            assert time["idle_ns"] + time["compute_ns"] + time["non_compute_ns"] == time["kernel_span_ns"], made
            assert sum(row["ns"] for row in rank["idle_causes"]) == time["idle_ns"], made
        for finding in said["findings"]:
            saving = finding["saving"]
            assert 0 <= saving["low"] <= saving["value"] <= saving["high"], made
        broken = [record.getMessage() for record in caplog.records if record.exc_info]
        assert not broken, f"{made}: {broken}"
