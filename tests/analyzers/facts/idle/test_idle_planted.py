"""One planted case for each cause: how long, and where."""

from __future__ import annotations

from pathlib import Path

import pytest
from device_trace import DeviceTrace, moment

from tightship_analyzers.facts.idle.causes import Attributed, Cause, ExposedCommunication, IdleCauses, Place
from tightship_analyzers.facts.memo import Facts, NotApplicable
from tightship_platform.results.analysis.figures import CausedTime

STEP_NS = 1_000_000
GAP = (200_000, 700_000)
"""When the device idles in the only step, between two kernels."""
BACKWARD = 101


class Planted(DeviceTrace):
    """A step of two kernels of which the second is launched at the end of the gap between them."""

    def __init__(self, *, launched_ns: int = GAP[1] - 5_000, launched_by: int = 100) -> None:
        super().__init__()
        self.step(1, 0, STEP_NS)
        self.pair((1_000, 2_000), (5_000, GAP[0]))
        self.on_device(
            GAP[1], STEP_NS - 1000, link=self.call(launched_ns, launched_ns + 1000, thread=launched_by), name="second"
        )

    def frame(self, name: str, start_ns: int, end_ns: int, *, thread: int = 100) -> None:  # type: ignore[override]
        self.host(name, start_ns, end_ns, category="python_function", thread=thread)

    def idle(self, folder: Path) -> Attributed:
        """What fills the gap."""
        found = Facts(self.read(folder))[IdleCauses]
        assert found.window.measure_ns == found.of_step(0).measure_ns == 5_000 + GAP[1] - GAP[0] + 1_000
        return found.window.within(found.window.spans().clip(moment(GAP[0]), moment(GAP[1])))


def cause_at(idle: Attributed, start_ns: int, end_ns: int) -> dict[Cause, int]:
    return idle.within(idle.spans().clip(moment(start_ns), moment(end_ns))).by_cause()


@pytest.mark.parametrize(
    ("cause", "category", "name"),
    [
        (Cause.INPUT, "user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"),
        (Cause.INPUT, "user_annotation", "## wait_for_batch ##"),
        (Cause.INPUT, "user_annotation", "[pl][profile][_TrainingEpochLoop].train_dataloader_next"),
        (Cause.INPUT, "python_function", "torch/utils/data/dataloader.py(740): __next__"),
        (Cause.CHECKPOINT, "python_function", "torch/serialization.py(900): save"),
        (Cause.GARBAGE_COLLECTION, "python_function", "Python GC"),
        (Cause.GARBAGE_COLLECTION, "python_function", "<built-in function collect>"),
        (Cause.COMPILATION, "cpu_op", "_compile.compile_inner (dynamo_timed)"),
        (Cause.COMPILATION, "python_function", "torch/_dynamo/convert_frame.py(1633): _compile"),
        (Cause.COMPILATION, "python_function", "triton/compiler/compiler.py(226): compile"),
        (Cause.COMPILATION, "cuda_runtime", "cuModuleLoadData"),
        (Cause.COMPILATION, "overhead", "Lazy Function Loading"),
        (Cause.COLLECTIVE_WAIT, "user_annotation", "gloo:all_reduce"),
        (Cause.COLLECTIVE_WAIT, "cpu_op", "c10d::barrier"),
        (Cause.COLLECTIVE_WAIT, "python_function", "torch/distributed/distributed_c10d.py(4500): barrier"),
        (Cause.ALLOCATOR, "cuda_runtime", "cudaMalloc"),
        (Cause.ALLOCATOR, "cuda_runtime", "cuMemMap"),
        (Cause.ALLOCATOR, "cuda_runtime", "hipFree"),
        (Cause.HOST_SYNC, "cuda_runtime", "cudaEventSynchronize"),
        (Cause.SYNC_COPY, "cuda_runtime", "hipMemcpyWithStream"),
        (Cause.SYNC_COPY, "cuda_runtime", "cudaMemcpy"),
        (Cause.HOST_DISPATCH, "cpu_op", "aten::mm"),
        (Cause.HOST_DISPATCH, "user_annotation", "## forward ##"),
        (Cause.HOST_DISPATCH, "cuda_runtime", "cudaFuncSetAttribute"),
    ],
)
def test_the_host_was_inside_of_it(tmp_path: Path, cause: Cause, category: str, name: str) -> None:
    made = Planted()
    made.host(name, 250_000, 550_000, category=category)
    idle = made.idle(tmp_path)
    assert cause_at(idle, 250_000, 550_000) == {cause: 300_000}
    # Before and after there is a short silence of a thread that is known to work.
    assert idle.by_cause().get(Cause.UNEXPLAINED, 0) == 0
    if category not in ("python_function", "overhead"):
        assert next(row.place for row in idle.rows() if row.cause == cause and row.ns >= 300_000).operator == name


