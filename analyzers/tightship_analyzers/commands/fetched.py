"""Traces that a command line names by a run instead of by a path: they come from the server for one analysis."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tightship_platform.errors import TightshipError
from tightship_platform.settings import load_settings
from tightship_platform.units import format_bytes, plural

if TYPE_CHECKING:
    from tightship_platform.client import ApiClient

_ID = re.compile(r"@.*|[A-Za-z0-9][A-Za-z0-9._-]{0,39}", re.ASCII)
_OF_FILES = (".json", ".gz", ".parquet")


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """What is to be read."""

    paths: list[str]
    """One for each name: itself where it is a path, else a folder with the traces of the run's newest capture."""
    within: str = ""
    """Folder that holds what came from the server; it goes afterwards. Empty: nothing came."""


@contextmanager
def fetched(names: Sequence[str], *, rank: int | None = None) -> Iterator[Fetched]:
    """Paths of the traces that are named by paths, runs or captures. What exists, or can only be a path, is one.

    :param rank: of runs and captures, bring this one's trace alone.
    :raises TightshipError: a name is neither, or its traces cannot be had.
    """
    if all(map(is_path, names)):
        yield Fetched(paths=list(names))
        return
    from tightship_platform.client import ApiClient
    from tightship_platform.processes.scratch import scratch_folder

    with scratch_folder() as folder:
        with ApiClient(load_settings()) as api:
            paths = [name if is_path(name) else _bring(api, name, folder, rank) for name in names]
        yield Fetched(paths=paths, within=f"{folder}/")


def is_path(name: str) -> bool:
    """Whether a name is a path, rather than perhaps an id."""
    return not _ID.fullmatch(name) or name.endswith(_OF_FILES) or Path(name).exists()


def _bring(api: ApiClient, name: str, folder: Path, rank: int | None) -> str:
    """The folder of the capture, filled once."""
    from tightship_platform.commands.download import fetch, files_of, find_capture, of_rank

    try:
        capture = find_capture(api, name)
        files = files_of(capture if rank is None else of_rank(capture, rank))
    except TightshipError as error:
        raise TightshipError(f"There is no file {name!r}, and no trace by that id: {error}") from error
    place = folder / capture.capture
    if not place.exists():
        size = sum(stored.bytes for _, stored in files.values())
        what = f"{plural(len(files), 'trace')}, {format_bytes(size)}"
        click.echo(f"Capture {capture.capture} of run {capture.run}: {what}", err=True)
        for file, (of, stored) in files.items():
            fetch(api, of, stored, place / file)
    return str(place)
