"""Every rule on accelerators, on a job with its defect and on the same job put right."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gpu_job import MS, PLACE, US, GpuJob
from rule_jobs import EXPECTED_NS, GEMM, HALF, JOBS, STEPS, job_of, work

from tightship_analyzers.analysis.judge import judge_trace
from tightship_analyzers.facts.kernels.plain_attention import MAX_BETWEEN
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.roofline.chains import SHARED_FRAC
from tightship_analyzers.findings.model import Failed, Finding
from tightship_analyzers.rules.catalogue import find_rule
from tightship_analyzers.rules.kernels.unfused_elementwise import MAX_PAUSE_NS
from tightship_platform.results.codec import as_json, decode
from tightship_platform.results.evidence import Evidence, Fact, Overlay
from tightship_platform.results.overlay import ALLOCATOR, TF32
from tightship_platform.units import format_frac, format_ns
from tightship_platform.vocabulary import Method

TOLERANCE = 0.1


def findings(folder: Path, rule: str, *, bad: bool) -> list[Finding]:
    return judged(job_of(rule, bad=bad), rule, folder)


def judged(job: GpuJob, rule: str, folder: Path) -> list[Finding]:
    """As the rule itself gives them, before they are simulated."""
    trace = job.read(folder)
    assert trace.warnings == []
    facts = Facts(trace)
    found = find_rule(rule)
    for need in found.needs:
        facts[need]
    outcome = found.judge(facts)
    return [] if not hasattr(outcome, "__iter__") else list(outcome)  # type: ignore[arg-type]


@pytest.mark.parametrize("rule", JOBS)
def test_the_defect_is_found(rule: str, tmp_path: Path) -> None:
    found = findings(tmp_path, rule, bad=True)
    assert [finding.rule for finding in found] == [rule]
    [finding] = found
    assert finding.place == "train.py:12 (train_step)"
    assert finding.saving.method is Method.BOUND
    assert finding.title and finding.fix and "\n" not in finding.title + finding.fix
    change = [entry for entry in finding.evidence if entry.kind == "change"]
    assert len(change) == 1 and change[0].before != change[0].after
    assert decode(list[Evidence], [as_json(entry) for entry in finding.evidence]) == list(finding.evidence)


@pytest.mark.parametrize("rule", ["cache-flush", "explicit-synchronization", "garbage-collection", "logging-in-step"])
def test_what_one_of_several_steps_has_may_not_come_back(rule: str, tmp_path: Path) -> None:
    [finding] = judged(job_of(rule, bad=True, only_step=1), rule, tmp_path)
    assert finding.saving.low == 0 < finding.saving.value
    assert any("In one step only" in entry.text for entry in finding.evidence if isinstance(entry, Fact))
    [always] = findings(tmp_path, rule, bad=True)
    assert always.saving.low > 0


@pytest.mark.parametrize("rule", EXPECTED_NS)
def test_its_cost_is_right(rule: str, tmp_path: Path) -> None:
    [finding] = findings(tmp_path, rule, bad=True)
    assert finding.saving.value == pytest.approx(EXPECTED_NS[rule], rel=TOLERANCE)
    assert finding.saving.low <= EXPECTED_NS[rule] * (1 + TOLERANCE)


@pytest.mark.parametrize("rule", JOBS)
def test_the_job_put_right_is_clean(rule: str, tmp_path: Path) -> None:
    assert findings(tmp_path, rule, bad=False) == []


@pytest.mark.parametrize("rule", JOBS)
def test_no_other_rule_cries_wolf(rule: str, tmp_path: Path) -> None:
    said = judge_trace(job_of(rule, bad=False).read(tmp_path))
    assert not [why for why in said.not_judged.values() if isinstance(why, Failed)]
    assert [finding.rule for finding in said.findings if finding.share_frac > 0.05] == []


def test_kernels_show_tensor_cores_of_a_device_that_is_not_known(tmp_path: Path) -> None:
    """A trace of PyTorch 1.8 holds no properties of devices, and kernels of cuBLAS say what they were built for."""
    for device, kernel, expected in (
        ("Some Other Device", "ampere_sgemm_128x64_nn", "TF32"),
        ("Some Other Device", "volta_sgemm_128x64_nn", "float16"),
        ("Some Other Device", "maxwell_sgemm_128x64_nn", ""),
        ("Tesla V100-DGXS-32GB", "maxwell_sgemm_128x64_nn", "float16"),
    ):
        job = GpuJob(device=device)
        for _ in range(STEPS):
            begun = job.now_ns
            for _ in range(5):
                job.op("aten::mm", (900 * US, kernel))
            job.drain()
            job.step_of(begun)
        if not expected:
            assert "fp32-gemm" in judge_trace(job.read(tmp_path)).not_judged
            continue
        found = judged(job, "fp32-gemm", tmp_path)
        assert expected in found[0].fix, (device, kernel)
        if device == "Some Other Device":
            saving = found[0].saving
            assert saving.low == 0 < saving.value < saving.high
            assert any("not in the catalogue" in getattr(entry, "text", "") for entry in found[0].evidence)


LIBRARY = "transformers/models/bert/modeling_bert.py"


@pytest.mark.parametrize("rule", ["busy-host", "launch-bound"])
@pytest.mark.parametrize("has_library", [True, False])
def test_a_place_is_the_user_s_and_the_deepest_that_has_the_time(tmp_path: Path, rule: str, has_library: bool) -> None:
    job = GpuJob()
    for _ in range(STEPS):
        begun = job.now_ns
        JOBS[rule](job, True)
        if has_library:
            job.frame_of("torch/nn/modules/module.py(1553): _call_impl", begun)
            job.frame_of(f"{LIBRARY}(512): forward", begun)
        job.drain()
        job.step_of(begun)
    job.begin_step()
    [finding] = judged(job, rule, tmp_path)
    assert finding.place == PLACE, "a harness calls everything, the own function says where"
    deepest = [text for text in facts_of(finding) if text.startswith("Most of it is in")]
    assert deepest == ([f"Most of it is in {LIBRARY}:512 (forward)"] if has_library else [])


def facts_of(finding: Finding) -> list[str]:
    return [entry.text for entry in finding.evidence if isinstance(entry, Fact)]


@pytest.mark.parametrize("rule", JOBS)
def test_nothing_is_called_training_that_may_be_a_request(tmp_path: Path, rule: str) -> None:
    for finding in findings(tmp_path, rule, bad=True):
        assert not re.search(r"\btraining\b", " ".join([finding.title, finding.fix, *facts_of(finding)]))


def test_a_title_says_what_waits_for_what(tmp_path: Path) -> None:
    """Besides the rules that wait for nothing: who is idle, or blocked, and for what."""
    expected = {
        "busy-host": "The device waits {share} of the step for code of the host",
        "launch-bound": "Launch-bound: the device waits {share} of the step for the host to launch kernels",
        "garbage-collection": "Garbage collection holds up the device for {share} of the step",
        "logging-in-step": "Writing logs holds up the device for {share} of the step",
        "recompilation": "Recompilation holds up the device for {share} of the step",
    }
    for rule, title in expected.items():
        [finding] = judged(job_of(rule, bad=True), rule, tmp_path)
        assert finding.title == title.format(share=format_frac(finding.share_frac))


def test_device_work_that_a_slow_host_hides_is_shown_with_what_it_may_bring(tmp_path: Path) -> None:
    """The host needs 100 µs for each product of 60 µs: shorter ones make longer gaps, until launches take less."""
    job = GpuJob()
    for _ in range(STEPS):
        begun = job.now_ns
        for _ in range(20):
            job.op("aten::mm", (60 * US, "ampere_sgemm_128x64_nn"), host_ns=100 * US)
        job.step_of(begun)
    found = {finding.rule: finding for finding in judge_trace(job.read(tmp_path)).findings}
    saving = found["fp32-gemm"].saving
    assert saving.method is Method.SIMULATED
    assert saving.value <= 10 * US < 20 * 40 * US <= saving.high
    assert any("once it launches faster" in getattr(entry, "text", "") for entry in found["fp32-gemm"].evidence)


def test_small_collectives_cost_what_issuing_them_does(tmp_path: Path) -> None:
    """One all-reduce for each of 40 gradients, without recorded sizes: 5 µs on the device, 90 µs of the host."""
    job = GpuJob()
    for _ in range(STEPS):
        begun = job.now_ns
        work(job, 40)
        job.drain()
        for _ in range(40):
            job.op("c10d::allreduce_", (5 * US, "ncclDevKernel_AllReduce_Sum_f32"), stream=20, host_ns=90 * US)
        job.drain()
        job.step_of(begun)
    [finding] = [found for found in judge_trace(job.read(tmp_path)).findings if found.rule == "tiny-collectives"]
    assert 39 * 80 * US < finding.saving.value < 40 * 100 * US
    assert finding.saving.low < 40 * 5 * US, "of the idle time nothing is sure"


@pytest.mark.parametrize(
    ("rule", "call", "words"),
    [
        ("launch-bound", "cudaLaunchKernel", "CUDA graph"),
        ("launch-bound", "hipLaunchKernel", "HIP graph"),
        ("gloo-on-gpu", "cudaLaunchKernel", "Use NCCL"),
        ("gloo-on-gpu", "hipLaunchKernel", "Use RCCL"),
    ],
)
def test_libraries_have_the_names_of_the_devices_vendor(rule: str, call: str, words: str, tmp_path: Path) -> None:
    job = job_of(rule, bad=True)
    for event in job.events:
        if event.get("name") == "cudaLaunchKernel":
            event["name"] = call
    [finding] = judged(job, rule, tmp_path)
    assert words in finding.fix


@pytest.mark.parametrize("rule", ["low-bus-bandwidth", "low-grid"])
def test_an_unknown_device_disables_only_what_needs_its_rates(rule: str, tmp_path: Path) -> None:
    job = job_of(rule, bad=True)
    job.device = "Some Other Device"
    said = judge_trace(job.read(tmp_path))
    assert "needs the rates of 'Some Other Device'" in said.not_judged[rule].reason
    assert not {name for name, why in said.not_judged.items() if isinstance(why, Failed)}


def test_without_a_sign_nothing_is_derived(tmp_path: Path) -> None:
    rule = replace(find_rule("pageable-copy"))
    trace = job_of("pageable-copy", bad=False).read(tmp_path)
    facts = Facts(trace)
    from tightship_analyzers.analysis.judge import judge_facts

    said = judge_facts(facts, rules=(rule,))
    assert said.findings == [] and said.not_judged == {}
    assert "BlockingCopies" not in facts.costs


def group_of(ranks: Any) -> dict[str, Any]:
    """`distributedInfo` of a world of 64 with one group."""
    return {"world_size": 64, "pg_config": [{"pg_name": "0", "ranks": ranks}]}


@pytest.mark.parametrize(
    ("distributed", "counts"),
    [
        ({}, False),
        ({"world_size": 8}, True),
        ({"world_size": 64}, False),
        (group_of([8, 9, 10, 11, 12, 13, 14, 15]), True),
        (group_of([0, 8, 16, 24, 32, 40, 48, 56]), False),
        (group_of([4, 5, 6, 7, 8, 9, 10, 11]), False),
        (group_of([]), False),
        (group_of("0-7"), False),
        ({"pg_config": [{"pg_name": "other", "ranks": [0, 1]}]}, False),
    ],
)
def test_a_link_is_judged_only_where_the_ranks_share_a_machine(
    tmp_path: Path, distributed: dict[str, Any], counts: bool
) -> None:
    job = job_of("low-bus-bandwidth", bad=True)
    job.distributed = distributed
    assert bool(judged(job, "low-bus-bandwidth", tmp_path)) is counts


FORWARD, BACKWARD = "aten::_softmax", "aten::_softmax_backward_data"
SCORES = [16, 512, 256]
GIVES = ("aten::bmm", [[16, 512, 64], [16, 64, 256]])
TAKES = ("aten::bmm", [[16, 512, 256], [16, 256, 64]])
GIVES_ONE = ("aten::mm", [[512, 64], [64, 256]])
TAKES_ONE = ("aten::mm", [[512, 256], [256, 64]])
TAKES_SECOND = ("aten::bmm", [[16, 64, 512], [16, 512, 256]])
LINEAR = ("aten::mm", [[4096, 1024], [1024, 1024]])
Made = tuple[str, list[list[int]]]


@pytest.mark.parametrize(
    ("softmax", "scores", "before", "behind", "counts"),
    [
        (FORWARD, [2, 8, 512, 256], [GIVES], [TAKES], True),
        (FORWARD, SCORES, [GIVES, LINEAR], [LINEAR, TAKES], True),
        (FORWARD, SCORES, [("aten::baddbmm", [SCORES, *GIVES[1]])], [TAKES], True),
        (FORWARD, [1, 512, 256], [GIVES_ONE], [TAKES_ONE], True),
        (FORWARD, SCORES, [LINEAR], [TAKES], False),
        (FORWARD, SCORES, [TAKES], [TAKES], False),
        (FORWARD, SCORES, [GIVES], [LINEAR], False),
        (FORWARD, SCORES, [GIVES], [GIVES], False),
        (FORWARD, [8, 512, 32000], [("aten::mm", [[4096, 2048], [2048, 32000]])], [LINEAR], False),
        (FORWARD, [2, 256, 256], [GIVES_ONE], [TAKES_ONE], False),
        (BACKWARD, SCORES, [GIVES], [TAKES_SECOND], True),
        (BACKWARD, SCORES, [TAKES_SECOND], [TAKES], True),
        (BACKWARD, SCORES, [LINEAR], [TAKES], False),
        (BACKWARD, SCORES, [GIVES], [LINEAR], False),
    ],
)
def test_attention_is_a_softmax_between_the_products_of_its_scores(
    tmp_path: Path, softmax: str, scores: list[int], before: list[Made], behind: list[Made], counts: bool
) -> None:
    job = GpuJob()
    for _ in range(STEPS):
        begun = job.now_ns
        for name, dims in before:
            job.op(name, GEMM, dims=dims, types=HALF)
        job.op(softmax, (600 * US, "softmax_warp"), dims=[scores, [], []], types=[HALF[0], "", ""])
        for name, dims in behind:
            job.op(name, GEMM, dims=dims, types=HALF)
        for _ in range(MAX_BETWEEN):
            job.op("aten::empty")
        job.drain()
        job.step_of(begun)
    found = judged(job, "unfused-attention", tmp_path)
    assert [finding.saving.value for finding in found] == ([600 * US] if counts else [])
    for finding in found:  # a fused kernel does the arithmetic of the products too, and moves no scores
        assert 600 * US < finding.saving.high < 600 * US + 2 * len(before + behind) * GEMM[0]


@pytest.mark.parametrize(("pause_ns", "filled_ns"), [(8 * US, 0), (8 * US, 3 * US), (8 * US, 8 * US), (12 * US, 0)])
def test_only_short_pauses_that_no_other_stream_fills_go_with_a_chain(
    tmp_path: Path, pause_ns: int, filled_ns: int
) -> None:
    """Six kernels of 30 µs in each step, of which nothing tells the tensors, and a product."""
    job = GpuJob()
    for step in range(STEPS):
        begun = step * MS
        job.step(step, begun, begun + MS)
        start = begun + 10 * US
        for at in range(6):
            call, end = begun + at * US, start + 30 * US
            job.pair((call, call + 500), (start, end), name=f"vectorized_elementwise_kernel<4, f{at}>")
            if filled_ns:
                job.pair((call + 500, call + US), (end, end + filled_ns), name="gemm", stream=20)
            start = end + pause_ns
        job.pair((begun + 7 * US, begun + 8 * US), (start, begun + MS), name="gemm")
        job.now_ns = begun + MS
    [finding] = judged(job, "unfused-elementwise", tmp_path)
    idle_ns = 5 * (pause_ns - filled_ns) if pause_ns <= MAX_PAUSE_NS else 0
    assert finding.saving.value == pytest.approx(SHARED_FRAC * 5 * 30 * US + idle_ns, abs=10)
    assert finding.saving.low == 0
    assert finding.saving.high == pytest.approx(5 * 30 * US + idle_ns, abs=10)
    said = [entry.text for entry in finding.evidence if isinstance(entry, Fact)]
    assert any(f"idles for {format_ns(idle_ns)}" in text for text in said) is (idle_ns > 0)


@pytest.mark.parametrize(
    ("kernel", "counts"),
    [
        ("cutlass_80_simt_sgemm_128x32_8x5_nn_align1", True),
        ("cutlass_80_simt_sfprop_optimized_128x64_8x5_nhwc_align1", True),
        ("cutlass_80_simt_dgemm_64x64_8x5_nn_align1", False),
        ("cutlass_80_simt_cgemm_64x64_8x5_nn_align1", False),
        ("cutlass_75_simt_igemm_s8_128x64_32x2_nt_align4", False),
    ],
)
def test_only_products_in_float32_are_advised_to_use_tf32(tmp_path: Path, kernel: str, counts: bool) -> None:
    job = GpuJob()
    for _ in range(STEPS):
        begun = job.now_ns
        job.op("aten::mm", (900 * US, kernel))
        job.drain()
        job.step_of(begun)
    found = judged(job, "fp32-gemm", tmp_path)
    assert bool(found) is counts
    if counts:
        assert (overlay_of(found[0]) is None) is ("fprop" in kernel), "the variable speaks of cuBLAS alone"


def overlay_of(finding: Finding) -> Overlay | None:
    return next((one for one in finding.evidence if isinstance(one, Overlay)), None)


@pytest.mark.parametrize(
    ("rule", "variables", "changes_numbers"),
    [
        ("allocator-churn", {ALLOCATOR: "expandable_segments:True"}, False),
        ("fp32-gemm", {TF32: "1"}, True),
        ("pageable-copy", None, False),
    ],
)
def test_a_change_that_a_variable_makes_is_one(
    rule: str, variables: dict[str, str] | None, changes_numbers: bool, tmp_path: Path
) -> None:
    overlay = overlay_of(findings(tmp_path, rule, bad=True)[0])
    assert (None if overlay is None else overlay.variables) == variables
    assert bool(overlay and overlay.numerics) is changes_numbers


@pytest.mark.parametrize(("back_to", "counts"), [(0, True), (1, False)])
def test_a_round_trip_ends_on_the_device_where_it_began(tmp_path: Path, back_to: int, counts: bool) -> None:
    job = GpuJob()
    for _ in range(STEPS):
        begun = job.now_ns
        work(job)
        for name, device in (("Memcpy DtoH (Device -> Pinned)", 0), ("Memcpy HtoD (Pinned -> Device)", back_to)):
            job.kernel_of(60 * US, name, category="gpu_memcpy", bytes=1 << 20, device=device)
            job.wait()
        job.drain()
        job.step_of(begun)
    assert bool(judged(job, "device-round-trip", tmp_path)) is counts
