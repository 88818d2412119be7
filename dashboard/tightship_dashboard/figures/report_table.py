"""A table of a report as a grid: it sorts, filters and exports plain values. Any text in it may come from a trace."""

from __future__ import annotations

from tightship_analyzers.report.tables import Cell, Column, Kind, Table, cell_text
from tightship_dashboard.figures import grid
from tightship_dashboard.figures.elements import Node
from tightship_dashboard.sentences import formatting as fmt

NAME_CHARS = 110
WRAPPED = ("idle", "exposed")
"""Tables whose rows grow with their text."""
_UNIT = {Kind.TIME: "ns", Kind.SHARE: "0..1", Kind.BYTES: "bytes", Kind.RATE: "GB/s"}
_WIDTH = {
    Kind.COUNT: (76, 96),
    Kind.ORDINAL: (76, 96),
    Kind.TIME: (84, 110),
    Kind.SHARE: (74, 80),
    Kind.BYTES: (90, 120),
    Kind.RATE: (110, 140),
}
"""Kind → least width and width in pixels, where a column beside it takes the rest."""
_HEAD_PX = 7.2
"""A character of a column's head, at least."""


def drawn(table: Table) -> Node:
    """The table, all of its rows."""
    takes_rest, wraps = any(column.kind == Kind.NAME for column in table.columns), table.key in WRAPPED
    columns = [_column(column, takes_rest=takes_rest, wraps=wraps) for column in table.columns]
    rows: list[grid.Row] = []
    for number, row in enumerate(table.rows):
        cells: grid.Row = {"id": str(number)}
        for column, value in zip(table.columns, row, strict=True):
            cells |= _cells(column, value)
        rows.append(cells)
    return grid.table(_id(table), columns, rows, label=table.title, wrap=wraps)


def export(table: Table) -> Node:
    """The button that saves its rows."""
    return grid.export_button(_id(table), f"{table.key}.csv")


def _id(table: Table) -> str:
    return f"trace-{table.key}"


def _column(column: Column, *, takes_rest: bool, wraps: bool) -> grid.Column:
    key, head, wide = column.key, column.head, column.minor
    match column.kind:
        case Kind.NAME:
            return grid.column(key, head, minWidth=130, flex=4, wide=wide, exported="why")
        case Kind.TEXT:
            return grid.column(key, head, minWidth=118, flex=1 if takes_rest and not wraps else 2, wide=wide)
        case kind:
            least, width = _WIDTH[kind]
            least = least if takes_rest else max(least, round(_HEAD_PX * len(head)))
            numeric = grid.column(key, head, "number", unit=_UNIT.get(kind, ""), wide=wide, minWidth=least)
            return numeric | ({"width": width} if takes_rest else {"flex": 1})


def _cells(column: Column, value: Cell) -> grid.Row:
    """The plain value to sort by, and what is shown."""
    key, kind = column.key, column.kind
    text = fmt.cell(cell_text(kind, value, NAME_CHARS), limit=NAME_CHARS)
    if kind == Kind.NAME and value is not None:
        return {key: text, f"{key}_why": fmt.name(value, limit=400)}
    return {key: text} if isinstance(value, str) else {key: value, f"{key}_text": text}
