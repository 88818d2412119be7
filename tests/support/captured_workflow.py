"""The trace of a real training, and its way to a server as the agent of its host takes it."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
from api_calls import Capture, ok

from tightship_offload.plan.model import HardwareSpec

JOB = Path(__file__).parents[1] / "support" / "block_job.py"
GIB = 2**30
MACHINE = HardwareSpec(
    device="cpu",
    device_bytes=2**30,
    host_bytes=2**30,
    cores=1,
    h2d_bytes_per_s=1e10,
    d2h_bytes_per_s=1e10,
    h2d_duplex_bytes_per_s=5e9,
    d2h_duplex_bytes_per_s=5e9,
    adam_params_per_s={1: 5e8},
)
"""A machine of one core with host memory in the role of the device."""


def record(folder: Path, *how: str, python: tuple[str, ...] = (sys.executable,)) -> bytes:
    """The trace of five like blocks in training, with stacks and shapes, packed."""
    path = folder / "trace.json"
    env = {name: value for name, value in os.environ.items() if not name.startswith("TIGHTSHIP_")}
    done = subprocess.run(
        [*python, str(JOB), str(path), "record", *how],
        env=env | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return gzip.compress(path.read_bytes(), compresslevel=1)


def store(api: httpx.Client, data: bytes, run: str, workflow: str, **params: Any) -> str:
    """A captured run of `workflow` on a host of 2 cores and 16 GiB without an accelerator; the capture's key."""
    capture = Capture(api, run=run, workflow=workflow, info={"cpus": 2, "memory_bytes": 16 * GIB}, **params)
    capture.write()
    ok(capture.put(data))
    return capture.key
