"""`tightship open`: the page of a run, a finding or a trace."""

from __future__ import annotations

import os
import sys

import click

from tightship_platform.errors import Invalid
from tightship_platform.settings import load_settings

KINDS = ("run", "capture", "finding", "trace")
_BY_ID_ALONE = ("run", "capture", "finding")
"""A number alone is a finding's: people read those more often than the numbers of traces."""


@click.command("open")
@click.argument("words", nargs=-1, required=True, metavar="[KIND] ID")
@click.option("--print", "only_print", is_flag=True, help="Only print the address.")
def open_page(words: tuple[str, ...], only_print: bool) -> None:
    """Print the address of a page, and open it in the browser, where there is a display (or BROWSER is set).

    ID is that of a run, of a capture (whose page shows its traces), or of a finding: of runs and captures the beginning
    is enough, and @ is the newest run. KIND (run, capture, finding or trace) says which is meant where an id alone
    does not.

    \b
    Examples:
      tightship open @             the newest run
      tightship open 4f2a          the run or capture whose id begins so
      tightship open 17            finding 17
      tightship open finding @     the newest finding
      tightship open trace 3       the page of trace 3, with its rank
      tightship open @ --print     only print the address
    """
    *kind, text = words
    if len(kind) > 1 or (kind and kind[0] not in KINDS):
        raise Invalid("What to open", " ".join(words), f"an id, or one of {', '.join(KINDS)} and an id")
    from tightship_platform.client import ApiClient
    from tightship_platform.commands.named import find_named, page_of

    with ApiClient(load_settings()) as api:
        address = page_of(api, find_named(api, text, *(kind or _BY_ID_ALONE)))
    click.echo(address)
    if not only_print and _has_browser():
        import webbrowser

        if not webbrowser.open(address):
            click.echo("No browser could be started; open the address yourself.", err=True)


def _has_browser() -> bool:
    """A display, or a browser that somebody chose: one in the terminal would take the terminal unasked."""
    return sys.platform == "darwin" or any(os.environ.get(name) for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"))
