"""How a verdict looks in a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tightship_analyzers.report.model import RankTime, Report, finding_rows, report_of
from tightship_analyzers.report.palette import bucket_colour, bucket_label
from tightship_analyzers.report.sentences import apart_words, is_clean, ranks_on
from tightship_analyzers.report.terminal_parts import print_facts, print_notes, print_section
from tightship_platform.commands.terminal import wide_console
from tightship_platform.results.analysis.finding import TraceFinding
from tightship_platform.results.analysis.run import RunAnalysis
from tightship_platform.units import format_frac, format_ns

BAR_CELLS = 40
MAX_BAR_RANKS = 2
"""Up to this many ranks get bars; more get one line each."""
ROW_STYLE = {"fix": "cyan", "because": "dim"}


def print_report(result: RunAnalysis, *, explain: bool = False) -> None:
    """Where the step went, what to do about it, and what could not be judged."""
    console, report = wide_console(), report_of(result)
    for line in report.limits:
        console.print(Text(line, style="bold yellow"), soft_wrap=True)
    console.print(Text(report.headline, style="bold"))
    console.print()
    judged = bool(report.buckets)
    if judged:
        if len(report.ranks) <= MAX_BAR_RANKS:
            for row in report.ranks:
                _print_rank(console, row)
        else:
            console.print(Text(ranks_on(result.ranks), style="bold"))
            _print_ranks(console, report)
        for key in ("idle", "exposed", "across"):
            print_section(console, report.section(key))
        _print_findings(console, result, report)
        print_section(console, report.section("roofline"))
    print_notes(console, report)
    if explain and judged:
        print_facts(console, result.ranks)


def _print_rank(console: Console, row: RankTime) -> None:
    console.print(Text(row.source, style="bold"), soft_wrap=True)
    console.print(Text(f"{row.device}, rank {row.rank}: {row.length}"), soft_wrap=True)
    console.print()
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(min_width=BAR_CELLS)
    table.add_column(justify="right")
    table.add_column(justify="right")
    for part in row.parts:
        table.add_row(
            bucket_label(part.bucket),
            Text(_bar(part.share), style=bucket_colour(part.bucket)),
            format_frac(part.share),
            format_ns(part.ns) + (" a step" if row.steps else ""),
        )
    console.print(Padding(table, (0, 0, 1, 2), expand=False))


def _print_ranks(console: Console, report: Report) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("RANK", "STEPS", "MEAN STEP", *(bucket_label(bucket).upper() for bucket in report.buckets)):
        table.add_column(name, justify="right")
    for row in report.ranks:
        shares = [format_frac(row.share(bucket)) for bucket in report.buckets]
        table.add_row(str(row.rank), str(row.steps or "–"), format_ns(row.mean_ns), *shares)
    console.print(Padding(table, (1, 0, 1, 2), expand=False))


def _print_findings(console: Console, result: RunAnalysis, report: Report) -> None:
    if result.findings:
        console.print(Text("What to do", style="bold"))
        console.print(Text(report.advice, style="dim"))
    else:
        console.print(Text(report.advice, style="bold green" if is_clean(result) else "bold yellow"))
    for number, finding in enumerate(result.findings, start=1):
        above = apart_words(result, number - 1)
        if above is not None:
            console.print(Text(above, style="bold yellow"))
        _print_finding(console, number, result, finding)
    for line in report.remarks:
        console.print(Text(line))
    if report.remarks or not result.findings:
        console.print()


def _print_finding(console: Console, number: int, result: RunAnalysis, finding: TraceFinding) -> None:
    console.print(Text.assemble((f"{number:2} ", "bold"), (finding.title, "bold"), (f"  {finding.rule}", "dim")))
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for label, text in finding_rows(result, finding):
        table.add_row("" if label == "because" else label, Text(text, style=ROW_STYLE.get(label, "")))
    console.print(Padding(table, (0, 0, 1, 3), expand=False))


def _bar(share: float) -> str:
    """A bar in eighths of a cell."""
    eighths = round(share * BAR_CELLS * 8)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()
