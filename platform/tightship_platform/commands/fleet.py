"""`tightship fleet`: where the device time of all runs went, and whose it was."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tightship_platform.commands.json_option import json_option, print_json
from tightship_platform.results.codec import decode
from tightship_platform.results.fleet import FleetAccount
from tightship_platform.results.run_account import BUCKET_LABEL, has_no_trace, largest_loss, losses
from tightship_platform.settings import load_settings
from tightship_platform.units import format_frac, format_ns, now_ns, parse_time_ns, plural
from tightship_platform.vocabulary import Bucket

if TYPE_CHECKING:
    from tightship_platform.commands.terminal import Listed

SHOWN = 20
"""Of many teams or workflows so many are shown."""


@click.command()
@click.option(
    "--since",
    metavar="TIME",
    default="7d",
    show_default=True,
    help="Count from then on: 2h or 3d (ago), yesterday, a day, or a time.",
)
@click.option("--until", metavar="TIME", help="Count until then; of a day, until its end.  [default: now]")
@click.option("--by", type=click.Choice(["team", "workflow"]), default="team", show_default=True, help="Whose it was.")
@json_option(FleetAccount, "Print one JSON object with all teams and workflows.")
def fleet(since: str, until: str | None, by: str, as_json: bool) -> None:
    """Show where the device time of all runs went, and which team or workflow lost most of it.

    What was lost is all that was not productive. Of a team without any trace nobody knows that: all its time counts as
    lost until one says more.

    \b
    Examples:
      tightship fleet
      tightship fleet --by workflow --since yesterday
    """
    now = now_ns()
    period = {
        "since_ns": parse_time_ns("since", since, now=now, zone=None),
        "until_ns": now if until is None else parse_time_ns("until", until, now=now, zone=None, ends_day=True),
    }
    from tightship_platform.client import ApiClient

    with ApiClient(load_settings()) as api:
        account = decode(FleetAccount, api.get("/fleet", period), "fleet")
    if as_json:
        print_json(account)
        return
    from tightship_platform.commands.terminal import clock, print_table

    of_nobody = account.buckets.get(Bucket.UNALLOCATED, 0)
    held = f"{plural(account.runs, 'run')} held {format_ns(account.device_ns - of_nobody)} of device time"
    held += f"; {format_ns(of_nobody)} no run held" if of_nobody else ""
    more = f"; {plural(account.unaccounted_runs, 'run')} more not yet counted" if account.unaccounted_runs else ""
    click.echo(f"{clock(account.since_ns)} to {clock(account.until_ns)}: {held}{more}")
    if not account.device_ns:
        return
    parts = account.by_team if by == "team" else account.by_workflow
    listed = _table(by, account, parts)
    print_table(listed.columns, listed.rows, empty="")
    if len(parts) > SHOWN:
        click.echo(f"{len(parts) - SHOWN} more; --json has all")


def _table(by: str, account: FleetAccount, parts: dict[str, dict[str, int]]) -> Listed:
    from tightship_platform.commands.terminal import Column, Listed

    worst = sorted(parts.items(), key=lambda part: -_lost(part[1]))[:SHOWN]
    columns = [
        Column(by.upper()),
        Column("DEVICE TIME", right=True),
        Column("LOST", right=True),
        Column("OF ALL LOST", right=True, spare=1),
        Column("PRODUCTIVE", right=True),
        Column("LARGEST LOSS"),
    ]
    all_lost = _lost(account.buckets)
    rows = [_row(name, buckets, all_lost) for name, buckets in [*worst, ("all", account.buckets)]]
    return Listed(columns, rows)


def _row(name: str, buckets: dict[str, int], all_lost: int) -> tuple[str, ...]:
    held, lost = sum(buckets.values()), _lost(buckets)
    bucket, loss_ns = largest_loss(buckets)
    return (
        name,
        format_ns(held),
        format_ns(lost),
        format_frac(lost / all_lost) if all_lost else "–",
        "–" if has_no_trace(buckets) or not held else format_frac(1 - lost / held),
        f"{format_frac(loss_ns / held)} {BUCKET_LABEL[bucket]}" if loss_ns else "none",
    )


def _lost(buckets: dict[str, int]) -> int:
    """Device time that was not productive."""
    return sum(value for _, value in losses(buckets))
