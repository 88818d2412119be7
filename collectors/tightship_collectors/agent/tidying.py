"""Removes what jobs left whose launcher was killed, for every user whose jobs this agent serves."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

from tightship_collectors.jobs.run_directory import remove_stale
from tightship_platform.settings import runtime_dirs
from tightship_platform.units import plural

LOG = logging.getLogger(__name__)

EVERY_S = 600.0
_PLACES = ((Path("/tmp"), re.compile(r"tightship-(\d{1,10})")), (Path("/run/user"), re.compile(r"(\d{1,10})")))  # noqa: S108
"""Where `runtime_dirs` lie, and how the user stands in their names."""


class Tidying:
    """Looks every EVERY_S, in a separate thread: what users left may take long to remove."""

    def __init__(self, runtime_dir: Path) -> None:
        self._runtime_dir = runtime_dir

    def start(self) -> None:
        """Begin; it ends with the process."""
        threading.Thread(target=self._run, name="tidying", daemon=True).start()

    def _run(self) -> None:
        never = threading.Event()
        while not never.wait(EVERY_S):
            self.tidy()

    def tidy(self) -> int:
        """Remove what nobody needs any more; how many run directories that were."""
        removed = 0
        for path, uid in served(self._runtime_dir):
            try:
                removed += len(remove_stale(path, uid=uid))
            except Exception as error:
                # One user's folder, whatever is in it, must not keep those of others.
                LOG.warning("Left-over runs in %s stay: %r", path, error)
        if removed:
            LOG.info("Removed %s that no process needs any more", plural(removed, "run directory", "run directories"))
        return removed


def served(runtime_dir: Path) -> Iterator[tuple[Path, int]]:
    """Folders of runs that this agent serves, each with its user; see [Note: a claim is checked] in `attribution`."""
    own = os.geteuid()
    mine = runtime_dirs(own)
    for path in mine if runtime_dir in mine else (runtime_dir,):
        yield path, own
    if own != 0:
        return
    for place, names in _PLACES:
        with contextlib.suppress(OSError):
            for entry in sorted(place.iterdir()):
                match = names.fullmatch(entry.name)
                uid = int(match[1]) if match else 0
                for path in runtime_dirs(uid) if uid else ():
                    with contextlib.suppress(OSError):
                        if path.is_relative_to(place) and os.lstat(path).st_uid == uid:
                            yield path, uid
