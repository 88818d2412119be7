"""Chains of memory-bound kernels: what counts as one, and what one fused kernel takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gpu_job import MS, US, GpuJob
from reference_data import TRACES

from tightship_analyzers import hardware
from tightship_analyzers import trace as traces
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.program.op_shapes import Inputs
from tightship_analyzers.facts.roofline.chains import MAX_GAP_NS, SHARED_FRAC, Chains
from tightship_analyzers.facts.roofline.fusion import FusionCandidates, operator_label
from tightship_analyzers.facts.roofline.slow_kernels import REACHED_MEMORY_FRAC
from tightship_analyzers.facts.roofline.traffic import Link, moved_by, traffic_of
from tightship_analyzers.facts.window.window import Window

FLOAT, HALF = "float", "c10::BFloat16"
BIG = (4096, 4096)
BIG_BYTES = 4 * 4096 * 4096
KERNEL = "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>"
REDUCE = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float>>>"
NORM = "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>"


def inputs(*dims: tuple[int, ...], kind: str = FLOAT) -> Inputs:
    return Inputs(dims, tuple(kind if sizes else "Scalar" for sizes in dims))


def found(folder: Path, *ops: Any, stacks: bool = False) -> Facts:
    """A step of these operators (name, µs, kernel, sizes of the inputs), queued behind a long product."""
    job = GpuJob(stacks=stacks)
    for _ in range(2):
        begun = job.now_ns
        job.op("aten::mm", (MS, "gemm"))
        for name, us, kernel, *dims in ops:
            shape = {"dims": [list(sizes) for sizes in dims], "types": [FLOAT] * len(dims)} if dims else {}
            job.op(name, (us * US, kernel), **shape)
        job.op("aten::mm", (MS, "gemm"))
        job.drain()
        job.step_of(begun)
    return Facts(job.read(folder))


def of_a_step(facts: Facts) -> list[tuple[int, int, int, int, bool]]:
    """(now, slowest, expected, fastest, sized) of each chain of the first of two steps."""
    chains = facts[Chains]
    columns = chains.device_ns, chains.slowest_ns, chains.expected_ns, chains.fastest_ns, chains.sized
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    assert rows[: len(rows) // 2] == rows[len(rows) // 2 :]
    return rows[: len(rows) // 2]


def test_what_is_handed_on_need_be_neither_written_nor_read(tmp_path: Path) -> None:
    """Of eight tensors that are moved, two are handed on: read once more, and written. At best two are moved at all."""
    ops = ("aten::add", 120, KERNEL, BIG, BIG), ("aten::mul", 120, KERNEL, BIG, BIG), ("aten::neg", 80, KERNEL, BIG)
    device = hardware.find(GpuJob().device)
    assert device is not None
    [(now, slowest, expected, fastest, sized)] = of_a_step(found(tmp_path, *ops))
    least = 2 * BIG_BYTES / (REACHED_MEMORY_FRAC * device.memory_bytes_per_s) * 1e9
    assert sized and now == 320 * US
    assert slowest == (320 - 2 * 40) * US
    assert fastest == pytest.approx(least, abs=1)
    assert expected == pytest.approx(((320 - 4 * 40) * US + least) / 2, abs=1)


def test_a_fused_kernel_takes_as_long_as_the_shortest_of_its_chain(tmp_path: Path) -> None:
    """Which is the fixed cost of a kernel where tensors are small."""
    ops = [(f"aten::{name}", 4, KERNEL, (8, 8)) for name in ("neg", "exp", "sqrt", "tanh")]
    [(now, _, expected, fastest, _)] = of_a_step(found(tmp_path, *ops))
    assert (now, expected, fastest) == (16 * US, 4 * US, 4 * US)


def test_a_slow_kernel_does_not_make_what_it_hands_on_dear(tmp_path: Path) -> None:
    ops = ("aten::sigmoid", 600, KERNEL, BIG), ("aten::neg", 300, KERNEL, BIG)
    [(now, slowest, *_)] = of_a_step(found(tmp_path, *ops))
    assert (now, slowest) == (900 * US, 750 * US)


def test_a_norm_that_is_one_operator_keeps_its_time(tmp_path: Path) -> None:
    layer_norm = ("aten::native_layer_norm", 400, NORM, BIG)
    [(now, _, _, fastest, _)] = of_a_step(found(tmp_path, ("aten::add", 300, KERNEL, BIG, BIG), layer_norm))
    assert (now, fastest) == (700 * US, 400 * US)


def test_without_shapes_nothing_is_sure(tmp_path: Path) -> None:
    [row] = of_a_step(
        found(tmp_path, ("aten::add", 300, KERNEL), ("aten::mul", 90, KERNEL), ("aten::mean", 60, REDUCE))
    )
    assert row == (450 * US, 450 * US, round(450 * US - SHARED_FRAC * 150 * US), 300 * US, False)


@pytest.mark.parametrize(
    "ops",
    [
        # The same call again and again is a loop over tensors.
        [("aten::mul", 100, KERNEL, BIG)] * 5,
        # Results that no later call reads.
        [("aten::add", 100, KERNEL, BIG), ("aten::mul", 100, KERNEL, (4096, 4095))],
        # Kernels of a compiler, of extensions, and of lists of tensors.
        [("aten::add", 100, "triton_poi_fused_add_0", BIG), ("aten::mul", 100, "triton_poi_fused_mul_1", BIG)],
        [("aten::add", 100, KERNEL, BIG), ("vllm::rms_norm", 100, KERNEL, BIG)],
        [("aten::add", 100, KERNEL, BIG), ("aten::_foreach_mul_", 100, "multi_tensor_apply_kernel<MulFunctor>", BIG)],
        # Something else between them.
        [("aten::add", 100, KERNEL, BIG), ("aten::mm", 50, "gemm"), ("aten::mul", 100, KERNEL, BIG)],
        # One alone.
        [("aten::add", 100, KERNEL, BIG)],
    ],
)
def test_what_is_no_chain(tmp_path: Path, ops: list[Any]) -> None:
    assert of_a_step(found(tmp_path, *ops)) == []


def test_the_third_turn_of_a_loop_is_another_chain(tmp_path: Path) -> None:
    ops = (("aten::mul", 100, KERNEL, BIG), ("aten::neg", 100, KERNEL, BIG))
    assert [now for now, *_ in of_a_step(found(tmp_path, *ops * 4))] == [400 * US, 400 * US]


def test_what_lies_far_apart_is_no_chain(tmp_path: Path) -> None:
    for apart_ns, count in ((MAX_GAP_NS - 50 * US, 1), (MAX_GAP_NS + 50 * US, 0)):
        job = GpuJob()
        for _ in range(2):
            begun = job.now_ns
            job.op("aten::add", (100 * US, KERNEL), dims=[BIG], types=[FLOAT])
            job.drain()
            job.pause(apart_ns)
            job.op("aten::neg", (100 * US, KERNEL), dims=[BIG], types=[FLOAT])
            job.drain()
            job.pause(MS)
            job.step_of(begun)
        assert len(of_a_step(Facts(job.read(tmp_path)))) == count


def test_gradients_that_are_added_up_neither_belong_to_a_chain_nor_break_it(tmp_path: Path) -> None:
    job = GpuJob()
    for _ in range(2):
        begun = job.now_ns
        job.op("aten::mm", (MS, "gemm"))
        job.op("aten::threshold_backward", (200 * US, KERNEL), dims=[BIG], types=[FLOAT])
        at = job.now_ns
        job.op("aten::mul", (3 * US, KERNEL), dims=[[64]], types=[FLOAT])
        job.host("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", at, job.now_ns)
        job.op("aten::neg", (200 * US, KERNEL), dims=[BIG], types=[FLOAT])
        job.drain()
        job.step_of(begun)
    [(now, *_)] = of_a_step(Facts(job.read(tmp_path)))
    assert now == 400 * US


def test_the_optimizer_has_its_own_rule(tmp_path: Path) -> None:
    job = GpuJob()
    for _ in range(2):
        begun = job.now_ns
        for name in ("mul", "addcmul", "sqrt", "addcdiv"):
            job.op(f"aten::{name}", (100 * US, KERNEL), dims=[BIG], types=[FLOAT])
        job.host("Optimizer.step#Adam.step", begun, job.now_ns, category="user_annotation")
        job.drain()
        job.step_of(begun)
    assert len(Facts(job.read(tmp_path))[Chains]) == 0


@pytest.mark.parametrize(("us", "is_replayed", "count"), [(6, True, 2), (6, False, 0), (9, True, 0), (15, True, 0)])
def test_kernels_of_an_engine_are_a_chain_where_they_are_replayed_and_as_good_as_empty(
    tmp_path: Path, us: int, is_replayed: bool, count: int
) -> None:
    """The shortest kernel of the recording takes 4 µs."""
    job = GpuJob()
    for _ in range(2):
        begun = job.now_ns
        job.op("aten::mm", (MS, "gemm"))
        for name in ("void vllm::rotary_embedding_kernel<float>", "void vllm::reshape_and_cache_flash_kernel<float>"):
            if is_replayed:
                job.kernel_of(us * US, name, call="cudaGraphLaunch")
            else:
                job.op("_C::of_the_engine", (us * US, name))
        job.op("aten::mm", (4 * US, "gemm"))
        job.drain()
        job.step_of(begun)
    assert len(Facts(job.read(tmp_path))[Chains]) == count


@pytest.mark.parametrize(
    ("name", "given", "bytes_", "result"),
    [
        ("aten::add", inputs(BIG, BIG), 3 * BIG_BYTES, BIG),
        ("aten::add_", inputs(BIG, (4096,)), 2 * BIG_BYTES + 4 * 4096, BIG),
        ("aten::copy_", Inputs((BIG, BIG, ()), (FLOAT, HALF, "Scalar")), BIG_BYTES + BIG_BYTES // 2, BIG),
        ("aten::mean", inputs(BIG, ()), BIG_BYTES, None),
        ("aten::gt", inputs(BIG, ()), BIG_BYTES + BIG_BYTES // 4, BIG),
        ("aten::native_layer_norm", inputs(BIG, (), (4096,), (4096,)), 2 * BIG_BYTES + 8 * 4096, BIG),
    ],
)
def test_traffic_on_paper(name: str, given: Inputs, bytes_: int, result: tuple[int, ...] | None) -> None:
    traffic = traffic_of(name, given)
    assert traffic is not None and traffic.bytes == bytes_
    assert (traffic.result and traffic.result.dims) == result


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("aten::cat", Inputs(((), ()), ("TensorList", "Scalar"))),
        ("aten::add", Inputs((BIG,), ("c10::complex<float>",))),
        ("aten::add", inputs((3, 4), (5, 6))),
        ("aten::arange", inputs((), ())),
    ],
)
def test_traffic_that_inputs_do_not_tell(name: str, given: Inputs) -> None:
    assert traffic_of(name, given) is None


def test_a_result_serves_one_later_call() -> None:
    add, neg = traffic_of("aten::add", inputs(BIG, BIG)), traffic_of("aten::neg", inputs(BIG))
    moved = moved_by([add, neg, None, add], [0, 1, 2, 3])
    assert moved.links == (Link(0, 1, BIG_BYTES), Link(1, 3, BIG_BYTES))
    assert moved.call_bytes == (3 * BIG_BYTES, 2 * BIG_BYTES, 0, 3 * BIG_BYTES)


def test_a_sum_does_not_go_on_with_what_it_reads() -> None:
    """It may be over the rows, of which a compiler makes another kernel."""
    neg, total = traffic_of("aten::neg", inputs(BIG)), traffic_of("aten::sum", inputs(BIG, ()))
    assert moved_by([neg, total], [0, 1]).links == ()
    assert len(moved_by([neg, traffic_of("aten::mean", inputs(BIG, ()))], [0, 1]).links) == 1


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("aten::add_", "aten::add_"),
        (KERNEL, "AddFunctor"),
        (NORM, "vectorized_layer_norm_kernel"),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::tanh_kernel_cuda(Base&)>",
            "tanh_kernel_cuda",
        ),
        (REDUCE, "MeanOps"),
    ],
)
def test_kernels_are_named_by_what_they_compute(name: str, label: str) -> None:
    assert operator_label(name) == label


@pytest.mark.reference
@pytest.mark.parametrize(
    ("name", "modules", "low_ms", "high_ms"),
    [
        ("tracelens/h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz", ["Qwen2RMSNorm", "Qwen2Attention"], 10.66, 16.77),
        ("tracelens/mi300/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz", ["Qwen2RMSNorm", "Qwen2Attention"], 8.35, 11.91),
    ],
)
def test_norms_and_rotary_embedding_of_a_model_that_was_read_by_hand(
    name: str, modules: list[str], low_ms: float, high_ms: float
) -> None:
    """What fusing them brings by the readings of these traces (tests/readings)."""
    facts = Facts(traces.open(TRACES / name))
    rows = facts[FusionCandidates].rows
    assert list(dict.fromkeys(row.module for row in rows[:3])) == modules
    assert all("modeling_qwen2.py" in row.place for row in rows[:3])
    chains = facts[Chains]
    low, expected, high = (
        int((chains.device_ns - ns).sum()) / facts[Window].count / MS
        for ns in (chains.slowest_ns, chains.expected_ns, chains.fastest_ns)
    )
    assert low <= low_ms <= high and 0.9 * low_ms <= expected <= high_ms
