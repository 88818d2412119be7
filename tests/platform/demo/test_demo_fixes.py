"""The demo's changes of its scripts: each fits the example once, and those that help are the diffs of `make proof`."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tightship_platform.demo.fixes import FIXES, Fix, fixed, write_fixed
from tightship_platform.demo.plot import JOBS
from tightship_platform.errors import TightshipError

ROOT = Path(__file__).parents[3]
EXAMPLES, PAIRS = ROOT / "examples", ROOT / "benchmarks" / "proof" / "pairs"


@pytest.mark.parametrize("fix", FIXES, ids=lambda fix: fix.what)
def test_a_fix_is_a_change_of_a_job_of_the_demo(fix: Fix, tmp_path: Path) -> None:
    assert (fix.workflow, fix.script, fix.team) in {(job.workflow, job.script, job.team) for job in JOBS}
    changed = write_fixed(EXAMPLES, tmp_path / "fixed", fix).read_text()
    ast.parse(changed)
    assert changed != (EXAMPLES / fix.script).read_text()
    if not fix.is_reverted:
        shutil.copy(EXAMPLES / fix.script, tmp_path)
        diff = PAIRS / f"{Path(fix.script).stem}.diff"
        env = os.environ | {"GIT_CEILING_DIRECTORIES": str(tmp_path.parent)}
        subprocess.run(["git", "apply", "--whitespace=nowarn", diff], cwd=tmp_path, env=env, check=True)
        assert (tmp_path / fix.script).read_text() == changed


def test_a_script_that_was_changed_is_not_guessed_at() -> None:
    with pytest.raises(TightshipError, match="is not the example as it was released"):
        fixed("print()\n", FIXES[0])
