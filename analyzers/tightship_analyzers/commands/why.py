"""`tightship why`: which ranks a hung job waits for."""

from __future__ import annotations

import click

from tightship_platform.commands.json_option import json_option, print_json
from tightship_platform.results.hang import HangReport


@click.command()
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@json_option(HangReport, "Print one JSON object with all ranks that wait.")
def why(paths: tuple[str, ...], as_json: bool) -> None:
    """Say which ranks a hung job waits for, in which collective the others wait, and what of the cause is known.

    PATH is a folder with the dumps of PyTorch's flight recorder, one file per rank whose name ends with the rank, or
    these files. A job writes them when a collective times out if it runs with TORCH_FR_BUFFER_SIZE=2000 and
    TORCH_NCCL_DUMP_ON_TIMEOUT=1; TORCH_FR_DUMP_TEMP_FILE says where. docs/hangs.md has an example.
    """
    from tightship_analyzers.hangs import judge, read_dumps
    from tightship_analyzers.report.hang import print_hang

    report = judge(read_dumps(paths))
    if as_json:
        print_json(report)
    else:
        print_hang(report)
