"""Facts on traces made by hand: each figure can be checked by eye."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_trace import BACKWARD, MadeTrace, at
from recordings import ANY
from reference_data import TRACES

from tightship_analyzers import trace as traces
from tightship_analyzers.analysis.judge import judge_trace
from tightship_analyzers.facts.activity.device_busy import DeviceBusy
from tightship_analyzers.facts.activity.host_activity import MAX_SILENCE_NS
from tightship_analyzers.facts.idle.step_split import StepSplit
from tightship_analyzers.facts.memo import Facts, NotApplicable
from tightship_analyzers.facts.program.frames import ThreadFrames, is_user_frame, place_of
from tightship_analyzers.facts.program.loader_ranges import LoaderRanges
from tightship_analyzers.facts.program.op_tree import OpTree
from tightship_analyzers.facts.program.saves import SAVE_FRAMES, Saves
from tightship_analyzers.facts.window.steps import Steps
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.findings.model import Failed
from tightship_platform.vocabulary import Bucket, Method


def facts_of(made: MadeTrace, folder: Path) -> Facts:
    return Facts(made.read(folder))


class TestSteps:
    def test_from_the_end_of_one_optimizer_step_to_the_end_of_the_next(self, tmp_path: Path) -> None:
        made = MadeTrace()
        made.steps(100, 250, 350, width_us=20)
        steps = facts_of(made, tmp_path)[Steps]
        assert steps.durations_ns.tolist() == [150_000, 100_000]
        assert (steps.start_ns, steps.end_ns, steps.mean_ns) == (at(100), at(350), 125_000)
        assert [steps.number_at(at(t)) for t in (99, 100, 249, 250, 349, 350)] == [None, 0, 0, 1, 1, None]

    def test_an_optimizer_inside_another_is_not_counted(self, tmp_path: Path) -> None:
        made = MadeTrace()
        for end in (100, 200, 300):
            made.mark("Optimizer.step#Wrapper.step", end - 30, end)
            made.mark("Optimizer.step#Adam.step", end - 20, end - 10)
        assert facts_of(made, tmp_path)[Steps].count == 2

    def test_of_two_optimizers_in_turn_one_counts(self, tmp_path: Path) -> None:
        made = MadeTrace()
        for end in (100, 200, 300):
            made.mark("Optimizer.step#Muon.step", end - 30, end - 20)
            made.mark("Optimizer.step#AdamW.step", end - 10, end)
        made.mark("Optimizer.step#Muon.step", 370, 380)
        assert facts_of(made, tmp_path)[Steps].durations_ns.tolist() == [100_000] * 3, "Muon was called once more"
        made.mark("Optimizer.step#AdamW.step", 390, 400)
        steps = facts_of(made, tmp_path)[Steps]
        assert (steps.start_ns, steps.durations_ns.tolist()) == (at(100), [100_000] * 3), "both as often: the last one"

    def test_marks_of_the_program_win_and_the_last_one_is_open(self, tmp_path: Path) -> None:
        made = MadeTrace()
        made.steps(50, 60, 70, 80)
        for number in range(3):
            made.mark(f"ProfilerStep#{number}", 100 * number, 100 * number + 100)
        assert facts_of(made, tmp_path)[Steps].durations_ns.tolist() == [100_000, 100_000]

    def test_one_optimizer_step_is_no_whole_step(self, tmp_path: Path) -> None:
        made = MadeTrace()
        made.op("aten::mm", 10, 20)
        made.steps(100)
        found = facts_of(made, tmp_path)
        steps = found.get(Steps)
        assert isinstance(steps, NotApplicable) and "records for longer" in steps.reason
        assert found[Window].window_ns == 10_000, "without steps the whole recording"


class TestDeviceBusy:
    def test_on_a_cpu_the_operators_outside_of_loader_and_save(self, tmp_path: Path) -> None:
        made = MadeTrace()
        made.steps(100, 300)
        made.op("aten::mm", 110, 140)
        made.op("aten::copy_", 120, 130)  # inside mm
        made.op("autograd::engine::evaluate_function: MmBackward0", 135, 150, thread=BACKWARD)
        made.op("aten::rand", 160, 170, thread=77)  # some other thread
        made.mark("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 200, 230)
        made.op("aten::stack", 205, 225)
        made.frame("torch/serialization.py(900): save", 240, 260)
        made.op("aten::cat", 245, 255)
        found = facts_of(made, tmp_path)
        assert list(found[DeviceBusy].spans) == [(at(110), at(150))]
        assert found[StepSplit].buckets_ns == {
            Bucket.PRODUCTIVE: 40_000,
            Bucket.COMMUNICATION: 0,
            Bucket.CHECKPOINT: 20_000,
            Bucket.INPUT: 30_000,
            Bucket.HOST_SYNC: 0,
            Bucket.HOST: 110_000,
            Bucket.QUEUED: 0,
            Bucket.UNEXPLAINED: 0,
        }

    def test_on_a_cpu_neither_compiling_nor_waiting_for_others_is_work(self, tmp_path: Path) -> None:
        made = MadeTrace()
        made.steps(100, 300)
        made.op("aten::mm", 110, 140)
        made.op("entire_frame_compile (dynamo_timed)", 150, 190)
        made.op("aten::add", 160, 170)
        made.op("c10d::barrier", 200, 250)
        found = facts_of(made, tmp_path)
        assert list(found[DeviceBusy].spans) == [(at(110), at(140))]
        split = found[StepSplit].buckets_ns
        assert (split[Bucket.HOST], split[Bucket.COMMUNICATION]) == (200_000 - 30_000 - 50_000, 50_000)

    def test_on_a_gpu_only_exposed_communication_is_lost(self, tmp_path: Path) -> None:
        made = MadeTrace()
        made.steps(100, 300)
        made.kernel(110, 160)
        made.kernel(150, 200, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL", stream=20)
        made.op("aten::mm", 100, 290)
        split = facts_of(made, tmp_path)[StepSplit].buckets_ns
        assert (split[Bucket.PRODUCTIVE], split[Bucket.COMMUNICATION]) == (50_000, 40_000)
        assert sum(split.values()) == 200_000

    def test_a_long_silence_without_stacks_is_unexplained(self, tmp_path: Path) -> None:
        silence_us = MAX_SILENCE_NS // 1000
        made = MadeTrace()
        made.steps(100, 10_000)
        made.op("aten::mm", 100, 200)
        made.op("aten::mm", 200 + silence_us, 300 + silence_us)  # short enough: dispatch from Python
        made.op("aten::mm", 301 + 2 * silence_us, 9_999)  # too long
        split = facts_of(made, tmp_path)[StepSplit].buckets_ns
        assert split[Bucket.HOST] == MAX_SILENCE_NS + 1_000
        assert split[Bucket.UNEXPLAINED] == MAX_SILENCE_NS + 1_000


class TestFrames:
    @pytest.mark.parametrize(
        ("name", "is_user"),
        [
            ("train.py(12): main", True),
            ("mylib/model.py(3): forward", True),
            ("/opt/job/train.py(12): main", True),
            ("/home/me/lib/python3.11/random.py(1): seed", False),
            ("torch/nn/modules/module.py(1789): _call_impl", False),
            ("transformers/trainer.py(1): train", False),
            ("threading.py(1002): _bootstrap", False),
            ("profile.py(40): <module>", True),
            ("profile.py(40): run", False),
            ("<frozen runpy>(88): _run_code", False),
            ("<string>(2): __init__", False),
            ("nn.Module: Linear_0", False),
            ("<built-in method mm of type object at 0x7f>", False),
            ("/usr/lib/python3/dist-packages/yaml/loader.py(1): load", False),
        ],
    )
    def test_whose_code(self, name: str, is_user: bool) -> None:
        assert is_user_frame(name) is is_user

    def test_a_place_reads_like_one(self) -> None:
        assert place_of("train.py(12): <lambda>") == "train.py:12 (<lambda>)"
        assert place_of("<built-in method mm>") == ""
        assert "\n" not in place_of("train\n.py(1): f\x1b[2J")
        long = place_of("a" * 5000 + "/train.py(1): f")
        assert len(long) == 200 and long.endswith("/train.py:1 (f)")

    def test_the_innermost_own_frame(self, tmp_path: Path) -> None:
        made = MadeTrace()
        made.steps(100, 300)
        made.frame("train.py(50): main", 0, 400)
        for n in range(200):
            made.frame("train.py(10): helper", 100 + n, 101 + n)
        made.frame("train.py(20): step", 110, 290)
        made.frame("torch/optim/adam.py(1): step", 120, 280)
        found = facts_of(made, tmp_path)
        names = found.trace.names
        assert found[ThreadFrames].place_at(names, at(130), at(140)) == "train.py:20 (step)"
        assert found[ThreadFrames].place_at(names, at(100), at(295)) == "train.py:50 (main)"
        assert found[ThreadFrames].place_at(names, at(300), at(500)) == ""


@pytest.mark.parametrize(
    ("name", "is_save"),
    [
        ("torch/serialization.py(1003): save", True),
        ("torch/serialization.py(1003): load", False),
        ("torch/distributed/checkpoint/state_dict_saver.py(60): save", True),
        ("safetensors/torch.py(250): save_file", True),
        ("<built-in function dump>", True),
        ("json/__init__.py(120): dump", False),
        ("train.py(3): save", False),
        ("numpy/lib/_npyio_impl.py(500): savez", True),
    ],
)
def test_what_counts_as_a_save(name: str, is_save: bool) -> None:
    assert (SAVE_FRAMES.fullmatch(name) is not None) is is_save


def test_saves_are_the_outermost_calls(tmp_path: Path) -> None:
    made = MadeTrace()
    made.steps(100, 300)
    made.frame("torch/serialization.py(1003): save", 120, 180)
    made.frame("torch/serialization.py(1312): _save", 130, 170)
    made.frame("torch/serialization.py(1003): save", 290, 320)
    saves = facts_of(made, tmp_path)[Saves]
    assert len(saves.calls) == 2
    assert list(saves.spans) == [(at(120), at(180)), (at(290), at(300))]


def test_loader_kinds(tmp_path: Path) -> None:
    made = MadeTrace()
    made.steps(100, 300)
    made.mark("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 120, 130)
    made.mark("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 290, 320)
    loader = facts_of(made, tmp_path)[LoaderRanges]
    assert (loader.calls, loader.in_process, loader.spans.measure_ns) == (2, False, 20_000)


def test_top_and_leaf_operators(tmp_path: Path) -> None:
    made = MadeTrace()
    made.steps(100, 300)
    made.op("outer", 110, 150)
    made.op("middle", 115, 140)
    made.op("inner", 120, 130)
    made.op("alone", 160, 170)
    tree = facts_of(made, tmp_path)[OpTree]
    names = facts_of(made, tmp_path).trace.names
    assert [names[n] for n in tree.top.name] == ["outer", "alone"]
    assert [names[n] for n in tree.leaves.name] == ["inner", "alone"]


class TestMemo:
    def test_each_fact_is_derived_once_and_only_when_asked(self, tmp_path: Path) -> None:
        made = MadeTrace()
        made.steps(100, 300)
        found = facts_of(made, tmp_path)
        assert found.costs == {}
        first = found[Steps]
        assert found[Steps] is first
        assert set(found.costs) == {"Steps", "OptimizerSteps", "Recording"}
        assert found.costs["OptimizerSteps"].used_by == ["Steps"]

    def test_an_undeclared_need_is_a_defect(self, tmp_path: Path) -> None:
        made = MadeTrace()
        made.op("aten::mm", 1, 2)
        with pytest.raises(LookupError, match="Steps is not applicable: needs steps"):
            facts_of(made, tmp_path)[Steps]


@pytest.mark.parametrize("recording", ANY, indirect=True)
def test_real_device_traces_are_judged_and_split_exactly(recording: Path) -> None:
    said = judge_trace(traces.open(recording))
    assert not [why for why in said.not_judged.values() if isinstance(why, Failed)]
    judged = said.summary.recording.unfit is None
    of_graph_capture = "capture_traces" in recording.parts
    of_a_start = {"alexnet", "simple_add"} & set(recording.parts)  # CUDA's context and libraries: 90 % and more of it
    assert judged == (not of_graph_capture and not of_a_start and recording.name != "backward_thread.json")
    assert sum(said.summary.buckets.values()) == (said.summary.window_ns if judged else 0)
    assert 0 <= said.summary.joint_saving_frac <= 1


@pytest.mark.reference
def test_a_real_starved_gpu_is_found() -> None:
    said = judge_trace(traces.open(TRACES / "param" / "resnet_kineto.json.gz"))
    assert said.findings[0].rule == "starved-input"
    idle = said.findings[0].claims.measure_ns / said.summary.window_ns
    assert idle == pytest.approx(0.49, abs=0.01)
    # Steps whose batch was there in time show what the others would take.
    saving, step = said.findings[0].saving, said.summary.step_ns
    assert saving.method is Method.SIMULATED
    assert step.mean - saving.value == pytest.approx(158e6, rel=0.02)
