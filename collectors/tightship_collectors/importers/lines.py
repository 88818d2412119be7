"""Lines of a text file, plain, compressed (gzip) or in a tar archive, and what is hostile or cut off about them."""

from __future__ import annotations

import csv
import gzip
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tightship_collectors.importers.source import Meter, Refused
from tightship_platform.errors import Invalid

MAX_LINE = 1024 * 1024
METER_LINES = 5000
CUT_OFF = "the file ends in the middle; import it again when it is whole"


class Lines:
    """Lines with their places, `file:line`. What no line can be is refused, and the rest is read.

    :raises Invalid: as they are read: the file cannot be.
    """

    def __init__(self, path: Path, refused: Refused, meter: Meter = lambda _: None) -> None:
        self._path = path
        self._refused = refused
        self._meter = meter
        self.number = 0
        """Of the line that was read last."""

    @property
    def place(self) -> str:
        """Of the line that was read last."""
        return f"{self._path.name}:{self.number}"

    def __iter__(self) -> Iterator[str]:
        try:
            size = max(self._path.stat().st_size, 1)
            with _opened(self._path) as (text, raw):
                while line := text.readline(MAX_LINE):
                    self.number += 1
                    if self.number % METER_LINES == 0:
                        self._meter(min(raw.tell() / size, 1.0))
                    yield from self._checked(line, text)
        except (EOFError, zlib.error, tarfile.TarError, gzip.BadGzipFile):
            self.number += 1
            self._cut_off("")
        except OSError as error:
            raise Invalid("File", str(self._path), f"one that can be read ({error.strerror})") from error

    def _checked(self, line: bytes, text: IO[bytes]) -> Iterator[str]:
        if not line.endswith(b"\n"):
            if len(line) < MAX_LINE:
                self._cut_off(line.decode(errors="replace"))
                return
            while line and not line.endswith(b"\n"):
                line = text.readline(MAX_LINE)
            self._refused.add(self.place, f"a line of more than {MAX_LINE} bytes")
            return
        try:
            found = line.decode().rstrip("\r\n")
        except UnicodeDecodeError:
            self._refused.add(self.place, "not UTF-8", line[:80])
            return
        if "\0" in found:
            self._refused.add(self.place, "a NUL character", found.replace("\0", "␀"))
        else:
            yield found

    def _cut_off(self, value: str) -> None:
        self._refused.is_cut_off = True
        self._refused.add(self.place, CUT_OFF, value)


class Table:
    """Rows of a table with a head, as dictionaries; those of another length than the head are refused.

    :raises Invalid: the file is empty, or its head lacks a column.
    """

    def __init__(
        self, path: Path, wanted: tuple[str, ...], refused: Refused, what: str, meter: Meter = lambda _: None
    ) -> None:
        self._lines = Lines(path, refused, meter)
        self._refused = refused
        self._given = iter(self._lines)
        head = next(self._given, "")
        self.separator = "|" if "|" in head else ","
        self._ends_so = head.endswith("|")  # sacct --parsable
        self.columns = self._split(head) or []
        missing = [name for name in wanted if name not in self.columns]
        if missing or len(set(self.columns)) < len(self.columns):
            expected = f"{what}, whose first line names {', '.join(wanted)} once each"
            raise Invalid(f"File {path.name}", head[:120], expected)

    @property
    def place(self) -> str:
        """Of the row that was read last."""
        return self._lines.place

    def __iter__(self) -> Iterator[dict[str, str]]:
        width = len(self.columns)
        for line in self._given:
            fields = self._split(line)
            if fields is None:
                self._refused.add(self.place, "quotes that do not close", line)
            elif len(fields) != width:
                self._refused.add(self.place, f"not {width} columns, as the first line has", line)
            else:
                yield dict(zip(self.columns, fields, strict=True))

    def _split(self, line: str) -> list[str] | None:
        if self.separator == "|":
            return (line.removesuffix("|") if self._ends_so else line).split("|")
        try:
            return next(csv.reader([line], strict=True), [])
        except csv.Error:
            return None


@contextmanager
def _opened(path: Path) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """The text, and the file behind it, whose place tells how far it is read."""
    with path.open("rb") as raw:
        is_compressed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        if path.name.endswith((".tar.gz", ".tgz", ".tar")):
            with tarfile.open(fileobj=raw, mode="r|gz" if is_compressed else "r|") as archive:
                for member in archive:
                    text = archive.extractfile(member) if member.isfile() else None
                    if text is not None and member.name.endswith(".csv"):
                        yield text, raw
                        return
            raise Invalid(f"File {path.name}", "an archive without a .csv file", "one that holds the table")
        elif is_compressed:
            with gzip.open(raw) as unpacked:
                yield unpacked, raw  # type: ignore[misc]  # it reads bytes
        else:
            yield raw, raw
