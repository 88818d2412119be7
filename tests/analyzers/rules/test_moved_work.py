"""Advice that moves work to other cores: simulated where the host is not the device, a bound where it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpu_job import MS, US, GpuJob

from tightship_analyzers import trace as traces
from tightship_analyzers.analysis.judge import Verdict, judge_trace
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.program.loader_ranges import LoaderRanges
from tightship_analyzers.facts.window.steps import Steps
from tightship_analyzers.findings.model import Finding
from tightship_analyzers.graph.edits import Edits
from tightship_analyzers.rules.catalogue import find_rule
from tightship_analyzers.rules.host.starved_input import HAND_OVER_FRAC, HAND_OVER_NS
from tightship_analyzers.trace.intervals import Intervals
from tightship_platform.vocabulary import Method

RECORDED = Path(__file__).parents[2] / "data" / "traces"
WHY = "A bound, not simulated: needs idle cores, which the trace does not show"
STEPS = 5
REST_NS = 1 * MS
"""Roughly what a step takes besides the work that moves."""


def recorded(name: str) -> Verdict:
    return judge_trace(traces.open(RECORDED / f"{name}.json.gz"))


def reported(finding: Finding) -> list[str]:
    return [entry.text for entry in finding.evidence if entry.kind == "fact"]


def loading(folder: Path, iterator: str, loading_ns: int) -> Finding:
    """The one finding of `loadings`."""
    [finding] = loadings(folder, iterator, loading_ns)
    return finding


def loadings(folder: Path, iterator: str, loading_ns: int) -> list[Finding]:
    """The findings on a GPU job whose device waits that long for each batch."""
    job = GpuJob(stacks=False)
    for _ in range(STEPS):
        begun = job.now_ns
        job.pause(loading_ns)
        job.host(f"enumerate(DataLoader)#{iterator}.__next__", begun, job.now_ns, category="user_annotation")
        train(job)
        job.step_of(begun)
    return judge_trace(job.read(folder), rules=(find_rule("starved-input"),)).findings


def saving(folder: Path, save_ns: int) -> Finding:
    """The finding on a GPU job that saves for that long in each step."""
    job = GpuJob()
    for _ in range(STEPS):
        begun = job.now_ns
        train(job)
        saved = job.now_ns
        job.pause(save_ns)
        job.frame_of("torch/serialization.py(944): save", saved)
        job.step_of(begun)
    [finding] = judge_trace(job.read(folder), rules=(find_rule("synchronous-checkpoint"),)).findings
    return finding


def train(job: GpuJob) -> None:
    job.op("aten::mm", (REST_NS, "ampere_bf16_s16816gemm"))
    job.wait()


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("starved", "starved-input"),
        ("slow_workers", "starved-input"),
    ],
)
def test_on_a_cpu_it_is_a_bound_that_may_be_nothing(name: str, rule: str) -> None:
    said = recorded(name)
    [finding], [claim] = said.findings, said.summary.claims
    assert finding.rule == rule
    assert finding.title.startswith("The loop waits "), "its device are the cores that make the batches"
    assert (finding.saving.method, finding.saving.low) == (Method.BOUND, 0)
    assert WHY in reported(finding)
    assert any("torch.set_num_threads" in line for line in reported(finding)), "the workers' cores are those of torch"
    assert (claim.method, claim.low_ns, claim.low_frac) == ("bound", 0, 0)
    assert claim.saving_ns == finding.saving.value > 0


@pytest.mark.parametrize("name", ["checkpoints", "rare_checkpoint"])
def test_on_a_cpu_checkpoints_are_to_be_saved_less_often(name: str) -> None:
    """A thread that writes takes the cores that train."""
    [finding] = recorded(name).findings
    [change] = [entry for entry in finding.evidence if entry.kind == "change"]
    assert "less often" in finding.fix and "Thread" not in change.after
    assert finding.saving.method is Method.SIMULATED and WHY not in reported(finding)
    assert finding.saving.low <= finding.saving.value <= finding.saving.high
    assert (finding.saving.low > 0) is (name == "checkpoints"), "one save does not show how often it saves"


def test_a_loop_that_only_indexes_again_is_not_simulated_either() -> None:
    [finding] = recorded("loop").findings
    assert (finding.rule, finding.saving.method) == ("loop-indexing", Method.BOUND)
    assert WHY not in reported(finding), "it needs no other cores"


def test_beside_an_accelerator_workers_are_simulated(tmp_path: Path) -> None:
    finding = loading(tmp_path, "_SingleProcessDataLoaderIter", 4 * MS)
    assert not any("set_num_threads" in line for line in reported(finding))
    assert finding.title.startswith("The device waits ")
    saving = finding.saving
    assert saving.method is Method.SIMULATED and WHY not in reported(finding)
    assert saving.value == pytest.approx(4 * MS, rel=0.02)
    least_ns = REST_NS - HAND_OVER_FRAC * 4 * MS
    assert saving.low == pytest.approx(least_ns, rel=0.1), "one worker takes 4 ms a batch, and hands it over"
    assert "num_workers=4," in finding.fix


def test_beside_an_accelerator_a_save_is_simulated(tmp_path: Path) -> None:
    finding = saving(tmp_path, 300 * US)
    assert finding.saving.method is Method.SIMULATED and WHY not in reported(finding)
    assert finding.saving.value == pytest.approx(300 * US, rel=0.05)
    assert finding.saving.low > 0


def test_twice_the_workers_halve_the_step_at_most(tmp_path: Path) -> None:
    finding = loading(tmp_path, "_MultiProcessingDataLoaderIter", 9 * MS)
    saving = finding.saving
    assert (saving.method, saving.low) == (Method.SIMULATED, 0)
    assert saving.value == pytest.approx(5 * MS, rel=0.02) and saving.high == pytest.approx(5 * MS, rel=0.02)
    assert any(text.startswith("At most 50.0 % of the step is recoverable") for text in reported(finding))
    on_cpu = recorded("slow_workers")
    assert on_cpu.findings[0].saving.high == pytest.approx(on_cpu.summary.step_ns.mean / 2, abs=2)


def test_where_twice_the_workers_keep_up_all_of_the_wait_goes(tmp_path: Path) -> None:
    finding = loading(tmp_path, "_MultiProcessingDataLoaderIter", REST_NS // 2)
    assert finding.saving.value == pytest.approx(REST_NS // 2, rel=0.05)
    assert not any("At most" in text for text in reported(finding))


def test_no_more_comes_back_than_the_workers_suggested_can_make(tmp_path: Path) -> None:
    finding = loading(tmp_path, "_SingleProcessDataLoaderIter", 64 * MS)
    assert "num_workers=16," in finding.fix
    assert finding.saving.value == pytest.approx(REST_NS + 64 * MS - 4 * MS, rel=0.01)
    assert any("16 times as many as one" in text for text in reported(finding))


@pytest.mark.parametrize(("loading_ns", "found"), [(HAND_OVER_NS, 0), (HAND_OVER_NS + 50 * US, 1)])
def test_a_batch_that_is_made_sooner_than_handed_over_is_no_work_for_a_worker(
    tmp_path: Path, loading_ns: int, found: int
) -> None:
    assert len(loadings(tmp_path, "_SingleProcessDataLoaderIter", loading_ns)) == found


def test_on_a_cpu_handing_over_costs_the_cores_what_it_takes() -> None:
    trace = traces.open(RECORDED / "starved.json.gz")
    loader = Facts(trace)[LoaderRanges]
    [finding] = judge_trace(trace).findings
    left_frac = 1 - loader.calls * HAND_OVER_NS / loader.spans.measure_ns
    waited_frac = loader.spans.measure_ns / Facts(trace)[Steps].window_ns
    assert finding.share_frac == pytest.approx(waited_frac * left_frac, rel=0.05) and left_frac < 1


def epochs(folder: Path, *, new: bool) -> list[Finding]:
    """The findings on a GPU job of six epochs of three steps whose loader has workers."""
    job = GpuJob()
    for number in range(18):
        begun = job.now_ns
        if number % 3 == 0:
            started = job.now_ns
            if new:
                job.pause(2 * MS)
                job.frame_of("multiprocessing/process.py(110): start", started)
            reset = job.now_ns
            job.pause(100 * US)
            job.frame_of("torch/utils/data/dataloader.py(1233): _reset", reset)
            job.frame_of("torch/utils/data/dataloader.py(492): __iter__", started)
        fetched = job.now_ns
        job.pause(1 * MS if new and number % 3 == 0 else 10 * US)
        job.host("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", fetched, job.now_ns,
                 category="user_annotation")  # fmt: skip
        train(job)
        if new and number % 3 == 2:
            ended = job.now_ns
            job.pause(500 * US)
            job.frame_of("torch/utils/data/dataloader.py(1606): _shutdown_workers", ended)
        job.step_of(begun)
    return judge_trace(job.read(folder), rules=(find_rule("starved-input"),)).findings


def test_workers_that_are_started_for_each_epoch_stay(tmp_path: Path) -> None:
    [finding] = epochs(tmp_path, new=True)
    saving = finding.saving
    assert "persistent_workers=True" in finding.fix and "new workers every epoch" in finding.title
    assert saving.value == pytest.approx((2 * MS + 500 * US + 990 * US) / 3, rel=0.03)
    assert saving.low == pytest.approx((2 * MS + 500 * US) / 3, rel=0.05), "starting and ending them is sure to go"
    assert any(text.startswith("6 iterations in 18 steps started processes") for text in reported(finding))


def test_workers_that_stay_start_once(tmp_path: Path) -> None:
    assert epochs(tmp_path, new=False) == []


@pytest.mark.parametrize("remade", [True, False])
def test_a_loader_that_is_made_in_each_call_hides_no_first_batch(tmp_path: Path, remade: bool) -> None:
    """Calls of three batches each, fetched in the training thread."""
    job = GpuJob()
    for number in range(18):
        begun = job.now_ns
        if number % 3 == 0 and remade:
            job.pause(10 * US)
            job.frame_of("torch/utils/data/dataloader.py(492): __iter__", begun)
        fetched = job.now_ns
        job.pause(2 * MS)
        job.host("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", fetched, job.now_ns,
                 category="user_annotation")  # fmt: skip
        train(job)
        job.step_of(begun)
    [finding] = judge_trace(job.read(tmp_path), rules=(find_rule("starved-input"),)).findings
    share = 2 / 3 if remade else 1
    assert finding.saving.value == pytest.approx(share * 2 * MS, rel=0.03)


def test_a_thread_that_writes_needs_the_time_of_the_saves(tmp_path: Path) -> None:
    finding = saving(tmp_path, 3 * MS)
    assert finding.saving.value == pytest.approx(REST_NS, rel=0.05), "then the thread has no pause"


@pytest.mark.parametrize(
    ("name", "most_frac"), [("starved", 8 / 9), ("slow_workers", 1 / 2)]
)  # fmt: skip
def test_the_limit_holds_for_steps_without_recording_too(name: str, most_frac: float) -> None:
    trace = traces.open(RECORDED / f"{name}.json.gz")
    recorded_ns = judge_trace(trace).summary.step_ns.mean
    for untraced_ns in (recorded_ns * 9 // 10, recorded_ns * 7 // 10):
        [finding] = judge_trace(trace, untraced_step_ns=untraced_ns).findings
        assert 0 == finding.saving.low < finding.saving.value <= finding.saving.high
        assert finding.saving.high <= most_frac * untraced_ns + 1


def test_edits_that_need_cores_need_them_together_with_others() -> None:
    some = Intervals.one(0, 10)
    moved, gone = Edits.moved_host(1, some), Edits.without_host(1, some)
    assert (moved | gone).needs_cores and (gone | moved).within(0, 5).needs_cores
    assert not (gone | Edits.without_syncs(1, some)).needs_cores
