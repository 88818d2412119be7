"""What `tightship analyze` can be asked: one rank, one step, one rule, the costs of facts, files at once."""

from __future__ import annotations

import gzip
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import trace_files
from click.testing import CliRunner, Result
from device_trace import DeviceTrace
from recordings import ANY, figures
from reference_data import TRACES

from tightship_analyzers import trace as traces
from tightship_analyzers.analysis.from_files import analyze_paths
from tightship_analyzers.analysis.rank_figures import rank_figures
from tightship_analyzers.analysis.rank_part import RankPart
from tightship_analyzers.analysis.rank_processes import analyze_files
from tightship_analyzers.analysis.wanted import Wanted
from tightship_analyzers.commands.analyze import analyze
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.report.json import analysis_json
from tightship_analyzers.rules.catalogue import TRACE_RULES
from tightship_platform.errors import TightshipError
from tightship_platform.results.analysis.run import RunAnalysis
from tightship_platform.results.codec import as_json
from tightship_platform.units import NS_PER_MS

RECORDED = Path(__file__).parents[2] / "data" / "traces"
DLRM = TRACES / "param" / "dlrm_8rank"


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(analyze, [str(argument) for argument in arguments], catch_exceptions=True)


def ask(*arguments: str | Path) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, (result.output, result.exception)
    said: dict[str, Any] = json.loads(result.stdout)
    return said


def of_rank(path: Path, rank: int) -> Path:
    """The recorded trace as of a rank of four."""
    content = json.loads(gzip.decompress((RECORDED / "starved.json.gz").read_bytes()))
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content | {"distributedInfo": {"backend": "gloo", "rank": rank, "world_size": 4}}))
    return path


def marked(path: Path) -> Path:
    """Four marked steps of a device, one kernel each."""
    trace = DeviceTrace()
    for step in range(4):
        begin = step * 1_000_000
        trace.step(step + 7, begin, begin + 1_000_000)
        trace.pair((begin + 10_000, begin + 20_000), (begin + 30_000, begin + 130_000), name=f"kernel_{step}")
    path.write_bytes(trace_files.trace_text(trace.events, before={}, after={}))
    return path


def test_a_step_is_picked_by_number_and_by_mark(tmp_path: Path) -> None:
    path = marked(tmp_path / "x.json")
    [whole] = ask(path)["ranks"]
    assert [(step["step"], step["name"]) for step in whole["steps"]] == [
        (number, f"ProfilerStep#{number + 7}") for number in range(3)
    ]
    assert {kernel["name"] for kernel in whole["kernels"]} == {f"kernel_{step}" for step in range(3)}
    for picked in ("1", "ProfilerStep#8", "#8"):
        [one] = ask(path, "--step", picked)["ranks"]
        assert [step["step"] for step in one["steps"]] == [1]
        assert [kernel["name"] for kernel in one["kernels"]] == ["kernel_1"]
        assert one["temporal"] == {"kernel_span_ns": 100_000, "idle_ns": 0, "compute_ns": 100_000, "non_compute_ns": 0}
        assert one["window_ns"] == 1_000_000


def test_all_steps_keeps_the_last_one(tmp_path: Path) -> None:
    path = marked(tmp_path / "x.json")
    [cut], [whole] = ask(path)["ranks"], ask(path, "--all-steps")["ranks"]
    assert len(cut["kernels"]) == 3 and len(whole["kernels"]) == 4


def test_one_rule_judges_alone() -> None:
    path = RECORDED / "starved.json.gz"
    assert [finding["rule"] for finding in ask(path, "--rule", "starved-input")["findings"]] == ["starved-input"]
    other = ask(path, "--rule", "loop-indexing", "--explain")
    assert other["findings"] == []
    used = {name for fact in other["ranks"][0]["facts"] for name in fact["used_by"]}
    assert "loop-indexing" in used and "starved-input" not in used


def test_explain_tells_every_fact_with_cost_and_users() -> None:
    facts = ask(RECORDED / "starved.json.gz", "--explain")["ranks"][0]["facts"]
    assert all(fact["self_ns"] >= 0 and fact["used_by"] for fact in facts)
    declared = {need.__name__ for rule in TRACE_RULES for need in rule.needs[:1]}
    assert declared <= {fact["fact"] for fact in facts}
    output = run(RECORDED / "starved.json.gz", "--explain").output
    assert "Facts" in output and "LoaderRanges" in output


