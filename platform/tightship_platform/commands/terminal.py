"""How lists look: one line per item, sentences below it, nothing that could be mistaken for markup."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tightship_platform.text import printable
from tightship_platform.units import NS_PER_S, utc_offset
from tightship_platform.vocabulary import CaptureState, HostState, OpportunityState, RunState

TEXT_WIDTH = 120
"""Width of prose and bars where the output is no terminal."""
PLAIN_WIDTH = 10_000
"""Width where the output is no terminal: every item is one whole line, for `grep` and `awk`."""

GAP = 3
"""Cells between two columns, as rich draws them."""
LEAST = 8
"""No column is made narrower than this; a line then runs over the terminal's edge."""


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    name: str
    right: bool = False
    """Numbers stand to the right."""
    whole: bool = False
    """Never shortened: what the next command takes as its argument."""
    spare: int = 0
    """Left out where the terminal is too narrow for all: the highest first, of equal ones the last; 0 never."""
    prose: bool = False
    """A sentence: stands below its row on a terminal."""
    state: bool = False
    """A state in words, which is never shortened, and has a colour on a terminal that shows any."""


@dataclass(frozen=True)
class Listed:
    """A list as a table."""

    columns: Sequence[Column]
    rows: Iterable[Sequence[object]]


STATE_STYLES: dict[str, str] = {
    **dict.fromkeys((RunState.RUNNING, CaptureState.RECORDING, OpportunityState.APPLIED), "cyan"),
    **dict.fromkeys((RunState.FINISHED, CaptureState.ANALYZED, OpportunityState.VERIFIED, HostState.ALIVE), "green"),
    **dict.fromkeys((RunState.FAILED, RunState.OUT_OF_MEMORY, CaptureState.FAILED, OpportunityState.REFUTED), "red"),
    **dict.fromkeys(
        (RunState.LOST, RunState.CANCELLED, RunState.TIMEOUT, CaptureState.EXPIRED, HostState.SILENT), "yellow"
    ),
}
"""State → its colour, named as terminals name theirs, so that it suits light and dark ones; others have none."""


def clock(ns: int | None) -> str:
    """A moment in the user's time zone, with its offset; '–' when there is none or no calendar has it."""
    if ns is None:
        return "–"
    try:
        at = datetime.fromtimestamp(ns / NS_PER_S).astimezone()
        return f"{at:%Y-%m-%d %H:%M:%S} {utc_offset(at)}"
    except (OverflowError, ValueError, OSError):
        return f"{ns} ns"


def wide_console() -> Console:
    """As wide as the terminal, or as COLUMNS says, or else TEXT_WIDTH."""
    console = Console(highlight=False)
    if console.is_terminal or os.environ.get("COLUMNS", "").isdigit():
        return console
    return Console(highlight=False, width=TEXT_WIDTH)


def print_table(
    columns: Sequence[Column], rows: Iterable[Sequence[object]], *, empty: str, console: Console | None = None
) -> None:
    """Print the rows, or `empty`, which says what to do next.

    On a terminal a sentence stands below its row; elsewhere every item is one line.
    """
    out = console or Console(highlight=False)
    if not out.is_terminal and console is None:
        out = Console(highlight=False, width=PLAIN_WIDTH)
    shown = [[printable(cell) for cell in row] for row in rows]
    if not shown:
        out.print(Text(empty), soft_wrap=True)
        return
    below = [i for i, column in enumerate(columns) if column.prose and out.is_terminal]
    widths = [max(cell_len(cells[i]) for cells in [[c.name for c in columns], *shown]) for i in range(len(columns))]
    kept = [i for i in range(len(columns)) if i not in below]
    for i in sorted((i for i in kept if columns[i].spare), key=lambda i: (-columns[i].spare, -i)):
        if sum(widths[k] + GAP for k in kept) - GAP > out.width:
            kept.remove(i)
    flexible = [i for i in kept if not columns[i].whole and not columns[i].state]
    while sum(widths[k] + GAP for k in kept) - GAP > out.width:
        widest = max(flexible, key=lambda k: widths[k], default=None)
        if widest is None or widths[widest] <= LEAST:
            break
        widths[widest] -= 1
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for i in kept:
        style: Literal["right", "left"] = "right" if columns[i].right else "left"
        table.add_column(Text(columns[i].name), justify=style, no_wrap=True, overflow="ellipsis", width=widths[i])
    for row in shown:
        table.add_row(*(Text(row[i], style=_style(columns[i], row[i])) for i in kept))
    room = out.options.update(width=max(out.width, sum(widths[k] + GAP for k in kept)))
    rendered = out.render_lines(table, room, pad=False)
    lines = [Text.assemble(*((part.text, part.style or "") for part in line)) for line in rendered]
    head = len(lines) - len(shown)
    for line in lines[:head]:
        out.print(line, soft_wrap=True)
    for line, row in zip(lines[head:], shown, strict=True):
        out.print(line, soft_wrap=True)
        for sentence in (row[i] for i in below if row[i]):
            out.print(Padding(Text(sentence, style="dim"), (0, 0, 0, 4)))


def _style(column: Column, text: str) -> str:
    return STATE_STYLES.get(text.partition(" ")[0], "") if column.state else ""
