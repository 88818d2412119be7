"""`tightship run --offload`: unmodified scripts, in processes of their own.

Where nothing depends on who imports torch, and when, that process is a fork of one that has (`warm`).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import PATIENCE_S

from tightship_offload.plan.capabilities import SHORTAGE
from tightship_platform.ingest.offload import MEASURED, PLANNED

pytestmark = pytest.mark.torch

INJECT = Path(__file__).parents[3] / "collectors" / "tightship_collectors" / "inject"

SCRIPT = """
import sys
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))

class Net(nn.Module):
    def __init__(self, width=32, layers=4):
        super().__init__()
        self.embed = nn.Embedding(50, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, 50)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)

class MyAdam(torch.optim.AdamW):
    def __init__(self, parameters, lr):
        super().__init__(parameters, lr=lr, fused=True)
        self.mine = True

model = Net()
make = {"plain": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True), "own": lambda p: MyAdam(p, 1e-2),
        "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)}[sys.argv[1]]
optimizer = make(model.parameters())
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
for _ in range(10):
    for _ in range(2):
        ids = torch.randint(50, (4, 16))
        nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).div(2).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
import hashlib
state = [v for p in model.parameters() for v in optimizer.state[p].values()]
print(hashlib.sha256(b"".join(t.detach().numpy().tobytes() for t in [*model.parameters(), *state])).hexdigest())
print("offloaded" if hasattr(type(optimizer), "tightship_kind") else "ordinary")
"""
BLOCK = 32 * 2 + (32 * 64 + 64) + (64 * 32 + 32)
PLAN = f"version: 1\nmodel: {{name: Net, layer_parameters: {[BLOCK] * 4}}}\nwindow: {{slots: 2, resident: [0]}}\n"


Python = tuple[str, ...]


def run(
    tmp_path: Path, *arguments: str, python: Python = (sys.executable,), script: str = SCRIPT, **variables: str
) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "train.py"
    path.write_text(script)
    env = {key: value for key, value in os.environ.items() if not key.startswith("TIGHTSHIP_")}
    paths = os.pathsep.join(filter(None, (str(INJECT), os.environ.get("PYTHONPATH"))))
    env |= {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"} | variables
    return subprocess.run(
        [*python, str(path), *arguments],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
    )


def planned(tmp_path: Path, text: str = PLAN) -> str:
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    return str(path)


@pytest.mark.sliced(1)
@pytest.mark.parametrize("optimizer", ["own", "sgd"])
def test_an_unmodified_script_trains_bit_for_bit_the_same(tmp_path: Path, warm: Python, optimizer: str) -> None:
    alone = run(tmp_path, optimizer, python=warm)
    python = warm if optimizer == "sgd" else (sys.executable,)
    windowed = run(tmp_path, optimizer, python=python, TIGHTSHIP_OFFLOAD_PLAN=planned(tmp_path))
    assert (alone.returncode, windowed.returncode) == (0, 0), windowed.stderr
    assert alone.stdout.split()[1] == "ordinary"
    assert windowed.stdout.split() == [alone.stdout.split()[0], "offloaded"]
    word = "tightship: SGD was made without fused=True, so layers that move are updated by a loop over operators"
    assert windowed.stderr.startswith(word) if optimizer == "sgd" else windowed.stderr == ""


@pytest.mark.sliced(1)
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (PLAN.replace(f"[{BLOCK}, ", "["), "the plan is for 3 layers, this model has 4"),
        (PLAN.replace("name: Net,", "name: Net, layers: 'part.*',"), "The plan is for another model: "),
        (PLAN.replace("slots: 2", "slots: 0"), "plan.window.slots is 0; expected a whole number"),
    ],
)
def test_a_plan_that_does_not_apply_ends_the_job_with_one_line(
    tmp_path: Path, warm: Python, text: str, said: str
) -> None:
    done = run(tmp_path, "plain", python=warm, TIGHTSHIP_OFFLOAD_PLAN=planned(tmp_path, text))
    assert done.returncode == 2
    assert said in done.stderr and done.stderr.startswith("tightship: ")
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""


def test_a_disk_that_fills_up_ends_the_job_with_one_line_and_keeps_what_is_there(tmp_path: Path, warm: Python) -> None:
    """Not all of what a step writes fits into its file."""
    layers = tmp_path / "layers"
    text = PLAN.replace(", resident: [0]", "") + f"nvme: {{folder: {layers}, layers: [0, 1, 2, 3], weights: true}}\n"
    plan = planned(tmp_path, text)
    small = f"import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, ({6 * BLOCK}, -1))\n"
    full = run(tmp_path, "plain", python=warm, script=small + SCRIPT, TIGHTSHIP_OFFLOAD_PLAN=plan)
    assert full.returncode == 2, full.stderr
    [line] = full.stderr.splitlines()
    assert line.startswith(f"tightship: Cannot write {layers}/") and " of 0.0 MiB: file too large" in line

    alone = run(tmp_path, "plain", python=warm)
    whole = run(tmp_path, "plain", python=warm, TIGHTSHIP_OFFLOAD_PLAN=plan)
    assert (whole.returncode, whole.stderr) == (0, "")
    assert whole.stdout.split() == [alone.stdout.split()[0], "offloaded"]
    again = run(tmp_path, "plain", python=warm, TIGHTSHIP_OFFLOAD_PLAN=plan)
    assert again.stderr == f"tightship: goes on after step 10 of the training in {layers}; for a new one remove that\n"


def test_a_measured_script_that_is_out_of_memory_leaves_a_mark(tmp_path: Path, warm: Python) -> None:
    for name, marks in (("MemoryError", True), ("ValueError", False)):
        folder = tmp_path / name
        folder.mkdir()
        done = run(
            folder,
            python=warm,
            script=f"import torch\nraise {name}",
            TIGHTSHIP_OFFLOAD_MEASURE=str(folder / "record.json"),
        )
        assert name in done.stderr
        assert (folder / SHORTAGE).exists() is marks


OTHER_MACHINE = (
    "hardware: {device: NVIDIA H200, device_bytes: 1, host_bytes: 1, cores: 1, h2d_bytes_per_s: 1.0, "
    "d2h_bytes_per_s: 1.0, h2d_duplex_bytes_per_s: 1.0, d2h_duplex_bytes_per_s: 1.0, adam_params_per_s: {1: 1.0}}\n"
)


def test_a_plan_for_another_machine_ends_the_job_when_it_would_be_applied(tmp_path: Path, warm: Python) -> None:
    plan = planned(tmp_path, PLAN + OTHER_MACHINE)
    done = run(tmp_path, "plain", python=warm, TIGHTSHIP_OFFLOAD_PLAN=plan)
    assert done.returncode == 2
    assert done.stderr.startswith("tightship: The plan is for another machine: the plan is for a 'NVIDIA H200'")
    assert len(done.stderr.splitlines()) == 1
    without = run(tmp_path, "plain", python=warm, TIGHTSHIP_OFFLOAD_PLAN=plan, TIGHTSHIP_OFFLOAD_OPTIONAL="1")
    assert (without.returncode, without.stdout.split()[1]) == (0, "ordinary")
    assert without.stderr.endswith("; the job runs without the plan\n") and len(without.stderr.splitlines()) == 1


@pytest.mark.sliced(1)
@pytest.mark.parametrize(
    ("deadline", "said"), [("7.5", ""), ("soon", "expected a number of seconds"), ("0", "expected a")]
)
def test_how_long_a_wait_may_take_is_said_by_the_launcher(
    tmp_path: Path, warm: Python, deadline: str, said: str
) -> None:
    script = f"{SCRIPT}\nimport tightship_offload\nprint(tightship_offload.engine_of(model).backend.deadline_s)"
    given = {"TIGHTSHIP_OFFLOAD_PLAN": planned(tmp_path), "TIGHTSHIP_OFFLOAD_DEADLINE": deadline}
    done = run(tmp_path, "plain", python=warm, script=script, **given)
    if said:
        assert done.returncode == 2 and said in done.stderr and len(done.stderr.splitlines()) == 1
    else:
        assert (done.returncode, done.stderr, done.stdout.split()[-1]) == (0, "", deadline)


@pytest.mark.sliced(1)
@pytest.mark.parametrize("first", ["", ".runtime.engine"])
def test_a_script_may_import_the_runtime_first(tmp_path: Path, first: str) -> None:
    script = f"import tightship_offload{first}\nprint(tightship_offload.apply.__name__)\n{SCRIPT}"
    done = run(tmp_path, "plain", script=script, TIGHTSHIP_OFFLOAD_PLAN=planned(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split()[::2] == ["apply", "offloaded"]


def test_updates_during_backward_that_are_lost_in_every_step_are_told_once(tmp_path: Path, warm: Python) -> None:
    early = "optimizer: {start: during-backward, clipping: speculative}\nloop: {micro_batches: 2, clip_norm: 1.0}\n"
    reading = SCRIPT.replace("range(10)", "range(15)").replace(
        "nn.utils.clip_grad_norm_(model.parameters(), 1.0)", "[p.grad.norm() for p in model.parameters()]"
    )
    done = run(tmp_path, "plain", python=warm, script=reading, TIGHTSHIP_OFFLOAD_PLAN=planned(tmp_path, PLAN + early))
    assert (done.returncode, done.stdout.split()[1]) == (0, "offloaded")
    assert len(done.stderr.splitlines()) == 1
    assert "taken back in each of the last 10 steps" in done.stderr and "plan without --early" in done.stderr


def test_an_optional_plan_that_does_not_apply_leaves_the_job_alone(tmp_path: Path, warm: Python) -> None:
    plan = planned(tmp_path, PLAN.replace(f"[{BLOCK}, ", "[7, "))
    done = run(tmp_path, "plain", python=warm, TIGHTSHIP_OFFLOAD_PLAN=plan, TIGHTSHIP_OFFLOAD_OPTIONAL="1")
    assert done.returncode == 0
    assert f"layer 0 has 7 parameters in the plan and {BLOCK:,} in this model" in done.stderr
    assert "the job runs without the plan" in done.stderr
    assert done.stdout.split()[1] == "ordinary"


MOVED = (
    SCRIPT.partition("make = ")[0]
    + """
