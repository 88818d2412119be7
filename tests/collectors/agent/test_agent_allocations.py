"""Which run holds which device, from looks at the host that the tests make up, and at one real process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tightship_collectors.jobs.allocations import Allocations
from tightship_collectors.jobs.attribution import Attribution, LocalRun
from tightship_collectors.jobs.live_run import HostRun
from tightship_collectors.jobs.processes import Process
from tightship_collectors.sources.base import DeviceProcess
from tightship_platform.settings import load_settings
from tightship_platform.units import NS_PER_S, now_ns
from tightship_platform.wire import AllocationRecord, DeviceRecord

SECOND = NS_PER_S
CPU = DeviceRecord(uuid="cpu", kind="cpu", name="x")
GPUS = [DeviceRecord(uuid=f"GPU-{n}", kind="gpu", name="x") for n in range(2)]


def local_run(key: str, *pids: int, cpu: int = 0, start_ns: int = 5 * SECOND, private: int | None = 1000) -> LocalRun:
    processes = tuple(Process(pid=pid, uid=1, start_ns=start_ns, cpu_ticks=cpu, private_bytes=private) for pid in pids)
    view = HostRun(run=key, run_dir=Path("/x"), uid=1, pids=pids, ranks=(), start_ns=start_ns)
    return LocalRun(view=view, processes=processes, external_id=None)


def test_every_live_run_holds_the_processor_from_its_first_process_on() -> None:
    allocations = Allocations(cores=4)
    hertz = os.sysconf("SC_CLK_TCK")
    first = allocations.update(10 * SECOND, [local_run("a", 1, 2, cpu=50 * hertz)], [CPU], ())
    assert first.allocations == [AllocationRecord(run="a", device="cpu", start_ns=5 * SECOND)]
    assert (first.samples[0].cpu_cores, first.samples[0].util_frac) == (None, None)  # a difference of two looks
    assert first.samples[0].memory_used_bytes == 2000
    # Two processes of `a` for one core-second each in two seconds; `b` has started since and used one.
    runs = [local_run("a", 1, 2, cpu=51 * hertz), local_run("b", 3, cpu=hertz, start_ns=11 * SECOND, private=None)]
    second = allocations.update(12 * SECOND, runs, [CPU], ())
    assert [(s.run, s.cpu_cores, s.util_frac) for s in second.samples] == [("a", 1.0, 0.25), ("b", 0.5, 0.125)]
    assert second.samples[1].memory_used_bytes is None
    assert second.held == {"a": ["cpu"], "b": ["cpu"]}
    assert [r.run for r in second.allocations] == ["b"]
    third = allocations.update(13 * SECOND, runs[1:], [CPU], ())
    assert third.allocations == [AllocationRecord(run="a", device="cpu", start_ns=5 * SECOND, end_ns=13 * SECOND)]
    assert [r.run for r in allocations.open_allocations()] == ["b"]


def test_a_gpu_is_held_by_who_has_a_context_and_shared_use_is_split() -> None:
    allocations = Allocations(cores=4)
    runs = [local_run("a", 1, 2), local_run("b", 3), local_run("c", 4)]
    allocations.update(10 * SECOND, runs, GPUS, ())
    uses = [
        DeviceProcess(pid=1, device="GPU-0", memory_used_bytes=10, util_frac=0.5),
        DeviceProcess(pid=2, device="GPU-0", memory_used_bytes=20, util_frac=0.25),
        DeviceProcess(pid=2, device="GPU-1", memory_used_bytes=None, util_frac=None),
        DeviceProcess(pid=3, device="GPU-0", memory_used_bytes=5, util_frac=0.125),
        DeviceProcess(pid=99, device="GPU-1", memory_used_bytes=7, util_frac=1.0),  # belongs to no run
    ]
    tick = allocations.update(11 * SECOND, [local_run("a", 1, 2, cpu=200), *runs[1:]], GPUS, uses)
    rows = {(s.run, s.device): (s.util_frac, s.memory_used_bytes) for s in tick.samples}
    assert rows == {("a", "GPU-0"): (0.75, 30), ("a", "GPU-1"): (None, None), ("b", "GPU-0"): (0.125, 5)}
    # The run's cores are divided over its rows, so that they add up.
    assert sum(s.cpu_cores or 0 for s in tick.samples if s.run == "a") == pytest.approx(4.0)
    assert tick.held == {"a": ["GPU-0", "GPU-1"], "b": ["GPU-0"], "c": []}
    assert {(r.run, r.device, r.start_ns, r.end_ns) for r in tick.allocations} == {
        ("a", "GPU-0", 11 * SECOND, None),
        ("a", "GPU-1", 11 * SECOND, None),
        ("b", "GPU-0", 11 * SECOND, None),
    }
    gone = allocations.update(12 * SECOND, runs, GPUS, uses[:3])
    assert gone.allocations == [AllocationRecord(run="b", device="GPU-0", start_ns=11 * SECOND, end_ns=12 * SECOND)]


def test_allocations_survive_a_restart_of_the_agent() -> None:
    allocations = Allocations()
    uses = [DeviceProcess(pid=1, device="GPU-0"), DeviceProcess(pid=3, device="GPU-0")]
    allocations.update(10 * SECOND, [local_run("a", 1), local_run("b", 3)], GPUS, uses)
    snapshot = allocations.snapshot()
    restarted = Allocations()
    restarted.restore(snapshot, ["a"])
    tick = restarted.update(99 * SECOND, [local_run("a", 1)], GPUS, uses[:1])
    assert tick.allocations == []  # it went on all the time
    end = restarted.update(100 * SECOND, [local_run("a", 1)], GPUS, ())
    assert end.allocations == [AllocationRecord(run="a", device="GPU-0", start_ns=10 * SECOND, end_ns=100 * SECOND)]


BURN = """
import sys, time
print("up", flush=True)
for line in sys.stdin:
    end = time.process_time() + float(line)
    while time.process_time() < end:
        pass
    print("done", flush=True)
"""


def test_a_real_process_is_charged_with_what_it_used() -> None:
    """0.4 core-seconds are 0.4 core-seconds, however long they take on a busy machine."""
    key = "0123456789abcdef"
    run_dir = load_settings().runtime_dir / key
    run_dir.mkdir(mode=0o700, parents=True)
    job = subprocess.Popen(
        [sys.executable, "-S", "-c", BURN],
        env={**os.environ, "TIGHTSHIP_RUN": key, "TIGHTSHIP_RUN_DIR": str(run_dir)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert job.stdin is not None
    assert job.stdout is not None
    try:
        job.stdout.readline()
        attribution, allocations = Attribution(run_dir.parent), Allocations()
        began = now_ns()
        allocations.update(began, attribution.update(), [CPU], ())
        job.stdin.write("0.4\n")
        job.stdin.flush()
        job.stdout.readline()
        time.sleep(0.05)
        ended = now_ns()
        (sample,) = allocations.update(ended, attribution.update(), [CPU], ()).samples
        assert sample.cpu_cores is not None
        assert sample.cpu_cores * (ended - began) / NS_PER_S == pytest.approx(0.4, abs=0.06)
        assert sample.memory_used_bytes is not None
        assert sample.memory_used_bytes > 500_000
    finally:
        job.kill()
        job.communicate()
