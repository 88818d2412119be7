"""The oversized GPT of the examples knows nothing of us, and trains to the same weights under a plan."""

from __future__ import annotations

import ast
import os
import subprocess
from pathlib import Path

import pytest
from source_tree import ROOT

SCRIPT = ROOT / "examples" / "oversized_gpt.py"
INJECT = ROOT / "collectors" / "tightship_collectors" / "inject"
WIDTH, LAYERS = 64, 4
BLOCK = 4 * WIDTH + (WIDTH * 3 * WIDTH + 3 * WIDTH) + (WIDTH**2 + WIDTH) + (8 * WIDTH**2 + 5 * WIDTH)


def test_it_imports_nothing_of_ours() -> None:
    text = SCRIPT.read_text()
    modules = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([one.name for one in node.names] if isinstance(node, ast.Import) else [node.module or ""])
    }
    assert modules == {"argparse", "pathlib", "torch"}
    assert "tightship" not in text


@pytest.mark.torch
def test_a_plan_leaves_its_losses_and_weights_as_they_are(tmp_path: Path, warm: tuple[str, ...]) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text(f"version: 1\nmodel: {{name: GPT, layer_parameters: {[BLOCK] * LAYERS}}}\nwindow: {{slots: 2}}\n")

    def train(name: str, **variables: str) -> str:
        env = {key: value for key, value in os.environ.items() if not key.startswith("TIGHTSHIP_")}
        env |= {"PYTHONPATH": str(INJECT), "OMP_NUM_THREADS": "1"} | variables
        sizes = ["--layers", str(LAYERS), "--width", str(WIDTH), "--steps", "5", "--save", str(tmp_path / name)]
        done = subprocess.run([*warm, str(SCRIPT), *sizes], env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert train("plain.pt") == train("windowed.pt", TIGHTSHIP_OFFLOAD_PLAN=str(plan))
    import torch

    plain, windowed = (torch.load(tmp_path / name) for name in ("plain.pt", "windowed.pt"))
    assert list(plain) == list(windowed)
    assert all(torch.equal(plain[key], windowed[key]) for key in plain)
