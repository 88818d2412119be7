"""The record of a run as its launcher left it in the run directory.

The launcher tells the server itself. The agent repeats it, because a launcher may be unable to (no route, no token),
and states what the host knows better than a file in a user's folder: itself, the user, and the scheduler's id of the
process. The server applies a record as often as it comes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import pwd
import stat

from tightship_collectors.jobs.attribution import LocalRun
from tightship_collectors.jobs.run_directory import RECORD
from tightship_collectors.jobs.user_folder import FILE_FLAGS, user_folder
from tightship_platform.results.run_record import RunRecord

LOG = logging.getLogger(__name__)

MAX_BYTES = 1024 * 1024
FIELDS = frozenset(f.name for f in dataclasses.fields(RunRecord))


def read_run_record(local: LocalRun, host: str) -> dict[str, object] | None:
    """The record as JSON values; None when there is none, or it is of another run, user or form.

    :param host: this host, whatever the record says.
    """
    run = local.view
    try:
        with user_folder(run.run_dir, run.uid) as folder:
            fd = os.open(RECORD, os.O_RDONLY | FILE_FLAGS, dir_fd=folder)
        with os.fdopen(fd, "rb") as file:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != run.uid or status.st_size > MAX_BYTES:
                raise ValueError("it is not a regular file of the run's user, or it is too large")
            content = json.load(file)
        if not isinstance(content, dict) or content.get("run") != run.run or not _is_flat(content):
            raise ValueError("it is not a record of this run")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        LOG.warning("The record of run %s in %s is not used: %s", run.run, run.run_dir, error)
        return None
    if not content.get("external_id"):
        content["external_id"] = local.external_id
    content["host"], content["uid"] = host, run.uid
    with contextlib.suppress(KeyError):  # in a container, where users have no names: as the launcher says
        content["user"] = pwd.getpwuid(run.uid).pw_name
    return content


def _is_flat(content: dict[str, object]) -> bool:
    """Known fields only, and nothing nested deeper than a record is: the rest of it is for the server to judge."""
    for name, value in content.items():
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
        if name not in FIELDS or not all(isinstance(part, str | int | None) for part in parts):
            return False
    return True
