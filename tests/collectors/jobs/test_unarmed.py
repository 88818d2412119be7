"""Which processes shut out what `tightship run` gives them, and how they differ from loader workers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from launching import launch

from tightship_collectors.jobs import unarmed as module
from tightship_collectors.jobs.unarmed import UnarmedWatch

MAPS = """import mmap, sys
file = open(sys.argv[1], 'rb')
mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
print('ready', flush=True)
sys.stdin.read()
"""
"""Looks like a process that has loaded torch."""
ARMED = os.environ | {"TIGHTSHIP_RUN_DIR": "/tmp/run"}

Start = Callable[..., int]


@pytest.fixture
def library(tmp_path: Path) -> Path:
    path = tmp_path / "libtorch_cpu.so"
    path.write_bytes(b"\0" * 4096)
    return path


@pytest.fixture
def start(library: Path) -> Iterator[Start]:
    """`start(*options, env=…)` → pid of a Python that has mapped the library."""
    jobs: list[subprocess.Popen[bytes]] = []

    def begin(*options: str, env: dict[str, str] | None = None, script: str = MAPS) -> int:
        command = [sys.executable, *options, "-c", script, str(library)]
        job = subprocess.Popen(
            command, env=ARMED if env is None else env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        jobs.append(job)
        assert job.stdout is not None and job.stdout.readline() == b"ready\n"
        return job.pid

    yield begin
    for job in jobs:
        job.communicate()


@pytest.mark.parametrize(
    ("options", "flag"),
    [(["-I"], "-I"), (["-u", "-E"], "-E"), (["-uS"], "-S"), (["-W", "ignore", "-X", "utf8", "-I"], "-I")],
)
def test_an_option_that_shuts_us_out_is_named_at_once(start: Start, options: list[str], flag: str) -> None:
    pid = start(*options)
    found = UnarmedWatch().look([pid], ())
    assert found is not None and found.pid == pid
    assert f"`python {flag}`" in found.why and f"start it without {flag}" in found.why


def test_an_emptied_environment_is_named_at_once(start: Start) -> None:
    found = UnarmedWatch().look([start(env={})], ())
    assert found is not None and "env -i" in found.why


def test_other_interpreters_are_named_when_an_import_would_be_over(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, pid = UnarmedWatch(), start("-W", "ignore::UserWarning", "-u")
    assert watch.look([pid], ()) is None
    monkeypatch.setattr(module, "PATIENCE_S", 0.0)
    assert watch.look([pid], ()) is None, "it has not had the processor for as long as an import may take"
    monkeypatch.setattr(module, "PATIENCE_CPU_S", 0.0)
    found = watch.look([pid], ())
    assert found is not None and "frozen or embedded" in found.why


def test_who_is_armed_descends_from_it_has_no_torch_or_is_gone_is_none(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 0.0)
    pid = start("-I")
    watch = UnarmedWatch()
    assert watch.look([pid], {pid}) is None
    assert watch.look([pid], {os.getpid()}) is None
    assert watch.look([1, 2**22 - 1], ()) is None


def test_the_launcher_says_it_while_the_job_runs(library: Path) -> None:
    waits = MAPS.replace("sys.stdin.read()", "import time; time.sleep(5)")
    done = launch(sys.executable, "-I", "-c", waits, library)
    assert (done.returncode, done.stdout) == (0, "ready\n")
    _, line = done.stderr.splitlines()  # no server answers, and this
    assert "start it without -I" in line and "no trace of it can be taken" in line
