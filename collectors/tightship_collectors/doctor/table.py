"""The doctor's table: long lines are folded, never cut, because advice that is cut helps nobody."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tightship_collectors.doctor.check import NOTE, OK, WRONG, Check
from tightship_platform.text import printable

STYLES = {OK: "green", NOTE: "yellow", WRONG: "bold red"}
PLAIN_WIDTH = 200


def print_checks(checks: Sequence[Check], console: Console | None = None) -> None:
    """One row per check; the advice stands below what was seen."""
    out = console or Console(highlight=False)
    if not out.is_terminal and console is None:
        out = Console(highlight=False, width=PLAIN_WIDTH)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("CHECK", no_wrap=True)
    table.add_column("STATE", no_wrap=True)
    table.add_column("SEEN", overflow="fold")
    for check in checks:
        seen = Text(printable(check.detail))
        if check.advice:
            seen.append(f"\n→ {printable(check.advice)}", style="bold")
        table.add_row(Text(printable(check.check)), Text(check.state, style=STYLES[check.state]), seen)
    out.print(table)
    counts = ", ".join(f"{sum(c.state == state for c in checks)} {state}" for state in (OK, NOTE, WRONG))
    out.print(Text(counts))
