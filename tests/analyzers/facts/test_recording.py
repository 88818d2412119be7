"""What kind of recording a trace is: cut out of a longer one, of graphs being captured, or of a job at work."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_trace import MadeTrace, at

from tightship_analyzers.analysis.from_files import analyze_paths
from tightship_analyzers.facts.memo import Facts, NotApplicable
from tightship_analyzers.facts.window.recording import Recording
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.findings.savings import saving_without
from tightship_analyzers.graph.edits import Edits
from tightship_analyzers.report.model import report_of
from tightship_analyzers.report.sentences import headline
from tightship_platform.results.analysis.run import RunAnalysis


def of(made: MadeTrace, folder: Path) -> Recording:
    return Facts(made.read(folder))[Recording]


def analyzed(made: MadeTrace, folder: Path) -> RunAnalysis:
    made.read(folder)
    return analyze_paths([str(folder / "made.json")])


def served(first_us: int, *, called_us: int = 110) -> MadeTrace:
    """Three kernels, queued at once; the first begins at `first_us`."""
    made = MadeTrace()
    made.op("aten::mm", 0, 200)
    for number in range(3):
        begin = called_us + 20 * number
        made.launch(begin, begin + 5, link=number + 1)
        made.kernel(first_us + 2000 * number, first_us + 2000 * number + 1990, link=number + 1)
    return made


def test_a_window_cut_out_of_a_longer_recording_begins_with_the_work_that_is_in_the_file(tmp_path: Path) -> None:
    made = served(8000)
    facts = Facts(made.read(tmp_path))
    assert facts[Recording].unseen_until_ns == at(8000)
    assert facts[Window].start_ns == at(8000)
    result = analyze_paths([str(tmp_path / "made.json")])
    (one,) = result.ranks
    assert headline(result).startswith("GPU busy 99.7 % of the recording")
    assert one.summary.recording.unseen_ns == 8_000_000
    assert sum(one.summary.buckets.values()) == one.summary.window_ns == 5_990_000
    assert one.summary.warnings[0].startswith(
        "for its first 8.00 ms the device ran earlier work that is not in the file"
    )


def test_work_that_was_launched_before_the_window_is_not_simulated(tmp_path: Path) -> None:
    """Without it the window would begin earlier, not end earlier: the difference of the two is no saving."""
    facts = Facts(served(8000).read(tmp_path))
    reason = saving_without(facts, Edits.without_device([1]))
    assert isinstance(reason, NotApplicable) and "launched before what is judged" in reason.reason


@pytest.mark.parametrize("first_us", [112, 200, 1100])
def test_work_that_begins_soon_after_its_launch_is_the_first_there_is(tmp_path: Path, first_us: int) -> None:
    facts = Facts(served(first_us).read(tmp_path))
    assert facts[Recording].unseen_until_ns == facts.trace.start_ns == at(0)
    assert facts[Window].start_ns == at(0)


def test_a_long_launch_hides_no_earlier_work(tmp_path: Path) -> None:
    made = MadeTrace()
    made.launch(100, 6000, link=1)  # it loads the kernel's code
    made.kernel(6010, 7000, link=1)
    assert of(made, tmp_path).unseen_until_ns == at(100)


def test_of_next_to_no_work_of_the_device_nothing_is_judged(tmp_path: Path) -> None:
    made = MadeTrace()
    made.launch(100, 110, link=1)
    made.kernel(400_000, 400_045, link=1)
    result = analyzed(made, tmp_path)
    assert headline(result) == (
        "No verdict on this recording: it holds 45.0 µs of the device's work, after earlier work that is not in the "
        "file."
    )
    assert result.findings == []


def starting(*, works_us: int, call: str = "cudaFree") -> MadeTrace:
    """A start of 1.2 s (context, libraries), then products for so long."""
    made = MadeTrace()
    made.launch(0, 700_000, name="cudaDeviceGetStreamPriorityRange")
    made.launch(700_100, 700_110, link=1)
    made.kernel(700_120, 700_200, link=1)
    made.launch(701_000, 1_201_000, name=call)
    for number, begun in enumerate(range(1_201_100, 1_201_100 + works_us, 1_000), start=2):
        made.launch(begun, begun + 10, link=number)
        made.kernel(begun + 20, begun + 990, link=number)
    return made


def test_a_recording_of_a_start_carries_no_verdict(tmp_path: Path) -> None:
    result = analyzed(starting(works_us=100_000), tmp_path)
    assert headline(result).startswith("No verdict on this recording: 1.20 s of it (92.2 %) are first calls")
    assert result.findings == [] and result.ranks[0].summary.recording.starting_ns == 1_200_000_000
    assert "of the job at work" in result.ranks[0].summary.warnings[0]


@pytest.mark.parametrize("marked", [False, True])
def test_a_start_before_steady_work_is_one_line(tmp_path: Path, marked: bool) -> None:
    made = starting(works_us=100_000 if marked else 2_000_000)
    if marked:
        made.steps(1_220_000, 1_240_000, 1_260_000, 1_280_000)
    (one,) = analyzed(made, tmp_path).ranks
    assert one.summary.recording.unfit is None and one.summary.buckets
    assert any("for steady figures record after a warm-up" in line for line in one.summary.warnings)


def test_who_waits_for_the_device_starts_nothing(tmp_path: Path) -> None:
    made = MadeTrace()
    made.launch(0, 10, link=1)
    made.kernel(20, 500_000, link=1)
    made.launch(100, 500_010, name="cudaFree")  # what it frees is in use
    made.launch(500_100, 900_000, name="cudaDeviceSynchronize")
    made.launch(900_100, 900_110, link=2)
    made.kernel(900_120, 900_500, link=2)
    assert of(made, tmp_path).starting_ns == 0


def stepping(held_us: int, *, unseen_us: int = 0) -> MadeTrace:
    """Two steps of 20 ms: a kernel of 8 ms, and one that was queued with it and begins `held_us` after it."""
    made = MadeTrace()
    for step in range(2):
        begin = 100_000 * step + 1000
        made.mark(f"ProfilerStep#{step}", begin, begin + 100_000)
        for number, start in enumerate((begin + 30 + unseen_us, begin + 30 + unseen_us + 8000 + held_us)):
            link = 2 * step + number + 1
            made.launch(begin + 10 * number, begin + 10 * number + 5, link=link)
            made.kernel(start, start + 8000, link=link)
    made.mark("ProfilerStep#2", 201_000, 202_000)
    return made


def test_a_device_that_does_not_begin_what_is_queued_does_what_the_file_lacks(tmp_path: Path) -> None:
    result = analyzed(stepping(40_000), tmp_path)
    (one,) = result.ranks
    assert headline(result) == (
        "What bounds the job is not known: for 40.0 % of the step the device did what the file does not hold."
    )
    assert one.summary.recording.unrecorded_ns == 80_000_000
    assert sum(one.summary.buckets.values()) == one.summary.window_ns
    assert {row.cause: row.ns for row in one.figures.window_idle_causes or []}["unrecorded"] == 80_000_000
    assert "record again" in one.summary.warnings[0]


def test_the_pause_between_queued_kernels_is_not_missing_work(tmp_path: Path) -> None:
    (one,) = analyzed(stepping(900), tmp_path).ranks
    assert one.summary.recording.unrecorded_ns == 0
    assert "device_dependency" in {row.cause for row in one.figures.window_idle_causes or []}


def test_a_step_that_begins_before_the_device_is_seen_is_not_judged(tmp_path: Path) -> None:
    (one,) = analyzed(stepping(0, unseen_us=5000), tmp_path).ranks
    assert one.summary.steps == 1
    assert one.summary.window_start_ns == at(101_000)
    assert "judged are the steps that begin after that" in one.summary.warnings[0]


def test_nothing_is_known_of_work_without_its_launch(tmp_path: Path) -> None:
    made = served(8000)
    made.kernel(50, 90)
    assert of(made, tmp_path).unseen_until_ns == at(0)


def capture(launches: int, *, graphs: int = 1, begin: str = "cudaStreamBeginCapture_v10000") -> MadeTrace:
    """Each graph is captured with so many launches; one kernel runs before."""
    made = MadeTrace()
    made.launch(0, 5, link=1)
    made.kernel(6, 20, link=1)
    for graph in range(graphs):
        start = 1000 + 10_000 * graph
        made.launch(start, start + 5, name=begin)
        for number in range(launches):
            made.launch(start + 10 + 20 * number, start + 15 + 20 * number)
        made.launch(start + 9000, start + 9005, name=begin.replace("Begin", "End"))
    return made


@pytest.mark.parametrize("begin", ["cudaStreamBeginCapture_v10000", "hipStreamBeginCapture", "cuStreamBeginCapture"])
def test_of_graphs_being_captured_nothing_is_judged(tmp_path: Path, begin: str) -> None:
    result = analyzed(capture(40, graphs=2, begin=begin), tmp_path)
    (one,) = result.ranks
    assert headline(result) == (
        "No verdict on this recording: it shows 2 graphs being captured, not the job as it runs: "
        "98.8 % of its launches ran nothing."
    )
    assert one.summary.recording.graph_captures == 2
    assert (one.summary.buckets, one.summary.saving_unit, result.findings) == ({}, None, [])
    assert len(result.not_judged) == result.rules
    assert one.summary.warnings[0].startswith("nothing is judged; record some seconds of the job at work")
    assert (one.gaps, one.figures.window_idle_causes) == ([], None), "that the device idles means nothing"
    titles = [section.title for section in report_of(result).sections]
    assert titles == ["What the device did", "What was not judged, and why"]


def test_a_job_at_work_that_captures_a_graph_is_judged(tmp_path: Path) -> None:
    made = capture(2)
    for number in range(10):
        made.launch(20_000 + 100 * number, 20_005 + 100 * number, link=10 + number)
        made.kernel(20_010 + 100 * number, 20_090 + 100 * number, link=10 + number)
    made_of = of(made, tmp_path)
    assert (made_of.captures, made_of.unfit) == (1, None)
    assert made_of.captured_frac == pytest.approx(2 / 13)


def test_a_capture_that_the_recording_cuts_off_lasts_to_its_end(tmp_path: Path) -> None:
    made = MadeTrace()
    made.launch(0, 5, name="cudaStreamBeginCapture")
    for number in range(5):
        made.launch(10 + 10 * number, 15 + 10 * number)
    assert of(made, tmp_path).captured_frac == 1.0


def test_a_recording_that_the_simulation_misses_has_no_share_and_no_sure_saving(tmp_path: Path) -> None:
    """Queued work that begins 0.9 ms late, in steps of 20 ms, for no reason that the file shows."""
    made = MadeTrace()
    for step in range(3):
        begin = 20_000 * step + 1000
        made.mark(f"ProfilerStep#{step}", begin, begin + 20_000)
        at_us, link = begin + 30, 20 * step
        for number in range(8):
            made.launch(begin + 10 * number, begin + 10 * number + 5, link=link + number + 1)
            made.kernel(at_us, at_us + 1400, link=link + number + 1)
            at_us += 1400 + (900 if number % 2 else 2)
        made.launch(begin + 100, begin + 19_900, link=link + 10, name="cudaDeviceSynchronize")
    made.mark("ProfilerStep#3", 61_000, 62_000)
    result = analyzed(made, tmp_path)
    (one,) = result.ranks
    assert one.summary.recording.distrust is not None
    assert headline(result).startswith("What bounds the job is not known: ")
    assert all(finding.saving.low == 0 for finding in result.findings)
