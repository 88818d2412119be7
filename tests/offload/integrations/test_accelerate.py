"""Accelerate's own loop, with and without a window of layers: the same files to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("accelerate", reason="accelerate is not installed")

from accelerate import Accelerator  # noqa: E402
from accelerate.state import AcceleratorState  # noqa: E402
from early_updates import EARLY, Watch  # noqa: E402
from late_import import LateImport  # noqa: E402
from saved_files import contents, different  # noqa: E402

import tightship_offload as offload  # noqa: E402
from tightship_offload.backends.cpu import CpuBackend  # noqa: E402
from tightship_offload.integrations.accelerate import OffloadAccelerator  # noqa: E402

pytestmark = pytest.mark.torch
script = LateImport("offload_scripts.train_accelerate")


@pytest.fixture(autouse=True)
def a_new_process() -> Iterator[None]:
    """Accelerate keeps one state per process, with its precision."""
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("alone")
    script.train(folder)
    return folder


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("windowed")
    backend = CpuBackend(poison=True, delay_s=0.0003, seed=3, deadline_s=60)
    _, model, _ = script.train(folder, OffloadAccelerator, offload={"window": 2, "backend": backend})
    last = offload.engine_of(model).last
    assert last is not None and last.fetches > 0 and last.h2d_bytes > 0
    return folder


def test_training_and_its_files_are_the_same(alone: Path, windowed: Path) -> None:
    assert different(contents(alone), contents(windowed)) == []
    assert max(torch.load(alone / "losses.pt")[2::3]) > 0.5, "nothing was clipped"


@pytest.mark.parametrize("ours_first", [False, True])
def test_a_checkpoint_is_continued_by_the_other(tmp_path: Path, alone: Path, windowed: Path, ours_first: bool) -> None:
    begun = windowed if ours_first else alone
    options: dict[str, Any] = {} if ours_first else {"accelerator_class": OffloadAccelerator, "offload": {"window": 3}}
    script.train(tmp_path, resume=str(begun / "checkpoint-6"), **options)
    last, but = "checkpoint-12", ("random_states",)  # the loader that skips draws one number more
    assert different(contents(alone / last, but=but), contents(tmp_path / last, but=but)) == []


@pytest.mark.parametrize("options", [{"mixed_precision": "bf16"}, {"checkpointing": True}])
def test_other_settings(tmp_path: Path, options: dict[str, Any]) -> None:
    for name, kind in (
        ("alone", {}),
        ("windowed", {"accelerator_class": OffloadAccelerator, "offload": {"window": 2}}),
    ):
        (tmp_path / name).mkdir()
        script.train(tmp_path / name, **kind, **options)
    assert different(contents(tmp_path / "alone"), contents(tmp_path / "windowed")) == []


def test_the_optimizer_may_come_first_and_other_models_are_left_alone() -> None:
    accelerator = OffloadAccelerator(offload={"window": 2})
    stack = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3)))
    teacher = accelerator.prepare(torch.nn.Linear(4, 4))
    optimizer, model = accelerator.prepare(torch.optim.SGD(stack.parameters(), lr=0.1), stack)
    other = torch.nn.Linear(4, 4)
    critic, _ = accelerator.prepare(other, torch.optim.SGD(other.parameters(), lr=0.1))
    before = stack[1].weight.clone()
    accelerator.backward(critic(model(teacher(torch.ones(2, 4)))).sum())
    optimizer.step()
    assert not torch.equal(stack[1].weight, before)
    assert offload.engine_of(model).last is not None


def test_what_is_not_one_model_with_its_optimizer() -> None:
    stacks = [torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3))) for _ in range(2)]
    optimizers = [torch.optim.SGD(stack.parameters(), lr=0.1) for stack in stacks]
    accelerator = OffloadAccelerator(offload={"window": 2})
    with pytest.raises(offload.OffloadError, match="prepare was given 2 pairs of a model and its optimizer"):
        accelerator.prepare(*stacks, *optimizers)
    with pytest.raises(offload.OffloadError, match="prepare was given 0 pairs"):
        accelerator.prepare(stacks[0], optimizers[1])
    assert isinstance(accelerator, Accelerator)


@pytest.mark.parametrize(("clip", "stand"), [(100.0, True), (0.5, False)])
def test_updates_during_backward_stand_unless_clipping_bites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clip: float, stand: bool
) -> None:
    watch = Watch(monkeypatch)
    for name, kind in (("alone", {}), ("windowed", {"accelerator_class": OffloadAccelerator, "offload": EARLY})):
        (tmp_path / name).mkdir()
        script.train(tmp_path / name, clip=clip, **kind)
    assert different(contents(tmp_path / "alone"), contents(tmp_path / "windowed")) == []
    assert watch.taken >= 40
    assert (watch.given_back == 0) == stand
