"""The options by which every list is filtered and comes in pages; they mean what they mean in the API."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import click

from tightship_platform.results.filters import FIELDS, FilterTexts

Command = Callable[..., None]
MOST = 10_000
"""Rows of one list."""
fleet_option = click.option("--fleet", metavar="NAME", help="Of this imported fleet.  [default: the live one]")


def filtered(
    times: str,
    states: Iterable[str],
    *,
    state_of: str = "",
    host: str = "Only of runs that were launched on this host.",
) -> Callable[[Command], Command]:
    """Declare the filters of a list, which gets them as `filters`.

    :param times: what `--since` and `--until` are about, such as `started`.
    :param states: those that `--state` knows.
    :param state_of: whose state it is, where it is not that of what is listed.
    :param host: help of `--host`.
    """
    of_state = f"Only in this state{state_of}."
    options = (
        click.option(
            "--since",
            metavar="TIME",
            help=f"Only what {times} since then: 2h or 3d (ago), yesterday, a day, or a time.",
        ),
        click.option("--until", metavar="TIME", help=f"Only what {times} before then; of a day, until its end."),
        click.option("--state", type=click.Choice([str(state) for state in states]), help=of_state),
        fleet_option,
        click.option("--workflow", metavar="NAME", help="Only of this workflow."),
        click.option("--team", metavar="NAME", help="Only of workflows of this team."),
        click.option("--owner", metavar="NAME", help="Only of workflows of this owner."),
        click.option("--user", metavar="NAME", help="Only of runs of this user."),
        click.option("--host", metavar="NAME", help=host),
        click.option("--job-id", metavar="ID", help="Only of the run with this id in the scheduler."),
        click.option("--commit", metavar="COMMIT", help="Only of runs of this git commit, or one that begins so."),
        click.option("--label", metavar="K=V", multiple=True, help="Only of runs with this label. Repeatable."),
        click.option("--rule", metavar="RULE", help="Only where this rule found something."),
        click.option(
            "--search", metavar="TEXT", help="Only of runs in which all is found: 'vision lr=3e-4 host:gpu17'."
        ),
    )

    def declare(command: Command) -> Command:
        @functools.wraps(command)
        def read(*args: Any, **given: Any) -> None:
            texts = FilterTexts(**{name: given.pop(name) for name in FIELDS})
            command(*args, filters=texts, **given)

        return functools.reduce(lambda made, option: option(made), reversed(options), read)

    return declare


def in_pages(what: str, most: int) -> Callable[[Command], Command]:
    """`--limit` and `--after` of a list; all of it by asking again after the last one."""

    def declare(command: Command) -> Command:
        after = click.option("--after", metavar=what, help="Begin after this one: the last one of an earlier list.")
        bounds = click.IntRange(1, MOST)
        limit = click.option("--limit", type=bounds, default=most, show_default=True, help="Maximum number to list.")
        return limit(after(command))

    return declare
