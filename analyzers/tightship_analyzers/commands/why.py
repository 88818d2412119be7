"""`tightship why`: which ranks a hung job waits for, or how a run died."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import click

from tightship_platform.commands.json_option import json_option, print_json
from tightship_platform.errors import NotFound
from tightship_platform.results.run import RunDetail
from tightship_platform.results.why import RunWhy, Why
from tightship_platform.settings import load_settings


@click.command()
@click.argument("targets", metavar="RUN|PATH...", nargs=-1, required=True)
@click.option("--native", is_flag=True, help="Of a live run, also frames of C and C++; takes seconds for each process.")
@json_option(Why, "Print one JSON object with all stacks, or with all ranks that wait.")
def why(targets: tuple[str, ...], native: bool, as_json: bool) -> None:
    """Say why a job makes no steps: where its ranks are, which one the others wait for, or how it died.

    RUN is a run's id, the beginning of one, or @ for the newest. Of a live run of this host the stacks of all ranks and
    loader workers are read by py-spy, which takes root or the capability SYS_PTRACE on many systems. Of one that has
    ended, it is how that happened.

    PATH is a folder with the dumps of PyTorch's flight recorder, one file per rank whose name ends with the rank, or
    these files. A job writes them when a collective times out if it runs with TORCH_FR_BUFFER_SIZE=2000 and
    TORCH_NCCL_DUMP_ON_TIMEOUT=1; TORCH_FR_DUMP_TEMP_FILE says where. docs/hangs.md has an example.
    """
    from tightship_analyzers.report.hang import print_hang, print_run

    found = Why(run=None, dumps=None)
    if len(targets) == 1 and not Path(targets[0]).exists() and "/" not in targets[0]:
        found = Why(run=_of_run(targets[0], native), dumps=None)
    else:
        from tightship_analyzers.hangs import judge, read_dumps

        found = Why(run=None, dumps=judge(read_dumps(targets)))
    if as_json:
        print_json(found)
    elif found.run is not None:
        print_run(found.run)
    elif found.dumps is not None:
        print_hang(found.dumps)


def _of_run(name: str, native: bool) -> RunWhy:
    from tightship_analyzers.hangs.live import live_run, why_it_ended, why_it_hangs
    from tightship_platform.client import ApiClient, ApiError
    from tightship_platform.results.codec import decode

    settings = load_settings()
    run = live_run(settings.runtime_dir, name)
    if run is not None:
        return why_it_hangs(run, native=native)
    try:
        with ApiClient(settings) as api:
            detail = decode(RunDetail, api.get(f"/runs/{quote(name, safe='')}"), "run")
    except ApiError as error:
        if error.http_status != 404:
            raise
        raise NotFound("run or path", name, "see `tightship runs`") from error
    run = live_run(settings.runtime_dir, detail.run)  # where the name was less than its id
    return why_it_ended(detail) if run is None else why_it_hangs(run, native=native)
