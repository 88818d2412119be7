"""The demo's jobs are ordinary training scripts that know nothing of tightship."""

from __future__ import annotations

import ast
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from warm_python import OPTIMIZERS, warm_python

from tightship_platform.demo.plot import JOBS

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.workflow)
def test_examples_import_nothing_of_ours(job: object) -> None:
    tree = ast.parse((EXAMPLES / job.script).read_text())  # type: ignore[attr-defined]
    imported = {
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""])
    }
    assert not [name for name in imported if "tightship" in name]
    assert "tightship" not in (EXAMPLES / job.script).read_text()  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def warm() -> Iterator[tuple[str, ...]]:
    """Stands for `python` in a command, where torch is imported already."""
    with warm_python(*OPTIMIZERS) as python:
        yield python


@pytest.mark.torch
@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.workflow)
def test_examples_train(job: object, tmp_path: Path, warm: tuple[str, ...]) -> None:
    script = EXAMPLES / job.script  # type: ignore[attr-defined]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    options = ["--save-every", "1"] if script.stem == "frequent_checkpoints" else []
    done = subprocess.run(
        [*warm, str(script), "--seconds", "0.5", *options], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "loss" in done.stdout
    assert list(tmp_path.iterdir()) == []
