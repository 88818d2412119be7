"""`tightship analyze`: a verdict on trace files, without a server or a database."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tightship_platform.errors import TightshipError
from tightship_platform.units import parse_duration_ns

if TYPE_CHECKING:
    from tightship_platform.results.analysis.run import RunAnalysis


class Count(click.IntRange):
    """A whole number; click calls its own an integer range."""

    name = "whole number"


GAPS = 5
"""Longest waits of each rank that the page may draw."""


def _write_page(result: RunAnalysis, path: str) -> None:
    from tightship_analyzers.report.html.page import page

    try:
        Path(path).write_text(page(result), encoding="utf-8")
    except OSError as error:
        raise TightshipError(f"The report cannot be written to {path!r}: {error.strerror or error}") from None


def _duration_ns(_: click.Context, option: click.Parameter, value: str | None) -> int | None:
    """'120ms' → 120000000."""
    if value is not None and value.replace(".", "", 1).isdigit():
        raise click.BadParameter(f"{value} has no unit; give a time such as {value}ms", param=option)
    try:
        return None if value is None else parse_duration_ns(value)
    except TightshipError as error:
        raise click.BadParameter(str(error), param=option) from None


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--rank", type=Count(min=0), metavar="RANK", help="Analyze only this rank.")
@click.option(
    "--step",
    metavar="STEP",
    help="Analyze only this step: its number, counted from 0, or its mark, such as ProfilerStep#12.",
)
@click.option(
    "--rule",
    "rules",
    multiple=True,
    metavar="ID",
    help="Apply only this rule; repeatable. `tightship rules` lists them.",
)
@click.option(
    "--all-steps",
    is_flag=True,
    help="Include the last marked step in device figures; the profiler usually cuts it off.",
)
@click.option(
    "--untraced-step",
    metavar="TIME",
    callback=_duration_ns,
    help="Mean step without profiling, such as 120ms; savings are then given in such steps.",
)
@click.option(
    "--capture",
    "captures",
    multiple=True,
    metavar="PATH",
    help="A recording of the captures of graphs that PATH... replays, for operators and sizes; repeatable.  "
    "[default: what lies in capture_traces/ beside a file]",
)
@click.option(
    "--explain", is_flag=True, help="Also show which facts were derived, their cost and which rules used them."
)
@click.option(
    "--html",
    type=click.Path(dir_okay=False, writable=True),
    metavar="FILE",
    help="Write the report as one self-contained HTML page.",
)
@click.option(
    "--jobs", type=Count(min=1), metavar="COUNT", help="Files to read in parallel.  [default: one per processor]"
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object. Keys: ranks[rank, source, device, steps[], temporal{…}, overlap{…}, "
    "idle_by_stream[], idle_causes[], kernels[], buckets{…}, …], across_ranks{…}, "
    "findings[rule, where, fix, saving{…}, evidence[]]; docs/analyze.md explains them.",
)
def analyze(
    paths: tuple[str, ...],
    rank: int | None,
    step: str | None,
    rules: tuple[str, ...],
    all_steps: bool,
    untraced_step: int | None,
    captures: tuple[str, ...],
    explain: bool,
    html: str | None,
    jobs: int | None,
    as_json: bool,
) -> None:
    """Show where the time of a trace's steps went, what to change, and what that saves.

    PATH is a trace as torch.profiler or Kineto writes it (.json or .json.gz), a URL of one, a folder of traces, or a
    table of operations (.parquet) with all its ranks. Several files count as the ranks of one run. Unreadable files are
    reported; the others are still analyzed. The exit code is then 2.

    What is no path is the id of a run, whose newest stored capture is fetched from the server for the analysis, or of
    a capture; the beginning is enough, and @ is the newest run.

    \b
    Examples:
      tightship analyze trace.json.gz
      tightship analyze traces/ --html report.html
      tightship analyze @ --rank 3       rank 3 of the newest run
    """
    from tightship_analyzers.analysis.from_files import analyze_paths
    from tightship_analyzers.analysis.rank_processes import cores
    from tightship_analyzers.analysis.wanted import Wanted
    from tightship_analyzers.commands.fetched import fetched, is_path
    from tightship_analyzers.report.json import analysis_json
    from tightship_platform.results.codec import fields_of

    with fetched(paths, rank=rank) as files:
        wanted = Wanted(
            # What was fetched is of that rank, whether or not the file says so.
            rank=None if files.within and not any(map(is_path, paths)) else rank,
            step=step,
            rules=rules,
            all_steps=all_steps,
            untraced_step_ns=untraced_step,
            gaps=GAPS if html else 0,
            captures=captures,
            within=files.within,
        )
        result = analyze_paths(files.paths, wanted=wanted, jobs=jobs or cores(), progress=not as_json)
    if html is not None:
        _write_page(result, html)
    if as_json:
        click.echo(json.dumps(analysis_json(result, facts=explain), default=fields_of, indent=2))
    else:
        from tightship_analyzers.report.terminal import print_report

        print_report(result, explain=explain)
    if result.failed:
        sys.stdout.flush()
        more = f" (and {len(result.failed) - 1} more files)" if len(result.failed) > 1 else ""
        raise TightshipError(f"{result.failed[0]}{more}")
