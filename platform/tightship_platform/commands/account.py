"""`tightship account`: where the device time of a fleet went."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import click

from tightship_platform.commands.filter_options import fleet_option
from tightship_platform.commands.list_form import ListForm, in_forms
from tightship_platform.results.codec import decode
from tightship_platform.results.fleet import AccountGroup, ImportedFleet
from tightship_platform.settings import load_settings
from tightship_platform.vocabulary import AccountBy

if TYPE_CHECKING:
    from tightship_platform.commands.terminal import Listed

T = TypeVar("T")


@click.command()
@click.option(
    "--by",
    type=click.Choice([str(by) for by in AccountBy]),
    default=AccountBy.FLEET.value,
    show_default=True,
    help="What to split by. By fleet, and without --fleet, each imported fleet has its own row.",
)
@fleet_option
@click.option("--limit", type=click.IntRange(1, 10_000), default=10_000, show_default=True, help="Groups at most.")
@in_forms(AccountGroup)
def account(by: str, fleet: str | None, limit: int, form: ListForm) -> None:
    """Say where device time went: how much was held, how much of it was busy, and which bucket took the rest.

    \b
    tightship account --by team
    tightship account --by state --fleet old-cluster --json
    """
    items: list[AccountGroup] = []

    def read() -> list[AccountGroup]:
        items[:] = _ask(list[AccountGroup], "/account", by=by, fleet=fleet, limit=limit)
        return items

    form.show(
        read,
        _table,
        lambda: "No run is accounted for yet. Launch one with: tightship run --workflow NAME -- python train.py",
    )
    if form.is_table:
        if by == AccountBy.FLEET:
            _print_goodput(items)
        for one in _ask(list[ImportedFleet], "/fleets"):
            if fleet == one.fleet or (fleet is None and by == AccountBy.FLEET):
                _print_assumptions(one)


def _print_goodput(items: list[AccountGroup]) -> None:
    """The ratios of fleets, as far as they are known."""
    from tightship_platform.text import printable
    from tightship_platform.units import format_frac

    for item in items:
        if (known := item.goodput) is None:
            continue
        ratios = {
            "scheduling": known.scheduling_frac,
            "runtime": known.runtime_frac,
            "program": known.program_frac,
        }
        parts = (f"{name} {'unknown' if ratio is None else format_frac(ratio)}" for name, ratio in ratios.items())
        whole = "unknown" if known.goodput_frac is None else f"at least {format_frac(known.goodput_frac)}"
        click.echo(printable(f"{item.key}: goodput {whole} = {' × '.join(parts)}"))


def _ask(kind: type[T], path: str, **params: object) -> T:
    from tightship_platform.client import ApiClient

    with ApiClient(load_settings()) as api:
        return decode(kind, api.get(path, params), path.removeprefix("/"))


def _table(items: list[AccountGroup]) -> Listed:
    from tightship_platform.commands.list_tables import accounts

    return accounts(items)


def _print_assumptions(fleet: ImportedFleet) -> None:
    from tightship_platform.text import printable
    from tightship_platform.units import plural

    waits = f", {plural(fleet.unaccounted_runs, 'run')} still to be accounted for" if fleet.unaccounted_runs else ""
    click.echo(printable(f"{fleet.fleet}: imported from {fleet.format}{waits}"))
    for text in fleet.assumptions:
        click.echo(printable(f"  assumes: {text}"))
    for why, count in fleet.refused.items():
        click.echo(printable(f"  left out: {plural(count, 'row')}: {why}"))
