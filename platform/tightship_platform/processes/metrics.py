"""What a process counts of itself, as Prometheus reads it (https://prometheus.io/docs/instrumenting/exposition_formats/).

Written here rather than by a library, because the agent's install has none. Every figure that tightship exports is in
FAMILIES; docs/operations.md lists the same.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import psutil

from tightship_platform import __version__

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SHORT_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_LONG_S = (0.1, 0.5, 1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_LAG_S = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 21600.0, 86400.0)


@dataclass(frozen=True, kw_only=True)
class Family:
    """Figures of one name."""

    name: str
    kind: str
    """`counter`, `gauge` or `histogram`."""
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    """Of a histogram: the upper end of each bucket."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """The value of a gauge, or of a counter that somebody else keeps."""

    name: str
    value: float
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """A histogram that somebody else keeps."""

    name: str
    counts: list[float]
    """Values up to each bound, those beyond the last one, and the sum of all."""
    labels: tuple[str, ...] = ()


Source = Callable[[], Iterable[Figure | Histogram]]


def _counter(name: str, meaning: str, *labels: str) -> Family:
    return Family(name=name, kind="counter", help=meaning, labels=labels)


def _gauge(name: str, meaning: str, *labels: str) -> Family:
    return Family(name=name, kind="gauge", help=meaning, labels=labels)


def _histogram(name: str, meaning: str, bounds: tuple[float, ...], *labels: str) -> Family:
    return Family(name=name, kind="histogram", help=meaning, labels=labels, bounds=bounds)


FAMILIES = {
    family.name: family
    for family in (
        # every part
        _gauge("tightship_build_info", "1, with the release and the part.", "version", "part"),
        _counter("process_cpu_seconds_total", "Processor time of this process."),
        _gauge("process_resident_memory_bytes", "Memory of this process."),
        _gauge("process_open_fds", "Open files of this process."),
        _gauge("process_start_time_seconds", "When this process started, in seconds since 1970."),
        # server
        _counter("tightship_requests_total", "Requests answered.", "method", "route", "status"),
        _histogram("tightship_request_seconds", "From a request's head to the end of its answer.", _SHORT_S, "route"),
        _gauge("tightship_requests_in_progress", "Requests that are being answered."),
        _counter("tightship_refused_tokens_total", "Requests with a token that was refused.", "reason"),
        _counter("tightship_refused_logins_total", "Logins by single sign-on that were refused.", "reason"),
        _counter("tightship_ingest_rows_total", "Rows of agents' batches.", "outcome"),
        _counter("tightship_received_values_total", "Values that came by a standard.", "standard", "outcome"),
        _histogram("tightship_ingest_lag_seconds", "Age of a batch's newest sample when it was stored.", _LAG_S),
        _gauge("tightship_database_up", "1: the database answered this request, 0: it did not."),
        _gauge("tightship_database_connections", "Connections of this process to the database.", "state"),
        _gauge("tightship_database_connections_max", "At most so many connections are opened."),
        _gauge("tightship_queue_length", "Messages that wait in a queue of the broker.", "queue"),
        _gauge("tightship_captures", "Captures by state.", "state"),
        _gauge("tightship_hosts", "Hosts: `live` were heard of in the last 30 s.", "state"),
        _gauge("tightship_artifact_bytes", "Size of all stored traces, by their rows."),
        # worker
        _counter("tightship_tasks_total", "Tasks that ended, or failed in an unexpected way.", "task", "outcome"),
        _histogram("tightship_task_seconds", "How long tasks took; analyses are one of them.", _LONG_S, "task"),
        # agent
        _gauge("tightship_spool_entries", "Records that wait for the server."),
        _gauge("tightship_spool_bytes", "Their size on disk."),
        _counter("tightship_spool_dropped_total", "Records given up because the spool was full."),
        _counter("tightship_rows_not_stored_total", "Rows that the server took and did not store.", "reason"),
        _counter("tightship_deliveries_total", "Requests to the server.", "outcome"),
        _histogram("tightship_look_seconds", "How long a look at the host took.", _SHORT_S),
        _gauge("tightship_runs", "Runs that live on this host."),
    )
}


class Metrics:
    """The figures of one process. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, tuple[str, ...]], float] = {}
        self._buckets: dict[tuple[str, tuple[str, ...]], list[float]] = {}
        self._sources: dict[str, Source] = {}

    def count(self, name: str, *labels: str, by: float = 1.0) -> None:
        """Add to a counter or gauge, which begins at 0."""
        with self._lock:
            self._counts[name, labels] = self._counts.get((name, labels), 0.0) + by

    def observe(self, name: str, value: float, *labels: str) -> None:
        """Put a value into a histogram."""
        bounds = FAMILIES[name].bounds
        with self._lock:
            counts = self._buckets.setdefault((name, labels), [0.0] * (len(bounds) + 2))
            counts[bisect.bisect_left(bounds, value)] += 1
            counts[-1] += value

    def add_source(self, part: str, source: Source) -> None:
        """Have figures that somebody else keeps read whenever they are asked for. The last source of a part counts."""
        with self._lock:
            self._sources[part] = source

    def render(self, part: str, *more: Figure) -> str:
        """All figures as text; see CONTENT_TYPE."""
        with self._lock:
            figures = [Figure(name=name, value=value, labels=labels) for (name, labels), value in self._counts.items()]
            histograms = [
                Histogram(name=name, counts=list(counts), labels=labels)
                for (name, labels), counts in self._buckets.items()
            ]
            sources = list(self._sources.values())
        figures += [*_process(part), *more]
        for kept in (kept for source in sources for kept in source()):
            if isinstance(kept, Figure):
                figures.append(kept)
            else:
                histograms.append(kept)
        lines: list[str] = []
        for family in FAMILIES.values():
            samples = [
                *(_line(f.name, f.value, family.labels, f.labels) for f in figures if f.name == family.name),
                *(line for kept in histograms if kept.name == family.name for line in _histogram_lines(family, kept)),
            ]
            if samples:
                lines += [f"# HELP {family.name} {family.help}", f"# TYPE {family.name} {family.kind}", *samples]
        return "\n".join([*lines, ""])


METRICS = Metrics()
"""Of this process."""


def _histogram_lines(family: Family, kept: Histogram) -> Iterator[str]:
    total, labels = 0.0, kept.labels
    for bound, count in zip((*family.bounds, float("inf")), kept.counts[:-1], strict=True):
        total += count
        shown = "+Inf" if bound == float("inf") else f"{bound:g}"
        yield _line(f"{family.name}_bucket", total, (*family.labels, "le"), (*labels, shown))
    yield _line(f"{family.name}_sum", kept.counts[-1], family.labels, labels)
    yield _line(f"{family.name}_count", total, family.labels, labels)


def _line(name: str, value: float, names: tuple[str, ...], labels: tuple[str, ...]) -> str:
    pairs = ",".join(f'{label}="{_escaped(text)}"' for label, text in zip(names, labels, strict=True))
    shown = str(int(value)) if float(value).is_integer() and abs(value) < 2**53 else repr(float(value))
    return f"{name}{{{pairs}}} {shown}" if pairs else f"{name} {shown}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _process(part: str) -> Iterator[Figure]:
    process = psutil.Process()
    times = process.cpu_times()
    yield Figure(name="tightship_build_info", value=1, labels=(__version__, part))
    yield Figure(name="process_cpu_seconds_total", value=times.user + times.system)
    yield Figure(name="process_resident_memory_bytes", value=process.memory_info().rss)
    yield Figure(name="process_open_fds", value=process.num_fds())
    yield Figure(name="process_start_time_seconds", value=process.create_time())
