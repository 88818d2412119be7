"""`tightship why`: which ranks a hung job waits for, or how a run died."""

from __future__ import annotations

import time
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import click

from tightship_platform.commands.json_option import json_option, print_json
from tightship_platform.errors import NotFound
from tightship_platform.results.run import RunDetail
from tightship_platform.results.why import RunWhy, Why
from tightship_platform.settings import load_settings
from tightship_platform.units import now_ns
from tightship_platform.vocabulary import RunState
from tightship_platform.wire import STACKS_S, StackRequest

if TYPE_CHECKING:
    from tightship_platform.client import ApiClient

PATIENCE_S = STACKS_S + 5.0
"""How long an agent may take to bring stacks."""
LOOK_S = 0.3


@click.command()
@click.argument("targets", metavar="RUN|PATH...", nargs=-1, required=True)
@click.option("--native", is_flag=True, help="Of a live run, also frames of C and C++; takes seconds for each process.")
@json_option(Why, "Print one JSON object with all stacks, or with all ranks that wait.")
def why(targets: tuple[str, ...], native: bool, as_json: bool) -> None:
    """Say why a job makes no steps, or how it died: where its ranks are, and which one the others wait for.

    RUN is a run's id, the beginning of one, or @ for the newest. Of a live run the stacks of all ranks and loader
    workers are read by py-spy, which takes root or the capability SYS_PTRACE on many systems: here where the run is of
    this host, else by its host's agent, which takes a token with the scope `capture`. Of a run that has ended, it is
    how that happened.

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
    from tightship_analyzers.hangs.live import why_it_ended, why_it_hangs
    from tightship_collectors.jobs.run_stacks import live_run, read_run
    from tightship_platform.client import ApiClient, ApiError
    from tightship_platform.results.codec import decode

    settings = load_settings()
    run = live_run(settings.runtime_dir, name)
    if run is None:
        with ApiClient(settings) as api:
            try:
                detail = decode(RunDetail, api.get(f"/runs/{quote(name, safe='')}"), "run")
            except ApiError as error:
                if error.http_status != HTTPStatus.NOT_FOUND:
                    raise
                raise NotFound("run or path", name, "see `tightship runs`") from error
            run = live_run(settings.runtime_dir, detail.run)  # where the name was less than its id
            if run is None:
                return _of_agent(api, detail, native) if detail.state == RunState.RUNNING else why_it_ended(detail)
    return why_it_hangs(run.run, read_run(run, native=native), now_ns())


def _of_agent(api: ApiClient, run: RunDetail, native: bool) -> RunWhy:
    """What the agent on the run's host brings, when the server asks it."""
    from tightship_analyzers.hangs.live import why_it_hangs, why_nothing_came
    from tightship_platform.results.codec import decode
    from tightship_platform.results.stacks import StackDump

    path = f"/runs/{run.run}/stacks"
    dump = decode(StackDump, api.post(path, StackRequest(native=native)), "stacks")
    until_s = time.monotonic() + PATIENCE_S
    while dump.is_awaited:
        if time.monotonic() > until_s:
            return why_nothing_came(run, PATIENCE_S)
        time.sleep(LOOK_S)
        dump = decode(StackDump, api.get(path), "stacks")
    return why_it_hangs(run.run, dump.processes, dump.taken_ns or dump.requested_ns)
