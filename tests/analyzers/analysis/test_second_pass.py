"""Two recordings of one rank are one trace: times of the second, places and shapes of the first."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from made_trace import MAIN, MadeTrace, at
from trace_files import assert_sound

from tightship_analyzers import trace as traces
from tightship_analyzers.analysis.analyze_rank import analyze_rank
from tightship_analyzers.analysis.from_files import analyze_paths
from tightship_analyzers.analysis.rank_part import RankPart
from tightship_analyzers.analysis.second_pass import join_passes
from tightship_analyzers.analysis.wanted import Wanted
from tightship_analyzers.facts.memo import NotApplicable
from tightship_analyzers.trace.model import Trace
from tightship_platform.results.trace_file import SECOND_PASS
from tightship_platform.vocabulary import Method

SCRIPT = """
import sys, torch
from torch.profiler import ProfilerActivity, profile

torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 48), torch.nn.ReLU(), torch.nn.Linear(48, 32))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

def nothing():
    pass

def augment(batch):
    for _ in range(200):
        nothing()
    return batch * 2

def step():
    loss = model(augment(torch.randn(16, 64))).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

def main():
    step()
    for path, steps, what in ((sys.argv[1], 4, True), (sys.argv[2], 9, False)):
        with profile(activities=[ProfilerActivity.CPU], with_stack=what, record_shapes=what) as recorded:
            for _ in range(steps):
                step()
        recorded.export_chrome_trace(path)

main()
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, warm: tuple[str, ...]) -> tuple[Path, Path]:
    """A real job, recorded with stacks and shapes and again without."""
    folder = tmp_path_factory.mktemp("passes")
    (folder / "train.py").write_text(SCRIPT)
    paths = folder / "first.json", folder / "second.json"
    subprocess.run([*warm, str(folder / "train.py"), *map(str, paths)], cwd=folder, check=True, capture_output=True)
    return paths


def _joined(recorded: tuple[Path, Path]) -> tuple[Trace, Trace, Trace]:
    first, second = (traces.open(path) for path in recorded)
    joined = join_passes(first, second)
    assert isinstance(joined, Trace), joined
    return first, second, joined


def _around(trace: Trace, start_ns: int, end_ns: int) -> list[str]:
    """The frames that are open during all of it, the outermost first."""
    frames = trace.frames
    rows = np.flatnonzero((frames.start_ns <= start_ns) & (frames.end_ns >= end_ns))
    return [trace.names[number] for number in frames.name[rows].tolist()]


@pytest.mark.torch
def test_times_are_those_of_the_second_recording(recorded: tuple[Path, Path]) -> None:
    _, second, joined = _joined(recorded)
    assert_sound(joined)
    for table in ("host_ops", "annotations", "launches", "device_events"):
        for column in ("start_ns", "end_ns", "name"):
            assert np.array_equal(getattr(getattr(joined, table), column), getattr(getattr(second, table), column))
    assert (joined.start_ns, joined.end_ns) == (second.start_ns, second.end_ns)
    assert list(joined.names)[: len(second.names)] == list(second.names)


@pytest.mark.torch
def test_every_operator_has_the_frames_and_shapes_of_its_counterpart(recorded: tuple[Path, Path]) -> None:
    first, _, joined = _joined(recorded)

    def last_step(trace: Trace) -> list[tuple[str, str, list[str]]]:
        ends = trace.annotations_named("Optimizer.step#").end_ns
        ops = trace.host_ops
        rows = np.flatnonzero((ops.start_ns >= ends[-2]) & (ops.start_ns < ends[-1]))
        return [
            (
                trace.names[int(ops.name[row])],
                trace.shapes[int(ops.shapes[row])].dims if ops.shapes[row] >= 0 else "",
                _around(trace, int(ops.start_ns[row]), int(ops.end_ns[row])),
            )
            for row in rows.tolist()
        ]

    expected, seen = last_step(first), last_step(joined)
    assert len(seen) > 30
    assert seen == expected
    assert any("train.py" in frame and "augment" in frame for _, _, around in seen for frame in around)
    assert any("[[16,64],[64,48]" in dims or "[[48],[16,64]" in dims for _, dims, _ in seen)


@pytest.mark.torch
def test_python_between_operators_keeps_its_place(recorded: tuple[Path, Path]) -> None:
    """Calls of `nothing` are no operators: they are where `augment` is, before its product."""
    _, second, joined = _joined(recorded)
    ends = second.annotations_named("Optimizer.step#").end_ns
    frames = joined.frames
    calls = frames.take(joined.names.mask(frames.name, lambda name: name.endswith(": nothing")))
    for begin, end in itertools.pairwise(ends):
        within = calls.overlapping(int(begin), int(end))
        assert len(within) == 200
        assert int(within.start_ns.min()) >= begin and int(within.end_ns.max()) <= end


