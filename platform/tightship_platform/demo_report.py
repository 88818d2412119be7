"""The demo's table: per workflow where its device time went, the top cause, and what to do."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tightship_platform.units import format_frac, format_ns
from tightship_platform.vocabulary import Bucket


def print_report(result: dict[str, Any], console: Console) -> None:
    """Print {runs, findings, opportunities} as a ranked table, the most wasteful workflow first."""
    best: dict[str, dict[str, Any]] = {}
    for opportunity in result["opportunities"]:
        best.setdefault(opportunity["workflow"], opportunity)
    runs = sorted(result["runs"], key=lambda run: -_recoverable(best.get(run["workflow"])))
    table = Table(title="What to do first", title_justify="left", title_style="bold", show_lines=True, expand=True)
    table.add_column("Workflow", no_wrap=True)
    table.add_column("Device time", justify="right", no_wrap=True)
    table.add_column("Where it went")
    table.add_column("Top cause")
    table.add_column("Recoverable", justify="right")
    table.add_column("What to do", ratio=1)
    for run in runs:
        opportunity = best.get(run["workflow"])
        table.add_row(
            escape(run["workflow"]),
            format_ns(run["device_ns"]),
            _account(run),
            escape(", ".join(opportunity["rules"])) if opportunity else "nothing above the thresholds",
            _saving(opportunity),
            escape(opportunity["fix"]) if opportunity else "–",
        )
    console.print(table)


def _recoverable(opportunity: dict[str, Any] | None) -> int:
    return int(opportunity["recoverable_device_ns"] or 0) if opportunity else 0


def _account(run: dict[str, Any]) -> str:
    account, total = run["account"] or {}, run["device_ns"] or 0
    rows = sorted(account.items(), key=lambda item: (item[0] != Bucket.PRODUCTIVE, -item[1]))
    return "\n".join(f"{format_frac(ns / total)} {bucket.replace('_', ' ')}" for bucket, ns in rows if ns) or "–"


def _saving(opportunity: dict[str, Any] | None) -> str:
    if opportunity is None or not opportunity["device_ns"] or opportunity["recoverable_device_ns"] is None:
        return "–"
    share = opportunity["recoverable_device_ns"] / opportunity["device_ns"]
    low, high = (format_ns(opportunity[key]) for key in ("low_ns", "high_ns"))
    return f"{format_frac(share)}\n{low} to {high}\n({opportunity['method']})"
