"""Traces that mark no steps: the recording is judged as one window."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from gpu_job import MS, US, GpuJob
from made_trace import ORIGIN_NS
from rule_jobs import EXPECTED_NS, JOBS, STEPS, job_of
from trace_files import trace_text, unmarked

from tightship_analyzers import trace as traces
from tightship_analyzers.analysis.from_files import analyze_paths
from tightship_analyzers.analysis.judge import judge_trace
from tightship_analyzers.commands.analyze import analyze
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.window.steps import Steps
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.findings.model import Failed, Finding, NotApplicable, TraceRule
from tightship_analyzers.fleet.account import Phases
from tightship_analyzers.fleet.accounting import represents_run
from tightship_analyzers.report.html.page import page
from tightship_analyzers.rules.catalogue import TRACE_RULES
from tightship_analyzers.trace.model import Trace
from tightship_platform.vocabulary import Method, SavingUnit

TOLERANCE = 0.1
NEED_STEPS = {rule.id for rule in TRACE_RULES if Steps in rule.needs}
WHOLE = [rule for rule in JOBS if rule not in NEED_STEPS and rule != "small-decode-batch"]
"""Batches of a server are steps by its own marks; of one alone see test_decode_batches.py."""


def recording(rule: str, folder: Path, *, bad: bool = True) -> Trace:
    return traces.open(unmarked(job_of(rule, bad=bad).text(), folder / "recording.json"))


def findings(trace: Trace, rule: str) -> list[Finding]:
    """As the rule itself gives them, before they are simulated."""
    [one] = of_rule(rule)
    outcome = one.judge(Facts(trace))
    assert not isinstance(outcome, NotApplicable), outcome
    return list(outcome)


def of_rule(rule: str) -> tuple[TraceRule, ...]:
    return tuple(one for one in TRACE_RULES if one.id == rule)


def test_what_warm_up_hides_or_one_step_bounds_needs_steps() -> None:
    warm_up = {"allocator-churn", "recompilation"}
    assert warm_up | {"batches-of-one", "loop-indexing", "tiny-collectives", "device-round-trip"} == NEED_STEPS


@pytest.mark.parametrize("rule", WHOLE)
def test_the_defect_is_found_in_the_recording(rule: str, tmp_path: Path) -> None:
    trace = recording(rule, tmp_path)
    window = Facts(trace)[Window]
    [finding] = findings(trace, rule)
    assert finding.unit is SavingUnit.RECORDING
    assert finding.place == "train.py:12 (train_step)"
    assert finding.saving.value == finding.claims.measure_ns
    assert finding.share_frac == finding.saving.value / window.window_ns
    assert 0 <= finding.saving.low <= finding.saving.value <= finding.saving.high <= window.window_ns
    reported = " ".join([finding.title, *(row.text for row in finding.evidence if row.kind == "fact")])
    assert "recording" in reported and not re.search(r"\bsteps?\b", reported)


@pytest.mark.parametrize("rule", sorted(set(WHOLE) & set(EXPECTED_NS)))
def test_its_cost_is_that_of_all_steps_together(rule: str, tmp_path: Path) -> None:
    [finding] = findings(recording(rule, tmp_path), rule)
    # What the device waits for at an edge of the recording is not claimed: one step may be missing.
    assert (STEPS - 1) * (1 - TOLERANCE) < finding.saving.value / EXPECTED_NS[rule] < STEPS * (1 + TOLERANCE)


@pytest.mark.parametrize("rule", JOBS)
def test_a_sound_recording_has_no_finding(rule: str, tmp_path: Path) -> None:
    said = judge_trace(recording(rule, tmp_path, bad=False))
    assert not [why for why in said.not_judged.values() if isinstance(why, Failed)]
    assert [finding.rule for finding in said.findings if finding.share_frac > 0.05] == []
    assert sum(said.summary.buckets.values()) == said.summary.window_ns


@pytest.mark.parametrize("rule", sorted(NEED_STEPS & set(JOBS)))
def test_what_needs_steps_says_how_to_get_them(rule: str, tmp_path: Path) -> None:
    said = judge_trace(recording(rule, tmp_path), rules=of_rule(rule))
    assert said.findings == []
    reason = said.not_judged[rule].reason
    assert reason.startswith("needs steps") and "`tightship profile RUN --duration 30s`" in reason


def test_the_mark_that_the_reason_names_is_understood(tmp_path: Path) -> None:
    job = GpuJob()
    for _ in range(3):
        begun = job.now_ns
        job.op("aten::mm", (400 * US, "gemm"))
        job.drain()
        job.step_of(begun)
    (tmp_path / "marked.json").write_bytes(job.text())
    assert Facts(traces.open(tmp_path / "marked.json"))[Steps].count == 3


def edged(folder: Path) -> Trace:
    """The profiler starts, waits for earlier work, loads a batch; the device is busy; then the host goes on alone."""
    job = GpuJob(stacks=False)
    job.call(0, 20 * MS, name="cudaDeviceSynchronize")
    job.host(
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 20 * MS, 60 * MS, category="user_annotation"
    )
    job.now_ns = 60 * MS
    for _ in range(50):
        job.op("aten::mm", (400 * US, "ampere_bf16_s16816gemm_bf16_128x128"))
    job.drain()
    job.wait("cudaDeviceSynchronize")
    begun = job.now_ns
    job.pause(40 * MS)
    job.host("aten::cat", begun, job.now_ns)
    before = {"baseTimeNanoseconds": ORIGIN_NS, "deviceProperties": [{"id": 0, "name": job.device}]}
    (folder / "edged.json").write_bytes(trace_text(job.events, before=before, after={}))
    return traces.open(folder / "edged.json")


def test_no_finding_claims_the_edges_of_a_recording(tmp_path: Path) -> None:
    facts = Facts(edged(tmp_path))
    window = facts[Window]
    assert not window.of_steps and window.count == 1
    assert window.start_ns < window.claim_start_ns < window.claim_end_ns < window.end_ns
    said = judge_trace(edged(tmp_path))
    assert said.findings == [] and "starved-input" not in said.not_judged
    assert said.summary.window_ns > 120 * MS, "the account has all of it"
    assert sum(said.summary.buckets.values()) == said.summary.window_ns


def test_a_first_call_is_start_up_and_no_habit(tmp_path: Path) -> None:
    def job(calls: int) -> Trace:
        made = GpuJob()
        for _ in range(calls):
            begun = made.now_ns
            for _mm in range(5):
                made.op("aten::mm", (400 * US, "ampere_bf16_s16816gemm_bf16_128x128"))
            made.drain()
            made.op("aten::conv2d", (50 * US, "convolve"), host_ns=3 * MS)
            made.python("train.py(12): train_step", begun, made.now_ns)
        return traces.open(unmarked(made.text(), tmp_path / f"{calls}.json"))

    assert judge_trace(job(1), rules=of_rule("busy-host")).findings == []
    [finding] = judge_trace(job(4), rules=of_rule("busy-host")).findings
    assert finding.claims.measure_ns == pytest.approx(3 * 3 * MS, rel=TOLERANCE)


@pytest.mark.usefixtures("proven")
def test_faces_speak_of_the_recording(tmp_path: Path) -> None:
    path = unmarked(job_of("launch-bound", bad=True).text(), tmp_path / "serving.json")
    runner = CliRunner()
    printed = runner.invoke(analyze, [str(path)], env={"COLUMNS": "200"}).output
    assert "of the recording;" in printed and "no whole step" in printed
    assert re.search(r"saves +\S+ [µm]s \(.*simulated\), \d+\.\d % of the recording", printed), printed
    drawn = page(analyze_paths([str(path)])).replace("\xa0", " ")
    assert "Where the recording went" in drawn and "share of the step" not in drawn
    for said in (printed.split("judged as a whole")[0], re.sub(r"<style>.*?</style>", "", drawn, flags=re.DOTALL)):
        assert not re.search(r"\ba step\b(?!s)|of the step", said.replace("no whole step", "")), said
    reported = json.loads(runner.invoke(analyze, [str(path), "--json"]).stdout)
    assert {finding["saving"]["unit"] for finding in reported["findings"]} == {"ns/recording"}
    [rank] = reported["ranks"]
    assert rank["saving_unit"] == "ns/recording" and rank["steps"] == [] and rank["simulation_error_frac"] is not None
    assert 0 < rank["joint_saving_frac"] <= 1


def test_which_traces_say_how_a_run_works() -> None:
    recorded = {"steps": 0, "saving_unit": "ns/recording", "window_start_ns": 50}
    none, stepping = Phases(), Phases(first_step_ns=40, last_step_ns=60)
    starting = Phases(first_step_ns=55, last_step_ns=60)
    assert (
        represents_run(recorded, none) and represents_run(recorded, stepping) and not represents_run(recorded, starting)
    )
    assert not represents_run({"steps": 0, "window_start_ns": 50}, none), "analysed before recordings were judged"
    assert represents_run({"steps": 2}, starting)


@pytest.mark.parametrize("waits", [False, True])
def test_work_that_goes_ends_a_recording_earlier_whoever_waits_for_its_end(tmp_path: Path, waits: bool) -> None:
    """A file may end with the device's work, or with the host that waits for it: what goes is saved either way."""
    job = GpuJob()
    for _ in range(60):
        job.op("aten::cudnn_convolution", (100 * US, "cudnn::ops::nchwToNhwcKernel<float>"), (400 * US, "conv"))
    if waits:
        job.wait("cudaDeviceSynchronize")
    trace = traces.open(unmarked(job.text(), tmp_path / "recording.json"))
    [finding] = judge_trace(trace, rules=of_rule("layout-ping-pong")).findings
    assert finding.saving.method is Method.SIMULATED
    assert finding.saving.value == pytest.approx(60 * 100 * US, rel=TOLERANCE)
