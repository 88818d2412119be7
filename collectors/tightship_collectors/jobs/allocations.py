"""Which run holds which device, and how much of it each run uses.

A GPU or slice is held by the runs whose processes have a context on it, as its driver tells. The processor of a host
without accelerators is held by every live run. Uses of one device by several runs are measured per process, never
copied, so that the device's time is not counted twice.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tightship_collectors.jobs.processes import Process
from tightship_collectors.sources.base import DeviceProcess
from tightship_platform.units import NS_PER_S
from tightship_platform.vocabulary import DeviceKind
from tightship_platform.wire import AllocationRecord, DeviceRecord, RunSampleRecord


class Holder(Protocol):
    """A live run on this host, whoever launched it."""

    @property
    def run(self) -> str:
        """Its id."""
        ...

    @property
    def start_ns(self) -> int:
        """Start of its oldest process."""
        ...

    @property
    def processes(self) -> Sequence[Process]:
        """Its live processes."""
        ...


@dataclass(slots=True)
class Tick:
    """What one look at the host yields."""

    allocations: list[AllocationRecord] = field(default_factory=list)
    """Opened or closed since the last look."""
    samples: list[RunSampleRecord] = field(default_factory=list)
    held: dict[str, list[str]] = field(default_factory=dict)
    """Run → UUIDs of the devices that it holds now."""


class Allocations:
    """Follows allocations from look to look; `snapshot` and `restore` carry them over a restart of the agent."""

    def __init__(self, *, cores: int | None = None) -> None:
        self._cores = cores or os.cpu_count() or 1
        self._hertz = os.sysconf("SC_CLK_TCK")
        self._held: dict[tuple[str, str], int] = {}
        self._cpu_ticks: dict[tuple[int, int], int] = {}
        self._last_ns: int | None = None

    def update(
        self,
        time_ns: int,
        runs: Sequence[Holder],
        devices: Sequence[DeviceRecord],
        processes: Iterable[DeviceProcess],
    ) -> Tick:
        """Compare this look with the last one.

        :param processes: who has a context on which accelerator, now.
        """
        by_pid: dict[int, list[DeviceProcess]] = {}
        for process in processes:
            by_pid.setdefault(process.pid, []).append(process)
        cores = self._busy_cores(time_ns, runs)
        tick = Tick()
        present: set[tuple[str, str]] = set()
        for run in runs:
            uses = self._uses(run, devices, by_pid, cores.get(run.run))
            for device, sample in uses.items():
                sample.time_ns, sample.run, sample.device = time_ns, run.run, device
                tick.samples.append(sample)
                present.add((run.run, device))
                self._open(time_ns, run, device, devices, tick)
            tick.held[run.run] = list(uses)
        for key in self._held.keys() - present:
            start_ns = self._held.pop(key)
            end_ns = max(time_ns, start_ns)
            tick.allocations.append(AllocationRecord(run=key[0], device=key[1], start_ns=start_ns, end_ns=end_ns))
        self._last_ns = time_ns
        return tick

    def open_allocations(self) -> list[AllocationRecord]:
        """Everything held now. Said again from time to time, so that a lost record heals."""
        return [
            AllocationRecord(run=run, device=device, start_ns=start_ns)
            for (run, device), start_ns in sorted(self._held.items())
        ]

    def snapshot(self) -> list[list[Any]]:
        """What a restarted agent needs in order to go on; plain JSON values."""
        return [[run, device, start_ns] for (run, device), start_ns in self._held.items()]

    def restore(self, snapshot: Iterable[Sequence[Any]], live: Iterable[str]) -> None:
        """Take over the allocations of runs that still live.

        The others stay open: when they ended nobody saw, and the server closes them with their run.
        """
        alive = set(live)
        for run, device, start_ns in snapshot:
            if run in alive:
                self._held[run, device] = start_ns

    def _open(self, time_ns: int, run: Holder, device: str, devices: Sequence[DeviceRecord], tick: Tick) -> None:
        key = (run.run, device)
        if key not in self._held:
            is_cpu = any(d.uuid == device and d.kind == DeviceKind.CPU.value for d in devices)
            start_ns = min(run.start_ns, time_ns) if is_cpu else time_ns
            self._held[key] = start_ns
            tick.allocations.append(AllocationRecord(run=key[0], device=device, start_ns=start_ns))

    def _uses(
        self,
        run: Holder,
        devices: Sequence[DeviceRecord],
        by_pid: Mapping[int, list[DeviceProcess]],
        cores: float | None,
    ) -> dict[str, RunSampleRecord]:
        """One unfinished sample per device that the run holds, in the order of the devices."""
        mine = [use for process in run.processes for use in by_pid.get(process.pid, ())]
        found: dict[str, RunSampleRecord] = {}
        for device in devices:
            if device.kind == DeviceKind.CPU.value:
                found[device.uuid] = RunSampleRecord(
                    time_ns=0,
                    run="",
                    device="",
                    util_frac=None if cores is None else min(1.0, cores / self._cores),
                    memory_used_bytes=_total([p.private_bytes for p in run.processes]),
                )
                continue
            uses = [use for use in mine if use.device == device.uuid]
            if uses:
                share = _total([use.util_frac for use in uses])
                found[device.uuid] = RunSampleRecord(
                    time_ns=0,
                    run="",
                    device="",
                    util_frac=None if share is None else min(1.0, share),
                    memory_used_bytes=_total([use.memory_used_bytes for use in uses]),
                )
        for sample in found.values():
            # Divided, so that the rows of a run add up to its cores however many devices it holds.
            sample.cpu_cores = None if cores is None else cores / len(found)
        return found

    def _busy_cores(self, time_ns: int, runs: Sequence[Holder]) -> dict[str, float]:
        """Run → cores kept busy since the last look. What a process used between its last look and its end is lost."""
        before, self._cpu_ticks = self._cpu_ticks, {}
        found: dict[str, float] = {}
        for run in runs:
            used = 0
            for process in run.processes:
                key = (process.pid, process.start_ns)
                self._cpu_ticks[key] = process.cpu_ticks
                if key in before:
                    used += max(0, process.cpu_ticks - before[key])
                elif self._last_ns is not None and process.start_ns >= self._last_ns:
                    used += process.cpu_ticks
            if self._last_ns is not None and time_ns > self._last_ns:
                found[run.run] = used / self._hertz * NS_PER_S / (time_ns - self._last_ns)
        return found


def _total(values: Iterable[Any]) -> Any:
    """The sum, or None when a part of it is not known."""
    parts = list(values)
    return None if not parts or None in parts else sum(parts)