def test_an_untraced_step_scales_the_savings() -> None:
    path = RECORDED / "starved.json.gz"
    [plain], [rank] = ask(path)["findings"], ask(path)["ranks"]
    most = rank["step_ns"]["mean"] * 4 // 5
    assert most > NS_PER_MS
    [scaled] = ask(path, "--untraced-step", f"{most}ns")["findings"]
    assert scaled["saving"]["value"] == plain["saving"]["value"] * most // rank["step_ns"]["mean"]
    assert scaled["saving"]["low"] < scaled["saving"]["value"] <= scaled["saving"]["high"] <= most


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--rank", "3"), "No trace of rank 3"),
        (("--step", "99"), "Step is '99'; expected"),
        (("--rule", "nope"), "No rule named 'nope'"),
        (("--rule", "device-held-idle"), "judges a run's samples"),
        (("--untraced-step", "0ms"), "Untraced step is '0 ns'"),
        (("--untraced-step", "10s"), "Untraced step is '10.0 s'; expected at most the "),
    ],
)
def test_a_wrong_value_is_one_line(options: tuple[str, str], words: str) -> None:
    result = run(RECORDED / "starved.json.gz", *options)
    assert isinstance(result.exception, TightshipError)
    assert words in str(result.exception) and "\n" not in str(result.exception)


@pytest.mark.parametrize("options", [("--rank", "-1"), ("--untraced-step", "soon"), ("--jobs", "0")])
def test_a_value_of_the_wrong_kind_is_reported_with_its_option(options: tuple[str, str]) -> None:
    result = run(RECORDED / "starved.json.gz", *options)
    assert result.exit_code == 2 and options[0] in result.output


def test_two_files_of_one_rank_are_refused_by_name(tmp_path: Path) -> None:
    first, second = of_rank(tmp_path / "monday" / "a.json", 1), of_rank(tmp_path / "tuesday" / "b.json", 1)
    with pytest.raises(TightshipError, match="both of rank 1") as raised:
        analyze_paths([str(tmp_path)])
    assert str(first) in str(raised.value) and str(second) in str(raised.value)


def test_a_rank_is_picked(tmp_path: Path) -> None:
    for rank in (0, 2):
        of_rank(tmp_path / f"{rank}.json", rank)
    of_rank(tmp_path / "again.json", 0)
    assert [rank["rank"] for rank in ask(tmp_path, "--rank", "2")["ranks"]] == [2]


def plain(result: RunAnalysis) -> dict[str, Any]:
    return as_json(analysis_json(result))


def test_files_at_once_say_the_same_as_one_after_the_other(tmp_path: Path) -> None:
    for rank in range(3):
        of_rank(tmp_path / f"{rank}.json", rank)
    (tmp_path / "broken.json").write_text('{"traceEvents": 7}')
    alone, beside = analyze_paths([str(tmp_path)]), analyze_paths([str(tmp_path)], jobs=2)
    assert plain(alone) == plain(beside)
    assert [one.rank for one in beside.ranks] == [0, 1, 2] and len(beside.skipped) == 1


def test_a_file_that_kills_its_process_costs_only_itself(tmp_path: Path) -> None:
    paths = [str(of_rank(tmp_path / f"{rank}.json", rank)) for rank in range(2)]
    stuck = tmp_path / "stuck.json"
    # Opening a pipe of the file system waits for a writer, until the process is ended from outside.
    os.mkfifo(stuck)
    outcomes = dict[str, object]()
    for source, outcome in analyze_files([str(stuck), *paths], Wanted(), jobs=2):
        outcomes[source] = outcome
        if len(outcomes) == len(paths):
            # The fork server's children are the readers, and those of the other files have ended.
            for child in psutil.Process().children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    if child.ppid() != os.getpid():
                        child.kill()
    assert [type(outcomes[path]) for path in paths] == [RankPart] * 2
    assert isinstance(outcomes[str(stuck)], TightshipError)
    assert "was killed by signal 9" in str(outcomes[str(stuck)])


@pytest.mark.parametrize("recording", ANY, indirect=True)
def test_the_json_equals_the_exact_reference(recording: Path) -> None:
    """By the peer's definition of communication."""
    expected, found = figures(recording), as_json(rank_figures(Facts(traces.open(recording))))
    device = found["by_patterns"] or found
    if not expected["device_events"]:
        assert device["temporal"] is None and found["idle_by_stream"] == []
        return
    assert device["temporal"] == expected["temporal"]
    shared = {key: device["overlap"][key] for key in ("comm_ns", "overlapped_ns")}
    assert shared == expected["overlap"]
    keys = ("stream", "host_wait_ns", "kernel_wait_ns", "other_ns")
    idle = [{key: row[key] for key in keys} for row in found["idle_by_stream"]]
    by_stream = [{key: row[key] for key in keys} for row in expected["idle_by_stream"]]
    assert sorted(idle, key=str) == sorted(by_stream, key=str)
    assert sum(row["ns"] for row in found["idle_causes"]) == expected["temporal"]["idle_ns"]


@pytest.mark.reference
def test_eight_ranks_are_compared() -> None:
    result = run(DLRM)
    assert result.exit_code == 0 and "Who waits for whom" in result.output
    across = ask(DLRM)["across_ranks"]
    assert across["ranks"][0]["rank"] == 7 and across["ranks"][0]["last"] == 5 and across["collectives"] == 8


def test_wanted_checks_itself() -> None:
    with pytest.raises(TightshipError):
        Wanted(untraced_step_ns=-1)
