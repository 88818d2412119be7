"""What kind of recording a trace is: cut out of a longer one, of graphs being captured, or of a job at work."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_trace import MadeTrace, at

from tightship_analyzers.analysis.from_files import analyze_paths
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.window.recording import Recording
from tightship_analyzers.facts.window.window import Window
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
    assert one.summary.warnings[0].startswith("nothing is judged; record the job later")
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