def test_between_two_operators_the_one_that_came_next_is_named(tmp_path: Path) -> None:
    made = Planted()
    made.host("aten::relu", GAP[0] - 100, GAP[0] + 50_000)
    made.host("aten::mm", GAP[1] - 50_000, GAP[1])
    rows = made.idle(tmp_path).rows()
    assert {(row.cause, row.place.operator, row.ns) for row in rows} == {
        (Cause.HOST_DISPATCH, "before aten::mm", 400_000),
        (Cause.HOST_DISPATCH, "aten::mm", 50_000),
        (Cause.HOST_DISPATCH, "aten::relu", 50_000),
    }


def test_work_that_was_queued_is_the_devices(tmp_path: Path) -> None:
    made = Planted(launched_ns=100_000)
    made.host("aten::mm", 99_000, 102_000)
    rows = made.idle(tmp_path).rows()
    assert [(row.cause, row.place, row.ns) for row in rows] == [
        (Cause.DEVICE_DEPENDENCY, Place("", "aten::mm", ""), 500_000)
    ]


def test_queued_while_the_device_had_long_been_empty(tmp_path: Path) -> None:
    made = Planted(launched_ns=300_000)  # the call returns at 301,000, the kernel starts at 700,000
    idle = made.idle(tmp_path)
    assert idle.by_cause() == {Cause.DEVICE_DEPENDENCY: 399_000, Cause.HOST_DISPATCH: 101_000}


def test_a_long_silence_is_unexplained(tmp_path: Path) -> None:
    made = DeviceTrace()
    made.step(1, 0, 10_000_000)
    made.pair((1_000, 2_000), (5_000, 100_000))
    made.pair((9_000_000, 9_001_000), (9_005_000, 10_000_000))
    found = Facts(made.read(tmp_path))[IdleCauses]
    assert found.window.by_cause() == {
        Cause.UNEXPLAINED: 9_000_000 - 100_000 + 3_000,
        Cause.HOST_DISPATCH: 5_000 + 2_000,  # to the first launch's return the step has begun
    }


class TestStalls:
    def test_a_sync_pays_for_what_it_leaves_behind(self, tmp_path: Path) -> None:
        made = Planted()
        made.frame("train.py(50): main", 0, STEP_NS)
        made.host("aten::item", 89_000, 230_000)
        made.host("aten::_local_scalar_dense", 90_000, 230_000)
        made.call(100_000, 220_000, name="cudaStreamSynchronize")
        rows = made.idle(tmp_path).rows()
        # The host stood for 120 µs; without that the next launch would have come that much earlier.
        assert (Cause.HOST_SYNC, Place("train.py:50 (main)", "aten::_local_scalar_dense", ""), 120_000) in rows
        assert sum(row.ns for row in rows if row.cause == Cause.HOST_DISPATCH) == 380_000

    def test_a_scalar_read_on_rocm_is_a_sync(self, tmp_path: Path) -> None:
        made = Planted()
        made.host("aten::item", 100_000, 300_000)
        made.call(110_000, 290_000, name="hipMemcpyWithStream")
        assert made.idle(tmp_path).by_cause()[Cause.HOST_SYNC] == 180_000

    def test_the_sync_behind_a_copy_is_the_copys(self, tmp_path: Path) -> None:
        made = Planted()
        made.host("aten::copy_", 100_000, 300_000)
        made.call(110_000, 290_000, name="cudaStreamSynchronize")
        assert made.idle(tmp_path).by_cause()[Cause.SYNC_COPY] == 180_000

    def test_an_asynchronous_copy_of_pageable_memory_holds_the_host(self, tmp_path: Path) -> None:
        made = Planted()
        link = made.call(220_000, 420_000, name="cudaMemcpyAsync")
        made.copy(415_000, 420_000, name="Memcpy HtoD (Pageable -> Device)", link=link, bytes=2**20)
        found = Facts(made.read(tmp_path))[IdleCauses].window
        assert cause_at(found, 220_000, 415_000) == {Cause.SYNC_COPY: 195_000}

    def test_a_small_one_does_not(self, tmp_path: Path) -> None:
        made = Planted()
        link = made.call(220_000, 240_000, name="cudaMemcpyAsync")
        made.copy(239_000, 240_000, name="Memcpy HtoD (Pageable -> Device)", link=link, bytes=64)
        assert Cause.SYNC_COPY not in Facts(made.read(tmp_path))[IdleCauses].window.by_cause()

    def test_another_threads_wait_is_nobodys(self, tmp_path: Path) -> None:
        made = Planted()
        made.call(210_000, 600_000, name="cudaEventSynchronize", thread=777)
        assert made.idle(tmp_path).by_cause() == {Cause.HOST_DISPATCH: 500_000}


