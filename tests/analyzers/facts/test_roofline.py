"""FLOPs and bytes on paper, the roof of made traces, and the real traces that recorded shapes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trace_files
from device_trace import DeviceTrace
from reference_data import TRACES

from tightship_analyzers import hardware
from tightship_analyzers import trace as traces
from tightship_analyzers.facts.memo import Facts, NotApplicable
from tightship_analyzers.facts.program.op_shapes import Inputs
from tightship_analyzers.facts.roofline.fusion import FusionCandidates
from tightship_analyzers.facts.roofline.measured import Roofline
from tightship_analyzers.facts.roofline.slow_kernels import REACHED_MEMORY_FRAC
from tightship_analyzers.facts.roofline.work import Family, convolution_outputs, work_of

H100 = "NVIDIA H100 80GB HBM3"
BF16, FLOAT = "c10::BFloat16", "float"


def given(*dims: tuple[int, ...], kind: str = BF16) -> Inputs:
    return Inputs(dims, tuple(kind if sizes else "Scalar" for sizes in dims))


@pytest.mark.parametrize(
    ("name", "inputs", "family", "flops", "moved"),
    [
        ("aten::mm", given((4, 8), (8, 16)), Family.GEMM, 2 * 4 * 8 * 16, 2 * (32 + 128 + 64)),
        ("aten::addmm", given((16,), (4, 8), (8, 16), ()), Family.GEMM, 2 * 4 * 8 * 16, 2 * (32 + 128 + 64)),
        ("aten::bmm", given((3, 4, 8), (3, 8, 16), kind=FLOAT), Family.GEMM, 3 * 1024, 4 * 3 * (32 + 128 + 64)),
        (
            "aten::_scaled_mm",
            given((4, 8), (8, 16), kind="c10::Float8_e4m3fn"),
            Family.GEMM,
            2 * 4 * 8 * 16,
            32 + 128 + 2 * 64,
        ),
        (
            "_C::cutlass_scaled_mm",
            Inputs(((4, 16), (4, 8), (8, 16)), (BF16, *["c10::Float8_e4m3fn"] * 2)),
            Family.GEMM,
            2 * 4 * 8 * 16,
            32 + 128 + 2 * 64,
        ),
        ("aten::_grouped_mm", given((12, 8), (3, 8, 16), (3,)), Family.GEMM, 2 * 12 * 8 * 16, 2 * (96 + 384 + 192)),
        ("aten::_grouped_mm", given((3, 4, 8), (3, 8, 16)), Family.GEMM, 3 * 1024, 2 * 3 * (32 + 128 + 64)),
        ("aten::_softmax", given((4, 8), (), ()), Family.REDUCTION, 32, 2 * 2 * 32),
        ("aten::native_layer_norm_backward", given((4, 8), (4, 8), ()), Family.REDUCTION, 32, 3 * 2 * 32),
        ("aten::add", given((10, 1), (10, 7)), Family.ELEMENTWISE, 70, 2 * (10 + 70 + 70)),
        ("aten::add_", given((10, 7), (7,)), Family.ELEMENTWISE, 70, 2 * (70 + 7 + 70)),
        (
            "aten::_scaled_dot_product_flash_attention",
            given((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8)),
            Family.ATTENTION,
            2 * (2 * 3 * 5 * 7 * 8) * 2,
            2 * (240 + 336 + 336 + 240),
        ),
        (
            "aten::convolution_backward",
            given((1, 6, 4, 4), (1, 2, 6, 6), (6, 2, 3, 3)),
            Family.CONVOLUTION,
            2 * (2 * 96 * 18),
            2 * (2 * 96 + 2 * (72 + 108)),
        ),
    ],
)
def test_work_on_paper(name: str, inputs: Inputs, family: Family, flops: int, moved: int) -> None:
    work = work_of(name, inputs, {})
    assert work is not None and (work.family, work.flops, work.bytes) == (family, flops, moved)


def test_a_forward_convolution_is_known_where_its_backward_tells_the_output() -> None:
    forward = given((1, 2, 6, 6), (6, 2, 3, 3))
    assert work_of("aten::cudnn_convolution", forward, {}) is None
    backward = given((1, 6, 4, 4), (1, 2, 6, 6), (6, 2, 3, 3))
    work = work_of("aten::cudnn_convolution", forward, convolution_outputs([backward, backward]))
    assert work is not None and work.flops == 2 * 96 * 18 and work.output_bytes == 2 * 96
    strided = given((1, 6, 2, 2), (1, 2, 6, 6), (6, 2, 3, 3))
    assert work_of("aten::cudnn_convolution", forward, convolution_outputs([backward, strided])) is None


@pytest.mark.parametrize(
    ("output", "data", "weight", "multiply_adds"),
    [
        ((1, 64, 64, 64), (1, 128, 32, 32), (128, 64, 4, 4), 128 * 32 * 32 * 64 * 16),
        ((1, 64, 64, 64), (1, 64, 32, 32), (64, 64, 4, 4), 64 * 32 * 32 * 64 * 16),
        ((1, 64, 16, 16), (1, 64, 32, 32), (64, 64, 4, 4), 64 * 16 * 16 * 64 * 16),
    ],
    ids=["transposed", "transposed with as many channels", "strided with as many channels"],
)
def test_a_transposed_convolution_works_on_its_input(
    output: tuple[int, ...], data: tuple[int, ...], weight: tuple[int, ...], multiply_adds: int
) -> None:
    backward = given(output, data, weight)
    found = work_of("aten::convolution_backward", backward, {})
    assert found is not None and found.flops == 4 * multiply_adds
    forward = work_of("aten::convolution_overrideable", given(data, weight), convolution_outputs([backward]))
    assert forward is not None and forward.flops == 2 * multiply_adds


HEADS_FIRST = ((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8))
POSITIONS_FIRST = ((2, 5, 3, 8), (2, 7, 3, 8), (2, 7, 3, 8))


@pytest.mark.parametrize(
    ("name", "factors"),
    [
        ("aten::_flash_attention", POSITIONS_FIRST),
        ("aten::_efficient_attention", POSITIONS_FIRST),
        ("aten::_cudnn_attention", HEADS_FIRST),
    ],
)
def test_attention_is_known_where_its_kernels_launch(name: str, factors: tuple[tuple[int, ...], ...]) -> None:
    outer = "aten::_scaled_dot_product_flash_attention"
    forward = work_of(f"{name}_forward", given(*factors), {})
    assert forward is not None and forward == work_of(outer, given(*HEADS_FIRST), {})
    backward = work_of(f"{name}_backward", given(factors[0], *factors), {})
    assert backward is not None and backward.flops == 5 * 2 * (2 * 3 * 5 * 7 * 8)
    assert backward == work_of(f"{outer}_backward", given(HEADS_FIRST[0], *HEADS_FIRST), {})


N = 2**20


@pytest.mark.parametrize(
    ("name", "inputs", "dtype", "flops", "moved", "written"),
    [
        ("copy_", Inputs(((N,), (N,), ()), (BF16, FLOAT, "Scalar")), "bf16", N, 6 * N, 2 * N),
        ("copy_", given((N,), (N,), (), kind=FLOAT), "fp32", N, 8 * N, 4 * N),
        ("fill_", given((N,), (), kind=FLOAT), "fp32", N, 4 * N, 4 * N),
        ("zero_", given((N,), kind=FLOAT), "fp32", N, 4 * N, 4 * N),
        ("eq", given((N,), (), kind=FLOAT), "fp32", N, 5 * N, N),
        ("le", given((N,), (N,), kind="double"), "fp64", N, 17 * N, N),
        ("eq_", given((N,), (), kind=FLOAT), "fp32", N, 8 * N, 4 * N),
        ("where", Inputs(((N,), (N,), (N,)), ("bool", FLOAT, FLOAT)), "fp32", N, 13 * N, 4 * N),
        ("add", Inputs(((N,), (N,), ()), (BF16, FLOAT, "Scalar")), "fp32", N, 10 * N, 4 * N),
        ("add", Inputs(((N,), (N,)), (BF16, "c10::Half")), "fp32", N, 8 * N, 4 * N),
        ("mul", Inputs(((N,), (N,)), ("long", BF16)), "bf16", N, 12 * N, 2 * N),
        ("add_", Inputs(((N,), (N,)), (BF16, FLOAT)), "bf16", N, 8 * N, 2 * N),
        ("add", given((4096, 1), (1, 4096), (), kind=FLOAT), "fp32", 4096**2, 4 * (2 * 4096 + 4096**2), 4 * 4096**2),
    ],
)
def test_elementwise_work_on_paper(name: str, inputs: Inputs, dtype: str, flops: int, moved: int, written: int) -> None:
    work = work_of(f"aten::{name}", inputs, {})
    assert work == (Family.ELEMENTWISE, dtype, flops, moved, written)


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        ("aten::mm", given((4, 8), (9, 16))),
        ("aten::mm", given((4, 8))),
        ("aten::mm", Inputs(((4, 8), (8, 4)), ("ComplexFloat", "ComplexFloat"))),
        ("aten::mm", given((4, 0), (0, 4))),
        ("aten::add", Inputs((), ())),
        ("aten::add", given((4, 8), (8, 4))),
        ("aten::add", Inputs(((4,), (4,)), (FLOAT, "ComplexFloat"))),
        ("aten::copy_", given((), (1,))),
        ("aten::where", given((4,), (), (), kind="bool")),
        ("aten::convolution_backward", given((1, 6, 4, 4), (1, 2, 6, 6), (5, 2, 3, 3))),
        # Packed sequences do not tell their lengths.
        ("aten::_flash_attention_forward", given((10, 3, 8), (14, 3, 8), (14, 3, 8), (3,), (3,))),
        ("aten::_efficient_attention_forward", given((1, 10, 3, 8), (1, 14, 3, 8), (1, 14, 3, 8), (), (3,), (3,))),
        (
            "aten::_efficient_attention_backward",
            given((1, 10, 3, 8), (1, 10, 3, 8), (1, 14, 3, 8), (1, 14, 3, 8), (), (1, 10, 3, 8), (3,), (3,)),
        ),
        ("aten::unknown", given((4, 8), (8, 4))),
        ("add", given((4,), (4,))),
    ],
)
def test_what_the_inputs_do_not_tell_is_not_guessed(name: str, inputs: Inputs) -> None:
    assert work_of(name, inputs, {}) is None


def made(tmp_path: Path, *, device: str = H100, shapes: bool = True, stacks: bool = True) -> Facts:
    """Two steps of a matrix product of 0.1 PFLOP in 200 µs, then a chain of two additions, 100 µs each, in a module."""
    trace = DeviceTrace()

    def op(name: str, at_ns: int, inputs: Inputs, device_ns: tuple[int, int]) -> None:
        reported: dict[str, Any] = {"Input Dims": inputs.dims, "Input type": inputs.types} if shapes else {}
        trace.host(name, at_ns, at_ns + 5_000, **reported)
        kernel = "gemm" if name == "aten::mm" else f"elementwise_kernel of {name}"
        trace.pair((at_ns + 1_000, at_ns + 2_000), device_ns, name=kernel)

    for step in range(3):
        begin = step * 1_000_000
        trace.step(step, begin, begin + 1_000_000)
        op("aten::mm", begin + 10_000, given((4096, 4096), (4096, 4096)), (begin + 20_000, begin + 220_000))
        if stacks:
            trace.host(
                f"nn.Module: Gelu_{step}",
                begin + 29_000,
                begin + 60_000,
                category="python_function",
                **{"Python id": step},
            )
        big = given((8192, 8192), (8192, 8192))
        op("aten::add", begin + 30_000, big, (begin + 230_000, begin + 380_000))
        op("aten::mul", begin + 40_000, big, (begin + 390_000, begin + 540_000))
        op("aten::add", begin + 50_000, given((8, 8), (8, 8)), (begin + 550_000, begin + 551_000))
    return opened(tmp_path, trace, device)


def opened(tmp_path: Path, trace: DeviceTrace, device: str) -> Facts:
    path = tmp_path / "made.json"
    before = {"deviceProperties": [{"id": 0, "name": device}]}
    path.write_bytes(trace_files.trace_text(trace.events, before=before, after={}))
    return Facts(traces.open(path))


def test_rates_and_utilisation_of_a_made_trace(tmp_path: Path) -> None:
    found = made(tmp_path)[Roofline]
    device = hardware.find(H100)
    assert device is not None
    rows = {row.family: row for row in found.families}
    gemm, adding = rows[Family.GEMM], rows[Family.ELEMENTWISE]
    flops = 2 * 4096**3
    assert (gemm.calls, gemm.flops, gemm.device_ns) == (2, 2 * flops, 400_000)
    assert gemm.peak_flops_per_s == device.flops("bf16")
    assert gemm.achieved_flops_per_s == pytest.approx(flops / 200e-6)
    assert gemm.attainable_flops_per_s == pytest.approx(device.flops("bf16"))
    assert gemm.memory_bound_ns == 0
    assert adding.memory_bound_ns == adding.device_ns == 602_000
    assert adding.achieved_bytes_per_s * 602e-6 == pytest.approx(adding.bytes)
    assert found.window_ns == 2_000_000
    assert found.mfu_frac == pytest.approx(2 * flops / device.flops("bf16") / 2e-3)  # type: ignore[operator]
    assert found.known_ns == found.kernel_ns == 1_002_000


def test_utilisation_is_of_all_devices(tmp_path: Path) -> None:
    trace = DeviceTrace()
    for step in range(3):
        begin = step * 1_000_000
        trace.step(step, begin, begin + 1_000_000)
        for number in range(8):
            at_ns = begin + 10_000 * (number + 1)
            inputs = given((8192, 8192), (8192, 4096))
            reported: dict[str, Any] = {"Input Dims": inputs.dims, "Input type": inputs.types}
            trace.host("aten::mm", at_ns, at_ns + 5_000, **reported)
            trace.pair((at_ns + 1_000, at_ns + 2_000), (begin + 100_000, begin + 900_000), device=number)
    found = opened(tmp_path, trace, H100)[Roofline]
    device = hardware.find(H100)
    assert device is not None
    assert found.devices == 8
    assert found.mfu_frac == pytest.approx(2 * 8192 * 8192 * 4096 / device.flops("bf16") / 1e-3)  # type: ignore[operator]


def test_attention_is_found_inside_the_operator_that_torch_was_asked_for(tmp_path: Path) -> None:
    trace = DeviceTrace()
    for step in range(3):
        begin = step * 1_000_000
        trace.step(step, begin, begin + 1_000_000)
        for name, sizes, start_ns, end_ns in (
            ("aten::_scaled_dot_product_flash_attention", (4, 16, 2048, 128), begin + 1_000, begin + 20_000),
            ("aten::_flash_attention_forward", (4, 2048, 16, 128), begin + 5_000, begin + 15_000),
        ):
            trace.host(name, start_ns, end_ns, **{"Input Dims": [sizes] * 3, "Input type": [BF16] * 3})
        trace.pair((begin + 7_000, begin + 9_000), (begin + 30_000, begin + 500_000), name="flash_fwd_kernel")
    found = opened(tmp_path, trace, H100)[Roofline]
    [row] = found.families
    assert (row.family, row.calls, row.flops) == (Family.ATTENTION, 2, 2 * 4 * (4 * 16 * 2048 * 2048 * 128))
    assert found.known_ns == found.kernel_ns


def test_chains_under_one_module_are_candidates(tmp_path: Path) -> None:
    """The third operator works on another tensor, and takes nothing to speak of."""
    facts = made(tmp_path)
    [row] = facts[FusionCandidates].rows
    assert (row.module, row.modules, row.ops, len(row.chains)) == (
        "Gelu",
        2,
        ("aten::add", "aten::mul", "aten::add"),
        2,
    )
    assert row.device_ns == 602_000
    device = hardware.find(H100)
    assert device is not None
    # Two tensors are added; the small ones do not count.
    least_ns = 2 * 2 * 8192**2 / (REACHED_MEMORY_FRAC * device.memory_bytes_per_s) * 1e9
    assert row.fastest_ns == pytest.approx(2 * least_ns, rel=1e-3)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"device": "Unheard-of 9000"}, "needs the rates of 'Unheard-of 9000'"),
        ({"shapes": False}, "input shapes"),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, how: dict[str, Any], words: str) -> None:
    found = made(tmp_path, **how).get(Roofline)
    assert isinstance(found, NotApplicable) and words in found.reason


def test_without_stacks_chains_are_known_by_their_operators(tmp_path: Path) -> None:
    facts = made(tmp_path, stacks=False)
    assert facts.find(Roofline) is not None
    [row] = facts[FusionCandidates].rows
    assert (row.module, row.modules, row.place) == ("", 0, "")


@pytest.mark.reference
@pytest.mark.parametrize(
    ("name", "chain", "attentions"),
    [
        ("h100/google_owlv2-large-patch14-ensemble__1016001.json.gz", "QuickGELUActivation", 0),
        ("h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz", "Qwen2RMSNorm", 24),
    ],
)
def test_recorded_models_stay_below_the_roof(name: str, chain: str, attentions: int) -> None:
    facts = Facts(traces.open(TRACES / "tracelens" / name))
    found = facts[Roofline]
    gemm = next(row for row in found.families if row.family is Family.GEMM)
    assert 0.2 < gemm.roof_frac < 1 and gemm.achieved_flops_per_s < (gemm.peak_flops_per_s or 0)
    attention = [row for row in found.families if row.family is Family.ATTENTION]
    assert sum(row.calls for row in attention) == attentions and all(0.1 < row.roof_frac < 1 for row in attention)
    assert found.mfu_frac is not None and 0.01 < found.mfu_frac < 0.5
    assert found.known_ns <= found.kernel_ns
    assert facts[FusionCandidates].rows[0].module == chain
