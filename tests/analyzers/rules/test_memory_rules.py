"""Runs near the limit of their devices' memory, and runs that died of it."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import pytest

from tightship_analyzers.facts.run.held_idle import RunHistory
from tightship_analyzers.facts.run.memory import NEAR_FRAC, DeviceMemory, RunEnd
from tightship_analyzers.findings.model import Finding, NotApplicable
from tightship_analyzers.rules.runs import model_near_memory_limit as near
from tightship_analyzers.rules.runs import out_of_memory_run as out
from tightship_platform.results.memory_lack import Lack

GIB = 1 << 30
HOUR = 3600 * 10**9
OOM = RunEnd(exit_code=1, error="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")


def memory(share: float, samples: int = 100, peak: float = NEAR_FRAC) -> DeviceMemory:
    """A device that is nearly full in this share of its samples."""
    return DeviceMemory(
        capacity_bytes=80 * GIB, samples=samples, near=round(share * samples), peak_bytes=int(peak * 80 * GIB)
    )


def history(*memories: DeviceMemory, workflow: str = "llm", **more: Any) -> RunHistory:
    return RunHistory(
        held={device: [(0, HOUR)] for device in range(len(memories))},
        device_names={device: f"h1/GPU-{device}" for device in range(len(memories))},
        memory=dict(enumerate(memories)),
        workflow=workflow,
        **more,
    )


def judged(rule: Any, one: RunHistory) -> list[Finding]:
    outcome = rule.judge(one)
    assert not isinstance(outcome, NotApplicable)
    return list(outcome)


def plan_of(finding: Finding) -> dict[str, Any]:
    [plan] = [entry for entry in finding.evidence if entry.kind == "plan"]
    return plan


# ---- model-near-memory-limit -----------------------------------------------------------------------------------------


def test_a_run_that_stays_near_the_limit_is_found() -> None:
    [finding] = judged(near.RULE, history(memory(0.1), memory(near.SUSTAINED_FRAC, peak=0.99), memory(0.9, peak=0.96)))
    assert finding.place == "h1/GPU-1 and 1 more", "the fullest first"
    assert finding.title == "79.2 GiB of 80.0 GiB device memory are in use, 95.0 % or more for 50.0 % of the time"
    assert finding.evidence[0].text == "2 devices of 3 nearly full"
    assert finding.evidence[1].text == "h1/GPU-1: at most 79.2 GiB, 50 samples of 100 nearly full"
    assert finding.saving.high == 0, "a risk saves nothing by itself"


@pytest.mark.parametrize(
    "clean",
    [memory(near.SUSTAINED_FRAC - 0.01), memory(1.0, samples=near.MIN_SAMPLES - 1), memory(0.0, peak=0.5)],
    ids=["a moment", "a few samples", "half empty"],
)
def test_a_run_with_room_is_clean(clean: DeviceMemory) -> None:
    assert judged(near.RULE, history(clean)) == []


def test_what_has_come_to_pass_is_no_risk_any_more() -> None:
    assert judged(near.RULE, history(memory(1.0), end=OOM)) == []
    assert judged(near.RULE, history(memory(1.0), end=RunEnd(exit_code=1, error="ValueError"))) != []


def test_without_samples_of_an_accelerator_it_does_not_apply() -> None:
    assert isinstance(near.RULE.judge(history()), NotApplicable)


@pytest.mark.parametrize("name", ["llm", "two words", "it's; rm -rf $HOME `x`", "--json", "ü & <b>"])
def test_the_command_names_the_workflow_for_a_shell(name: str) -> None:
    [finding] = judged(near.RULE, history(memory(1.0), workflow=name))
    command = plan_of(finding).command
    assert shlex.split(command) == ["tightship", "offload", "plan", f"--workflow={name}"]
    assert command in finding.fix and plan_of(finding).workflow == name


# ---- out-of-memory-run -----------------------------------------------------------------------------------------------


def test_a_run_without_a_counted_step_lost_up_to_all_but_what_was_held_idle() -> None:
    one = history(memory(1.0, peak=0.99), end=OOM, account={"unexplained": HOUR * 3 // 4, "held_idle": HOUR // 4})
    [finding] = judged(out.RULE, one)
    saving = finding.saving
    assert (saving.low, saving.value, saving.high) == (0, HOUR * 3 // 4, HOUR * 3 // 4)
    assert finding.share_frac == 0.75 and finding.place == "h1/GPU-0"
    lost = "45.0 min before any step was counted may be lost, 75.0 % of it"
    assert finding.title == f"The run failed: out of device memory; {lost}"
    texts = [getattr(entry, "text", None) for entry in finding.evidence]
    assert texts[:3] == [
        f"It ended with {OOM.error}",
        "h1/GPU-0: at most 79.2 GiB of 80.0 GiB seen in use",
        "No completed step was counted",
    ]
    assert plan_of(finding).command in finding.fix


def test_of_a_run_that_made_steps_only_what_lies_outside_of_them_is_certain() -> None:
    account = {"startup": 5, "productive": 80, "input": 10, "shutdown": 2, "held_idle": 3}
    [finding] = judged(out.RULE, history(memory(1.0), end=OOM, account=account, first_step_ns=5))
    assert (finding.saving.low, finding.saving.value, finding.saving.high) == (7, 7, 97)


def test_of_a_run_without_device_time_no_saving_is_given() -> None:
    [finding] = judged(out.RULE, history(memory(1.0), end=OOM, account={}))
    assert finding.saving.high == 0 and finding.title == "The run failed: out of device memory"


def test_of_a_lack_of_host_memory_the_fix_is_another() -> None:
    [finding] = judged(out.RULE, history(end=RunEnd(exit_code=137, oom_kills=2), account={"startup": 7}))
    assert "host memory" in finding.fix and "tightship offload plan" not in finding.fix
    assert any("killed 2 processes" in getattr(entry, "text", "") for entry in finding.evidence)
    assert all(entry.kind != "plan" for entry in finding.evidence)


@pytest.mark.parametrize("end", [None, RunEnd(exit_code=1), RunEnd(exit_code=137, oom_kills=0)])
def test_a_run_that_ended_otherwise_is_clean(end: RunEnd | None) -> None:
    assert judged(out.RULE, history(memory(1.0), end=end, account={"startup": 7})) == []


@pytest.mark.parametrize(
    ("error", "lack"),
    [
        ("torch.OutOfMemoryError: HIP out of memory.", Lack.DEVICE),
        ("torch.cuda.OutOfMemoryError: CUDA out of memory.", Lack.DEVICE),
        ("RuntimeError: CUDA error: out of memory", Lack.DEVICE),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", Lack.DEVICE),
        ("torch.distributed.DistBackendError: NCCL error … Cuda failure 2 'out of memory'", Lack.DEVICE),
        ("jaxlib._jax.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes.", Lack.DEVICE),
        ("RuntimeError: No executable batch size found (after torch.OutOfMemoryError: CUDA …)", Lack.DEVICE),
        ("torch.multiprocessing.spawn.ProcessRaisedException: -- … torch.OutOfMemoryError: CUDA", Lack.DEVICE),
        ("MemoryError", Lack.HOST),
        ("numpy._core._exceptions._ArrayMemoryError", Lack.HOST),
        ("RuntimeError: [enforce fail at alloc_cpu.cpp:121] . DefaultCPUAllocator: can't allocate memory", Lack.HOST),
        ("OSError: Cannot allocate memory", Lack.HOST),
        ("ValueError: out of memory of what I said", None),
        ("KeyError: MemoryError", None),
        ("MyMemoryErrorHandler: no", None),
    ],
)
def test_an_exception_says_whose_memory_it_was(error: str, lack: Lack | None) -> None:
    end = RunEnd(exit_code=1, error=error)
    assert end.lack is lack
    assert replace(end, oom_kills=1).lack is (lack or Lack.HOST)
