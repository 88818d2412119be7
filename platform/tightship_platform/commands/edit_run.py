"""`tightship runs rename` and `tightship runs label`: what a person calls a run."""

from __future__ import annotations

from urllib.parse import quote

import click

from tightship_platform import validation
from tightship_platform.commands.json_option import json_option, print_json
from tightship_platform.errors import Invalid, TightshipError
from tightship_platform.results.codec import decode
from tightship_platform.results.run import RunDetail
from tightship_platform.settings import load_settings
from tightship_platform.wire import RunEdit


@click.command()
@click.argument("run")
@click.argument("name")
@json_option(RunDetail, "Print the run as one JSON object.")
def rename(run: str, name: str, as_json: bool) -> None:
    """Call RUN by a NAME, beside its id; an empty NAME takes it away.

    RUN is the id of a run, the beginning of one, or @ for the newest. The name is shown with the run and found by a
    search. It takes a token with the scope `apply`.

    \b
    Examples:
      tightship runs rename @ 'best so far'
      tightship runs rename 4f2a ''
    """
    validation.optional_name("Name", name)
    edited = _edit(run, RunEdit(name=name))
    if as_json:
        print_json(edited)
    else:
        click.echo(f"Run {edited.run} is called {edited.name!r}." if edited.name else f"Run {edited.run} has no name.")


@click.command()
@click.argument("run")
@click.argument("labels", metavar="[KEY=VALUE]...", nargs=-1)
@click.option("--remove", metavar="KEY", multiple=True, help="Take this label away. Repeatable.")
@json_option(RunDetail, "Print the run as one JSON object.")
def label(run: str, labels: tuple[str, ...], remove: tuple[str, ...], as_json: bool) -> None:
    """Give RUN labels, change them, or take some away.

    RUN is the id of a run, the beginning of one, or @ for the newest. Labels that are not named stay as they are, and
    what was edited stays so when the run's launcher reports again. It takes a token with the scope `apply`.

    \b
    Examples:
      tightship runs label @ status=good lr=3e-4
      tightship runs label 4f2a --remove status
    """
    changes: dict[str, str | None] = {}
    for key, value in [*(validation.label(text) for text in labels), *((key, None) for key in remove)]:
        if key in changes:
            raise Invalid("Label", key, "each label once")
        changes[key] = value
    if not changes:
        raise TightshipError("Name a label: KEY=VALUE, or --remove KEY; see `tightship runs label --help`")
    edited = _edit(run, RunEdit(labels=changes))
    if as_json:
        print_json(edited)
    else:
        shown = ", ".join(f"{key}={value}" for key, value in sorted(edited.labels.items()))
        click.echo(f"Labels of run {edited.run}: {shown or 'none'}.")


def _edit(run: str, edit: RunEdit) -> RunDetail:
    from tightship_platform.client import ApiClient

    with ApiClient(load_settings()) as api:
        return decode(RunDetail, api.patch(f"/runs/{quote(run, safe='')}", edit), "run")
