"""`tightship trace`: the trace files of captures, listed and brought here."""

from __future__ import annotations

import itertools
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tightship_platform.commands.filter_options import MOST
from tightship_platform.commands.list_form import ListForm, in_forms
from tightship_platform.errors import Invalid
from tightship_platform.results.capture import Capture
from tightship_platform.results.codec import decode
from tightship_platform.results.trace_file import SECOND_PASS, TraceFile
from tightship_platform.settings import load_settings
from tightship_platform.units import format_bytes

if TYPE_CHECKING:
    from tightship_platform.client import ApiClient
    from tightship_platform.commands.terminal import Listed


@click.group()
def trace() -> None:
    """List the trace files of captures, and bring them here: for Perfetto, or `tightship analyze`."""


@trace.command("list")
@click.option("--run", metavar="RUN", help="Only traces of this run.")
@click.option("--capture", metavar="CAPTURE", help="Only traces of this capture.")
@click.option("--limit", type=click.IntRange(1, MOST), default=200, show_default=True, help="Maximum number to list.")
@in_forms(TraceFile)
def list_(run: str | None, capture: str | None, limit: int, form: ListForm) -> None:
    """List trace files, those of the newest capture first.

    RUN and CAPTURE are ids, the beginning of one, or @ for the newest.

    \b
    Examples:
      tightship trace list
      tightship trace list --run @
      tightship trace list --capture 9c1d --json
    """
    if run is not None and capture is not None:
        raise Invalid("--capture", capture, "to stand alone: a capture is of one run")

    def read() -> list[TraceFile]:
        from tightship_platform.client import ApiClient

        with ApiClient(load_settings()) as api:
            return list(itertools.islice(_files(api, run, capture), limit))

    form.show(read, _table, lambda: "No trace yet. Take one of a running job with: tightship profile WORKFLOW --wait")


def _table(files: list[TraceFile]) -> Listed:
    from tightship_platform.commands.terminal import Column, Listed, clock

    columns = [
        Column("TRACE", right=True, whole=True),
        Column("CAPTURE", whole=True),
        Column("RUN", whole=True, spare=1),
        Column("WORKFLOW"),
        Column("RANK", right=True),
        Column("SIZE", right=True),
        Column("REQUESTED", spare=1),
        Column("FILE"),
    ]
    rows = [
        (
            one.trace,
            one.capture,
            one.run,
            one.workflow,
            one.rank,
            format_bytes(one.bytes + (0 if one.second_pass is None else one.second_pass.bytes)),
            clock(one.requested_ns),
            _state(one),
        )
        for one in files
    ]
    return Listed(columns, rows)


def _files(api: ApiClient, run: str | None, capture: str | None) -> Iterator[TraceFile]:
    from tightship_platform.commands.download import captures_of
    from tightship_platform.commands.named import find_named

    if capture is not None:
        key = find_named(api, capture, "capture").id
        captures = iter([decode(Capture, api.get(f"/captures/{key}"), "capture")])
    else:
        captures = captures_of(api, None if run is None else find_named(api, run, "run").id)
    for one in captures:
        for rank in one.ranks:
            yield TraceFile(
                **vars(rank), capture=one.capture, run=one.run, workflow=one.workflow, requested_ns=one.requested_ns
            )


def _state(one: TraceFile) -> str:
    if one.url is None:
        return "removed"
    return "stored" if one.second_pass is None else "stored, two recordings"


@trace.command()
@click.argument("name", metavar="ID")
@click.option("--rank", type=click.IntRange(min=0), metavar="RANK", help="Only the trace of this rank.")
@click.option(
    "-o",
    "--output",
    metavar="PATH",
    help="The file to write; a folder where there are several, which is made.  [default: the current folder]",
)
@click.option("--force", is_flag=True, help="Replace files that exist.")
def get(name: str, rank: int | None, output: str | None, force: bool) -> None:
    """Bring the traces of a capture here, one file per rank, each whole and checked by its SHA-256.

    ID is that of a run, whose newest stored capture is meant, of a capture, or of one trace; of runs and captures the
    beginning is enough, and @ is the newest run. Where a capture was recorded twice, the second recordings go to the
    folder second_pass/ beside the first ones, where `tightship analyze` finds them.

    \b
    Examples:
      tightship trace get @                         all ranks of the newest run's newest capture
      tightship trace get 4f2a --rank 3 -o r3.json.gz
      tightship trace get 9c1d -o traces/           then: tightship analyze traces/
    """
    from tightship_platform.client import ApiClient
    from tightship_platform.commands.download import fetch, files_of, find_capture, of_rank, require_free

    with _ending_in_order(), ApiClient(load_settings()) as api:
        capture = find_capture(api, name)
        files = files_of(capture if rank is None else of_rank(capture, rank))
        targets = _targets(list(files), output)
        for target in targets.values() if not force else ():
            require_free(target)
        for file, (of, stored) in files.items():
            fetch(api, of, stored, targets[file], force=force)
            again = ", second recording" if file.startswith(f"{SECOND_PASS}/") else ""
            click.echo(f"{targets[file]}  rank {of.rank}{again}, {format_bytes(stored.bytes)}")


@contextmanager
def _ending_in_order() -> Iterator[None]:
    """Have SIGTERM end the command as Ctrl-C does: what is half here goes, too."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _targets(names: list[str], output: str | None) -> dict[str, Path]:
    """Name → where the file goes: to the output itself where there is one rank and no such folder."""
    place = Path(output or ".")
    ranks = [name for name in names if not name.startswith(f"{SECOND_PASS}/")]
    if len(ranks) == 1 and output is not None and not place.is_dir() and not output.endswith("/"):
        return {name: place if name in ranks else place.parent / SECOND_PASS / place.name for name in names}
    if place.exists() and not place.is_dir():
        raise Invalid("-o", output, f"a folder: there are the files of {len(ranks)} ranks")
    return {name: place / name for name in names}
