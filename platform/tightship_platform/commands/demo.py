"""`tightship demo`: the whole product on four real training jobs."""

from __future__ import annotations

from pathlib import Path

import click

from tightship_platform.commands.json_option import json_option
from tightship_platform.results.demo import DemoResult
from tightship_platform.settings import DEFAULT_PORT


@click.command()
@click.option(
    "--home",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    help="Folder of the demo's own database, traces and logs; emptied first.  [default: beside the data folder]",
)
@click.option("--port", type=click.IntRange(1, 65535), default=None, help=f"Dashboard port.  [default: {DEFAULT_PORT}]")
@click.option("--quick", is_flag=True, help="One short job: a first verdict within a minute.")
@click.option(
    "--seconds",
    type=click.IntRange(20, 3600),
    default=None,
    help="Training time per job.  [default: 40; with --quick 20]",
)
@click.option("--verify", is_flag=True, help="Then apply the advice, run the jobs again, and say whether it worked.")
@click.option("--exit", "leave", is_flag=True, help="Stop after the table instead of keeping the dashboard open.")
@json_option(DemoResult, "Print JSON on stdout: what the commands of these names print.")
def demo(
    home: Path | None, port: int | None, quick: bool, seconds: int | None, verify: bool, leave: bool, as_json: bool
) -> None:
    """Train four example jobs under observation and rank what they waste.

    Starts the embedded platform in its own folder, runs four ordinary PyTorch scripts one after another,
    captures a trace of each while it trains, says what it shows, prints the ranked table and keeps the dashboard
    open until Ctrl-C. Takes about four minutes; needs torch and scikit-learn. With --quick it is one job of
    20 seconds, and needs torch. With --verify the advice on three of the jobs is applied afterwards, and a change that
    does not help; each job runs again, and a second table has predicted beside measured and the verdict: about
    four minutes more.
    """
    from tightship_platform.demo.plot import run_demo

    run_demo(home=home, port=port, quick=quick, seconds=seconds, verify=verify, leave=leave, as_json=as_json)
