"""Lightning's own Trainer, with and without a window of layers: the same files to the bit."""

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
from tightship_offload.integrations.state_in_place import leave_state_in_place  # noqa: E402
from tightship_offload.runtime.engine import has_engine  # noqa: E402

skip_without("lightning")
pytestmark = pytest.mark.torch
lightning = LateImport("lightning")
strategies = LateImport("lightning.pytorch.strategies")
script = LateImport("offload_scripts.train_lightning")
ours = LateImport("tightship_offload.integrations.lightning")
BUT = ("/callbacks/", "/loops/")
"""Of a checkpoint: names of folders, and times."""
QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
LAST = Path("checkpoints", "step=12.ckpt")


def watched(**options: Any) -> Any:
    """A strategy on a backend that makes races visible."""
    backend = CpuBackend(poison=True, delay_s=0.0003, seed=3, deadline_s=60)
    return ours.OffloadStrategy({"window": 2, "backend": backend} | options)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("alone")
    script.train(folder)
    return folder


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("windowed")
    script.train(folder, strategy=watched(resident=[1]))
    return folder


def test_training_and_its_files_are_the_same(alone: Path, windowed: Path) -> None:
    assert different(contents(alone, but=BUT), contents(windowed, but=BUT)) == []


def test_clipping_matters_here(tmp_path: Path, alone: Path) -> None:
    script.train(tmp_path, clip=None)
    assert different(contents(alone / LAST, but=BUT), contents(tmp_path / LAST, but=BUT)) != []


def test_a_checkpoint_is_continued_by_the_other(tmp_path: Path, alone: Path, windowed: Path) -> None:
    for name, begun, options in (
        ("plain", alone, {}),
        ("plain from ours", windowed, {}),
        ("ours from plain", alone, {"strategy": watched()}),
    ):
        script.train(tmp_path / name, resume=str(begun / "checkpoints" / "step=6.ckpt"), **options)
    plain, *others = (contents(path / LAST, but=BUT) for path in sorted(tmp_path.iterdir(), key=lambda p: len(p.name)))
    assert [different(plain, other) for other in others] == [[], []]


def not_fused() -> Any:
    """Lightning does not clip under a fused optimizer in mixed precision."""

    class NotFused(script.Wrapped):
        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    return NotFused()


@pytest.mark.sliced(1)
@pytest.mark.parametrize(
    ("module", "precision"), [("Own", "32-true"), ("not_fused", "bf16-mixed"), ("Wrapped", "bf16-true")]
)
def test_other_settings(tmp_path: Path, module: str, precision: Any) -> None:
    make = not_fused if module == "not_fused" else getattr(script, module)
    script.train(tmp_path / "alone", make, precision=precision)
    script.train(tmp_path / "windowed", make, strategy=watched(), precision=precision)
    assert different(contents(tmp_path / "alone", but=BUT), contents(tmp_path / "windowed", but=BUT)) == []


def test_the_window_is_there_while_the_module_is_fitted_and_gone_after(tmp_path: Path) -> None:
    fetches = []

    class Watching(script.Own):
        def on_train_batch_end(self, *_: Any) -> None:
            last = offload.engine_of(self).last
            fetches.append(last.fetches if last else 0)

    trainer = script.train(tmp_path, Watching, strategy=watched())
    module = trainer.lightning_module
    assert len(fetches) == 24 and min(fetches[2:]) >= 4
    assert not has_engine(module) and type(trainer.optimizers[0]) is torch.optim.AdamW
    loaded = torch.load(tmp_path / LAST, weights_only=False)["state_dict"]
    assert all(torch.equal(value, loaded[name]) for name, value in module.state_dict().items())
    fetches.clear()
    # It can be fitted once more.
    script.train(tmp_path / "again", lambda: module, strategy=ours.OffloadStrategy({"window": 2}))
    assert len(fetches) == 24 and not has_engine(module)


def test_resuming_under_the_launcher_leaves_the_state_of_layers_that_move_where_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(strategies.strategy, "_optimizer_to_device", strategies.strategy._optimizer_to_device)
    leave_state_in_place()
    for window in (True, False):
        module = script.Own()
        optimizer = torch.optim.AdamW(module.parameters(), fused=True)
        if window:
            offload.apply(module, optimizer, window=2)
        for parameter in module.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        strategy = strategies.SingleDeviceStrategy(device=torch.device("meta"))
        strategy.optimizers = [optimizer]
        strategy.load_optimizer_state_dict({"optimizer_states": [optimizer.state_dict()]})
        moments = [state["exp_avg"] for state in optimizer.state.values()]
        assert {moment.device.type for moment in moments} == {"cpu" if window else "meta"}


def test_a_module_that_is_only_validated_has_no_window() -> None:
    module = script.Wrapped()
    rows = torch.utils.data.DataLoader(torch.zeros(4, 16, dtype=torch.long), batch_size=2)
    lightning.Trainer(strategy=ours.OffloadStrategy({"window": 2}), **QUIET).validate(module, rows, verbose=False)
    assert len(module.losses) == 2 and not has_engine(module)


def test_a_gpu_is_named_with_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    assert ours.OffloadStrategy({"window": 2}).root_device == torch.device("cuda", 3)


def test_two_optimizers_are_refused(tmp_path: Path) -> None:
    class Two(script.Wrapped):
        automatic_optimization = False

        def configure_optimizers(self) -> Any:
            return [torch.optim.SGD(part.parameters(), 0.1) for part in (self.net.model, self.net.lm_head)]

    trainer = lightning.Trainer(strategy=ours.OffloadStrategy({"window": 2}), default_root_dir=tmp_path, **QUIET)
    with pytest.raises(offload.OffloadError, match="Two has 2 optimizers; a window needs exactly one"):
        trainer.fit(Two(), torch.utils.data.DataLoader(torch.zeros(4, 16, dtype=torch.long)))


@pytest.mark.sliced(1)
@pytest.mark.parametrize(("clip", "stand"), [(100.0, True), (0.5, False)])
def test_updates_during_backward_stand_unless_clipping_bites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clip: float, stand: bool
) -> None:
    watch = Watch(monkeypatch)
    script.train(tmp_path / "alone", clip=clip)
    script.train(tmp_path / "windowed", strategy=ours.OffloadStrategy(EARLY), clip=clip)
    assert different(contents(tmp_path / "alone", but=BUT), contents(tmp_path / "windowed", but=BUT)) == []
    assert watch.taken >= 40
    assert (watch.given_back == 0) == stand
