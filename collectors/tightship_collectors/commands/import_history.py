"""`tightship import`: the history of another fleet, from what was recorded of it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
import time
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import click

from tightship_collectors.importers import alibaba_genai, csv_tables, kineto, slurm_sacct
from tightship_collectors.importers.source import (
    LOOKED_AT,
    MAX_LISTED,
    Meter,
    Open,
    Options,
    Recording,
    Refused,
    Source,
    packed,
)
from tightship_platform import validation
from tightship_platform.commands.json_option import json_option, print_json
from tightship_platform.errors import Invalid, TightshipError
from tightship_platform.results.codec import decode
from tightship_platform.results.fleet import ImportedFleet
from tightship_platform.results.imported import (
    CaptureExpected,
    FleetRecord,
    FleetStored,
    ImportedCapture,
    ImportedPart,
    ImportedRun,
    ImportedSamples,
    ImportedTrace,
)
from tightship_platform.settings import load_settings
from tightship_platform.text import printable
from tightship_platform.units import format_bytes, format_ns, plural
from tightship_platform.vocabulary import FleetFormat

if TYPE_CHECKING:
    from tightship_platform.client import ApiClient

OPENERS: dict[FleetFormat, Open] = {
    FleetFormat.SLURM_SACCT: slurm_sacct.open_source,
    FleetFormat.ALIBABA_GENAI: alibaba_genai.open_source,
    FleetFormat.KINETO: kineto.open_source,
    FleetFormat.CSV: csv_tables.open_source,
}
RUNS_AT_ONCE = 500
SAMPLES_AT_ONCE = 20_000
SHOWN = 5
"""Refused rows of each reason that are printed."""
TIMEOUT_S = 300.0


@click.command(name="import")
@click.argument("format_name", metavar="FORMAT", type=click.Choice([str(one) for one in FleetFormat]))
@click.argument("path", metavar="PATH", type=click.Path(path_type=Path))
@click.option("--name", metavar="FLEET", help="What the imported fleet is called.  [default: by format]")
@click.option(
    "--zone", metavar="ZONE", help="Of times that name none, such as Europe/Berlin.  [default: UTC, as an assumption]"
)
@click.option(
    "--refused", "refused_file", metavar="FILE", type=click.Path(path_type=Path), help="Write refused rows there, too."
)
@json_option(ImportedFleet, "Print the imported fleet as JSON.")
def import_history(
    format_name: str, path: Path, name: str | None, zone: str | None, refused_file: Path | None, as_json: bool
) -> None:
    """Import the history of another fleet; it is shown by itself, with --fleet FLEET.

    Again, it changes nothing; ended midway, it goes on. Rows that cannot be taken are counted and listed.

    \b
    sacct -aP -S 2025-01-01 -o ALL > jobs.txt; tightship import slurm-sacct jobs.txt --name old-cluster
    tightship import alibaba-genai alibaba_genai_2026/
    tightship import kineto traces/        # what PyTorch's profiler wrote: analyzed, and shown as captures
    tightship import csv history/          # runs.csv and samples.csv, as docs/import.md says
    """
    if not path.exists():
        raise Invalid("Path", str(path), "a file or folder that exists")
    from tightship_platform.client import ApiClient

    with ApiClient(load_settings(), timeout_s=TIMEOUT_S) as api:
        with _Bar() as meter:
            options = Options(zone=None if zone is None else _zone(zone), meter=meter)
            source = OPENERS[FleetFormat(format_name)](path, options)
            fleet = validation.key("Fleet", name or source.name)
            begun_s = time.monotonic()
            sent = _send(api, fleet, source, meter)
        stored = next((one for one in _fleets(api) if one.fleet == fleet), None)
    if as_json and stored is not None:
        print_json(stored)
    else:
        _report(fleet, source, sent, round((time.monotonic() - begun_s) * 1e9))
    _list_refused(source.refused)
    if refused_file is not None:
        _write_refused(source.refused, refused_file)
    if source.refused.is_cut_off:
        raise TightshipError(f"{path} ends in the middle; what stands before is imported, import it again when whole")


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise Invalid("zone", name, "a time zone such as Europe/Berlin or UTC") from error


def _fleets(api: ApiClient) -> list[ImportedFleet]:
    """Those that are stored; [] for a token that only reports, which cannot read what it has imported."""
    try:
        return decode(list[ImportedFleet], api.get("/fleets"), "fleets")
    except TightshipError as error:
        if error.http_status == HTTPStatus.FORBIDDEN:
            return []
        raise


@dataclasses.dataclass
class _Sent:
    runs: int = 0
    samples: int = 0
    parts: int = 0
    traces: int = 0
    new: int = 0
    """Parts and traces that were not stored before."""


def _send(api: ApiClient, fleet: str, source: Source, meter: Meter) -> _Sent:
    """Store what is not stored yet, part by part."""
    known = _put(api, fleet, source, is_done=False)
    stored = set(known.parts)
    sent = _Sent()
    for part in _parts(source, meter):
        sent.parts += 1
        sent.runs += len(part.runs)
        sent.samples += sum(len(one.time_ns) for one in part.samples)
        if part.part not in stored:
            api.post(f"/fleets/{fleet}/parts", part)
            sent.new += 1
    if not sent.runs:
        raise Invalid("Source", f"{plural(source.rows, 'row')}, none of them a run", _why_none(source.refused))
    total = sum(file.size_bytes for recording in source.recordings for file in recording.files)
    done = 0
    for recording in source.recordings:
        _send_recording(api, fleet, recording, source.refused, known.trace_max_bytes, sent)
        done += sum(file.size_bytes for file in recording.files)
        meter(LOOKED_AT + (1 - LOOKED_AT) * done / max(total, 1))
    _put(api, fleet, source, is_done=not source.refused.is_cut_off)
    return sent


def _send_recording(
    api: ApiClient, fleet: str, recording: Recording, refused: Refused, max_bytes: int | None, sent: _Sent
) -> None:
    """Store what the server lacks of it; a file that is too large for it is left out."""
    files = {}
    for file in recording.files:
        if max_bytes is not None and file.size_bytes > max_bytes:
            limit = f"more than the {format_bytes(max_bytes)} that the server accepts (TIGHTSHIP_UPLOAD_MAX_BYTES)"
            refused.add(file.name, limit, format_bytes(file.size_bytes))
        else:
            files[file.rank] = file
    if not files:
        return
    wanted = ImportedCapture(
        run=recording.run,
        start_ns=recording.start_ns,
        duration_ns=recording.end_ns - recording.start_ns,
        traces=[ImportedTrace(rank=one.rank, sha256=one.sha256, host=one.host) for one in files.values()],
    )
    answer = decode(CaptureExpected, api.post(f"/fleets/{fleet}/captures", wanted), "capture")
    for rank in answer.missing:
        api.put_stream(
            f"/fleets/{fleet}/captures/{answer.capture}/traces/{rank}",
            packed(files[rank].path),
            {"content-length": str(files[rank].size_bytes), "x-sha256": files[rank].sha256},
        )
        sent.new += 1
    sent.traces += len(files)


def _why_none(refused: Refused) -> str:
    most = max(refused.counts.items(), key=lambda one: one[1], default=("an empty table", 0))
    return f"rows that can be taken; most were refused: {most[0]}"


def _put(api: ApiClient, fleet: str, source: Source, *, is_done: bool) -> FleetStored:
    record = FleetRecord(
        format=source.format.value,
        assumptions=source.assumptions,
        names_devices=source.names_devices,
        interval_ns=source.interval_ns,
        rows=source.rows,
        refused=source.refused.counts,
        is_done=is_done,
    )
    return decode(FleetStored, api.post(f"/fleets/{fleet}", record), "fleet")


def _parts(source: Source, meter: Meter) -> Iterator[ImportedPart]:
    """The source in parts that are the same each time that it is read."""
    runs: list[ImportedRun] = []
    samples: list[ImportedSamples] = []
    count = 0
    for number, item in enumerate(source.items):
        if source.length:
            meter(number / source.length)
        if isinstance(item, ImportedRun):
            runs.append(item)
        else:
            for piece in _pieces(item):
                samples.append(piece)
                count += len(piece.time_ns)
                if count >= SAMPLES_AT_ONCE:
                    yield _part(runs, samples)
                    runs, samples, count = [], [], 0
        if len(runs) >= RUNS_AT_ONCE:
            yield _part(runs, samples)
            runs, samples, count = [], [], 0
    if runs or samples:
        yield _part(runs, samples)


def _pieces(item: ImportedSamples) -> Iterator[ImportedSamples]:
    for first in range(0, len(item.time_ns), SAMPLES_AT_ONCE):
        last = first + SAMPLES_AT_ONCE
        yield dataclasses.replace(
            item,
            time_ns=item.time_ns[first:last],
            util_frac=item.util_frac[first:last],
            memory_used_bytes=item.memory_used_bytes[first:last],
        )


def _part(runs: list[ImportedRun], samples: list[ImportedSamples]) -> ImportedPart:
    items: list[ImportedRun | ImportedSamples] = [*runs, *samples]
    content = json.dumps([dataclasses.asdict(one) for one in items], sort_keys=True).encode()
    return ImportedPart(part=hashlib.sha256(content).hexdigest(), runs=runs, samples=samples)


def _report(fleet: str, source: Source, sent: _Sent, took_ns: int) -> None:
    again = "" if sent.new else "; all of it was there already"
    beside = "".join(
        f" and {plural(count, what)}" for count, what in ((sent.samples, "sample"), (sent.traces, "trace")) if count
    )
    click.echo(printable(f"{fleet}: {plural(sent.runs, 'run')}{beside} in {format_ns(took_ns)}{again}"))
    for text in source.assumptions:
        click.echo(printable(f"  assumes: {text}"))
    click.echo(printable(f"Accounts follow within a minute: tightship account --fleet {fleet}"))
    if sent.traces:
        click.echo(printable(f"Traces are analyzed one after another: tightship findings --fleet {fleet}"))


def _list_refused(refused: Refused) -> None:
    """Counts of all, with the first lines of each reason."""
    for why, count in sorted(refused.counts.items(), key=lambda one: (-one[1], one[0])):
        click.echo(printable(f"left out: {plural(count, 'row')}: {why}"), err=True)
        shown = [row for row in refused.listed if row.why == why][:SHOWN]
        for row in shown:
            click.echo(printable(f"  {row.place}: {row.value}"), err=True)
        if shown and count > len(shown):
            click.echo("  … --refused FILE lists them all", err=True)
    if len(refused.listed) >= MAX_LISTED:
        click.echo(f"Only the first {MAX_LISTED} are listed", err=True)


def _write_refused(refused: Refused, path: Path) -> None:
    rows = (f"{row.place}\t{row.why}\t{printable(row.value)}\n" for row in refused.listed)
    try:
        path.write_text("".join(rows), encoding="utf-8")
    except OSError as error:
        raise Invalid("--refused", str(path), f"a file that can be written ({error.strerror})") from error


class _Bar:
    """How much of the source is read, or stored where it is read first, where standard error is a terminal."""

    def __init__(self) -> None:
        self._bar: Any = None

    def __enter__(self) -> Meter:
        if not sys.stderr.isatty():
            return lambda _: None
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f} %")
        self._bar = Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True)
        self._bar.start()
        task = self._bar.add_task("importing", total=1.0)
        return lambda share: self._bar.update(task, completed=share)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
