"""A script that its control group kills is trained within the same memory by who only copies lines off the terminal."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from launching import TIGHTSHIP
from memory_group import MemoryGroup, memory_group

from tightship_analyzers.offload_planner.disk import IN_MEMORY, file_system_of
from tightship_offload.plan.file import read_plan

pytestmark = pytest.mark.torch

JOB = Path(__file__).parents[2] / "support" / "short_memory_job.py"
STEPS = 8
ALLOWED_FRAC = 0.86
"""Of what the training takes where nothing limits it."""
AMPLE = 8 << 30


def inside(group: MemoryGroup, folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    return subprocess.run(group.inside(*command), cwd=folder, env=env, capture_output=True, text=True, timeout=900)


def copied(terminal: str) -> list[str]:
    """The one command line that the last line of a terminal names."""
    found = re.search(r"Next: (tightship .*)", terminal.splitlines()[-1])
    assert found, terminal
    words = shlex.split(found[1])
    assert words[0] == "tightship"
    return [*TIGHTSHIP, *words[1:]]


@pytest.mark.timeout(1800)
def test_from_a_kill_to_the_same_losses(tmp_path: Path) -> None:
    if file_system_of(tmp_path) in IN_MEMORY:
        pytest.skip(f"{tmp_path} is in memory")
    script = Path(shutil.copy(JOB, tmp_path / "train.py"))
    job = (sys.executable, script.name, str(STEPS))
    with memory_group(AMPLE) as group:
        unlimited = inside(group, tmp_path, *job)
        assert len(unlimited.stdout.splitlines()) == STEPS, unlimited.stderr
        allowed = int(group.peak_bytes * ALLOWED_FRAC)
        group.limit(allowed)

        killed = inside(group, tmp_path, *TIGHTSHIP, "run", "--", *job)
        assert killed.returncode == 137, killed.stderr
        assert f"its control group allows {allowed / 2**20:.1f} MiB" in killed.stderr.splitlines()[-1]

        measured = inside(group, tmp_path, *copied(killed.stderr))
        assert measured.returncode == 0, measured.stderr
        assert "Memory was short: layers of one kind shared one layer's while they were timed" in measured.stderr

        planned = inside(group, tmp_path, *copied(measured.stderr))
        assert planned.returncode == 0, planned.stderr
        assert re.search(r"Weights and optimizer state of \d+ layers are in files in", planned.stdout), planned.stdout
        prediction = read_plan(tmp_path / "plan.yaml").prediction
        assert prediction is not None and prediction.device_bytes + prediction.host_bytes < allowed

        trained = inside(group, tmp_path, *copied(planned.stderr))
        assert trained.returncode == 0, trained.stderr
        assert trained.stdout == unlimited.stdout
