"""What a job is launched with: the commit of its folder, and what its interpreter and host have installed.

Looked at once the job runs, in threads beside it. The launcher announces the run with what files say, and once more
when git has answered; what is known by the end goes with the end's record. Only a job that is shorter than the look at
files has its launcher wait for that; nobody waits for git.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from tightship_collectors.launch.code_state import has_changes, read_commit, tree_of
from tightship_collectors.launch.delivery import Delivery
from tightship_collectors.launch.installed import Installed, driver_version, torch_of
from tightship_platform.results.run_record import RunRecord

LOOK_S = 0.2
"""For so long at most a launcher whose job has ended waits for what files say, which takes some milliseconds."""


class Surroundings:
    """Of one job, in the folder that this process is in.

    :param environ: the job's environment.
    """

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], delivery: Delivery) -> None:
        self._command = command
        self._environ = environ
        self._delivery = delivery
        self._installed = Installed()
        self._driver: str | None = None
        self._commit: str | None = None
        self._has_changes: bool | None = None
        self._looked = threading.Event()

    def announce(self, record: RunRecord) -> None:
        """Have the run announced with what is known of it."""
        self._delivery.start(record, self._look)

    def at_end(self, record: RunRecord) -> RunRecord:
        """The record with what is known once the job has ended."""
        self._looked.wait(LOOK_S)
        return self.added_to(record)

    def added_to(self, record: RunRecord) -> RunRecord:
        """The record with what is known by now."""
        return dataclasses.replace(
            record,
            git_commit=self._commit,
            git_dirty=self._has_changes,
            torch_version=self._installed.torch_version,
            cuda_version=self._installed.cuda_version,
            driver_version=self._driver,
        )

    def _look(self, record: RunRecord) -> RunRecord:
        with contextlib.suppress(Exception):  # a folder that is gone, say: what was not found stays unknown
            self._driver = driver_version()
            self._installed = torch_of(self._command, self._environ)
            tree = tree_of(Path.cwd())
            self._commit = None if tree is None else read_commit(tree)
            if tree is not None and self._commit is not None:
                threading.Thread(target=self._ask_git, args=(tree, record), name="git", daemon=True).start()
        self._looked.set()
        return self.added_to(record)

    def _ask_git(self, tree: Path, record: RunRecord) -> None:
        with contextlib.suppress(Exception):
            self._has_changes = has_changes(tree, os.environ, self._delivery.has_ended)
            if self._has_changes is not None:
                self._delivery.repeat(self.added_to(record))
