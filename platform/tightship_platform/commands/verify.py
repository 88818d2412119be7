"""`tightship verify`: did a change work?"""

from __future__ import annotations

import sys

import click

from tightship_platform.commands.json_option import json_option, print_json
from tightship_platform.results.action import ComparedRun, Verification, measured_words, predicted_words
from tightship_platform.results.codec import decode
from tightship_platform.settings import load_settings
from tightship_platform.text import printable
from tightship_platform.units import format_frac, format_ns, plural
from tightship_platform.vocabulary import Verdict


@click.command()
@click.argument("before")
@click.argument("after")
@json_option(Verification, "Print one JSON object.")
def verify(before: str, after: str, as_json: bool) -> None:
    """Compare the steps of two runs of one workflow: did the change between them save device time?

    BEFORE and AFTER are ids of runs, beginnings of ids, or @ for the newest. The runs must be alike: devices, ranks,
    and, where labels or the command say them, batch and tokens. Steps of start-up and of captures are left out. The
    interval comes from a bootstrap over blocks of steps (docs/verification.md) and is the same each time.

    The exit code is 0 for `verified`, and 1 for `refuted` and `undecided`.

    \b
    Examples:
      tightship verify @train~1 @train
      tightship verify 4f2a 77c1 --json | jq .saving_frac
    """
    from tightship_platform.client import ApiClient

    with ApiClient(load_settings()) as api:
        found = decode(Verification, api.get("/verify", {"before": before, "after": after}), "verification")
    if as_json:
        print_json(found)
    else:
        _draw(found)
    sys.exit(0 if found.verdict == Verdict.VERIFIED else 1)


def _draw(found: Verification) -> None:
    click.echo(f"{found.verdict.capitalize()}: {found.reason}.")
    click.echo(f"  {'Measured':10} {measured_words(found)} of the step at {format_frac(found.level)}")
    agreement = f"; {found.agreement}" if found.agreement else ""
    predicted = "nothing: no opportunity of it was applied between the two" if found.predicted is None else ""
    click.echo(f"  {'Predicted':10} {predicted or predicted_words(found.predicted)}{agreement}")
    for name, run in (("Before", found.before), ("After", found.after)):
        click.echo(f"  {name:10} {_run(run)}")
    for remark in found.remarks:
        click.echo(f"  {'Unknown':10} {printable(remark)}")


def _run(run: ComparedRun) -> str:
    counted = f"{plural(run.steps, 'step')} in {plural(run.periods, 'period')}"
    blocks = "" if run.block is None else f", blocks of {run.block}"
    return f"run {run.run}, {format_ns(run.step_device_ns)} of device time per step ({counted}{blocks})"
