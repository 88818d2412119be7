"""The demo's table: per workflow where its device time went, the top cause, and what to do."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tightship_platform.results.action import Action, measured_words, predicted_words
from tightship_platform.results.demo import DemoResult
from tightship_platform.results.opportunity import Opportunity
from tightship_platform.results.run import Run
from tightship_platform.units import format_frac, format_ns
from tightship_platform.vocabulary import Bucket

_COLOURS = {"verified": "green", "refuted": "red", "undecided": "yellow"}


def print_report(result: DemoResult, console: Console) -> None:
    """Print a table of workflows, in the order of their opportunities."""
    best: dict[str, Opportunity] = {}
    for one in result.opportunities:
        best.setdefault(one.workflow, one)
    order = list(best)
    runs = sorted(result.runs, key=lambda run: order.index(run.workflow) if run.workflow in best else len(order))
    table = Table(title="What to do first", title_justify="left", title_style="bold", show_lines=True, expand=True)
    table.add_column("Workflow", no_wrap=True)
    table.add_column("Device time", justify="right", no_wrap=True)
    table.add_column("Where it went")
    table.add_column("Top cause")
    table.add_column("Recoverable", justify="right")
    table.add_column("What to do", ratio=1)
    for run in runs:
        opportunity = best.get(run.workflow)
        table.add_row(
            escape(run.workflow),
            format_ns(run.device_ns),
            _account(run),
            escape(", ".join(opportunity.rules)) if opportunity else "nothing above the thresholds",
            _saving(opportunity),
            escape(opportunity.fix) if opportunity else "–",
        )
    console.print(table)


def print_tried(actions: Sequence[Action], console: Console) -> None:
    """Print a table of what was applied: predicted beside measured, and the verdict."""
    if not actions:
        console.print("Nothing was found that the demo has a change for: its traces held none of it; try --seconds 60")
        return
    table = Table(
        title="Did it work? Shares of the step", title_justify="left", title_style="bold", show_lines=True, expand=True
    )
    table.add_column("Workflow", no_wrap=True)
    table.add_column("Change", ratio=1)
    table.add_column("Predicted", justify="right", no_wrap=True)
    table.add_column("Measured", justify="right", no_wrap=True)
    table.add_column("Verdict", no_wrap=True)
    table.add_column("Why", ratio=1)
    for one in actions:
        found = one.verification
        verdict = (found.verdict if found else None) or one.state or ""
        table.add_row(
            escape(one.workflow),
            escape(one.reason or ""),
            _lines(predicted_words(one.predicted)),
            "–" if found is None else _lines(measured_words(found)),
            f"[{_COLOURS.get(verdict, 'default')}]{escape(verdict)}[/]",
            escape(found.reason if found else one.waits_for or ""),
        )
    console.print(table)


def _lines(saving: str) -> str:
    """The value, its interval, and how it is known, each on a line."""
    return escape(saving.replace(" (", "\n(").replace("), ", ")\n"))


def _account(run: Run) -> str:
    account, total = run.account or {}, run.device_ns or 0
    rows = sorted(account.items(), key=lambda item: (item[0] != Bucket.PRODUCTIVE, -item[1]))
    return "\n".join(f"{format_frac(ns / total)} {bucket.replace('_', ' ')}" for bucket, ns in rows if ns) or "–"


def _saving(opportunity: Opportunity | None) -> str:
    if opportunity is None or not opportunity.device_ns or opportunity.recoverable_device_ns is None:
        return "–"
    share = format_frac(opportunity.recoverable_device_ns / opportunity.device_ns)
    low, high = opportunity.low_ns, opportunity.high_ns
    if not low and opportunity.recoverable_device_ns == high:
        return f"up to {share}\n{format_ns(high)}\n({opportunity.method})"
    return f"{share}\n{format_ns(low)} to {format_ns(high)}\n({opportunity.method})"
