"""The tables of a report, each defined once: its columns, and its rows as plain values. Every face draws these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from tightship_analyzers.report.sentences import by_cause_and_place, rates_of
from tightship_platform.results.analysis.figures import (
    CausedTime,
    CopyFigures,
    KernelFigures,
    LaunchFigures,
    Roofline,
    StreamIdle,
)
from tightship_platform.results.analysis.rank import RankAnalysis
from tightship_platform.results.analysis.skew import RankComparison
from tightship_platform.text import label
from tightship_platform.units import format_bytes, format_frac, format_ns


class Kind(StrEnum):
    """What the values of a column are."""

    TEXT = "text"
    """Words of ours."""
    NAME = "name"
    """Text from a trace; it may be long."""
    COUNT = "count"
    ORDINAL = "ordinal"
    """A number that names something, such as a rank."""
    TIME = "time"
    """ns."""
    SHARE = "share"
    """0..1."""
    BYTES = "bytes"
    RATE = "rate"
    """GB/s; as text where it has another unit."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table."""

    key: str
    head: str
    kind: Kind
    minor: bool = False
    """Left out where the window is narrow."""


Cell = str | int | float | None
"""A plain value; None: not known."""
Row = tuple[Cell, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """One table of a report."""

    key: str
    title: str
    columns: tuple[Column, ...]
    rows: list[Row]
    """The most important first."""
    rest: str = ""
    """What rows that are left out are called together, where the rows divide a whole; empty: they do not."""

    def first(self, most: int) -> Table:
        """The first rows; where the rows divide a whole, one more sums the others."""
        kept, left = self.rows[:most], self.rows[most:]
        if left and self.rest:
            kept = [*kept, tuple(self._together(number, left) for number in range(len(self.columns)))]
        return replace(self, rows=kept)

    def _together(self, column: int, left: Sequence[Row]) -> Cell:
        match self.columns[column].kind:
            case Kind.TIME | Kind.SHARE | Kind.COUNT:
                return sum(value for row in left if isinstance(value := row[column], int | float))
            case Kind.TEXT:
                return self.rest
            case _:
                return f"{len(left):,} more in the JSON"

    def only(self, *keys: str) -> Table:
        """The same rows with these columns, in this order."""
        places = {column.key: number for number, column in enumerate(self.columns)}
        picked = [places[key] for key in keys]
        return replace(
            self,
            columns=tuple(self.columns[number] for number in picked),
            rows=[tuple(row[number] for number in picked) for row in self.rows],
        )


def cell_text(kind: Kind, value: Cell, room: int) -> str:
    """A value as text; '–' for None.

    :param room: characters of a name from a trace.
    """
    match kind, value:
        case _, None:
            return "–"
        case Kind.NAME, str():
            return label(value, room)
        case Kind.TIME, int():
            return format_ns(value)
        case Kind.SHARE, int() | float():
            return format_frac(value)
        case Kind.BYTES, int():
            return format_bytes(value)
        case Kind.COUNT, int():
            return f"{value:,}"
        case Kind.RATE, int() | float():
            return f"{value:,.1f} GB/s"
        case _:
            return str(value)


def idle_table(one: RankAnalysis) -> Table:
    """Idle time by cause and place, the largest first."""
    return _caused(one, one.figures.window_idle_causes, key="idle", title="Idle time by cause and place")


def exposed_table(one: RankAnalysis) -> Table:
    """Exposed communication by cause and place, the largest first."""
    return _caused(one, one.figures.exposed_causes, key="exposed", title="Exposed communication by cause and place")


def _caused(one: RankAnalysis, causes: Sequence[CausedTime] | None, *, key: str, title: str) -> Table:
    window, steps = one.summary.window_ns or 1, one.summary.steps
    columns = (
        Column("cause", "Cause", Kind.TEXT),
        Column("place", "Place", Kind.NAME),
        Column("share", "Share", Kind.SHARE),
        _per_step(one, minor=True),
    )
    rows: list[Row] = [
        (cause, place, ns / window, ns // (steps or 1)) for cause, place, ns in by_cause_and_place(causes or [])
    ]
    return Table(key=key, title=title, columns=columns, rows=rows, rest="other places")


def kernel_table(kernels: Sequence[KernelFigures]) -> Table:
    """All kernels, copies and sets by name."""
    columns = (
        Column("name", "Kernel", Kind.NAME),
        Column("type", "Type", Kind.TEXT, minor=True),
        Column("count", "Count", Kind.COUNT),
        Column("sum", "Sum", Kind.TIME),
        Column("mean", "Mean", Kind.TIME, minor=True),
        Column("max", "Longest", Kind.TIME, minor=True),
    )
    rows: list[Row] = [(row.name, row.type, row.count, row.sum_ns, round(row.mean_ns), row.max_ns) for row in kernels]
    return Table(key="kernels", title="Kernels", columns=columns, rows=rows)


def stream_table(streams: Sequence[StreamIdle]) -> Table:
    """Idle time of each stream."""
    columns = (
        Column("stream", "Device/stream", Kind.TEXT),
        Column("events", "Events", Kind.COUNT),
        Column("host", "Waited for the host", Kind.TIME),
        Column("kernel", "For the kernel's start", Kind.TIME, minor=True),
        Column("other", "Otherwise", Kind.TIME, minor=True),
    )
    rows: list[Row] = [
        (f"{row.device}/{row.stream}", row.events, row.host_wait_ns, row.kernel_wait_ns, row.other_ns)
        for row in streams
    ]
    return Table(key="streams", title="Idle time of each stream", columns=columns, rows=rows)


def launch_table(found: LaunchFigures | None) -> Table:
    """Calls that launch work."""
    columns = (
        Column("call", "Call", Kind.NAME),
        Column("count", "Count", Kind.COUNT),
        Column("mean", "Mean call", Kind.TIME),
        Column("delay", "Mean delay", Kind.TIME, minor=True),
        Column("work", "Mean of its work", Kind.TIME, minor=True),
    )
    rows: list[Row] = [
        (row.call, row.host.count, round(row.host.mean_ns), round(row.delay.mean_ns), round(row.device.mean_ns))
        for row in (found.by_call if found else [])
    ]
    return Table(key="launches", title="Launches", columns=columns, rows=rows)


def copy_table(copies: Sequence[CopyFigures]) -> Table:
    """Copies and sets of memory by type, with the rate that they reached."""
    columns = (
        Column("type", "Copies", Kind.TEXT),
        Column("count", "Count", Kind.COUNT),
        Column("sum", "Time", Kind.TIME),
        Column("bytes", "Bytes", Kind.BYTES, minor=True),
        Column("rate", "Rate", Kind.RATE, minor=True),
        Column("pageable", "Of pageable memory", Kind.COUNT, minor=True),
    )
    rows: list[Row] = [(row.type, row.count, row.sum_ns, row.bytes, row.gbps, row.pageable) for row in copies]
    return Table(key="copies", title="Copies", columns=columns, rows=rows)


def roofline_table(roof: Roofline) -> Table:
    """Families of kernels against the device's roof."""
    columns = (
        Column("family", "Kernels", Kind.TEXT),
        Column("count", "Count", Kind.COUNT, minor=True),
        Column("time", "Time", Kind.TIME),
        Column("achieved", "Achieved", Kind.RATE, minor=True),
        Column("attainable", "Attainable", Kind.RATE, minor=True),
        Column("roof", "Of roofline", Kind.SHARE),
        Column("memory", "Memory-bound", Kind.SHARE, minor=True),
    )
    rows: list[Row] = [
        (
            f"{row.family} {row.dtype or 'integers'}",
            row.kernels,
            row.device_ns,
            *rates_of(row),
            row.roof_frac,
            row.memory_bound_ns / row.device_ns if row.device_ns else None,
        )
        for row in roof.families
    ]
    return Table(key="roofline", title="Roofline", columns=columns, rows=rows)


def rank_table(across: RankComparison) -> Table:
    """What each rank costs the others, per step where steps are known."""
    steps = across.steps or 1
    columns = (
        Column("rank", "Rank", Kind.ORDINAL),
        Column("last", "Came last", Kind.COUNT),
        Column("of", "Of collectives", Kind.COUNT, minor=True),
        Column("kept", "Others waited", Kind.TIME),
        Column("alone", "Run waited for it alone", Kind.TIME, minor=True),
        Column("waited", "Waited itself", Kind.TIME, minor=True),
        Column("exposed", "Of that exposed", Kind.TIME, minor=True),
    )
    rows: list[Row] = [
        (
            row.rank,
            row.last,
            row.collectives,
            row.kept_waiting_ns // steps,
            row.late_exposed_ns // steps,
            row.waited_ns // steps,
            row.waited_exposed_ns // steps,
        )
        for row in across.ranks
    ]
    return Table(key="ranks", title="What each rank costs the others", columns=columns, rows=rows)


def collective_table(across: RankComparison) -> Table:
    """The most uneven collectives."""
    columns = (
        Column("name", "Collective", Kind.NAME),
        Column("group", "Group", Kind.NAME, minor=True),
        Column("number", "Number", Kind.ORDINAL, minor=True),
        Column("first", "First rank", Kind.ORDINAL, minor=True),
        Column("last", "Last rank", Kind.ORDINAL),
        Column("skew", "Skew", Kind.TIME),
    )
    rows: list[Row] = [
        (row.name, row.group, row.number, row.first_rank, row.last_rank, row.skew_ns) for row in across.worst
    ]
    return Table(key="collectives", title="The most uneven collectives", columns=columns, rows=rows)


def path_table(one: RankAnalysis) -> Table:
    """What lies longest on the critical paths of all steps together: device events and operators."""
    sums: dict[tuple[str, str], int] = {}
    paths = one.figures.critical_path or []
    for path in paths:
        for kind, items in (("device", path.device_events), ("host", path.operators)):
            for item in items:
                sums[kind, item.name] = sums.get((kind, item.name), 0) + item.ns
    columns = (
        Column("name", "Kernel or operator", Kind.NAME),
        Column("on", "On", Kind.TEXT, minor=True),
        _per_step(one),
    )
    rows: list[Row] = [
        (name, kind, ns // max(1, len(paths))) for (kind, name), ns in sorted(sums.items(), key=lambda row: -row[1])
    ]
    return Table(key="path", title="Longest on the critical path", columns=columns, rows=rows)


def _per_step(one: RankAnalysis, *, minor: bool = False) -> Column:
    return Column("ns", "A step" if one.summary.steps else "In all", Kind.TIME, minor=minor)
