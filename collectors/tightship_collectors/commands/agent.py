"""`tightship agent`: watch this host."""

from __future__ import annotations

import sys

import click

from tightship_platform.errors import Invalid
from tightship_platform.settings import load_settings
from tightship_platform.units import NS_PER_MS, NS_PER_S, parse_duration_ns

MIN_INTERVAL_NS = 100 * NS_PER_MS
MAX_INTERVAL_NS = 60 * NS_PER_S


@click.group(invoke_without_command=True)
@click.option("--interval", default="1s", show_default=True, help="Sampling interval.")
@click.option("--once", is_flag=True, help="Sample twice, one interval apart, send the samples and exit.")
@click.pass_context
def agent(context: click.Context, interval: str, once: bool) -> None:
    """Watch this host's devices, processes and training steps, and take captures.

    Runs until it is stopped; start it by `tightship up` or a service manager. It reads only: jobs never wait for it and
    never notice when it dies. While the server is unreachable, records wait in the spool folder.
    """
    if context.invoked_subcommand is not None:
        return
    interval_ns = parse_duration_ns(interval)
    if not MIN_INTERVAL_NS <= interval_ns <= MAX_INTERVAL_NS:
        raise Invalid("--interval", interval, "100ms to 60s")
    from tightship_collectors.agent.process import run_agent

    run_agent(interval_ns=interval_ns, once=once)


@agent.command()
def enrol() -> None:
    """Get a token of this host's own, with a one-time word.

    Whoever runs the server makes the word with `tightship token enrol HOST`. It is asked for, or read from standard
    input. The token is kept in $TIGHTSHIP_HOME/agent.token, where the agent finds it.
    """
    settings = load_settings()
    from tightship_collectors.agent.enrolment import enrol as exchange

    is_asked = sys.stdin.isatty()
    word = click.prompt("One-time word", hide_input=True) if is_asked else sys.stdin.readline(1024)
    word = word.strip()
    if not word or not word.isascii() or not word.isprintable() or " " in word:
        raise Invalid("One-time word", "(not shown)", "a line as `tightship token enrol HOST` prints it")
    kept = exchange(settings, word)
    click.echo(f"Host {settings.host_name!r} is enrolled; its agent finds its token in {kept}.")
