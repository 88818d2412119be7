"""How a list leaves a command: as a table, which may be drawn again and again, as JSON, or as CSV."""

from __future__ import annotations

import csv
import dataclasses
import functools
import io
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tightship_platform.commands.json_option import json_option, print_json
from tightship_platform.errors import TightshipError
from tightship_platform.results.codec import fields_of
from tightship_platform.text import printable
from tightship_platform.units import now_ns

if TYPE_CHECKING:
    from tightship_platform.commands.terminal import Listed

T = TypeVar("T")
WATCH_S = 2.0
"""Between two drawings of a list that is watched."""
TABLE, JSON, CSV = "table", "json", "csv"
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What begins with one of these a spreadsheet would compute; see the CSV injection page of OWASP."""


@dataclass(frozen=True, kw_only=True)
class ListForm:
    """What was asked for."""

    record: type
    """Of what is listed."""
    kind: str
    is_watched: bool

    @property
    def is_table(self) -> bool:
        """It is a table that is drawn once."""
        return self.kind == TABLE and not self.is_watched

    def show(
        self,
        read: Callable[[], list[T]],
        table: Callable[[list[T]], Listed],
        empty: Callable[[], str],
        *,
        without: Sequence[str] = (),
    ) -> None:
        """Print the list.

        :param table: draws it; called only for a table, as what draws is slow to import.
        :param empty: says what to do where there is nothing.
        :param without: keys that JSON and CSV leave out.
        :raises TightshipError: it is to be watched where nothing can be drawn again.
        """
        if self.is_watched:
            self._watch(read, table, empty)
            return
        items = read()
        if self.kind == JSON:
            print_json([{key: value for key, value in fields_of(one).items() if key not in without} for one in items])
        elif self.kind == CSV:
            names = [field.name for field in dataclasses.fields(self.record) if field.name not in without]
            click.echo(as_csv(names, items), nl=False)
        else:
            from tightship_platform.commands.terminal import print_table

            listed = table(items)
            print_table(listed.columns, listed.rows, empty="" if items else empty())

    def _watch(self, read: Callable[[], list[T]], table: Callable[[list[T]], Listed], empty: Callable[[], str]) -> None:
        from rich.console import Console
        from rich.text import Text

        from tightship_platform.commands.terminal import clock, print_table

        console = Console(highlight=False)
        if not console.is_terminal:
            raise TightshipError("--watch draws on a terminal, and standard output is none; leave it out")
        is_first = True
        try:
            while True:
                with console.capture() as drawn:
                    console.print(Text(f"{clock(now_ns())}, again every {WATCH_S:g} s; Ctrl-C ends", style="dim"))
                    try:
                        items = read()
                        listed = table(items)
                        print_table(listed.columns, listed.rows, empty="" if items else empty(), console=console)
                    except TightshipError as error:
                        if is_first:
                            raise
                        console.print(Text(printable(error)))  # it may come back
                _draw(drawn.get().splitlines(), console.height)
                is_first = False
                time.sleep(WATCH_S)
        except KeyboardInterrupt:
            return


def in_forms(record: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Declare `--format`, `--json` and `--watch` of a list, which gets them as `form`."""

    def declare(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def read(*args: Any, form_name: str | None, as_json: bool, watch: bool, **given: Any) -> None:
            command(*args, form=_form(record, form_name, as_json, watch), **given)

        watched = click.option("--watch", is_flag=True, help=f"Draw the table again every {WATCH_S:g} s until Ctrl-C.")
        form = click.option(
            "--format",
            "form_name",
            type=click.Choice([TABLE, JSON, CSV]),
            help="Print a table, JSON, or CSV with the keys of --json as its head.  [default: table]",
        )
        return form(json_option(record)(watched(read)))

    return declare


def as_csv(keys: Sequence[str], items: Sequence[object]) -> str:
    """Records under their keys: numbers as they are, what is null empty, lists and objects as JSON.

    Text that a spreadsheet would compute begins with an apostrophe.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(keys)
    writer.writerows([_cell(getattr(item, key)) for key in keys] for item in items)
    return out.getvalue()


def _form(record: type, name: str | None, as_json: bool, watch: bool) -> ListForm:
    if as_json and name not in (None, JSON):
        raise TightshipError(f"--json and --format {name} contradict each other; leave one out")
    kind = JSON if as_json else name or TABLE
    if watch and kind != TABLE:
        raise TightshipError(f"--watch draws a table, and {kind} is none; leave one of the two out")
    return ListForm(record=record, kind=kind, is_watched=watch)


def _cell(value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        return json.dumps(value, default=fields_of, separators=(",", ":"))
    text = printable(value)
    return f"'{text}" if text.startswith(_FORMULA) else text


def _draw(lines: list[str], height: int) -> None:
    """Put the lines in place of what the screen shows; what does not fit is left out, and said so."""
    room = max(2, height - 1)
    if len(lines) > room:
        lines = [*lines[: room - 1], f"… {len(lines) - room + 1} more lines; --limit or a filter shows less"]
    sys.stdout.write("\x1b[H\x1b[J" + "\n".join(lines) + "\n")
    sys.stdout.flush()
