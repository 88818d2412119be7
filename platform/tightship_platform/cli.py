"""The root of the command line. Commands are imported only when called: to list them takes no more than this table."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.exceptions import NoArgsIsHelpError

from tightship_platform import __version__
from tightship_platform.errors import TightshipError
from tightship_platform.extras import MissingExtra, extra_of, require
from tightship_platform.redaction import hide_secrets

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class Entry(NamedTuple):
    """A command."""

    place: str
    """`module:attribute` of its function. The module imports click and nothing heavy."""
    help: str
    """How its own help begins, up to a stop, comma, colon or the like."""
    extras: tuple[str, ...] = ()
    """All are needed for anything but its help."""

    def load(self) -> object:
        """Import it."""
        module, _, attribute = self.place.partition(":")
        return getattr(import_module(module), attribute)


_PLATFORM, _COLLECTORS, _ANALYZERS = (
    f"tightship_{package}.commands" for package in ("platform", "collectors", "analyzers")
)

COMMANDS = {
    "account": Entry(f"{_PLATFORM}.account:account", "Say where device time went, and whose it was"),
    "actions": Entry(f"{_PLATFORM}.lists:actions", "List what was done about opportunities, newest first"),
    "agent": Entry(
        f"{_COLLECTORS}.agent:agent", "Watch this host's devices, processes and training steps, and take captures"
    ),
    "analyze": Entry(
        f"{_ANALYZERS}.analyze:analyze",
        "Show where the time of a trace's steps went, what to change, and what that saves",
        ("analyze",),
    ),
    "apply": Entry(f"{_PLATFORM}.act:apply", "Say that you apply OPPORTUNITY"),
    "audit": Entry(f"{_PLATFORM}.audit:audit", "List who did what, newest first", ("server",)),
    "beat": Entry(f"{_PLATFORM}.worker:beat", "Send the periodic tasks to the workers", ("server",)),
    "captures": Entry(f"{_PLATFORM}.lists:captures", "List captures (requests for a trace of a running job)"),
    "check": Entry(f"{_PLATFORM}.check:check", "Check that rows and trace files belong together", ("server",)),
    "db": Entry(f"{_PLATFORM}.db:db", "Manage the database and its artifact store", ("server",)),
    "demo": Entry(
        f"{_PLATFORM}.demo:demo",
        "Train four example jobs under observation and rank what they waste",
        ("server", "demo"),
    ),
    "diff": Entry(f"{_ANALYZERS}.diff:diff", "Show how the step changed from BEFORE to AFTER", ("analyze",)),
    "doctor": Entry(
        f"{_COLLECTORS}.doctor:doctor", "Check this host, its installation and the server that it reports to"
    ),
    "findings": Entry(f"{_PLATFORM}.lists:findings", "List findings, the largest saving first"),
    "fleets": Entry(f"{_PLATFORM}.lists:fleets", "List imported fleets by name"),
    "hosts": Entry(f"{_PLATFORM}.lists:hosts", "List hosts by name, with their devices and what their agents see"),
    "import": Entry(f"{_COLLECTORS}.import_history:import_history", "Import the history of another fleet"),
    "offload": Entry(f"{_ANALYZERS}.offload:offload", "Train models that do not fit"),
    "open": Entry(f"{_PLATFORM}.open_page:open_page", "Print the address of a page, and open it in the browser"),
    "opportunities": Entry(f"{_PLATFORM}.lists:opportunities", "List opportunities: what to do first"),
    "profile": Entry(
        f"{_COLLECTORS}.profile:profile", "Capture one trace per rank of a live run, without touching its code"
    ),
    "rules": Entry(f"{_ANALYZERS}.rules:rules", "List the rules, or show the page of one"),
    "run": Entry(
        f"{_COLLECTORS}.run:run", "Run COMMAND under observation: its processes, its steps, and traces on request"
    ),
    "runs": Entry(f"{_PLATFORM}.lists:runs", "List runs, newest first"),
    "samples": Entry(f"{_PLATFORM}.lists:samples", "List samples (one measured value each), newest first"),
    "server": Entry(f"{_PLATFORM}.server:server", "Serve the API (/api/v1) and the dashboard", ("server",)),
    "show": Entry(f"{_PLATFORM}.show:show", "Show one run: how it ended and why, where its device time went"),
    "stragglers": Entry(
        f"{_ANALYZERS}.stragglers:stragglers",
        "Show how much faster a job's steps would be without stragglers",
        ("stragglers",),
    ),
    "token": Entry(f"{_PLATFORM}.token:token", "Create, list, rotate and revoke tokens", ("server",)),
    "trace": Entry(f"{_PLATFORM}.trace:trace", "List the trace files of captures, and bring them here"),
    "up": Entry(
        f"{_PLATFORM}.up:up",
        "Start server, worker and agent, keep them running, and end them on Ctrl-C",
        ("server",),
    ),
    "verify": Entry(f"{_PLATFORM}.verify:verify", "Compare the steps of two runs of one workflow"),
    "why": Entry(f"{_ANALYZERS}.why:why", "Say why a job makes no steps, or how it died"),
    "worker": Entry(
        f"{_PLATFORM}.worker:worker",
        "Run background tasks: analyze traces, make plans, keep the accounts",
        ("server",),
    ),
    "workflows": Entry(f"{_PLATFORM}.lists:workflows", "List workflows (recurring work: all runs of one name)"),
}
SUCCESSORS = {"fleet": "account"}
"""Commands that are gone → what took their place."""


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


class LazyGroup(click.Group):
    """A group of the commands in the table."""

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
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the one command that is asked for."""
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        command = entry.load()
        if not isinstance(command, click.Command):
            raise TypeError(f"{entry.place} is not a click command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Name them all, each with its line."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, f"{COMMANDS[name].help}.") for name in self.list_commands(ctx)])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Commands and options that begin so."""
        from click.shell_completion import CompletionItem

        names = (name for name in self.list_commands(ctx) if name.startswith(incomplete))
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [*(CompletionItem(name, help=COMMANDS[name].help) for name in names), *options]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that is to run. Its packages are looked for before it starts anything; its help needs none."""
        if ctx.resilient_parsing:  # a shell asks how the line may go on
            return super().resolve_command(ctx, args)
        if args and args[0] in SUCCESSORS:
            raise TightshipError(f"`tightship {args[0]}` is now `tightship {SUCCESSORS[args[0]]}`")
        name, command, rest = super().resolve_command(ctx, args)
        if name in COMMANDS and not {"-h", "--help"} & set(rest):
            require(f"`{name}`", COMMANDS[name].extras)
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
