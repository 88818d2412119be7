"""`tightship diff`: what changed between two traces, without a server or a database."""

from __future__ import annotations

import click

from tightship_platform.commands.json_option import json_option, print_json
from tightship_platform.results.trace_diff import DiffReport


@click.command()
@click.argument("before")
@click.argument("after")
@click.option("--all-steps", is_flag=True, help="Include the last marked step; the profiler usually cuts it off.")
@click.option("--limit", type=click.IntRange(min=1), default=15, show_default=True, help="Changes to show per part.")
@json_option(DiffReport, "Print one JSON object with all names.")
def diff(before: str, after: str, all_steps: bool, limit: int, as_json: bool) -> None:
    """Show how the step changed from BEFORE to AFTER: what appeared, vanished, grew and shrank, per kernel, operator
    and module.

    BEFORE and AFTER are traces as torch.profiler or Kineto writes them (.json or .json.gz), URLs, or folders, whose
    traces count as the ranks of one run. Times are per step and rank; where a trace on either side holds no steps, per
    recording.

    The first line compares whole steps, as `tightship analyze` does. The tables are of the whole recording, without the
    last marked step, divided by all the steps in it.

    What is no path is the id of a run, whose newest stored capture is fetched from the server, or of a capture; the
    beginning is enough, and @ is the newest run. Of a capture that was recorded twice, the first recordings are
    compared.

    \b
    Examples:
      tightship diff before.json.gz after.json.gz
      tightship diff 4f2a @               a run and the newest one
      tightship diff @train~1 @train      the newest run of the workflow train, and the one before
    """
    from tightship_analyzers.analysis.diff_from_files import diff_paths
    from tightship_analyzers.commands.fetched import fetched

    with fetched((before, after)) as files:
        result = diff_paths(*files.paths, all_steps=all_steps, progress=not as_json, within=files.within)
    if as_json:
        print_json(result.as_record())
        return
    from tightship_analyzers.report.diff import print_diff

    print_diff(result, limit=limit)
