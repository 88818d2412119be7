"""`tightship stragglers`: which ranks, stages and kinds of operation slow a pipeline-parallel job down."""

from __future__ import annotations

import click

from tightship_platform.commands.json_option import json_option, print_json
from tightship_platform.results.what_if import StragglerReport


@click.command()
@click.argument("path")
@click.option("--workers", is_flag=True, help="Also replay every worker: two replays each.")
@click.option("--limit", type=click.IntRange(min=1), default=10, show_default=True, help="Rows to show per part.")
@json_option(StragglerReport, "Print one JSON object with all rows.")
def stragglers(path: str, workers: bool, limit: int, as_json: bool) -> None:
    """Show how much faster a job's steps would be without stragglers, and what causes the difference.

    PATH is a table of the job's operations as Parquet (a file or a URL), one row each; docs/stragglers.md lists the
    columns and defines every figure.
    """
    from tightship_analyzers.report.stragglers import figures, print_stragglers
    from tightship_analyzers.stragglers import WhatIf
    from tightship_analyzers.stragglers import open as open_table

    job = WhatIf(open_table(path))
    if as_json:
        print_json(figures(job, workers=workers))
    else:
        print_stragglers(job, path, workers=workers, limit=limit)