class TestPrecedence:
    def test_garbage_before_all_and_a_save_before_what_it_does(self, tmp_path: Path) -> None:
        made = Planted()
        made.frame("torch/serialization.py(900): save", 210_000, 600_000)
        made.frame("Python GC", 300_000, 340_000)
        made.call(400_000, 500_000, name="cudaStreamSynchronize")
        by_cause = made.idle(tmp_path).by_cause()
        assert by_cause == {
            Cause.CHECKPOINT: 350_000,
            Cause.HOST_DISPATCH: 110_000,
            Cause.GARBAGE_COLLECTION: 40_000,
        }

    def test_a_compiler_before_its_own_allocations(self, tmp_path: Path) -> None:
        made = Planted()
        made.host("entire_frame_compile (dynamo_timed)", 210_000, 600_000)
        made.call(300_000, 400_000, name="cudaMalloc")
        assert made.idle(tmp_path).by_cause()[Cause.COMPILATION] == 390_000


class TestPlaces:
    def test_own_function_operator_and_module_path(self, tmp_path: Path) -> None:
        made = Planted()
        made.frame("train.py(50): main", 0, STEP_NS)
        made.frame("nn.Module: Net_0", 210_000, 650_000)
        made.frame("model.py(7): forward", 211_000, 640_000)
        made.frame("nn.Module: Linear_3", 220_000, 600_000)
        made.frame("torch/nn/modules/linear.py(120): forward", 221_000, 590_000)
        made.host("aten::linear", 300_000, 500_000)
        made.host("aten::addmm", 320_000, 480_000)
        rows = made.idle(tmp_path).rows()
        inside = next(row for row in rows if row.place.operator == "aten::addmm")
        assert inside == (Cause.HOST_DISPATCH, Place("model.py:7 (forward)", "aten::addmm", "Net_0.Linear_3"), 160_000)
        assert sum(row.ns for row in rows) == GAP[1] - GAP[0]

    def test_the_backward_pass_is_where_its_forward_operator_was(self, tmp_path: Path) -> None:
        made = Planted(launched_by=BACKWARD)
        made.frame("train.py(50): main", 0, STEP_NS)
        made.frame("nn.Module: Linear_3", 10_000, 50_000)
        made.frame("model.py(7): forward", 11_000, 40_000)
        made.host("aten::addmm", 20_000, 30_000, **{"Sequence number": 5})
        node = "autograd::engine::evaluate_function: AddmmBackward0"
        made.host(node, 300_000, 650_000, thread=BACKWARD, **{"Sequence number": 5})
        made.host("aten::mm", 350_000, 600_000, thread=BACKWARD, **{"Sequence number": -1})
        rows = made.idle(tmp_path).rows()
        assert rows[0] == (Cause.HOST_DISPATCH, Place("model.py:7 (forward)", "aten::mm", "Linear_3"), 250_000)
        # Until the backward thread began, the training thread was waited for.
        waited = sum(row.ns for row in rows if row.place.frame == "train.py:50 (main)")
        assert waited == 100_000 + 50_000

    def test_strange_names_are_shown_in_one_line(self, tmp_path: Path) -> None:
        made = Planted()
        made.host("aten::mm\n\x1b[2J[bold]", 250_000, 550_000)
        operator = made.idle(tmp_path).rows()[0].place.operator
        assert "\n" not in operator and "\x1b" not in operator

    def test_calls_that_end_after_their_caller(self, tmp_path: Path) -> None:
        made = Planted()
        made.host("outer", 210_000, 300_000)
        made.host("inner", 250_000, 301_000)  # rounded
        made.host("next", 300_000, 600_000)
        idle = made.idle(tmp_path)
        assert {row.place.operator: row.ns for row in idle.rows()}["next"] == 300_000


