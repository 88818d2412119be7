"""Short ways to write the records that agents and launchers send."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tightship_platform.results.run_record import RunRecord
from tightship_platform.units import NS_PER_S
from tightship_platform.wire import (
    AllocationRecord,
    Batch,
    CaptureReport,
    CaptureRequest,
    DeviceRecord,
    DeviceSample,
    ExpectedRank,
    Heartbeat,
    HostSampleRecord,
    LeaseRequest,
    LiveRun,
    RankRecord,
    RunSampleRecord,
    StepRecord,
)

T0 = 1_790_000_000 * NS_PER_S
"""An instant in 2026 from which tests count."""
S = NS_PER_S
MIN = 60 * S
HOUR = 3600 * S

CPU = DeviceRecord(uuid="cpu", kind="cpu", name="Test processor", memory_bytes=8 << 30)
GPU = DeviceRecord(uuid="GPU-1", kind="gpu", name="Test accelerator", memory_bytes=80 << 30)


def started(run: str = "a1", workflow: str = "train", start_ns: int = T0, **more: object) -> RunRecord:
    """A launcher's first record."""
    return RunRecord(run=run, workflow=workflow, start_ns=start_ns, host=str(more.pop("host", "h1")), **more)  # type: ignore[arg-type]


def ended(
    run: str = "a1", workflow: str = "train", *, end_ns: int, exit_code: int | None = 0, **more: object
) -> RunRecord:
    """A launcher's last record."""
    record = started(run, workflow, **more)
    record.end_ns, record.exit_code = end_ns, exit_code
    return record


def beat(
    *runs: LiveRun, time_ns: int, host: str = "h1", devices: Iterable[DeviceRecord] = (CPU,), **more: object
) -> Heartbeat:
    """A heartbeat."""
    return Heartbeat(
        host=host,
        time_ns=time_ns,
        agent_version="0.1.0",
        devices=list(devices),
        runs=list(runs),
        **more,  # type: ignore[arg-type]
    )


def live(
    run: str = "a1",
    *,
    devices: Iterable[str] = ("cpu",),
    since_ns: int = T0,
    ranks: Iterable[int] = (0,),
    steps: int | None = None,
) -> LiveRun:
    """A live run; rank n has pid 100 + n."""
    entries = [RankRecord(rank=rank, pid=100 + rank, guard=True, steps=steps) for rank in ranks]
    return LiveRun(run=run, ranks=entries, devices=list(devices), since_ns=since_ns)


def held(run: str = "a1", start_ns: int = T0, end_ns: int | None = None, device: str = "cpu") -> AllocationRecord:
    """An allocation."""
    return AllocationRecord(run=run, device=device, start_ns=start_ns, end_ns=end_ns)


def samples(times: Iterable[int], device: str = "cpu", **values: object) -> list[DeviceSample]:
    """A device's samples, all with the same values."""
    return [DeviceSample(time_ns=t, device=device, **values) for t in times]  # type: ignore[arg-type]


def run_samples(times: Iterable[int], run: str = "a1", device: str = "cpu", **values: object) -> list[RunSampleRecord]:
    """A run's samples, all with the same values."""
    return [RunSampleRecord(time_ns=t, run=run, device=device, **values) for t in times]  # type: ignore[arg-type]


def steps(
    times: Iterable[int], run: str = "a1", rank: int = 0, *, each: int = 2, width_ns: int = S
) -> list[StepRecord]:
    """Step buckets of a rank."""
    return [
        StepRecord(
            run=run,
            rank=rank,
            time_ns=t,
            width_ns=width_ns,
            steps=each,
            first_step_ns=T0 + S,
            last_step_ns=t + width_ns // 2,
        )
        for t in times
    ]


def host_samples(times: Iterable[int], **values: object) -> list[HostSampleRecord]:
    """A host's samples, all with the same values."""
    return [HostSampleRecord(time_ns=t, **values) for t in times]  # type: ignore[arg-type]


def batch(host: str = "h1", **parts: object) -> Batch:
    """A batch."""
    return Batch(host=host, **parts)  # type: ignore[arg-type]


def ask(target: str = "train", **more: object) -> CaptureRequest:
    """A request for a capture."""
    return CaptureRequest(target=target, **more)  # type: ignore[arg-type]


def lease_of(*runs: str, host: str = "h1") -> LeaseRequest:
    """An agent that asks."""
    return LeaseRequest(host=host, runs=list(runs))


def reported(
    state: str, *, host: str = "h1", reason: str | None = None, ranks: Iterable[int] = (), **more: Any
) -> CaptureReport:
    """An agent's report; rank n has pid 100 + n."""
    expected = [ExpectedRank(rank=rank, pid=100 + rank) for rank in ranks]
    return CaptureReport(host=host, state=state, reason=reason, expected=expected, **more)
