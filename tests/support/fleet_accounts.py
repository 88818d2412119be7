"""What the account of a fleet says of a period."""

from __future__ import annotations

from tightship_platform.database.engine import Database
from tightship_platform.queries.account import fleet_account
from tightship_platform.results.filters import Filters
from tightship_platform.results.fleet import FleetAccount
from tightship_platform.vocabulary import AccountBy


def accounts(database: Database, since_ns: int, until_ns: int, by: AccountBy = AccountBy.TEAM) -> FleetAccount:
    """That of the live fleet."""
    with database.session() as session:
        return fleet_account(session, by, Filters(since_ns=since_ns, until_ns=until_ns))


def by_group(account: FleetAccount) -> dict[str, dict[str, int]]:
    """Group → bucket → device-ns."""
    return {group.key: group.buckets for group in account.groups}