class TestExposedCommunication:
    NAME = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"

    def made(self, *, launched_ns: int) -> DeviceTrace:
        made = DeviceTrace()
        made.step(1, 0, STEP_NS)
        made.pair((1_000, 2_000), (5_000, 200_000))
        made.host("c10d::allreduce_", 3_000, 9_000)
        made.pair((4_000, 5_000), (100_000, 600_000), name=self.NAME, stream=20)
        made.host("aten::mm", launched_ns - 10_000, launched_ns + 5_000)
        made.pair((launched_ns, launched_ns + 2_000), (610_000, 900_000))
        return made

    def test_queued_work_waited_for_the_collective(self, tmp_path: Path) -> None:
        found = Facts(self.made(launched_ns=150_000).read(tmp_path))[ExposedCommunication]
        assert found.window.rows() == [(Cause.COLLECTIVE_WAIT, Place("", "c10d::allreduce_", ""), 400_000)]

    def test_the_host_had_launched_nothing_to_hide_it(self, tmp_path: Path) -> None:
        made = self.made(launched_ns=590_000)
        made.host("enumerate(DataLoader)#x.__next__", 300_000, 500_000, category="user_annotation")
        by_cause = Facts(made.read(tmp_path))[ExposedCommunication].window.by_cause()
        assert by_cause == {Cause.INPUT: 200_000, Cause.HOST_DISPATCH: 200_000}

    def test_not_applicable_without_communication(self, tmp_path: Path) -> None:
        why = Facts(Planted().read(tmp_path)).get(ExposedCommunication)
        assert isinstance(why, NotApplicable) and "communication" in why.reason


class TestRows:
    def made(self) -> Planted:
        made = Planted()
        made.frame("train.py(50): main", 0, STEP_NS)
        for number in range(10):
            start_ns = 210_000 + 40_000 * number
            made.frame(f"model.py({number % 4}): f", start_ns, start_ns + 20_000)
            made.frame(f"nn.Module: Layer_{number}", start_ns, start_ns + 15_000)
            made.host(f"op{number}", start_ns, start_ns + 10_000 + number)
        return made

    def test_one_row_for_each_cause_and_place(self, tmp_path: Path) -> None:
        idle = self.made().idle(tmp_path)
        rows = idle.as_rows()
        assert sum(row.ns for row in rows) == idle.measure_ns
        assert {row.place: row.ns for row in rows} == {
            "train.py:50 (main)": 300_000,
            "model.py:0 (f)": 60_000,
            "model.py:1 (f)": 60_000,
            "model.py:2 (f)": 40_000,
            "model.py:3 (f)": 40_000,
        }
        last = next(row for row in rows if row.place == "model.py:3 (f)")
        assert last == CausedTime(
            cause="host_dispatch",
            place="model.py:3 (f)",
            frame="model.py:3 (f)",
            operator="op7",
            module="Layer_7",
            ns=40_000,
        )

    def test_what_is_beyond_the_limit_is_one_row_of_its_cause(self, tmp_path: Path) -> None:
        idle = self.made().idle(tmp_path)
        rows = idle.as_rows(most=2)
        assert [(row.place, row.ns) for row in rows] == [
            ("train.py:50 (main)", 300_000),
            (None, 140_000),
            ("model.py:0 (f)", 60_000),
        ]

    def test_there_is_no_step_beyond_the_last(self, tmp_path: Path) -> None:
        found = Facts(Planted().read(tmp_path))[IdleCauses]
        with pytest.raises(IndexError):
            found.of_step(1)


@pytest.mark.parametrize(
    ("stream", "launched_ns", "cause"),
    [
        (7, 150_000, Cause.DEVICE_DEPENDENCY),  # what comes later in the stream was launched before the gap
        (7, 250_000, Cause.HOST_DISPATCH),  # nobody knows, and the gap is long
        (20, 150_000, Cause.HOST_DISPATCH),  # another stream says nothing
    ],
)
def test_work_without_its_launch_was_launched_before_what_follows_it(
    tmp_path: Path, stream: int, launched_ns: int, cause: Cause
) -> None:
    made = DeviceTrace()
    made.step(1, 0, STEP_NS)
    made.pair((1_000, 2_000), (5_000, GAP[0]))
    made.on_device(GAP[1], 800_000, name="unlinked")
    made.pair((launched_ns, launched_ns + 1_000), (800_000, STEP_NS - 1000), stream=stream)
    found = Facts(made.read(tmp_path))[IdleCauses].window
    assert cause_at(found, *GAP) == {cause: GAP[1] - GAP[0]}
