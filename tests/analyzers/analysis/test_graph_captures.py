"""Kernels that a graph replays have the operators and sizes of its capture, where that is surely the same graph."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from made_trace import MAIN, MadeTrace
from reference_data import TRACES
from trace_files import trace_text

from tightship_analyzers import trace as traces
from tightship_analyzers.analysis.analyze_rank import analyze_rank
from tightship_analyzers.analysis.from_files import analyze_paths
from tightship_analyzers.analysis.graph_captures import join_captures
from tightship_analyzers.analysis.named_traces import CAPTURES, captures_beside
from tightship_analyzers.analysis.wanted import Wanted
from tightship_analyzers.facts.memo import Facts, NotApplicable
from tightship_analyzers.facts.roofline.captured_work import CapturedWorks, captured_work
from tightship_analyzers.trace.model import CapturedCall, Shapes, Trace
from tightship_platform.results.evidence import Fact

EXPERTS = "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1"
HALVES = "c10::BFloat16"
ROWS, INNER, COLUMNS, GROUPS = 128, 2944, 3072, 32
PRODUCT = (
    EXPERTS,
    "vllm::moe_forward",
    [
        ([[ROWS, INNER], []], [HALVES, "ScalarList"]),
        ([[GROUPS, INNER // 2, COLUMNS], []], ["unsigned char", "ScalarList"]),
    ],
)
NORM = ("rmsnorm", "_C::rms_norm", [([[32, 2880]], [HALVES])])
DECODE = "context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk55086sqsq32sqsk55086)"
Kernel = tuple[str, str, list[tuple[list[list[int]], list[str]]]]


class GraphTrace(MadeTrace):
    """With graphs, as ROCm records them."""

    def shaped(self, name: str, start_us: int, end_us: int, dims: Any, types: Any) -> None:
        self._add("cpu_op", name, start_us, end_us, MAIN, **{"Input Dims": dims, "Input type": types})

    def captured(self, start_us: int, kernels: Sequence[Kernel]) -> int:
        """A captured graph; the operator of each kernel makes views of its operands before the launch."""
        now = start_us
        self.launch(now, now + 1, name="hipStreamBeginCapture")
        for kernel, op, operands in kernels:
            self.shaped(op, now + 10, now + 90, *operands[0])
            for number, operand in enumerate(operands):
                self.shaped("aten::view", now + 20 + 2 * number, now + 21 + 2 * number, *operand)
            self._add("cuda_runtime", "hipModuleLaunchKernel", now + 60, now + 61, MAIN, kernel=kernel, correlation=now)
            now += 100
        self.launch(now, now + 1, name="hipStreamEndCapture")
        return now + 10

    def save(self, path: Path) -> Path:
        path.parent.mkdir(exist_ok=True, parents=True)
        device = {"id": 0, "name": "AMD Instinct MI300X", "totalGlobalMem": 206141652992, "numSms": 304}
        before = {"deviceProperties": [device], "distributedInfo": {"rank": 0, "world_size": 1}}
        path.write_bytes(trace_text(self.events, before=before, after={}))
        return path


def capture(path: Path, *graphs: Sequence[Kernel], size: int = 32) -> Path:
    made, now = GraphTrace(), 10
    for graph in graphs:
        now = made.captured(now, graph)
    made.mark(f"capture_{size}_FULL", 0, now)
    return made.save(path)


def replay(path: Path, kernels: Sequence[str], *, took_us: int = 157, mark: str = "execute_32_context_0(sq0)") -> Path:
    made = GraphTrace()
    made.mark(mark, 0, 200)
    made.shaped("aten::mm", 5, 20, [[32, 64], [64, 64]], [HALVES, HALVES])
    made.launch(10, 15, name="hipLaunchKernel", link=1)
    made.kernel(16, 22, name="gemm", link=1)
    made.launch(30, 100, name="hipGraphLaunch", link=2)
    for number, name in enumerate(kernels):
        start_us = 40 + number * (took_us + 1)
        made.kernel(start_us, start_us + took_us, name=name, link=2)
    made.launch(110, 45 + len(kernels) * (took_us + 1), name="hipDeviceSynchronize")
    return made.save(path)


def joined(replayed: Path, *captures: Path) -> Trace | NotApplicable:
    return join_captures(traces.open(str(replayed)), [traces.open(str(path)) for path in captures])


def test_a_replayed_kernel_has_the_operator_and_the_sizes_of_its_capture(tmp_path: Path) -> None:
    trace = joined(replay(tmp_path / "r.json", ["rmsnorm", EXPERTS]), capture(tmp_path / "c.json", [NORM, PRODUCT]))
    assert isinstance(trace, Trace), trace
    assert trace.captured is not None
    assert len(trace.captured.row) == 2
    assert trace.warnings[-1] == "operators and sizes of 2 of 2 replayed kernels are those of the graphs' captures"
    [call] = Facts(trace)[CapturedWorks].calls
    assert call.op == "vllm::moe_forward"
    assert call.inputs.dims == ((ROWS, INNER), (GROUPS, INNER, COLUMNS))
    numbers = GROUPS * INNER * COLUMNS
    assert call.work.flops == 2 * ROWS * INNER * COLUMNS
    assert call.work.bytes == numbers // 2 + numbers // 32 + 2 * ROWS * (INNER + COLUMNS)
    assert call.work.dtype == "bf16"


@pytest.mark.parametrize(
    ("kernels", "mark", "size", "why"),
    [
        ([EXPERTS, "rmsnorm"], "execute_32_context_0(sq0)", 32, "no captured graph has the size and the kernels"),
        (["rmsnorm"], "execute_32_context_0(sq0)", 32, "no captured graph has the size and the kernels"),
        (["rmsnorm", EXPERTS], "execute_64_context_0(sq0)", 32, "no captured graph has the size and the kernels"),
        (["rmsnorm", EXPERTS], "execute_context_0(0)_generation_32(32)", 32, "no graph between marks that name"),
    ],
)
def test_another_graph_or_size_tells_nothing(
    tmp_path: Path, kernels: list[str], mark: str, size: int, why: str
) -> None:
    found = joined(
        replay(tmp_path / "r.json", kernels, mark=mark), capture(tmp_path / "c.json", [NORM, PRODUCT], size=size)
    )
    assert isinstance(found, NotApplicable)
    assert why in found.reason


def test_where_equal_graphs_were_captured_with_other_sizes_a_kernel_has_none(tmp_path: Path) -> None:
    smaller = (EXPERTS, "vllm::moe_forward", [([[64, INNER], []], [HALVES, "ScalarList"]), PRODUCT[2][1]])
    both = capture(tmp_path / "c.json", [NORM, PRODUCT], [NORM, smaller])
    trace = joined(replay(tmp_path / "r.json", ["rmsnorm", EXPERTS]), both)
    assert isinstance(trace, Trace)
    assert trace.captured is not None
    assert [call.op for call in trace.captured.calls] == ["_C::rms_norm"]
    assert Facts(trace)[CapturedWorks].calls == ()


def test_a_slow_replayed_product_is_found_with_its_capture_only(tmp_path: Path) -> None:
    replayed = replay(tmp_path / "r.json", ["rmsnorm", EXPERTS, "rmsnorm", EXPERTS])
    captured = capture(tmp_path / "others" / "c.json", [NORM, PRODUCT, NORM, PRODUCT])
    wanted = Wanted(rules=("slow-kernel",), captures=(str(captured),))
    [finding] = analyze_rank(str(replayed), wanted).findings
    assert finding.where == "vllm::moe_forward"
    assert finding.saving.low == 0
    # Four bits and a scale of one byte for 32 numbers, at 80 % of 5,325 GB/s, and 5 µs for each of two kernels.
    needed_ns = 2 * (GROUPS * INNER * COLUMNS * 4.25 / 8 / (0.8 * 5.325e3) + 5_000)
    assert finding.saving.high == pytest.approx(2 * 157_000 - needed_ns, rel=0.01)
    assert not analyze_rank(str(replayed), Wanted(rules=("slow-kernel",))).findings
    fast = replay(tmp_path / "fast.json", ["rmsnorm", EXPERTS, "rmsnorm", EXPERTS], took_us=58)
    assert not analyze_rank(str(fast), wanted).findings


def test_captures_beside_a_replay_belong_to_it(tmp_path: Path) -> None:
    replayed = replay(tmp_path / "job" / "r.json", ["rmsnorm", EXPERTS])
    captured = capture(tmp_path / "job" / CAPTURES / "c.json", [NORM, PRODUCT])
    assert captures_beside(str(replayed)) == [str(captured)]
    for path in (replayed, tmp_path / "job"):
        result = analyze_paths([str(path)], wanted=Wanted(rules=("slow-kernel",)))
        assert [rank.source for rank in result.ranks] == [str(replayed)]
        assert [finding.where for finding in result.findings] == ["vllm::moe_forward"]
    assert [rank.source for rank in analyze_paths([str(captured.parent)]).ranks] == [str(captured)]


def test_a_decode_step_of_known_products_has_its_memory_bound(tmp_path: Path) -> None:
    replayed = replay(tmp_path / "r.json", ["rmsnorm", EXPERTS, EXPERTS], mark=f"execute_32_{DECODE}")
    captured = capture(tmp_path / "others" / "c.json", [NORM, PRODUCT, PRODUCT])
    wanted = Wanted(rules=("small-decode-batch",), captures=(str(captured),))
    [finding] = analyze_rank(str(replayed), wanted).findings
    # The product before the graph has 32 × 64 and 64 × 64 halves, and as many results.
    moved = 2 * (GROUPS * INNER * COLUMNS * 4.25 / 8 + 2 * ROWS * (INNER + COLUMNS)) + 2 * (2 * 32 * 64 + 64 * 64)
    [bound] = [one for one in finding.evidence if isinstance(one, Fact) and "memory's rate" in one.text]
    assert bound.value == pytest.approx(moved / 5.325e12 * 1e9)
    assert f"{32 * 5.325e12 / moved:,.0f} tokens/s at most" in bound.text
    [alone] = analyze_rank(str(replayed), Wanted(rules=("small-decode-batch",))).findings
    assert not any("memory's rate" in getattr(one, "text", "") for one in alone.evidence)


def test_what_speaks_against_a_capture_is_said(tmp_path: Path) -> None:
    replayed = replay(tmp_path / "r.json", [EXPERTS])
    other, broken = capture(tmp_path / "c.json", [NORM]), tmp_path / "absent.json"
    remarks = analyze_rank(str(replayed), Wanted(captures=(str(other), str(broken)))).analysis.summary.warnings
    assert any("captures of graphs were not used: no captured graph" in remark for remark in remarks)
    assert any("absent.json" in remark for remark in remarks)


def _call(*operands: tuple[str, str], op: str = "", kernels: int = 1) -> CapturedCall:
    shapes = [Shapes(*operand) for operand in operands]
    return CapturedCall(op, shapes[0], kernels, tuple(shapes))


@pytest.mark.parametrize(
    ("kernel", "call", "size"),
    [
        ("gemm", _call(("[[8,4],[4,2]]", '["c10::Half","c10::Half"]'), op="aten::mm"), 2 * (32 + 8 + 16)),
        ("gemm", _call(("[[8,4],[4,2]]", '["c10::Half","c10::Half"]'), op="aten::mm", kernels=2), None),
        ("mine", _call(("[[8,4],[4,2]]", '["c10::Half","c10::Half"]'), op="my::op"), None),
        (
            "_matmul_ogs_NNT_bf16xbf16xbf16_16x128x256x1_swiglu",
            _call(
                ("[[8,6]]", '["c10::BFloat16"]'),
                ("[[1,32,2]]", '["c10::BFloat16"]'),
                ("[[3,6,4]]", '["c10::BFloat16"]'),
            ),
            2 * (3 * 6 * 4 + 8 * 6 + 32 * 4),
        ),
        ("_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1", _call(("[[8,6]]", '["c10::BFloat16"]')), None),
        ("_matmul_ogs_NNT_bf16xoddxmxfp4_16x128x256x1", _call(("[[3,3,4]]", '["unsigned char"]')), None),
    ],
)
def test_work_comes_from_operands_or_is_unknown(kernel: str, call: CapturedCall, size: int | None) -> None:
    found = captured_work(call, kernel)
    assert (found[1].bytes if found else None) == size


@pytest.mark.reference
@pytest.mark.parametrize(("name", "kernels"), [("vllm_decode_full", 421), ("vllm_prefilldecode_piecewise", 361)])
def test_every_kernel_of_vllms_graphs_is_that_of_its_capture(name: str, kernels: int) -> None:
    replayed = TRACES / "tracelens" / "inference" / name / "graph_execution.json.gz"
    trace = joined(replayed, *map(Path, captures_beside(str(replayed))))
    assert isinstance(trace, Trace)
    assert trace.captured is not None
    assert len(trace.captured.row) == kernels
    experts = [call for call in Facts(trace)[CapturedWorks].calls if call.op == "vllm::moe_forward"]
    assert {call.inputs.dims[1] for call in experts} == {(32, 3072, 5888), (32, 2944, 3072)}
    assert len(experts) == 2 * 24