@pytest.mark.torch
def test_the_report_is_of_the_second_with_the_places_of_the_first(recorded: tuple[Path, Path]) -> None:
    first, second = map(str, recorded)
    both = analyze_rank(first, Wanted(), second_pass=second).analysis
    alone = analyze_rank(second, Wanted()).analysis
    assert both.summary.step_ns == alone.summary.step_ns
    assert both.summary.device_busy_ns == alone.summary.device_busy_ns
    assert "recorded twice: times are of the second recording" in both.summary.warnings[0]
    assert both.figures.window_idle_causes is not None
    assert any("train.py" in cause.place for cause in both.figures.window_idle_causes)


def _step(trace: MadeTrace, start_us: int, width_us: int, *, ops: int = 2, frames: bool = True) -> int:
    """One step: operators over the first half of each of its parts, a frame around each, one around all."""
    for number in range(ops):
        begin = start_us + number * width_us // ops
        trace.op(f"aten::op{number}", begin + width_us // 20, begin + width_us // 4)
        if frames:
            trace.frame(f"train.py({number}): part{number}", begin + width_us // 40, begin + width_us // 3)
    if frames:
        trace.frame("train.py(9): step", start_us + 1, start_us + width_us - 2)
    trace.steps(start_us + width_us)
    return start_us + width_us


def _made(folder: Path, *widths_us: int, ops: int = 2, frames: bool = True, marks: bool = True) -> Trace:
    made, now_us = MadeTrace(), 1000
    if marks:
        made.steps(now_us)
    for width_us in widths_us:
        now_us = _step(made, now_us, width_us, ops=ops, frames=frames)
    if frames:
        made.frame("train.py(1): main", 0, now_us + 500)
    if not marks:
        made.events = [event for event in made.events if event["cat"] != "user_annotation"]
    folder.mkdir(exist_ok=True)
    return made.read(folder)


def test_a_frame_keeps_its_place_among_the_operators(tmp_path: Path) -> None:
    first, second = _made(tmp_path / "a", 1200, 1200), _made(tmp_path / "b", 400, 200, 400, frames=False)
    joined = join_passes(first, second)
    assert isinstance(joined, Trace)
    frames = {
        name: [
            (start - at(0), end - at(0))
            for start, end, number in zip(joined.frames.start_ns, joined.frames.end_ns, joined.frames.name, strict=True)
            if joined.names[number] == name
        ]
        for name in ("train.py(1): main", "train.py(0): part0", "train.py(9): step")
    }
    assert frames["train.py(1): main"] == [(second.start_ns - at(0), second.end_ns - at(0))]
    # From 30 to 400 of 1200 us, around an operator from 60 to 300: that is from 10 to 20/15/20 + … here.
    [one, two, three] = frames["train.py(0): part0"]
    assert one[0] == (1000 + 10) * 1000
    assert two[0] == (1400 + 5) * 1000
    assert three[0] == (1600 + 10) * 1000
    assert one[1] > (1000 + 100) * 1000 and two[1] > (1400 + 50) * 1000, "it covers its operator"
    assert [len(rows) for rows in frames.values()] == [1, 3, 3]


def test_a_step_that_did_something_else_has_only_what_is_open_throughout(tmp_path: Path) -> None:
    first = _made(tmp_path / "a", 1200, 1200)
    made, now_us = MadeTrace(), 1000
    made.steps(now_us)
    for ops in (2, 3, 2):
        now_us = _step(made, now_us, 400, ops=ops, frames=False)
    joined = join_passes(first, made.read(tmp_path))
    assert isinstance(joined, Trace)
    assert _around(joined, at(1410), at(1420)) == ["train.py(1): main"]
    assert _around(joined, at(1820), at(1830)) == ["train.py(1): main", "train.py(9): step", "train.py(0): part0"]


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        ({"marks": False}, {}, "the first recording holds no whole step"),
        ({}, {"marks": False}, "the second recording holds no whole step"),
        ({"ops": 3}, {}, "of 3 steps of the second recording 0 called the same operators as one of the first"),
    ],
)
def test_what_cannot_be_joined(tmp_path: Path, first: dict[str, int], second: dict[str, int], why: str) -> None:
    found = join_passes(
        _made(tmp_path / "a", 1200, 1200, **first), _made(tmp_path / "b", 400, 400, 400, frames=False, **second)
    )
    assert isinstance(found, NotApplicable)
    assert found.reason == why