model.to("meta", dtype=torch.bfloat16)
print(*{p.device.type for p in model.blocks.parameters()})
optimizer = torch.optim.AdamW(model.parameters())
print(*{p.device.type for p in model.parameters()}, *{p.dtype for p in model.parameters()})
"""
)


def test_an_optional_plan_that_is_refused_after_the_move_leaves_no_layer_behind(tmp_path: Path, warm: Python) -> None:
    """An optimizer that steps through all parameters at once is seen only when it is made."""
    plan, script = PLAN.replace("resident: [0]", "resident: []"), MOVED.replace("AdamW", "LBFGS")
    done = run(
        tmp_path,
        python=warm,
        script=script,
        TIGHTSHIP_OFFLOAD_PLAN=planned(tmp_path, plan),
        TIGHTSHIP_OFFLOAD_OPTIONAL="1",
    )
    assert done.returncode == 0, done.stderr
    assert "LBFGS" in done.stderr and "the job runs without the plan" in done.stderr
    assert done.stdout.splitlines() == ["cpu", "meta torch.bfloat16"]


def test_only_the_model_that_trains_is_windowed(tmp_path: Path, warm: Python) -> None:
    """A teacher of the same architecture, moved before the optimizer is made, and an average made after it."""
    script = (
        SCRIPT.partition("make = ")[0]
        + """
