"""`tightship stragglers`: which ranks, stages and kinds of operation slow a pipeline-parallel job down."""

from __future__ import annotations

import json

import click


@click.command()
@click.argument("path")
@click.option("--workers", is_flag=True, help="Replay every single worker too: two replays each.")
@click.option("--limit", type=click.IntRange(min=1), default=10, show_default=True, help="Rows to show of each part.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object with all rows. Keys: slowdown, launch_slowdown, steps[step, measured_ns, actual_ns, "
    "ideal_ns, slowdown], dp_ranks[], stages[], op_types[], workers[] (each key, slowdown, saving_ns), "
    "worst_workers{…}, last_stage{…}, simulation_error_frac{…}, warnings[].",
)
def stragglers(path: str, workers: bool, limit: int, as_json: bool) -> None:
    """Say how much faster a job's steps were if nothing straggled, and who is to blame for the difference.

    PATH is a table of the job's operations as Parquet (a file or a URL), one row each; docs/stragglers.md lists the
    columns and defines every figure.
    """
    from tightship_analyzers.report.stragglers import figures, print_stragglers
    from tightship_analyzers.stragglers import WhatIf
    from tightship_analyzers.stragglers import open as open_table

    job = WhatIf(open_table(path))
    if as_json:
        click.echo(json.dumps(figures(job, workers=workers), indent=2))
    else:
        print_stragglers(job, path, workers=workers, limit=limit)
