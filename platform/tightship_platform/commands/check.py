"""`tightship check`: is this installation whole?"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from tightship_platform.errors import TightshipError
from tightship_platform.settings import load_settings
from tightship_platform.units import now_ns, plural

if TYPE_CHECKING:
    from tightship_platform.database.engine import Database
    from tightship_platform.queries.wholeness import Wholeness

SHOWN = 10
"""Of many faults of a kind, so many are named."""
AT_ONCE = 1000


@click.command()
@click.option("--repair", is_flag=True, help="Have rows name no file that is gone, and accounts made again.")
def check(repair: bool) -> None:
    """Check that rows and trace files belong together, and that accounts add up. Changes nothing by itself.

    Every file that a row names has to be in the artifact store, with its size; the store has to be this installation's;
    the account of every run that is over has to hold exactly the device time that it held. Files that no row names are
    counted, and are no fault. --repair removes no file.

    Exit code 0: the installation is whole, or is now; 1: it is not, and the lines say why.
    """
    settings = load_settings()
    from tightship_platform.captures.artifact_store import open_artifacts
    from tightship_platform.database import engine
    from tightship_platform.queries import wholeness

    store = open_artifacts(settings)
    with engine.open_database(settings) as opened:
        try:
            found = wholeness.check(opened, store)
        except OSError as error:
            why = " ".join(str(error).split())
            raise TightshipError(f"The artifact store cannot be used ({why}); check TIGHTSHIP_ARTIFACTS_URL") from error
        for line in _lines(found, store.shown_url):
            click.echo(line)
        if repair and found.store_fault is None and found.faults:
            _repair(opened, found)
            click.echo(f"Repaired: {plural(len(found.missing), 'trace')}, {plural(len(found.unbalanced), 'account')}.")
            return
    sys.exit(1 if found.faults else 0)


def _lines(found: Wholeness, store: str) -> Iterator[str]:
    if found.store_fault is not None:
        yield f"FAULT  {found.store_fault}; see `tightship db adopt-store`"
    if found.missing:
        yield f"FAULT  not in {store}, or of another size: the files of traces {_some(found.missing)}"
    if found.unbalanced:
        yield f"FAULT  accounts that do not hold their run's device time: {_some(found.unbalanced)}"
    yield (
        f"{plural(found.traces, 'trace file')} and {plural(found.accounts, 'account')} checked, "
        f"{plural(found.faults, 'fault')}; {plural(found.orphans, 'file')} that no row names"
    )


def _some(names: Sequence[object]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(str(name) for name in names[:SHOWN]) + more


def _repair(database: Database, found: Wholeness) -> None:
    from sqlalchemy import update

    from tightship_platform.database.audit import audit
    from tightship_platform.database.models import Run, Trace

    with database.session() as session:
        for first in range(0, len(found.missing), AT_ONCE):
            gone = found.missing[first : first + AT_ONCE]
            session.execute(update(Trace).where(Trace.id.in_(gone)).values(removed_ns=now_ns()))
        for first in range(0, len(found.unbalanced), AT_ONCE):
            keys = found.unbalanced[first : first + AT_ONCE]
            session.execute(update(Run).where(Run.key.in_(keys)).values(accounted_ns=None))
        traces, runs = len(found.missing), len(found.unbalanced)
        audit(session, "cli", "installation.repair", "installation", traces=traces, runs=runs)