def test_recordings_of_different_threads_are_not_of_one_loop(tmp_path: Path) -> None:
    first = _made(tmp_path / "a", 1200, 1200)
    made = MadeTrace()
    for end_us in (1000, 1400, 1800):
        made.mark("Optimizer.step#SGD.step", end_us - 1, end_us, thread=MAIN + 7)
        made.op("aten::op0", end_us - 50, end_us - 20, thread=MAIN + 7)
    found = join_passes(first, made.read(tmp_path))
    assert isinstance(found, NotApplicable)
    assert "different threads" in found.reason


@pytest.mark.parametrize("content", [b"", b"{", b'{"traceEvents": []}', b"\x1f\x8b nonsense"])
def test_a_second_file_that_is_no_trace_leaves_the_first(tmp_path: Path, content: bytes) -> None:
    _made(tmp_path / "a", 1200, 1200)
    (tmp_path / "second.json").write_bytes(content)
    part = analyze_rank(str(tmp_path / "a" / "made.json"), Wanted(), second_pass=str(tmp_path / "second.json"))
    assert isinstance(part, RankPart)
    assert part.analysis.summary.step_ns is not None
    assert part.analysis.summary.step_ns.mean == 1_200_000
    assert part.analysis.summary.warnings[0].startswith("judged by the first of two recordings")


def test_steps_that_did_other_work_are_priced_by_the_second_where_the_first_is_stretched(tmp_path: Path) -> None:
    """A step that compiles is like no other: times are of the second, and the place is what is open throughout."""
    compiling = "entire_frame_compile (dynamo_timed)"
    for name, width_us, ops in (("a", 4000, 3), ("b", 1000, 2)):
        made = MadeTrace()
        made.steps(1000)
        for start_us in (1000, 1000 + width_us):
            _step(made, start_us, width_us, ops=ops, frames=False)
            made.op(compiling, start_us + width_us * 8 // 10, start_us + width_us * 9 // 10)
        if name == "a":
            made.frame("train.py(1): main", 0, 8_000)  # the last call that the tracer saw
        (tmp_path / name).mkdir()
        made.read(tmp_path / name)
    first, second = (str(tmp_path / name / "made.json") for name in "ab")
    wanted = Wanted(untraced_step_ns=1_000_000, assume_proven=True)
    part = analyze_rank(first, wanted, second_pass=second)
    assert part.analysis.summary.step_ns is not None and part.analysis.summary.step_ns.mean == 1_000_000
    assert "steps of the two recordings did other work" in part.analysis.summary.warnings[0]
    [finding] = (finding for finding in part.findings if finding.rule == "recompilation")
    assert finding.saving.value == pytest.approx(100_000, rel=0.02) and "train.py:1" in finding.where
    alone = [one.saving for one in analyze_rank(first, wanted).findings if one.rule == "recompilation"]
    assert alone and all((one.method, one.low) == (Method.BOUND, 0) for one in alone), (
        "alone the first one is stretched"
    )


def test_the_first_alone_is_priced_in_the_steps_of_the_second(tmp_path: Path) -> None:
    """They do other work, so they are not joined; but how long a step takes with less recording is known."""
    _made(tmp_path / "a", 1200, 1200, ops=3)
    _made(tmp_path / "b", 1000, 1000, frames=False)
    part = analyze_rank(str(tmp_path / "a" / "made.json"), Wanted(), second_pass=str(tmp_path / "b" / "made.json"))
    assert part.analysis.summary.untraced_step_ns == 1_000_000


@pytest.mark.torch
def test_a_second_recording_is_found_in_the_folder_for_them(recorded: tuple[Path, Path], tmp_path: Path) -> None:
    first, second = recorded
    (tmp_path / SECOND_PASS).mkdir()
    shutil.copyfile(first, tmp_path / "job.json")
    alone = analyze_paths([str(tmp_path)]).ranks
    shutil.copyfile(second, tmp_path / SECOND_PASS / "job.json")
    beside = analyze_paths([str(tmp_path)]).ranks
    named = analyze_rank(str(first), Wanted(), second_pass=str(second)).analysis
    assert [one.source for one in beside] == [str(tmp_path / "job.json")], "it is no rank by itself"
    assert beside[0].summary == named.summary
    assert beside[0].summary != alone[0].summary
