"""The traces that paths on a command line name, and how reading them shows."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

from tightship_analyzers.analysis.sources import sources_of
from tightship_platform.errors import TightshipError
from tightship_platform.results.trace_file import SECOND_PASS
from tightship_platform.text import shown

CAPTURES = "capture_traces"
"""Folder for captures of graphs beside the traces that replay them. Source: https://github.com/AMD-AGI/TraceLens, whose
traces of inference lie so."""
SUFFIXES = (".json", ".json.gz")
_ASIDE = (CAPTURES, SECOND_PASS)
"""Folders whose files belong to those beside the folder."""


def named_traces(paths: Sequence[str]) -> Iterable[tuple[str, bool]]:
    """Each file once, and whether it was named itself; a folder stands for every file in it that may be a trace, a
    table of operations for each of its ranks.

    :raises TightshipError: a folder holds none, or cannot be read.
    """
    seen: set[str] = set()
    for path in paths:
        is_folder = "://" not in path and Path(path).is_dir()
        found, closed = _files_in(Path(path)) if is_folder else (sources_of(path), [])
        if closed and not found:
            raise TightshipError(f"Folder {shown(closed[0])} cannot be read; check its permissions")
        for folder in closed:
            yield folder, True  # reading it fails, and is reported with the other unreadable files
        if not found:
            raise TightshipError(f"No trace in folder {path}; expected files that end in {' or '.join(SUFFIXES)}")
        for source in found:
            if source not in seen:
                seen.add(source)
                yield source, not is_folder


def captures_beside(source: str) -> list[str]:
    """Captures that lie in the folder for them beside a file."""
    folder = Path(source).parent / CAPTURES
    if "://" in source or not folder.is_dir():
        return []
    return sorted(str(path) for path in folder.iterdir() if path.name.endswith(SUFFIXES))


def second_pass_beside(source: str) -> str | None:
    """The second recording of the same rank that lies in the folder for them beside a file; None: there is none."""
    path = Path(source)
    second = path.parent / SECOND_PASS / path.name
    return None if "://" in source or not second.is_file() else str(second)


class ReadingBars:
    """Bars with rates on standard error while files are read; none where that is no terminal.

    Each file has its own bar as long as it is worked on; of several, it says how many are done.
    """

    def __init__(self, *, wanted: bool, files: int) -> None:
        console = Console(stderr=True)
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=28),
            DownloadColumn(),
            TransferSpeedColumn(),
            console=console,
            transient=True,
            disable=not wanted or not console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}
        self._files, self._done = files, 0

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def tell(self, source: str, done: int, total: int) -> None:
        """So many bytes of a file are read; `total` is 0 where unknown."""
        if source not in self._tasks:
            self._tasks[source] = self._bars.add_task(self._described(source), total=None)
        self._bars.update(self._tasks[source], completed=done, total=total or None)

    def done(self, source: str) -> None:
        """A file is dealt with."""
        self._done += 1
        if source in self._tasks:
            self._bars.remove_task(self._tasks.pop(source))
        for other, task in self._tasks.items():
            self._bars.update(task, description=self._described(other))

    def _described(self, source: str) -> str:
        # rich would read markup in the name of a file.
        name = escape(shown(Path(source).name, 40))
        return f"{self._done} of {self._files} done · {name}" if self._files > 1 else name


def _files_in(folder: Path) -> tuple[list[str], list[str]]:
    """What may be traces, and folders that cannot be looked into. Captures of graphs and second recordings, in folders
    for them within this one, belong to the traces beside these."""
    closed: list[str] = []
    paths = [
        Path(place, name)
        for place, _, names in os.walk(folder, onerror=lambda error: closed.append(str(error.filename)))
        for name in names
        if name.endswith(SUFFIXES) and (Path(place) == folder or Path(place).name not in _ASIDE)
    ]
    return sorted(str(path) for path in paths if path.is_file()), sorted(closed)
