"""`tightship account`: where the device time of a fleet went, and whose it was."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import click

from tightship_platform.commands.filter_options import MOST, filtered
from tightship_platform.commands.list_form import TABLE, ListForm, in_forms
from tightship_platform.results.codec import decode
from tightship_platform.results.filters import FilterTexts
from tightship_platform.results.fleet import AccountGroup, FleetAccount, Goodput, ImportedFleet
from tightship_platform.settings import load_settings
from tightship_platform.text import printable
from tightship_platform.units import format_frac, format_ns, plural
from tightship_platform.vocabulary import LIVE, AccountBy, Bucket, RunState

if TYPE_CHECKING:
    from tightship_platform.commands.terminal import Listed

T = TypeVar("T")
SHOWN = 20
"""Groups of a table, where no more are asked for."""


@click.command()
@click.option(
    "--by",
    type=click.Choice([str(by) for by in AccountBy]),
    default=AccountBy.TEAM.value,
    show_default=True,
    help="What to split it by. By fleet, and without --fleet, each imported fleet has its own row.",
)
@filtered("was spent", RunState, state_of=", of the run")
@click.option("--limit", type=click.IntRange(1, MOST), help=f"Groups at most.  [default: {SHOWN} in a table]")
@in_forms(AccountGroup)
def account(by: str, filters: FilterTexts, limit: int | None, form: ListForm) -> None:
    """Say where device time went, and whose it was, the most wasteful first: in the last seven days or since --since,
    of an imported fleet in all of its history.

    Unproductive is all but the time in which a device computed. Of a team without any trace nobody knows that: all its
    time counts as unproductive until one says more.

    \b
    tightship account --by workflow --since 30d
    tightship account --by state --fleet old-cluster --json
    """
    most = limit or (SHOWN if form.kind == TABLE else MOST)
    wholes: list[FleetAccount] = []

    def read() -> list[AccountGroup]:
        wanted = filters.read(zone=None)
        query = wanted.query() | {"by": by, "limit": str(most)}
        names = _fleets(by, wanted.fleet or filters.fleet)
        wholes[:] = [_ask(FleetAccount, "/account", **(query | {"fleet": name})) for name in names]
        return _worst([group for whole in wholes for group in whole.groups])[:most]

    if not form.is_table:
        form.show(read, _table, _nothing)
        return
    groups = read()
    for whole in wholes:
        click.echo(printable(_summary(whole)))
    form.show(lambda: groups, _table, _nothing)
    if len(groups) == most:
        click.echo(f"Only the {plural(most, 'group')} with the most unproductive time; --limit shows more")
    for whole in wholes:
        if whole.goodput is not None:
            click.echo(printable(f"{whole.fleet}: {_goodput(whole.goodput)}"))
    _print_assumptions([whole.fleet for whole in wholes])


def _fleets(by: str, name: str | None) -> list[str]:
    """The fleets that are asked for. They are never mixed: each is an account by itself."""
    if name is not None or by != AccountBy.FLEET:
        return [name or LIVE]
    return [LIVE, *(fleet.fleet for fleet in _ask(list[ImportedFleet], "/fleets"))]


def _worst(groups: list[AccountGroup]) -> list[AccountGroup]:
    return sorted(groups, key=lambda one: -one.unproductive_ns)


def _ask(kind: type[T], path: str, **params: object) -> T:
    from tightship_platform.client import ApiClient

    with ApiClient(load_settings()) as api:
        return decode(kind, api.get(path, params), path.removeprefix("/"))


def _summary(whole: FleetAccount) -> str:
    from tightship_platform.commands.terminal import clock

    of_nobody = whole.buckets.get(Bucket.UNALLOCATED, 0)
    held = f"{plural(whole.runs, 'run')} held {format_ns(whole.device_ns - of_nobody)} of device time"
    held += f"; {format_ns(of_nobody)} no run held" if of_nobody else ""
    more = f"; {plural(whole.unaccounted_runs, 'run')} more not yet counted" if whole.unaccounted_runs else ""
    simulated = "; some of it is simulated" if whole.simulated else ""
    return f"{whole.fleet}, {clock(whole.since_ns)} to {clock(whole.until_ns)}: {held}{more}{simulated}"


def _table(items: list[AccountGroup]) -> Listed:
    from tightship_platform.commands.list_tables import accounts

    return accounts(items)


def _goodput(known: Goodput) -> str:
    """The ratios, as far as they are known."""
    ratios = {"scheduling": known.scheduling_frac, "runtime": known.runtime_frac, "program": known.program_frac}
    parts = (f"{name} {'unknown' if ratio is None else format_frac(ratio)}" for name, ratio in ratios.items())
    whole = "unknown" if known.goodput_frac is None else f"at least {format_frac(known.goodput_frac)}"
    return f"goodput {whole} = {' × '.join(parts)}"


def _nothing() -> str:
    return "No run is accounted for then. Launch one with: tightship run --workflow NAME -- python train.py"


def _print_assumptions(names: list[str]) -> None:
    """What the figures of imported fleets take for granted stands beside them."""
    for fleet in [] if names == [LIVE] else _ask(list[ImportedFleet], "/fleets"):
        if fleet.fleet in names:
            click.echo(printable(f"{fleet.fleet}: imported from {fleet.format}"))
            for text in [f"assumes: {one}" for one in fleet.assumptions] + _left_out(fleet):
                click.echo(printable(f"  {text}"))


def _left_out(fleet: ImportedFleet) -> list[str]:
    """Why rows of an import were refused, and how many."""
    return [f"left out: {plural(count, 'row')}: {why}" for why, count in fleet.refused.items()]
