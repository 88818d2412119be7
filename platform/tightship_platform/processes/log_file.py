"""The log of one part: lines for the terminal, and a file that is turned over by size."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tightship_platform.processes.private_files import make_private
from tightship_platform.redaction import hide_secrets

MAX_BYTES = 5 * 1024**2
KEPT = 3
"""Old files beside the current one: `<part>.log.1` is the newest of them."""
_LINE_MAX = 64 * 1024


class PartLog:
    """Takes the raw output of a process and gives it on line by line.

    A disk that is full costs the file, not the part: the terminal still gets every line.
    """

    def __init__(self, path: Path, echo: Callable[[str], None]) -> None:
        self.last_line = ""
        """The newest line that is not empty."""
        self.written = 0
        """Bytes taken so far."""
        self._path = path
        self._echo = echo
        self._rest = b""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab")
        make_private(path)

    def write(self, data: bytes) -> None:
        """Take output; whole lines go on at once."""
        self.written += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._line(line)
        if len(self._rest) > _LINE_MAX:
            self.end_line()

    def end_line(self) -> None:
        """Give on a last line without its end."""
        if self._rest:
            self._line(self._rest)
            self._rest = b""

    def close(self) -> None:
        """Nothing more will come."""
        self.end_line()
        self._file.close()

    def _line(self, raw: bytes) -> None:
        text = raw.decode("utf-8", "replace").rstrip()
        shown = hide_secrets("".join(c if c.isprintable() or c == "\t" else repr(c)[1:-1] for c in text))
        if shown:
            self.last_line = shown
            self._echo(shown)
        try:
            self._file.write(shown.encode("utf-8", "replace") + b"\n")
            self._file.flush()
            if self._file.tell() > MAX_BYTES:
                self._turn_over()
        except OSError as error:
            if self._path.parent.exists():
                self._echo(f"(cannot write {self._path}: {error.strerror})")

    def _turn_over(self) -> None:
        self._file.close()
        for number in range(KEPT, 0, -1):
            newer = self._path if number == 1 else self._path.with_name(f"{self._path.name}.{number - 1}")
            if newer.exists():
                newer.replace(self._path.with_name(f"{self._path.name}.{number}"))
        self._file = self._path.open("ab")
