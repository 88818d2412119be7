"""Layers in files: the same training to the bit, whole after a kill at any point, refused where it cannot be."""

from __future__ import annotations

import errno
import os
import random
import re
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from offload_exactness import Model, Training, differences, everything, make, train  # noqa: E402
from offload_loops import adamw, plain_step  # noqa: E402
from offload_machines import machine  # noqa: E402

import tightship_offload as offload  # noqa: E402
from tightship_offload.backends.cpu import CpuBackend  # noqa: E402
from tightship_offload.backends.race_detector import Ledger  # noqa: E402
from tightship_offload.runtime.non_layer import rest_of  # noqa: E402

pytestmark = pytest.mark.torch

PROGRAM = Path(__file__).parents[2] / "support" / "offload_kills.py"
WANTED = os.environ.get("TIGHTSHIP_EXACTNESS", "")
"""All 1,000 kills, or `K/N`: a Nth of them; empty for a few."""
KILLS = 1000 // int(WANTED.partition("/")[2] or 1) if WANTED else 8
SEED = int(os.environ.get("TIGHTSHIP_EXACTNESS_SEED", random.SystemRandom().randrange(10**6)))


def kills(python: tuple[str, ...], count: int, seed: int, *more: str) -> tuple[int, str]:
    # A kill leaves the page cache as it is, so memory serves as well as a disk, and does not wait for one.
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        command = [*python, str(PROGRAM), folder, str(seed), str(count), *more]
        environ = os.environ | {"OMP_NUM_THREADS": "1"}
        ended = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True)
    sys.stdout.write(f"TIGHTSHIP_EXACTNESS_SEED={seed}\n{ended.stdout}")
    return ended.returncode, ended.stdout


@pytest.mark.timeout(0 if WANTED else 600)
def test_a_kill_at_any_point_leaves_a_whole_step(warm: tuple[str, ...]) -> None:
    code, said = kills(warm, KILLS, SEED)
    assert (code, "0 wrong" in said) == (0, True)
    points = re.search(r"(\d+) points", said)
    assert points and int(points[1]) > 1000


def test_a_store_without_its_undo_log_is_caught(warm: tuple[str, ...]) -> None:
    code, said = kills(warm, 3, 1, "no-undo")
    assert code == 1 and "wrong after a kill" in said


@pytest.mark.machines
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_training_in_files_is_the_same(tmp_path: Path, optimizer: str) -> None:
    training = Training(optimizer=optimizer, clipping=True, checkpointing="non-reentrant", frozen=True)
    results = []
    for files in (False, True):
        model, made = make(training)
        ledger = Ledger()
        with machine(ledger=ledger) if files else nullcontext() as on:
            if on is not None:
                tier = offload.NvmeTier(folder=tmp_path)
                offload.apply(model, made, window=2, resident=(2,), nvme=tier, backend=on)
            results.append(everything(model, made, train(model, made, training, 20)))
            done = offload.engine_of(model).steps_done if files else 20
        assert (ledger.races, done) == ([], 20)
    assert differences(*results) == []
    engine = offload.engine_of(model)
    inside = [p.data_ptr() for layer in engine.layers for p in layer.parameters]
    assert len(inside) == len(set(inside)) and (tmp_path / "layer-00000.weights").stat().st_size > 0
    engine.remove()


def start(folder: Path, model: Any = None, optimizer: Any = None, **options: Any) -> tuple[Any, Any]:
    model = model or Model()
    optimizer = optimizer or adamw(model.parameters())
    tier = offload.NvmeTier(folder=folder, resume=options.pop("resume", False))
    return offload.apply(model, optimizer, **{"window": 2, "nvme": tier, "backend": CpuBackend()} | options)