teacher = Net().requires_grad_(False).to("meta")
optimizer = torch.optim.AdamW(model.parameters())
average = Net().to("meta")
print(*{p.device.type for p in teacher.parameters()}, *{p.device.type for p in average.parameters()})
"""
    )
    done = run(tmp_path, python=warm, script=script, TIGHTSHIP_OFFLOAD_PLAN=planned(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "meta meta"


def test_a_python_without_the_runtime_ends_with_one_line(tmp_path: Path, warm: Python) -> None:
    (tmp_path / "tightship_offload").mkdir()
    (tmp_path / "tightship_offload" / "__init__.py").write_text("raise ImportError('not here\\n')\n")
    hidden = os.pathsep.join([str(INJECT), str(tmp_path)])
    done = run(tmp_path, "plain", python=warm, TIGHTSHIP_OFFLOAD_PLAN=planned(tmp_path), PYTHONPATH=hidden)
    assert done.returncode == 2
    assert "install tightship[offload] for this Python" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_run_is_told_what_was_predicted_and_what_its_steps_took(tmp_path: Path, warm: Python) -> None:
    interval = "{value: 5.0e+7, low: 4.0e+7, high: 6.0e+7}"
    prediction = (
        f"prediction: {{step_ns: {interval}, no_offload_step_ns: {interval}, device_bytes: 1, host_bytes: 1, "
        "pinned_bytes: 1, h2d_bytes: 1, d2h_bytes: 1, bottleneck: compute}\n"
    )
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    plan = planned(tmp_path, PLAN + prediction)
    done = run(tmp_path, "plain", python=warm, TIGHTSHIP_OFFLOAD_PLAN=plan, TIGHTSHIP_RUN_DIR=str(run_dir))
    assert (done.returncode, done.stderr) == (0, "")
    figures = json.loads((run_dir / "offload.json").read_text())
    assert set(figures) == {*PLANNED, *MEASURED}
    assert (figures["layers"], figures["slots"], figures["resident"], figures["steps"]) == (4, 2, 1, 10)
    assert (figures["predicted_step_ns"], figures["predicted_low_ns"]) == (50_000_000, 40_000_000)
    assert figures["step_ns"] > 0
    assert figures["h2d_bytes"] >= 3 * 4 * BLOCK  # three layers move, each at least once a step
    assert [path.name for path in run_dir.iterdir()] == ["offload.json"]


def test_masters_are_updated_alike_with_and_without_a_compiler_and_a_line_says_which(
    tmp_path: Path, warm: Python
) -> None:
    script = SCRIPT.replace("Net()", "Net().bfloat16()").replace(".numpy()", ".float().numpy()")
    plan = planned(tmp_path, PLAN + "precision: {weights: bf16, master: fp32, gradients: bf16}\n")
    said, digests = [], []
    for switch in ("0", "1"):
        variables = {"TIGHTSHIP_OFFLOAD_PLAN": plan, "TIGHTSHIP_OFFLOAD_NATIVE": switch}
        done = run(tmp_path, "plain", python=warm, script=script, **variables)
        assert done.returncode == 0, done.stderr
        digests.append(done.stdout)
        said.append(done.stderr)
    assert digests[0] == digests[1]
    assert said[0] == (
        "tightship: fp32 masters are updated by torch, in several passes over memory: TIGHTSHIP_OFFLOAD_NATIVE is 0\n"
    )
    if shutil.which("c++"):
        assert said[1] == ""


def test_measuring_changes_nothing_and_ends_the_job(tmp_path: Path, warm: Python) -> None:
    record = tmp_path / "record.json"
    done = run(tmp_path, "plain", python=warm, TIGHTSHIP_OFFLOAD_MEASURE=str(record), TIGHTSHIP_OFFLOAD_STEPS="3")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    measured = json.loads(record.read_text())
    assert measured["model"]["layer_parameters"] == [BLOCK] * 4
    assert measured["model"]["block"] == "Block"
    assert (measured["micro_batches"], measured["batch"], measured["tokens"]) == (2, 4, 64)
    assert (measured["clip_norm"], measured["state_bytes_per_parameter"], measured["steps"]) == (1.0, 8, 3)
    assert measured["update_form"] == "fused"
    assert measured["input_bytes"] == [4 * 16 * 32 * 4] * 4
    # Of a layer: its input, the norm's output and two statistics, and what relu gives to the second product, which is
    # twice as wide.
    numbers = 4 * 16
    assert measured["activation_bytes"] == [4 * numbers * (32 + 32 + 2 + 64)] * 4
    parts = sum(measured["forward_ns"]) + sum(measured["backward_ns"])
    parts += measured["before_forward_ns"] + measured["head_ns"] + measured["after_backward_ns"]
    whole = 2 * parts + measured["clip_ns"] + measured["update_ns"]
    # All in one unit and per step; how near depends on what else the machine does.
    assert 0.05 * measured["step_ns"] < whole < 20 * measured["step_ns"]
    assert min(measured["forward_ns"]) > 0 and min(measured["backward_ns"]) > 0


def test_clipping_is_seen_by_whatever_name_it_was_imported(tmp_path: Path, warm: Python) -> None:
    record = tmp_path / "record.json"
    script = "from torch.nn.utils import clip_grad_norm_\n" + SCRIPT.replace("nn.utils.clip_grad", "clip_grad")
    done = run(tmp_path, "plain", script=script, TIGHTSHIP_OFFLOAD_MEASURE=str(record), TIGHTSHIP_OFFLOAD_STEPS="2")
    assert done.returncode == 0, done.stderr
    assert json.loads(record.read_text())["clip_norm"] == 1.0


def test_early_updates_stand_under_a_clipping_imported_by_name(tmp_path: Path) -> None:
    early = "optimizer: {start: during-backward, clipping: speculative}\n"
    early += "loop: {micro_batches: 2, clip_norm: 1000000.0}\n"
    script = "from torch.nn.utils import clip_grad_norm_\n" + SCRIPT.replace(
        "nn.utils.clip_grad_norm_(model.parameters(), 1.0)", "clip_grad_norm_(model.parameters(), 1e6)"
    )
    script += """
