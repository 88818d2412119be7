"""The table of proof.py, for a screen and as docs/proof.md."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence

import torch
from agreement import MIN_OTHERS, NOTABLE_FRAC, SILENT_FRAC, Agreement, Interval, Row, calibrated
from rich.console import Console
from rich.table import Table

from tightship_platform.units import format_frac, plural

COLUMNS = ("job", "rule", "ms/step", "processor", "measured", "predicted", "calibrated", "method", "agree", "as asked")
TEXT = ("job", "rule", "method", "agree", "as asked")
"""Columns that hold no figures."""

HEAD = """<!-- Written by `make proof`. -->

# Predicted and measured

Real jobs with a defect that people write, recorded and analyzed as they are; then the fix, exactly as the finding
asks for it, is applied by a program ([the pairs](../benchmarks/proof/pairs), one script and one diff each), and both
versions run in turns. *Measured* is the median over the alternations of what a step of the fixed job takes less, as a
share of the step, with the interval that holds the median with a probability of 90 %. A step is the mean over one
run, so what happens only now and then (a checkpoint, a new epoch) counts with its share. *Processor* is the processor
time of all processes of the job per step. *Predicted* is the saving of the finding with its low and high end, in
steps as they are without recording; work that would move to other cores is limited by those that the job leaves idle,
as of a captured run. *Calibrated* are the limits that the other pairs of the rule give: value plus
their least and largest residual, from {others} others on; the pair itself is left out. *Agree*: the measured interval
and the one that `tightship analyze` reports overlap; a rule that finds nothing says that there is at most {silent} to
save. *As asked*: the finding asks for the very edit that was applied. Controls have nothing to fix, or a fix that
cannot pay on two cores.
"""


def summary(result: Agreement) -> list[str]:
    """One line for each thing to be known of all cases."""
    agree, narrowed = (_frac(one) for one in (result.overlap_frac, result.calibrated_overlap_frac))
    lines = [
        f"{plural(result.pairs, 'pair')}: the rule finds {result.found}, {result.bounds} of them with a bound.",
        f"Predicted and measured intervals overlap in {agree} of the pairs; calibrated ones in {narrowed} of those "
        "that have one.",
        f"Median error of the value {_frac(result.median_error)} of the step, median width "
        f"{_frac(result.median_width)}, bounds left out.",
        f"Of {plural(result.notable, 'pair')} that save {NOTABLE_FRAC:.0%} or more, {result.notable_found} are found, "
        f"{result.notable_certain} with a low end above zero.",
        f"Fixes of findings with a low end above zero that made the job slower: {', '.join(result.harmful) or 'none'}.",
        f"{plural(result.controls, 'control')}; with a finding whose low end is above zero: "
        + (", ".join(f"{job} ({', '.join(rules)})" for job, rules in result.alarmed.items()) or "none")
        + ".",
    ]
    biases = [f"{rule} {error:+.1%} ({count})" for rule, (count, error) in result.bias.items()]
    return [*lines, f"Bias (predicted less measured, mean over pairs found): {', '.join(biases) or 'none found'}."]


def show(rows: Sequence[Row], result: Agreement) -> None:
    """On the screen."""
    console = Console(width=max(200, Console().width))
    for title, chosen in (("Pairs", _pairs(rows)), ("Controls", _controls(rows))):
        table = Table(title=title)
        for column in COLUMNS:
            table.add_column(column, justify="left" if column in TEXT else "right", no_wrap=True)
        for row in chosen:
            table.add_row(*_cells(row, rows))
        console.print(table)
    for line in [*summary(result), *_failures(rows)]:
        console.print(line)


def document(rows: Sequence[Row], result: Agreement, alternations: int) -> str:
    """docs/proof.md."""
    machine = f"{plural(os.cpu_count() or 1, 'core')}, {platform.machine()}, torch {torch.__version__}"
    head = HEAD.format(others=MIN_OTHERS, silent=format_frac(SILENT_FRAC))
    lines = [head, f"`make proof`, {plural(alternations, 'alternation')}; {machine}.", ""]
    lines += [f"- {line}" for line in summary(result)]
    for title, chosen in (("Pairs", _pairs(rows)), ("Controls", _controls(rows))):
        lines += ["", f"## {title}", "", _line(COLUMNS), _line("---" if one in TEXT else "--:" for one in COLUMNS)]
        lines += [_line(_cells(row, rows)) for row in chosen]
    failures = _failures(rows)
    return "\n".join([*lines, *(["", *failures] if failures else [])]) + "\n"


def _line(cells: object) -> str:
    return "| " + " | ".join(cells) + " |"  # type: ignore[call-overload]


def _pairs(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if not row.is_control]


def _controls(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.is_control]


def _cells(row: Row, rows: Sequence[Row]) -> list[str]:
    narrowed = calibrated(row, _pairs(rows))
    found = row.predicted
    method = found.method if found else ("not judged" if row.not_judged else "none found")
    agree = "" if row.measured is None else ("yes" if row.raw.overlaps(row.measured) else "no")
    if row.is_control:
        alarms = ", ".join(sorted({one.rule for one in row.certain}))
        method, agree = (alarms or (found.method if found else "quiet")), ("no" if alarms else "yes")
    return [
        row.job,
        row.rule or "–",
        _change(row.step_ns, row.fixed_ns),
        _change(row.cpu_ns, row.fixed_cpu_ns),
        _interval(row.measured),
        _interval(row.raw) if found else "–",
        f"{narrowed.low:+.0%} to {narrowed.high:+.0%}" if narrowed else "–",
        method,
        agree,
        ("yes" if row.as_asked else "no") if found else "–",
    ]


def _change(before_ns: int | None, after_ns: int | None) -> str:
    figures = [f"{ns / 1e6:.2f}" for ns in (before_ns, after_ns) if ns is not None]
    return " → ".join(figures) or "–"


def _interval(given: Interval | None) -> str:
    return f"{given.value:+.1%} ({given.low:+.0%} to {given.high:+.0%})" if given else "–"


def _frac(given: float | None) -> str:
    return "–" if given is None else format_frac(given)


def _failures(rows: Sequence[Row]) -> list[str]:
    return [f"{row.job} did not run: {row.failed}" for row in rows if row.failed]
