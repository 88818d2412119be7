"""`tightship apply`, `tightship opportunities dismiss` and `reopen`: what somebody does about an opportunity."""

from __future__ import annotations

import click

from tightship_platform.commands.json_option import json_option, print_json
from tightship_platform.errors import Invalid
from tightship_platform.results.action import Action, ToChange, predicted_words
from tightship_platform.results.codec import decode
from tightship_platform.settings import load_settings
from tightship_platform.text import printable

_REASON = {"required": True, "metavar": "TEXT", "help": "Why, on one line; it is kept."}


@click.command()
@click.argument("opportunity")
@click.option("--reason", metavar="TEXT", help="A note, such as the commit that has the change; it is kept.")
@json_option(Action, "Print the action as one JSON object.")
def apply(opportunity: str, reason: str | None, as_json: bool) -> None:
    """Say that you apply OPPORTUNITY; prints what to change, and where.

    OPPORTUNITY is an id that `tightship opportunities` lists. Make the change, and run the workflow again: the next run
    is compared with the last one before, and `tightship actions` shows the predicted beside the measured saving. Where
    variables of the environment or an offload plan make the change, `tightship run --apply OPPORTUNITY` does it. It
    takes a token with the scope `apply`.

    \b
    Examples:
      tightship apply 3
      tightship apply 3 --reason 'loader has 8 workers since 5eed1e'
    """
    action = _act(opportunity, "apply", reason)
    if as_json:
        print_json(action)
        return
    click.echo(f"Opportunity {action.opportunity} of {printable(action.workflow)}: {printable(action.title)}")
    if action.change is not None:
        for name, text in _parts(action.change):
            first, *rest = text.splitlines() or [""]
            click.echo(f"  {name:10} {printable(first)}")
            for one in rest:
                click.echo(f"  {'':10} {printable(one)}")
    click.echo(f"  {'Predicted':10} {_predicted(action)}")
    click.echo(f"Action {action.action}. {_next(action)}; see: tightship actions")


@click.command()
@click.argument("opportunity")
@click.option("--reason", **_REASON)  # type: ignore[arg-type]
@json_option(Action, "Print the action as one JSON object.")
def dismiss(opportunity: str, reason: str, as_json: bool) -> None:
    """Dismiss OPPORTUNITY: lists leave it out from now on.

    It takes a token with the scope `apply`.
    """
    _report(
        _act(opportunity, "dismiss", reason), "is dismissed; `tightship opportunities --dismissed` lists it", as_json
    )


@click.command()
@click.argument("opportunity")
@click.option("--reason", **_REASON)  # type: ignore[arg-type]
@json_option(Action, "Print the action as one JSON object.")
def reopen(opportunity: str, reason: str, as_json: bool) -> None:
    """Open OPPORTUNITY again, which was dismissed, applied, verified or refuted.

    It takes a token with the scope `apply`.
    """
    _report(_act(opportunity, "reopen", reason), "is open", as_json)


def _act(opportunity: str, verb: str, reason: str | None) -> Action:
    if not (opportunity.isascii() and opportunity.isdigit() and len(opportunity) <= 18):
        raise Invalid("Id of an opportunity", opportunity, "a whole number; see `tightship opportunities`")
    from tightship_platform.client import ApiClient

    with ApiClient(load_settings()) as api:
        return decode(Action, api.post(f"/opportunities/{int(opportunity)}/{verb}", {"reason": reason}), "action")


def _report(action: Action, what: str, as_json: bool) -> None:
    if as_json:
        print_json(action)
    else:
        click.echo(f"Opportunity {action.opportunity} of {printable(action.workflow)} {what}.")


def _parts(change: ToChange) -> list[tuple[str, str]]:
    parts = [("What", change.fix), *(("Where", place) for place in change.places)]
    parts += [("Now", change.before), ("Instead", change.after), ("Run", change.command)]
    parts += [("Sets", f"{name}={value}") for name, value in change.environment.items()]
    parts += [("Numbers", change.numerics), ("Plan", "the newest one that was computed" if change.plan else "")]
    return [(name, text) for name, text in parts if text]


def _next(action: Action) -> str:
    workflow = printable(action.workflow)
    if action.change is not None and action.change.is_launched:
        return (
            f"Run it so: tightship run --apply {action.opportunity} -- COMMAND; or make the change, and run {workflow}"
        )
    return f"Make the change, then run {workflow} again"


def _predicted(action: Action) -> str:
    if action.predicted is None and action.change is not None and action.change.command:
        return "that it trains within the plan's memory, and a step takes what the plan says"
    if action.predicted is None:
        return "nothing that lies within the step: no run can verify it"
    return f"{predicted_words(action.predicted)}, of the step"
