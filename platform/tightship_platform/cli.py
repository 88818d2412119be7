"""The root of the command line. Sub-commands are found through entry points and imported only when used."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.exceptions import NoArgsIsHelpError

from tightship_platform import __version__
from tightship_platform.errors import TightshipError
from tightship_platform.extras import MissingExtra, extra_of, require
from tightship_platform.redaction import hide_secrets

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "tightship.commands"
_ENTRY = re.compile(r"([\w-]+)\s*=\s*([\w.]+:\w+)\s*(?:\[([\w, -]*)\])?")


@contextmanager
def _usage_in_one_line() -> Iterator[None]:
    """Say what is wrong with a command line in one line, as every other expected error does."""
    try:
        yield
    except NoArgsIsHelpError:
        raise
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx is not None else "tightship"
        said = " ".join(error.format_message().split()).rstrip(".")
        raise TightshipError(f"{said}; see `{command} --help`") from error


@cache
def _entries() -> dict[str, EntryPoint]:
    """Commands by name. Looking for them reads the metadata of all that is installed."""
    from importlib.metadata import entry_points

    return {entry.name: entry for entry in entry_points(group=GROUP)}


class OwnEntry(NamedTuple):
    """A command of this package: what is needed of an entry point."""

    value: str
    extras: list[str]

    def load(self) -> object:
        """Import it."""
        module, _, attribute = self.value.partition(":")
        return getattr(import_module(module), attribute)


@cache
def _entry(name: str) -> EntryPoint | OwnEntry | None:
    """One command. `importlib.metadata`, a quarter of what `tightship run` imports, is for those of other packages."""
    return _own_entries().get(name) or _entries().get(name)


@cache
def _own_entries() -> dict[str, OwnEntry]:
    """Commands of the first tightship on the path, from the file that lists its entry points; {}: there is none."""
    for folder in sys.path:
        try:
            file = next(Path(folder).glob("tightship-*.dist-info/entry_points.txt"), None)
            lines = [] if file is None else file.read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError):
            continue
        if file is not None:
            return _read_entries(lines)
    return {}


def _read_entries(lines: list[str]) -> dict[str, OwnEntry]:
    found, section = {}, ""
    for line in map(str.strip, lines):
        if line.startswith("["):
            section = line.strip("[]")
        elif section == GROUP and (entry := _ENTRY.fullmatch(line)):
            extras = [extra.strip() for extra in (entry[3] or "").split(",") if extra.strip()]
            found[entry[1]] = OwnEntry(entry[2], extras)
    return found


class LazyGroup(click.Group):
    """A group whose commands are entry points of `tightship.commands`.

    The modules behind them import click and nothing heavy, so that listing them for `--help` stays cheap.
    """

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Read the root's own options."""
        with _usage_in_one_line():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        """Read a command's options and run it."""
        with _usage_in_one_line():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in alphabetical order."""
        return sorted(_entries())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the one command that is asked for."""
        entry = _entry(cmd_name)
        if entry is None:
            return None
        command = entry.load()
        if not isinstance(command, click.Command):
            raise TypeError(f"entry point {entry.value} is not a click command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that is to run. Its packages are looked for before it starts anything; its help needs none."""
        name, command, rest = super().resolve_command(ctx, args)
        if name is not None and not {"-h", "--help"} & set(rest):
            entry = _entry(name)
            require(f"`{name}`", entry.extras if entry is not None else ())
        return name, command, rest


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="tightship")
def root() -> None:
    """Find where a GPU fleet's device-hours go, and get them back.

    Start with `tightship demo`, or `tightship up` and then `tightship run -- python train.py`.

    Where a command takes a run or a capture, the beginning of its id is enough if no other begins so, and @ is the
    newest, @train that of the workflow train, and @train~1 the one before: `tightship findings --run @train`.
    """


def main() -> None:
    """Entry point: an expected error is one line on stderr and exit code 2, never a traceback."""
    # httpx imports rich for a command that nobody calls here: an eighth of what `tightship run` needs to start.
    # It goes without where that cannot be imported.
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
    try:
        _run()
    except TightshipError as error:
        click.echo(f"tightship: {hide_secrets(str(error))}", err=True)
        sys.exit(error.exit_code)


def _run() -> None:
    try:
        root(prog_name="tightship")
    except ModuleNotFoundError as error:
        extra = extra_of(error.name or "")
        if extra is None:
            raise
        raise MissingExtra("This command", [extra], str(error.name)) from None


if __name__ == "__main__":
    main()
