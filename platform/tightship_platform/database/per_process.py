"""The database of a worker process: opened at its first use, after the fork, with the time limits of tasks."""

from __future__ import annotations

import os

from tightship_platform.database.engine import Database, open_database
from tightship_platform.database.time_limits import for_tasks
from tightship_platform.settings import Settings, load_settings

_opened: dict[tuple[int, Settings], Database] = {}


def process_database() -> Database:
    """This process's open database. A forked process opens another one: connections must not be shared.

    :raises SchemaMismatch: the schema is not this release's.
    :raises DatabaseUnreachable: it cannot be opened.
    """
    settings = load_settings()
    mine = os.getpid(), settings
    # An entry of the process that forked this one stays: to drop it would close the connections under its feet.
    if mine not in _opened:
        _opened[mine] = open_database(settings, for_tasks(settings))
    return _opened[mine]