def test_a_folder_that_is_in_use_or_holds_a_training(tmp_path: Path) -> None:
    model, optimizer = start(tmp_path)
    with pytest.raises(offload.OffloadError, match="is in use by another process"):
        start(tmp_path, resume=True)
    plain_step(model, optimizer)
    offload.engine_of(model).remove()
    with pytest.raises(
        offload.OffloadError, match="holds a training after step 1; go on with resume=True, or empty it"
    ):
        start(tmp_path)
    with pytest.raises(offload.OffloadError, match="holds a training with another model"):
        start(tmp_path, Model(layers=3), resume=True)
    other = Model()
    with pytest.raises(offload.OffloadError, match=r"with another optimizer .'AdamW', this one has 'SGD'"):
        start(tmp_path, other, torch.optim.SGD(other.parameters()), resume=True)
    with pytest.raises(offload.OffloadError, match="in which other layers move; give the same window and residents"):
        start(tmp_path, resume=True, resident=(1,))
    again, _ = start(tmp_path, resume=True)
    assert offload.engine_of(again).steps_done == 1
    offload.engine_of(again).remove()
    (tmp_path / "step").write_text("soon")
    with pytest.raises(offload.OffloadError, match="is damaged: its file step cannot be read"):
        start(tmp_path, resume=True)


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(offload.OffloadError, match=r"Cannot write .*file/store: not a directory"):
        start(tmp_path / "file" / "store")

    def full(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    model = Model()
    before = {name: p.data_ptr() for name, p in model.named_parameters()}
    with pytest.raises(
        offload.OffloadError, match=r"weights of 0\.0 MiB: no space left on device; give an NVMe folder"
    ):
        start(tmp_path / "full", model)
    assert before == {name: p.data_ptr() for name, p in model.named_parameters()}


def test_a_folder_that_fills_up_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the first step the optimizer's state needs files of its own. What was there before is whole."""
    model, optimizer = start(tmp_path)
    before = [p.detach().clone() for p in model.parameters()]

    def full(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(offload.OffloadError, match=r"Cannot write .*: no space left on device"):
        for _ in range(2):
            plain_step(model, optimizer)
    monkeypatch.undo()
    offload.engine_of(model)._store.close()  # type: ignore[union-attr]
    again, _ = start(tmp_path, resume=True)
    assert offload.engine_of(again).steps_done == 0
    assert all(map(torch.equal, before, again.parameters()))


def test_what_does_not_move_is_written_from_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of resident layers and their state would take as much memory again. A disk that is full says so."""
    model, optimizer = start(tmp_path, resident=(1,))
    plain_step(model, optimizer)
    engine = offload.engine_of(model)
    rest = engine._rest_now()
    named = dict(model.named_parameters())
    assert {name for name in rest["tensors"] if name in named}
    assert all(rest["tensors"][name].data_ptr() == p.data_ptr() for name, p in named.items() if name in rest["tensors"])
    assert all(
        value.data_ptr() == optimizer.state[named[name]][key].data_ptr()
        for name, state in rest["state"].items()
        for key, value in state.items()
    )
    real = os.write

    def full(fd: int, content: Any) -> int:
        if "rest-" in str(Path(f"/proc/self/fd/{fd}").readlink()):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, content)

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(offload.OffloadError, match=r"Cannot write .*rest-0\.pt.*: no space left on device"):
        plain_step(model, optimizer)
    assert engine.steps_done == 1


def test_a_piece_of_a_larger_storage_is_written_alone() -> None:
    model = torch.nn.Linear(3, 2)
    model.register_buffer("part", torch.arange(1000.0)[:4])
    rest = rest_of(model, adamw(model.parameters()), ())
    assert rest["tensors"]["part"].untyped_storage().nbytes() == 16


@pytest.mark.parametrize(
    ("options", "match"),
    [({"early": offload.EarlyUpdates()}, "updates during backward"), ({"master": True}, "fp32 masters")],
)
def test_what_files_do_not_go_together_with(tmp_path: Path, options: dict[str, Any], match: str) -> None:
    with pytest.raises(offload.OffloadError, match=f"Layers in files do not go together with {match} yet"):
        start(tmp_path, **options)


def test_an_optimizer_that_has_stepped(tmp_path: Path) -> None:
    model = Model()
    optimizer = adamw(model.parameters())
    plain_step(model, optimizer)
    with pytest.raises(offload.OffloadError, match="The optimizer has state already"):
        start(tmp_path, model, optimizer)
