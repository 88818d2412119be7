"""Parts of the report in a terminal: sections with their tables, notes, and the cost of facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from tightship_analyzers.report.model import Report, Section
from tightship_analyzers.report.tables import Kind, Table, cell_text
from tightship_platform.results.analysis.figures import FactCost
from tightship_platform.results.analysis.rank import RankAnalysis
from tightship_platform.text import shown
from tightship_platform.units import format_ns

SHOWN: Mapping[str, tuple[int, tuple[str, ...]]] = {
    "idle": (6, ("share", "ns", "cause", "place")),
    "exposed": (6, ("share", "ns", "cause", "place")),
    "ranks": (8, ("rank", "last", "kept", "alone", "waited", "exposed")),
    "collectives": (3, ("name", "number", "first", "last", "skew")),
    "roofline": (8, ("family", "time", "achieved", "attainable", "roof", "memory")),
}
"""Table → how many of its rows, and which columns in which order; the others stand in the JSON and on the page."""
MOST_ITEMS = 3
NAME_CHARS = 52


def print_section(console: Console, section: Section | None) -> None:
    """A section's sentences, the first rows of its tables and what it lists; nothing for None."""
    if section is None:
        return
    console.print(Text(section.title, style="bold"))
    for text in section.words:
        console.print(Text(text, style="dim"), soft_wrap=True)
    for table in section.tables:
        if table.key in SHOWN:
            _print_table(console, table)
    for item in section.items[:MOST_ITEMS]:
        console.print(Text(f"  {item}", style="dim"), soft_wrap=True)
    console.print()


def print_notes(console: Console, report: Report) -> None:
    """What was not judged and why, except what already stands above the verdict."""
    notes = report.section("notes")
    for line in notes.items if notes else []:
        if line not in report.limits:
            console.print(Text(line, style="dim"), soft_wrap=True)


def _print_table(console: Console, table: Table) -> None:
    most, keys = SHOWN[table.key]
    picked = table.first(most).only(*keys)
    grid = _grid([(column.head.upper(), column.kind in (Kind.TEXT, Kind.NAME)) for column in picked.columns])
    for row in picked.rows:
        cells = zip(picked.columns, row, strict=True)
        grid.add_row(*(Text(shown(cell_text(column.kind, value, NAME_CHARS))) for column, value in cells))
    console.print(Padding(grid, (1, 0, 0, 2), expand=False))
    if len(table.rows) > most and not table.rest:
        console.print(Text(f"  {len(table.rows) - most:,} more in the JSON", style="dim"))


def print_facts(console: Console, ranks: Sequence[RankAnalysis]) -> None:
    """What was derived from the trace, what it cost and who used it; of several ranks the costs are summed."""
    rows: dict[str, FactCost] = {}
    for one in ranks:
        for cost in one.facts:
            known = rows.get(cost.fact)
            rows[cost.fact] = FactCost(
                fact=cost.fact,
                self_ns=cost.self_ns + (known.self_ns if known else 0),
                used_by=list(dict.fromkeys((*(known.used_by if known else ()), *cost.used_by))),
                missing=cost.missing if known is None else known.missing and cost.missing,
            )
    console.print()
    console.print(Text("Facts", style="bold"))
    table = _grid((("FACT", True), ("COST", False), ("USED BY", True)))
    for row in sorted(rows.values(), key=lambda row: -row.self_ns):
        used = ", ".join(row.used_by)
        table.add_row(row.fact, format_ns(row.self_ns), used + (f" – not there: {row.missing}" if row.missing else ""))
    console.print(Padding(table, (1, 0, 1, 2), expand=False))


def _grid(heads: Sequence[tuple[str, bool]]) -> Grid:
    """A table of (head, whether it holds text)."""
    table = Grid(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name, text in heads:
        table.add_column(name, justify="left" if text else "right", overflow="fold")
    return table
