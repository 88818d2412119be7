"""GenTD26 (alibaba/clusterdata, cluster-trace-v2026-GenAI): duty cycle and memory of the pods of an inference fleet.

[Note: what a pod held] The data name pods, not devices: one device per pod is taken. A pod held it while it reported:
each sample of its duty cycle stands for one sampling interval, the commonest time between two samples (57 s in the
published data), or for less where the next one comes sooner. Holes are neither busy nor idle nor held.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from tightship_collectors.importers.lines import Table
from tightship_collectors.importers.source import Meter, Options, Refused, Source
from tightship_collectors.importers.times import OUTSIDE, can_be, decimal_of, seconds_ns
from tightship_platform.errors import Invalid
from tightship_platform.results.imported import ImportedDevice, ImportedRun, ImportedSamples
from tightship_platform.units import NS_PER_S
from tightship_platform.vocabulary import FleetFormat, RunState

DUTY = "pod_gpu_duty_cycle_anon"
MEMORY = "pod_gpu_memory_used_bytes_anon"
COLUMNS = ("timestamp_anon", "value", "container_ip")
WORKFLOW = "pods"
ONE_DEVICE = "one device per pod, as the data name pods only"
DEVICE = "GPU (one per pod is assumed)"
_SUFFIXES = (".tar.gz", ".csv", ".csv.gz")
Series = dict[int, float]
"""Time in ns → value."""


def open_source(path: Path, options: Options) -> Source:
    """A folder with the data's archives, or the one of the duty cycle.

    :raises Invalid: there is no duty cycle, or a file is not of this format.
    """
    duty_file, memory_file = _files(path)
    refused = Refused()
    read = _Reader(refused, options.meter, 2 if memory_file is not None else 1)
    duty = read.series(duty_file, 100, "a duty cycle below 0 or above 100 %")
    memory = read.series(memory_file, 2**50, "a memory use that no device has") if memory_file is not None else {}
    if not duty:
        raise Invalid(f"File {duty_file.name}", "no row that can be read", "samples of the duty cycle of pods")
    strangers = sum(len(of_pod) for pod, of_pod in memory.items() if pod not in duty)
    if strangers:
        refused.counts["memory of a pod without any duty cycle"] = strangers
    interval_ns = _interval(duty)
    seconds = f"{interval_ns / NS_PER_S:g} s"
    return Source(
        format=FleetFormat.ALIBABA_GENAI,
        name="alibaba-genai",
        items=_items(duty, memory, interval_ns),
        refused=refused,
        assumptions=[
            ONE_DEVICE,
            f"a pod holds its device while it reports: each sample stands for {seconds}, the sampling interval, and "
            "holes between samples are left out",
            "a sample's duty cycle holds until the next one: busy time is duty cycle × time, the rest is idle",
            "times are as published: shifted by an unknown offset",
            "nobody says how pods ended, and whose they were",
        ],
        interval_ns=interval_ns,
        length=2 * len(duty),
        rows=read.rows,
    )


class _Reader:
    def __init__(self, refused: Refused, meter: Meter, files: int) -> None:
        self.rows = 0
        self._refused = refused
        self._meter = meter
        self._files = files
        self._done = 0

    def series(self, path: Path, most: int, why: str) -> dict[str, Series]:
        """Pod → its series."""
        found: dict[str, Series] = {}
        table = Table(
            path,
            COLUMNS,
            self._refused,
            "a table of GenTD26",
            lambda share: self._meter((self._done + share) / self._files),
        )
        for row in table:
            self.rows += 1
            pod, time_ns, value = row["container_ip"], seconds_ns(row["timestamp_anon"]), decimal_of(row["value"])
            if not pod or pod in ("NULL", "None") or not pod.isalnum() or len(pod) > 100:
                self._refused.add(table.place, "no pod", pod)
            elif time_ns is None:
                self._refused.add(table.place, "no time in seconds", row["timestamp_anon"])
            elif not can_be(time_ns):
                self._refused.add(table.place, OUTSIDE, row["timestamp_anon"])
            elif value is None:
                self._refused.add(table.place, "no value", row["value"])
            elif not 0 <= value <= most:
                self._refused.add(table.place, why, row["value"])
            else:
                of_pod = found.setdefault(pod, {})
                if time_ns in of_pod:
                    self._refused.add(table.place, "a second sample of one pod and time", row["value"])
                else:
                    of_pod[time_ns] = float(value)
        self._done += 1
        self._meter(self._done / self._files)
        return found


def _files(path: Path) -> tuple[Path, Path | None]:
    folder = path if path.is_dir() else path.parent
    duty = _named(folder, DUTY) if path.is_dir() else path
    if duty is None:
        raise Invalid("Folder", str(path), f"one that holds {DUTY}.tar.gz or {DUTY}.csv")
    if not path.is_dir() and not path.name.startswith(DUTY):
        raise Invalid("File", path.name, f"{DUTY}.tar.gz, {DUTY}.csv, or the folder that holds it")
    return duty, _named(folder, MEMORY)


def _named(folder: Path, name: str) -> Path | None:
    return next((file for suffix in _SUFFIXES if (file := folder / f"{name}{suffix}").is_file()), None)


def _interval(duty: dict[str, Series]) -> int:
    """The commonest time between two samples of a pod; a minute where no pod has two."""
    between = Counter(after - before for series in duty.values() for before, after in pairwise(sorted(series)))
    return min(between, key=lambda ns: (-between[ns], ns)) if between else 60 * NS_PER_S


def _items(
    duty: dict[str, Series], memory: dict[str, Series], interval_ns: int
) -> Iterator[ImportedRun | ImportedSamples]:
    for pod in sorted(duty):
        spans = _spans(sorted(duty[pod]), interval_ns)
        device = ImportedDevice(host="", uuid=pod, name=DEVICE, spans=spans)
        yield ImportedRun(
            id=pod,
            workflow=WORKFLOW,
            state=RunState.UNKNOWN.value,
            start_ns=spans[0][0],
            end_ns=spans[-1][1],
            devices=[device],
            reason="the data do not say how it ended",
            external_id=pod,
        )
    for pod in sorted(duty):
        of_pod, used = duty[pod], memory.get(pod, {})
        times = sorted(of_pod.keys() | used.keys())
        yield ImportedSamples(
            host="",
            uuid=pod,
            time_ns=times,
            util_frac=[None if (value := of_pod.get(time)) is None else value / 100 for time in times],
            memory_used_bytes=[None if (value := used.get(time)) is None else int(value) for time in times],
        )


def _spans(times: list[int], interval_ns: int) -> list[list[int]]:
    """When a pod held its device: see [Note: what a pod held]."""
    spans: list[list[int]] = []
    for time_ns in times:
        if spans and time_ns <= spans[-1][1]:
            spans[-1][1] = time_ns + interval_ns
        else:
            spans.append([time_ns, time_ns + interval_ns])
    return spans
