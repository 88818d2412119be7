"""`tightship runs delete`: runs that are over go, with all that is known of them."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import quote

import click

from tightship_platform.commands.json_option import json_option, print_json
from tightship_platform.errors import TightshipError
from tightship_platform.results.codec import decode
from tightship_platform.results.removal import Removal
from tightship_platform.results.run import Run
from tightship_platform.settings import load_settings
from tightship_platform.units import plural

if TYPE_CHECKING:
    from tightship_platform.client import ApiClient


@click.command()
@click.argument("run", required=False)
@click.option("--workflow", metavar="NAME", help="Delete all runs of this workflow, its schedule and opportunities.")
@click.option("--user", metavar="NAME", help="Delete all runs of this user.")
@click.option("--team", metavar="NAME", help="Delete all runs of this team; revoke its tokens yourself.")
@click.option("--yes", is_flag=True, help="Do not ask first.")
@json_option(Removal, "Print one JSON object.")
def delete(run: str | None, workflow: str | None, user: str | None, team: str | None, yes: bool, as_json: bool) -> None:
    """Delete RUN, or all runs of a workflow, a user or a team, with their samples, captures, traces and findings.

    RUN is an id, the beginning of one, or @ for the newest run; with --yes, a whole id alone: what a script deletes
    twice must not be a later run whose id begins the same.

    Runs that live are not deleted: end them first. What an agent still delivers of a deleted run is refused. The device
    time stays in the fleet's sums, without names; who deleted what stays in the audit. It takes a token with the scope
    `delete`: of an administrator, or of the team whose runs they are.
    """
    given = {"run": run, "workflow": workflow, "user": user, "team": team}
    named = [(kind, name) for kind, name in given.items() if name is not None]
    if len(named) != 1:
        raise TightshipError("Name one of RUN, --workflow, --user and --team; see `tightship runs delete --help`")
    [(kind, name)] = named
    from tightship_platform.client import ApiClient

    with ApiClient(load_settings()) as api:
        if not yes:
            name = _whole_id(api, name) if kind == "run" else name
            what = f"run {name} with its" if kind == "run" else f"all runs of {kind} {name!r} with their"
            click.confirm(f"Delete {what} traces? There is no way back but a backup", abort=True, err=as_json)
        path = f"/{kind}s/{quote(name, safe='/')}"
        removal = decode(Removal, api.delete(path), "deletion")
    if as_json:
        print_json(removal)
        return
    left = f"; the worker removes what is left of {removal.left}" if removal.left else ""
    deleted = f"run {removal.name}" if kind == "run" else plural(removal.runs, "run")
    click.echo(f"Deleted {deleted}{left}.")


def _whole_id(api: ApiClient, run: str) -> str:
    """The id of the run that is meant; as given where the token may not read."""
    from tightship_platform.client import ApiError

    try:
        return decode(Run, api.get(f"/runs/{quote(run, safe='')}"), "run").run
    except ApiError as error:
        if error.http_status != HTTPStatus.FORBIDDEN:
            raise
        return run