import tightship_offload
print(tightship_offload.engine_of(model).updates.taken_back)
"""
    done = run(tmp_path, "plain", script=script, TIGHTSHIP_OFFLOAD_PLAN=planned(tmp_path, PLAN + early))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1:] == ["offloaded", "0"]


def test_a_model_that_moves_block_by_block(tmp_path: Path, warm: Python) -> None:
    script = (
        SCRIPT.partition("make = ")[0]
        + """
for block in model.blocks:
    block.to("meta")
print(*(block.up.weight.device.type for block in model.blocks))
"""
    )
    script = script.replace("block.up.weight", "next(block.parameters())")
    done = run(tmp_path, python=warm, script=script, TIGHTSHIP_OFFLOAD_PLAN=planned(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["meta", "cpu", "cpu", "cpu"]  # the first one is resident


def test_a_script_without_repeated_blocks_cannot_be_measured(tmp_path: Path, warm: Python) -> None:
    script = "import torch\nmodel = torch.nn.Bilinear(2, 2, 2)\ntorch.optim.SGD(model.parameters(), lr=1)\n"
    (tmp_path / "odd.py").write_text(script)
    env = os.environ | {"PYTHONPATH": str(INJECT), "TIGHTSHIP_OFFLOAD_MEASURE": str(tmp_path / "record.json")}
    done = subprocess.run([*warm, "odd.py"], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 2
    assert "has no repeated blocks" in done.stderr and len(done.stderr.splitlines()) == 1
