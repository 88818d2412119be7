"""What the faces say of a trace: the right cause, in figures that agree with each other."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import trace_files
from click.testing import CliRunner
from device_trace import DeviceTrace
from rank_parts import part_of

from tightship_analyzers.analysis.analyze_rank import public_finding
from tightship_analyzers.analysis.from_files import analyze_paths
from tightship_analyzers.analysis.join_ranks import expected_frac, merge_findings
from tightship_analyzers.analysis.wanted import Wanted
from tightship_analyzers.commands.analyze import analyze
from tightship_analyzers.findings.model import Finding, Saving
from tightship_analyzers.report.html.page import page
from tightship_analyzers.report.sentences import (
    by_cause_and_place,
    devices_differ,
    graph_words,
    headline,
    is_clean,
    nothing_found,
    saving_words,
    step_words,
    unclaimed_words,
)
from tightship_analyzers.rules.catalogue import TRACE_RULES
from tightship_platform.results.analysis.finding import TraceFinding
from tightship_platform.results.analysis.run import RunAnalysis
from tightship_platform.units import format_frac
from tightship_platform.vocabulary import Bucket, Method, SavingUnit

RECORDED = Path(__file__).parents[2] / "data" / "traces"


def written(trace: DeviceTrace, path: Path) -> Path:
    path.write_bytes(trace_files.trace_text(trace.events, before={}, after={}))
    return path


def graphs(path: Path, *, call: str = "cudaGraphLaunch", steps: int = 4) -> Path:
    """Marked steps of 1 ms: one call issues two kernels of 0.1 ms that lie 0.6 ms apart."""
    trace = DeviceTrace()
    for step in range(steps):
        begin = step * 1_000_000
        trace.step(step, begin, begin + 1_000_000)
        link = trace.call(begin + 10_000, begin + 20_000, name=call)
        trace.on_device(begin + 30_000, begin + 130_000, link=link)
        trace.on_device(begin + 730_000, begin + 830_000, link=link)
    return written(trace, path)


def dispatching(path: Path) -> Path:
    """Marked steps of 1 ms in which an operator runs for 0.5 ms before it launches anything."""
    trace = DeviceTrace()
    for step in range(4):
        begin = step * 1_000_000
        trace.step(step, begin, begin + 1_000_000)
        trace.host("aten::slow", begin + 5_000, begin + 530_000)
        trace.pair((begin + 510_000, begin + 520_000), (begin + 525_000, begin + 900_000))
    return written(trace, path)


def judged(path: Path) -> RunAnalysis:
    return analyze_paths([str(path)])


def report(path: Path) -> str:
    done = CliRunner().invoke(analyze, [str(path)])
    assert done.exit_code == 0, done.output
    return done.output


def test_work_that_is_queued_is_not_called_the_hosts(tmp_path: Path) -> None:
    result = judged(graphs(tmp_path / "x.json"))
    [one] = result.ranks
    parts = one.summary.buckets
    assert sum(parts.values()) == one.summary.window_ns == 3_000_000
    assert parts[Bucket.QUEUED] == 3 * 600_000
    assert "GPU busy 20.0 % of the step; 60.0 % idle between kernels that were already queued" in headline(result)
    assert "queued" in page(result)


def test_idle_time_before_work_of_a_launched_graph_is_reported(tmp_path: Path) -> None:
    [one] = judged(graphs(tmp_path / "x.json")).ranks
    assert one.figures.graph_idle_ns == 3 * 600_000
    assert "600 µs a step of it (60.0 %)" in str(graph_words(one))
    [other] = judged(graphs(tmp_path / "y.json", call="cudaLaunchKernel")).ranks
    assert other.figures.graph_idle_ns == 0 and graph_words(other) is None


def test_a_host_that_is_late_is_called_so(tmp_path: Path) -> None:
    assert "idle waiting for the host to launch work" in headline(judged(dispatching(tmp_path / "x.json")))


def test_idle_time_on_the_faces_is_that_of_the_steps(tmp_path: Path) -> None:
    """What the peer counts as idle begins with the first kernel; the faces count what the bars count."""
    path = dispatching(tmp_path / "x.json")
    [one] = judged(path).ranks
    parts = one.summary.buckets
    idle_ns = sum(ns for _, _, ns in by_cause_and_place(one.figures.window_idle_causes or []))
    assert idle_ns == one.summary.window_ns - parts[Bucket.PRODUCTIVE]
    assert sum(row.ns for row in one.figures.idle_causes) < idle_ns
    share = format_frac(idle_ns / one.summary.window_ns)
    assert f"The device is idle for {share} of the step, 625 µs a step." in report(path)
    assert f"The device is idle for {share} of the step, 625 µs a step." in page(judged(path)).replace("\xa0", " ")


def test_a_trace_without_steps_gets_no_clean_bill(tmp_path: Path) -> None:
    trace = DeviceTrace()
    for call in range(4):
        trace.pair(
            (call * 1_000_000, call * 1_000_000 + 10_000), (call * 1_000_000 + 20_000, call * 1_000_000 + 90_000)
        )
    path = written(trace, tmp_path / "x.json")
    result = judged(path)
    assert not result.findings and not is_clean(result)
    said = nothing_found(result)
    unjudged = len(result.not_judged)
    assert unjudged > 0 and f"{len(TRACE_RULES) - unjudged} of {len(TRACE_RULES)} rules judged" in said
    assert "the recording as a whole" in said and said in page(result).replace("\xa0", " ")
    assert "Nothing above" not in report(path)


def test_a_clean_bill_says_how_many_rules_judged(tmp_path: Path) -> None:
    def words_of(rule: str) -> str:
        return CliRunner().invoke(analyze, [str(RECORDED / "healthy.json.gz"), "--rule", rule]).output

    assert "Nothing above the thresholds; 1 of 1 rule judged." in words_of("loop-indexing")
    assert "No advice: no rule applied" in words_of("starved-input"), "the trace has no loader"


HIDDEN = Saving(value=0, low=0, high=7_000_000, method=Method.SIMULATED)


def internal(rule: str, *, value: int, low: int, high: int) -> Finding:
    saving, share = Saving(value=value, low=low, high=high), value / 1_000_000_000
    return Finding(rule=rule, title=rule, place="", fix="", saving=saving, unit=SavingUnit.STEP, share_frac=share)


def finding(rule: str, *, value: int, low: int, high: int) -> TraceFinding:
    return public_finding(internal(rule, value=value, low=low, high=high), "x", 0)


@pytest.mark.usefixtures("proven")
def test_a_saving_that_may_be_nothing_is_not_given_by_its_upper_end() -> None:
    may = finding("a", value=300_000_000, low=0, high=400_000_000)
    assert saving_words(may) == "estimate 300 ms a step (0 s to upper bound 400 ms), 30.0 % of it"
    most = finding("d", value=400_000_000, low=0, high=400_000_000)
    assert saving_words(most) == "estimate, upper bound 400 ms a step, 40.0 % of it"
    sure = finding("b", value=200_000_000, low=180_000_000, high=220_000_000)
    assert saving_words(sure) == "estimate 200 ms a step (180 ms to upper bound 220 ms), 20.0 % of it"
    exact = finding("c", value=200_000_000, low=200_000_000, high=200_000_000)
    assert saving_words(exact) == "estimate, upper bound 200 ms a step, 20.0 % of it"
    hidden = public_finding(replace(internal("f", value=0, low=0, high=7_000_000), saving=HIDDEN), "x", 0)
    assert saving_words(hidden) == "nothing alone, up to 7.00 ms a step once the host launches faster (simulated)"
    wide = finding("e", value=300_000_000, low=0, high=300_000_000)
    assert expected_frac(wide) == 0.15 and expected_frac(sure) == 0.2
    assert expected_frac(finding("d", value=0, low=0, high=0)) == 0


def test_findings_come_by_what_is_expected_of_them() -> None:
    wide = internal("wide", value=300_000_000, low=0, high=300_000_000)
    sure = internal("sure", value=200_000_000, low=180_000_000, high=220_000_000)
    assert [one.rule for one in merge_findings([part_of(0, [wide, sure])])] == ["sure", "wide"]


def test_savings_are_given_in_the_steps_that_were_given() -> None:
    def words_of(*options: str) -> str:
        return CliRunner().invoke(analyze, [str(RECORDED / "starved.json.gz"), *options]).output

    assert "Savings are per step as recorded" in words_of()
    given = words_of("--untraced-step", "12ms")
    assert (
        "Savings are per step without profiling (12.0 ms)" in given and "Savings are per step as recorded" not in given
    )
    assert "12.0 ms without it" in given


def test_a_recording_that_made_steps_much_longer_names_bounds_only() -> None:
    path = str(RECORDED / "starved.json.gz")
    printed = CliRunner().invoke(analyze, [path, "--untraced-step", "5ms"], env={"COLUMNS": "200"}).output
    assert (
        "Recording made a step 3.2 times as long (15.9 ms; 5.00 ms without), so savings are bounds; shares" in printed
    )
    assert "Savings are per step" not in printed
    answer = CliRunner().invoke(analyze, [path, "--untraced-step", "5ms", "--json"])
    [finding] = json.loads(answer.output)["findings"]
    assert (finding["saving"]["method"], finding["saving"]["low"]) == ("bound", 0)


def test_ranks_on_different_devices_are_warned_of(tmp_path: Path) -> None:
    paths = []
    for rank, device in enumerate(("NVIDIA A100", "Tesla V100")):
        content = json.loads(dispatching(tmp_path / f"{rank}.json").read_text())
        content |= {"deviceProperties": [{"id": 0, "name": device}], "distributedInfo": {"rank": rank}}
        paths.append(tmp_path / f"{rank}.json")
        paths[-1].write_text(json.dumps(content))
    both, alone = analyze_paths([str(tmp_path)]), analyze_paths([str(paths[0])])
    warning = devices_differ(both)
    assert warning is not None and "NVIDIA A100: rank 0; Tesla V100: rank 1" in warning
    assert devices_differ(alone) is None
    assert "if these are two runs" in page(both).replace("\xa0", " ") and "The devices differ" in report(tmp_path)


def test_drawings_show_one_gap_of_each_cause_first_and_name_the_step(tmp_path: Path) -> None:
    """Long gaps while the host is late, and a shorter one that the device makes itself."""
    trace = DeviceTrace()
    for step in range(5):
        begin = step * 1_000_000
        trace.step(step + 7, begin, begin + 1_000_000)
        trace.host("aten::slow", begin + 5_000, begin + 530_000)
        trace.pair((begin + 510_000, begin + 520_000), (begin + 525_000, begin + 600_000))
        trace.pair((begin + 521_000, begin + 522_000), (begin + (700_000 if step == 2 else 600_000), begin + 900_000))
    path = written(trace, tmp_path / "x.json")
    [one] = analyze_paths([str(path)], wanted=Wanted(gaps=2)).ranks
    assert {gap.cause for gap in one.gaps} == {"host_dispatch", "device_dependency"}
    assert [step_words(one, gap) for gap in one.gaps][1] == "ProfilerStep#9"
    drawn = page(analyze_paths([str(path)], wanted=Wanted(gaps=2))).replace("\xa0", " ")
    captions = re.findall("<figcaption>([^<]*)", drawn)
    assert "ProfilerStep#9" in captions[1] and "between queued kernels" in captions[1]


def test_the_width_of_piped_output_follows_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    table = report(RECORDED / "starved.json.gz").split("What to do")[1].split("Not judged")[0]
    assert max(map(len, table.splitlines())) <= 60
    monkeypatch.delenv("COLUMNS")
    assert max(map(len, report(RECORDED / "starved.json.gz").split("Not judged")[0].splitlines())) > 60


def test_a_step_that_no_file_has_is_not_called_no_trace(tmp_path: Path) -> None:
    for name in "ab":
        dispatching(tmp_path / f"{name}.json")
    done = CliRunner().invoke(analyze, [str(tmp_path), "--step", "99"])
    assert "None of 2 files could be judged: Step is '99'" in str(done.exception)
    wrong = CliRunner().invoke(analyze, [str(tmp_path), "--rank", "x"])
    assert wrong.exit_code == 2 and "is not a valid whole number" in wrong.output


def test_a_cut_off_rank_is_not_held_against_whole_ones(tmp_path: Path) -> None:
    """The whole rank idles less than the first part of the other one does."""
    whole, cut = DeviceTrace(), DeviceTrace()
    for trace, busy_ns in ((whole, 300_000), (cut, 30_000)):
        for step in range(6):
            begin = step * 1_000_000
            trace.step(step, begin, begin + 1_000_000)
            trace.pair((begin + 10_000, begin + 20_000), (begin + 30_000, begin + 30_000 + busy_ns))
    for rank, trace in enumerate((whole, cut)):
        path = tmp_path / f"{rank}.json"
        path.write_bytes(trace_files.trace_text(trace.events, before={"distributedInfo": {"rank": rank}}, after={}))
    both = analyze_paths([str(tmp_path)])
    assert headline(both).startswith("Rank 1, the least productive of 2: GPU busy")
    text = (tmp_path / "1.json").read_bytes()
    (tmp_path / "1.json").write_bytes(text[: 2 * len(text) // 3])
    result = analyze_paths([str(tmp_path)])
    assert result.ranks[0].summary.covered_frac == 1.0
    assert headline(result).startswith("Rank 0, the only complete one: GPU busy 30.0 %")


def test_what_no_finding_gives_back_is_said(tmp_path: Path) -> None:
    [one] = (result := analyze_paths([str(graphs(tmp_path / "graphs.json"))])).ranks
    lost = one.summary.unclaimed_ns
    buckets = one.summary.buckets
    assert Bucket.PRODUCTIVE not in lost and all(ns <= buckets[part] for part, ns in lost.items())
    share = format_frac(lost[Bucket.QUEUED] / one.summary.window_ns)
    why = "idle between kernels that were already queued (dependency or launch latency)"
    said = f"{share} of the step is not covered by any finding: {why}."
    assert unclaimed_words(result) == said
    assert said.replace(" %", "\xa0%") in page(result)
    assert said in " ".join(CliRunner().invoke(analyze, [str(tmp_path / "graphs.json")]).stdout.split())
    starved = analyze_paths([str(RECORDED / "starved.json.gz")])
    assert unclaimed_words(starved) is None, "its finding is about nearly all of it"


def test_of_a_file_that_cannot_be_judged_only_that_is_said(tmp_path: Path) -> None:
    trace = DeviceTrace()
    for step in range(3):
        trace.step(step, step * 1_000_000, (step + 1) * 1_000_000)
        trace.host("aten::mm", step * 1_000_000, step * 1_000_000 + 500)
    path = tmp_path / "cut.json"
    text = trace_files.trace_text(trace.events, before={"deviceProperties": [{"id": 0}]}, after={})
    path.write_bytes(text[: 9 * len(text) // 10])
    lines = [line for line in CliRunner().invoke(analyze, [str(path)]).stdout.splitlines() if line]
    assert lines[0].startswith(f"{path}: nothing is judged: the file holds a header that names a device")
    assert lines[1] == "Nothing in the trace can be judged."
    assert len(lines) == 3 and "cut off at byte" in lines[2]
