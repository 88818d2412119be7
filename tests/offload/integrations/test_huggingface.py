"""Hugging Face's own Trainer, with and without a window of layers: the same files to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from early_updates import EARLY, Watch  # noqa: E402
from late_import import LateImport, skip_without  # noqa: E402
from saved_files import contents, different  # noqa: E402

import tightship_offload as offload  # noqa: E402
from tightship_offload.backends.cpu import CpuBackend  # noqa: E402

skip_without("transformers")
pytestmark = pytest.mark.torch
transformers = LateImport("transformers")
script = LateImport("offload_scripts.train_huggingface")
ours = LateImport("tightship_offload.integrations.huggingface")
TIMES = ("runtime", "per_second", "flos")


def history(trainer: Any) -> list[dict[str, float]]:
    """What it logged: losses, norms and rates, without the times and the mean since the start."""
    rows = [row for row in trainer.state.log_history if "train_loss" not in row]
    return [{key: value for key, value in row.items() if not any(time in key for time in TIMES)} for row in rows]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("alone")
    return folder, script.train(folder)


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("windowed")
    backend = CpuBackend(poison=True, delay_s=0.0003, seed=3, deadline_s=60)
    return folder, script.train(folder, ours.OffloadTrainer, offload={"window": 2, "resident": [1], "backend": backend})


def test_training_and_its_files_are_the_same(alone: tuple[Path, Any], windowed: tuple[Path, Any]) -> None:
    assert different(contents(alone[0]), contents(windowed[0])) == []
    assert history(alone[1]) == history(windowed[1])
    assert history(alone[1])[0]["grad_norm"] > 0.5, "nothing was clipped"
    last = offload.engine_of(windowed[1].model).last
    assert last is not None and last.fetches > 0 and last.h2d_bytes > 0


@pytest.mark.sliced(1)
@pytest.mark.parametrize("ours_first", [False, True])
def test_a_checkpoint_is_continued_by_the_other(
    tmp_path: Path, alone: tuple[Path, Any], windowed: tuple[Path, Any], ours_first: bool
) -> None:
    begun = windowed if ours_first else alone
    options: dict[str, Any] = {} if ours_first else {"trainer_class": ours.OffloadTrainer, "offload": {"window": 3}}
    trainer = script.train(tmp_path, resume=str(begun[0] / "checkpoints" / "checkpoint-6"), **options)
    last = Path("checkpoints", "checkpoint-12")
    assert different(contents(alone[0] / last), contents(tmp_path / last)) == []
    assert history(trainer) == history(alone[1])


def test_weights_load_without_us(windowed: tuple[Path, Any]) -> None:
    loaded = transformers.GPT2LMHeadModel.from_pretrained(windowed[0] / "checkpoints" / "checkpoint-12")
    trained = windowed[1].model.state_dict()
    assert all(torch.equal(value, trained[name]) for name, value in loaded.state_dict().items())


@pytest.mark.sliced(1)
@pytest.mark.parametrize(
    "settings", [{"bf16": True, "use_cpu": True}, {"gradient_checkpointing": True}, {"optim": "sgd"}]
)
def test_other_settings(tmp_path: Path, settings: dict[str, Any]) -> None:
    without = script.train(tmp_path / "alone", settings=settings)
    within = script.train(tmp_path / "windowed", ours.OffloadTrainer, settings=settings, offload={"window": 2})
    assert different(contents(tmp_path / "alone"), contents(tmp_path / "windowed")) == []
    assert history(without) == history(within)


def test_evaluation_around_training(tmp_path: Path) -> None:
    def curious(kind: Any) -> Any:
        class Curious(kind):  # type: ignore[misc]
            def train(self, *args: Any, **options: Any) -> Any:
                self.seen = [self.evaluate()["eval_loss"]]
                result = super().train(*args, **options)
                self.seen.append(self.evaluate()["eval_loss"])
                return result

        return Curious

    without = script.train(tmp_path / "alone", curious(transformers.Trainer))
    within = script.train(tmp_path / "windowed", curious(ours.OffloadTrainer), offload={"window": 2})
    assert without.seen == within.seen and without.seen[0] != without.seen[1]
    assert different(contents(tmp_path / "alone"), contents(tmp_path / "windowed")) == []


def test_a_plan_of_another_model_is_refused_before_anything_moves(tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text("version: 1\nmodel: {name: GPT2LMHeadModel, layer_parameters: [7, 7]}\nwindow: {slots: 2}\n")
    with pytest.raises(offload.PlanError, match="the plan is for 2 layers, this model has 4"):
        script.train(tmp_path, ours.OffloadTrainer, offload=plan)


@pytest.mark.sliced(1)
@pytest.mark.parametrize(("clip", "stand"), [(100.0, True), (0.5, False)])
def test_updates_during_backward_stand_unless_clipping_bites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clip: float, stand: bool
) -> None:
    watch = Watch(monkeypatch)
    script.train(tmp_path / "alone", clip=clip)
    script.train(tmp_path / "windowed", ours.OffloadTrainer, clip=clip, offload=EARLY)
    assert different(contents(tmp_path / "alone"), contents(tmp_path / "windowed")) == []
    assert watch.taken >= 40
    assert (watch.given_back == 0) == stand
