"""`tightship run --offload plan.yaml -- python train.py` with scripts of trainers, which know nothing of us."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from late_import import LateImport, skip_without  # noqa: E402
from launching import launch, warnings_in  # noqa: E402
from offload_exactness import Model  # noqa: E402
from saved_files import contents, different  # noqa: E402
from torch import nn  # noqa: E402
from warm_python import OPTIMIZERS, warm_python  # noqa: E402

from tightship_offload.plan.file import write_plan  # noqa: E402
from tightship_offload.plan.model import ModelSpec, Plan, Window  # noqa: E402
from tightship_offload.runtime.apply import describe  # noqa: E402
from tightship_offload.runtime.blocks import find_blocks  # noqa: E402

skip_without("transformers", "accelerate", "lightning")
pytestmark = pytest.mark.torch
Python = tuple[str, ...]
SCRIPTS = Path(__file__).parents[2] / "support" / "offload_scripts"
BUT = ("/callbacks/", "/loops/")


def planned(model: nn.Module, path: Path) -> Path:
    """A plan for a model, as the planner writes it."""
    blocks = find_blocks(model)
    write_plan(Plan(model=describe(model, blocks), window=Window(slots=2, resident=(1,))), path)
    return path


@pytest.fixture
def home() -> Iterator[dict[str, str]]:
    """The environment of a launcher whose server is not there. Its sockets need a short path."""
    with tempfile.TemporaryDirectory(prefix="ts-") as folder:
        yield {"TIGHTSHIP_HOME": f"{folder}/home", "TIGHTSHIP_RUNTIME_DIR": f"{folder}/r", "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def warm_trainers() -> Iterator[Python]:
    """Stands for `python` in a command, where the trainers' libraries are imported already."""
    with warm_python(
        *OPTIMIZERS, "transformers.trainer", "transformers.models.llama.modeling_llama", "lightning"
    ) as python:
        yield python


def run(
    tmp_path: Path, home: dict[str, str], name: str, plan: Path, python: Python = (sys.executable,)
) -> subprocess.CompletedProcess[str]:
    """The script under the launcher."""
    out = tmp_path / "windowed"
    out.mkdir()
    command = (*python, SCRIPTS / "counted.py", SCRIPTS / f"{name}.py", out)
    return launch(*command, options=("--offload", str(plan)), extra_env=home, cwd=tmp_path)


@pytest.mark.sliced(2)
@pytest.mark.parametrize(
    ("name", "model", "steps"),
    [
        # The plan may know the whole model, or the part of it that has all parameters, which the optimizer leads to.
        ("train_huggingface", lambda trainer: trainer.model, 12),
        ("train_huggingface", lambda trainer: trainer.model.transformer, 12),
        ("train_accelerate", lambda made: made[1], 12),
        ("train_lightning", lambda trainer: trainer.lightning_module.net, 12),
    ],
    ids=["huggingface", "huggingface-inner", "accelerate", "lightning"],
)
def test_a_trainer_s_script_trains_bit_for_bit_the_same(
    tmp_path: Path,
    home: dict[str, str],
    warm_trainers: Python,
    name: str,
    model: Callable[[Any], nn.Module],
    steps: int,
) -> None:
    alone = tmp_path / "alone"
    alone.mkdir()
    plan = planned(model(LateImport(f"offload_scripts.{name}").train(alone)), tmp_path / "plan.yaml")
    # One of them in a process of its own, where the libraries are imported under the plan.
    python = (sys.executable,) if name == "train_accelerate" else warm_trainers
    done = run(tmp_path, home, name, plan, python)
    assert done.returncode == 0, done.stderr[-3000:]
    fetched = [int(count) for count in done.stdout.splitlines()[-1].removeprefix("layers fetched: ").split()]
    assert len(fetched) == steps and min(fetched) >= 4
    assert different(contents(alone, but=BUT), contents(tmp_path / "windowed", but=BUT)) == []


def test_a_plan_of_another_model_ends_the_job_with_one_line(
    tmp_path: Path, home: dict[str, str], warm_trainers: Python
) -> None:
    path = tmp_path / "plan.yaml"
    write_plan(Plan(model=ModelSpec(name="Other", layer_parameters=(7, 7)), window=Window(slots=2)), path)
    done = run(tmp_path, home, "train_lightning", path, warm_trainers)
    ours = [line for line in warnings_in(done.stderr) if "No tightship server" not in line]
    assert done.returncode == 2
    assert len(ours) == 1 and "the plan is for 2 layers, this model has 4" in ours[0]
    assert "Traceback" not in done.stderr and "fetched" not in done.stdout
    assert not list((tmp_path / "windowed").rglob("*.pt")), "it has trained"


MOVES = """
import json, sys
sys.path.insert(0, sys.argv[1])
import torch
from offload_exactness import Model

class Metric(torch.nn.Module):
    def _apply(self, fn, exclude_state=""):  # as that of torchmetrics: it takes no `recurse`
        self.value = fn(torch.zeros(1))
        return super()._apply(fn)

class Outer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.metric, self.lazy = Model(tied=True), Metric(), torch.nn.LazyLinear(3)

outer = Outer()
torch.optim.SGD(outer.lazy.parameters(), lr=0.1) if sys.argv[2] == "other first" else None
assert outer.to("meta") is outer
print(json.dumps([name for name, p in outer.named_parameters() if p.device.type == "cpu"]))
print(outer.metric.value.device)
"""


@pytest.mark.sliced(1)
@pytest.mark.parametrize("which", ["whole", "other first"])
def test_layers_that_take_turns_stay_when_a_wrapper_of_the_model_moves(
    tmp_path: Path, home: dict[str, str], warm_trainers: Python, which: str
) -> None:
    model = Model(tied=True)
    plan = planned(model, tmp_path / "plan.yaml")
    (tmp_path / "moves.py").write_text(MOVES)
    command = (*warm_trainers, tmp_path / "moves.py", SCRIPTS.parent, which)
    done = launch(*command, options=("--offload", str(plan)), extra_env=home)
    assert done.returncode == 0, done.stderr[-3000:]
    stayed, metric = done.stdout.splitlines()
    names = [name for name, _ in model.named_parameters() if "blocks." in name and "blocks.1." not in name]
    assert json.loads(stayed) == [f"net.{name}" for name in names]
    assert metric == "meta"
