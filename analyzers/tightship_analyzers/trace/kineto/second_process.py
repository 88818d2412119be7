"""Two processes read one large file beside each other.

[Note: the second reader] It unpacks the file from its start, as it must, but decodes only what comes after `SHARE` of
it. It guesses where there an event ends, by the separator of the file's first events, and tells the place. The first
reader cuts its text at that place too: if what comes before decodes as a list of events, the guess was right (see
[Note: how the text is cut]), and the rows of the second reader are appended to its own. Row for row that is what one
process reads. In every other case (a wrong guess, a damaged end, a process that died) the first reader just reads on,
so that warnings and errors are those of one process.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Self

from tightship_analyzers.trace.blocks import GZIP_MAGIC, TextSource
from tightship_analyzers.trace.kineto.columns import EventColumns
from tightship_analyzers.trace.kineto.event_room import EventRoom
from tightship_analyzers.trace.kineto.event_stream import EventStream
from tightship_analyzers.trace.limits import Limits, TraceError

SHARE = 0.52
"""Of the file; the first reader's. The second one starts later and unpacks all of it."""
PLAIN_FACTOR = 12
"""A file that is not packed is worth a second process only where it is so much larger."""


class SecondReader:
    """The process that reads the end of a file."""

    def __init__(self, process: SpawnProcess, connection: Connection) -> None:
        self._process = process
        self._connection = connection
        self._begins_at = -1

    @classmethod
    def start(cls, source: str | os.PathLike[str], limits: Limits) -> Self | None:
        """None where the file is not worth it, or no process can be started."""
        location = os.fspath(source)
        path = Path(location)
        try:
            if "://" in location or not path.is_file():
                return None
            with path.open("rb") as file:
                packed = file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
            size = path.stat().st_size
            if size < limits.second_process_bytes * (1 if packed else PLAIN_FACTOR):
                return None
            context = multiprocessing.get_context("spawn")
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_read, args=(theirs, location, limits, int(size * SHARE)), daemon=True)
            process.start()
        except OSError:
            return None
        theirs.close()
        return cls(process, ours)

    def begins_at(self) -> int:
        """The byte of the text at which it starts to read; -1 until it is reported."""
        if self._begins_at < 0:
            with contextlib.suppress(EOFError, OSError):
                if self._connection.poll():
                    self._begins_at = self._connection.recv()
        return self._begins_at

    def members(self) -> dict[str, object] | None:
        """The top-level entries of the file, once it has read to the end; None where it did not get there soundly."""
        with contextlib.suppress(EOFError, OSError):
            members: dict[str, object] = self._connection.recv()
            return members
        return None

    def append_to(self, columns: EventColumns) -> None:
        """Its events after those of the first reader; to be called once, after `members`.

        :raises TraceError: it died meanwhile.
        """
        try:
            columns.append(iter(self._connection.recv, None))
        except (EOFError, OSError):
            raise TraceError(
                "The process that read the end of the trace died (out of memory?); read the file with one process"
            ) from None

    def stop(self) -> None:
        """Ends the process, whatever it is doing."""
        self._process.terminate()
        self._process.join()
        self._connection.close()


def _read(connection: Connection, source: str, limits: Limits, skipped_bytes: int) -> None:
    # Ctrl-C reaches the whole group; the first reader ends this process itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Whatever is wrong with the file, the first reader meets it too, and says so.
    with contextlib.suppress(Exception):
        event_stream = EventStream(TextSource(source, limits), limits)
        pieces = iter(event_stream)
        next(pieces)
        if not event_stream.skip(skipped_bytes):
            return
        connection.send(event_stream.offset)
        columns, room = EventColumns(limits), EventRoom(source, limits)
        for events in pieces:
            columns.add(events)
            room.check(columns.events)
        if event_stream.warnings or columns.full:
            return
        connection.send(event_stream.members)
        for portion in columns.portions():
            connection.send(portion)
        connection.send(None)
