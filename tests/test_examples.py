"""The demo's jobs are ordinary training scripts that know nothing of tightship."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.torch
@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.workflow)
def test_examples_train(job: object, tmp_path: Path) -> None:
    script = EXAMPLES / job.script  # type: ignore[attr-defined]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(script), "--seconds", "4"], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "loss" in done.stdout
    assert list(tmp_path.iterdir()) == []
