"""Tables of one trace: each sorts, filters and exports plain values; every text in them comes from a trace."""

from __future__ import annotations

from collections.abc import Sequence

from tightship_analyzers.report.sentences import idle_rows, rates_of
from tightship_dashboard.figures import grid
from tightship_dashboard.figures.elements import Node, section
from tightship_dashboard.sentences import formatting as fmt
from tightship_platform.results.analysis.figures import CopyFigures, LaunchFigures, Roofline
from tightship_platform.results.analysis.rank import RankAnalysis, RankFigures
from tightship_platform.results.analysis.skew import RankComparison
from tightship_platform.text import label
from tightship_platform.units import format_bytes

KERNEL_CHARS, PLACE_CHARS = 110, 90
Rows = list[grid.Row]


def titled(
    title: str, table_id: str, columns: Sequence[grid.Column], rows: Rows, *, anchor: str, wrap: bool = False
) -> Node:
    """A table under its heading, with its export."""
    drawn = grid.table(table_id, columns, rows, label=title, wrap=wrap)
    return section(title, [drawn], anchor=anchor, aside=grid.export_button(table_id, f"{anchor}.csv"))


def idle(one: RankAnalysis) -> Node | None:
    """Idle time by cause and place, the largest first."""
    window, steps = one.summary.window_ns or 1, one.summary.steps
    rows: Rows = [
        _row(
            n,
            cause=cause,
            place=fmt.cell(label(place, PLACE_CHARS)),
            place_why=fmt.name(place, limit=400),
            share=ns / window,
            share_text=fmt.percent(ns / window),
        )
        | _time("ns", ns // (steps or 1))
        for n, (cause, place, ns) in enumerate(idle_rows(one))
    ]
    columns = [
        grid.column("cause", "Cause", minWidth=118, flex=2),
        grid.column("place", "Place", minWidth=130, flex=3, exported="why"),
        grid.column("share", "Share", "number", unit="0..1", minWidth=74, width=80),
        _ns("ns", "A step" if steps else "In all", wide=True),
    ]
    return (
        titled("Idle time by cause and place", "trace-idle", columns, rows, anchor="idle", wrap=True) if rows else None
    )


def kernels(figures: RankFigures) -> Node | None:
    """All kernels, copies and sets by name."""
    rows: Rows = [
        _row(
            n, name=fmt.cell(label(row.name, KERNEL_CHARS), limit=KERNEL_CHARS), name_why=fmt.name(row.name, limit=400)
        )
        | {"type": fmt.cell(row.type), "count": row.count, "count_text": fmt.count(row.count)}
        | _time("sum", row.sum_ns)
        | _time("mean", round(row.mean_ns))
        | _time("max", row.max_ns)
        for n, row in enumerate(figures.kernels)
    ]
    columns = [
        grid.column("name", "Kernel", minWidth=150, flex=4, exported="why"),
        grid.column("type", "Type", minWidth=110, width=130, wide=True),
        _count("count", "Count"),
        _ns("sum", "Sum"),
        _ns("mean", "Mean", wide=True),
        _ns("max", "Longest", wide=True),
    ]
    return titled("Kernels", "trace-kernels", columns, rows, anchor="kernels") if rows else None


def streams(figures: RankFigures) -> Node | None:
    """Idle time of each stream."""
    rows: Rows = [
        _row(n, stream=f"{row.device}/{row.stream}", events=row.events, events_text=fmt.count(row.events))
        | _time("host", row.host_wait_ns)
        | _time("kernel", row.kernel_wait_ns)
        | _time("other", row.other_ns)
        for n, row in enumerate(figures.idle_by_stream)
    ]
    columns = [
        grid.column("stream", "Device/stream", minWidth=90, flex=1),
        _count("events", "Events"),
        _ns("host", "Waited for the host", flex=1) | {"minWidth": 148},
        _ns("kernel", "For the kernel's start", wide=True, flex=1),
        _ns("other", "Otherwise", wide=True, flex=1),
    ]
    return titled("Idle time of each stream", "trace-streams", columns, rows, anchor="streams") if rows else None


def launches(found: LaunchFigures | None) -> Node | None:
    """Calls that launch work."""
    rows: Rows = [
        _row(n, call=fmt.cell(row.call), count=row.host.count, count_text=fmt.count(row.host.count))
        | _time("mean", round(row.host.mean_ns))
        | _time("delay", round(row.delay.mean_ns))
        | _time("work", round(row.device.mean_ns))
        for n, row in enumerate(found.by_call if found else [])
    ]
    columns = [
        grid.column("call", "Call", minWidth=130, flex=2),
        _count("count", "Count"),
        _ns("mean", "Mean call"),
        _ns("delay", "Mean delay", wide=True),
        _ns("work", "Mean of its work", wide=True),
    ]
    return titled("Launches", "trace-launches", columns, rows, anchor="launches") if rows else None


def copies(found: Sequence[CopyFigures]) -> Node | None:
    """Copies and sets of memory by type."""
    rows: Rows = [
        _row(n, type=fmt.cell(row.type), count=row.count, count_text=fmt.count(row.count), pageable=row.pageable)
        | _time("sum", row.sum_ns)
        | {"bytes": row.bytes, "bytes_text": format_bytes(row.bytes)}
        | {"rate": row.gbps, "rate_text": fmt.MISSING if row.gbps is None else f"{row.gbps:,.1f}\u00a0GB/s"}
        for n, row in enumerate(found)
    ]
    columns = [
        grid.column("type", "Copies", minWidth=130, flex=2),
        _count("count", "Count"),
        _ns("sum", "Time"),
        grid.column("bytes", "Bytes", "number", unit="bytes", minWidth=90, width=120, wide=True),
        grid.column("rate", "Rate", "number", unit="GB/s", minWidth=90, width=120, wide=True),
        grid.column(
            "pageable", "Pageable", "number", minWidth=80, width=110, why="From or to pageable memory", wide=True
        ),
    ]
    return titled("Copies", "trace-copies", columns, rows, anchor="copies") if rows else None


def roofline(roof: Roofline) -> Node:
    """Families of kernels against the device's roof."""
    rows: Rows = []
    for n, row in enumerate(roof.families):
        achieved, attainable = rates_of(row)
        bound = row.memory_bound_ns / row.device_ns if row.device_ns else None
        rows.append(
            _row(n, family=fmt.cell(f"{row.family} {row.dtype or 'integers'}"), kernels=row.kernels)
            | {"kernels_text": fmt.count(row.kernels), "achieved": achieved, "attainable": attainable}
            | _time("ns", row.device_ns)
            | {"roof": row.roof_frac, "roof_text": fmt.percent(row.roof_frac)}
            | {"memory": bound, "memory_text": fmt.percent(bound)}
        )
    columns = [
        grid.column("family", "Kernels", minWidth=120, flex=2),
        _count("kernels", "Count", wide=True),
        _ns("ns", "Time"),
        grid.column("achieved", "Achieved", minWidth=110, width=140, type="rightAligned", wide=True),
        grid.column("attainable", "Attainable", minWidth=110, width=140, type="rightAligned", wide=True),
        grid.column("roof", "Of roofline", "number", unit="0..1", minWidth=84, width=110),
        grid.column("memory", "Memory-bound", "number", unit="0..1", minWidth=90, width=130, wide=True),
    ]
    return grid.table("trace-roofline", columns, rows, label="Roofline")


def ranks(across: RankComparison) -> Node:
    """What each rank costs the others."""
    steps = across.steps or 1
    rows: Rows = [
        _row(n, rank=row.rank, last=row.last, last_text=f"{row.last} of {row.collectives}")
        | _time("kept", row.kept_waiting_ns // steps)
        | _time("alone", row.late_exposed_ns // steps)
        | _time("waited", row.waited_ns // steps)
        | _time("exposed", row.waited_exposed_ns // steps)
        for n, row in enumerate(across.ranks)
    ]
    columns = [
        grid.column("rank", "Rank", "number", minWidth=60, width=80),
        grid.column("last", "Came last", "number", minWidth=90, flex=1),
        _ns("kept", "Others waited", flex=1),
        _ns("alone", "Run waited for it alone", wide=True, flex=1),
        _ns("waited", "Waited itself", wide=True, flex=1),
        _ns("exposed", "Of that exposed", wide=True, flex=1),
    ]
    return grid.table("trace-ranks", columns, rows, label="What each rank costs the others")


def collectives(across: RankComparison) -> Node | None:
    """The most uneven collectives."""
    rows: Rows = [
        _row(n, name=fmt.cell(label(row.name, KERNEL_CHARS)), name_why=fmt.name(row.name, limit=400))
        | {"group": fmt.cell(row.group), "number": row.number, "first": row.first_rank, "last": row.last_rank}
        | _time("skew", row.skew_ns)
        for n, row in enumerate(across.worst)
    ]
    columns = [
        grid.column("name", "Collective", minWidth=140, flex=3, exported="why"),
        grid.column("group", "Group", minWidth=80, flex=1, wide=True),
        _count("number", "Number", wide=True),
        _count("first", "First rank", wide=True),
        _count("last", "Last rank"),
        _ns("skew", "Skew"),
    ]
    return (
        titled("The most uneven collectives", "trace-collectives", columns, rows, anchor="collectives")
        if rows
        else None
    )


def path_items(one: RankAnalysis) -> Node | None:
    """What lies longest on the critical paths of all steps together: device events and operators."""
    sums: dict[tuple[str, str], int] = {}
    for path in one.figures.critical_path or []:
        for kind, items in (("device", path.device_events), ("host", path.operators)):
            for item in items:
                sums[kind, item.name] = sums.get((kind, item.name), 0) + item.ns
    steps = max(1, len(one.figures.critical_path or []))
    rows: Rows = [
        _row(n, name=fmt.cell(label(name, KERNEL_CHARS)), name_why=fmt.name(name, limit=400), kind=kind)
        | _time("ns", ns // steps)
        for n, ((kind, name), ns) in enumerate(sorted(sums.items(), key=lambda row: -row[1]))
    ]
    columns = [
        grid.column("name", "Kernel or operator", minWidth=150, flex=4, exported="why"),
        grid.column("kind", "On", minWidth=80, width=100, wide=True),
        _ns("ns", "A step" if one.summary.steps else "In all"),
    ]
    return titled("Longest on the critical path", "trace-path", columns, rows, anchor="path-items") if rows else None


def _row(number: int, **cells: grid.Cell) -> grid.Row:
    return {"id": str(number)} | cells


def _time(field: str, ns: int) -> grid.Row:
    return {field: ns, f"{field}_text": fmt.duration(ns)}


def _ns(field: str, head: str, *, wide: bool = False, flex: int | None = None) -> grid.Column:
    column = grid.column(field, head, "number", unit="ns", minWidth=84, wide=wide)
    return column | ({"width": 130 if wide else 100} if flex is None else {"flex": flex})


def _count(field: str, head: str, *, wide: bool = False) -> grid.Column:
    return grid.column(field, head, "number", minWidth=76, width=96, wide=wide)
