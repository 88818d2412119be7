"""Imports what the commands of `tightship` import, for a Python that runs them in its forks."""

from __future__ import annotations

import importlib
import os
from importlib.metadata import entry_points

from tightship_platform.cli import COMMANDS

os.environ["REMAP_SIGTERM"] = "SIGQUIT"  # as `tightship worker` does: Celery reads it at import

for group in ("tightship.tasks", "tightship.web"):
    for _entry in entry_points(group=group):
        _entry.load()
for _command in COMMANDS.values():
    _command.load()
for _name in (
    "rich.live",
    "rich.table",
    "tightship_collectors.agent.process",
    "tightship_collectors.doctor.host_checks",
    "tightship_platform.api.server",
    "tightship_platform.tasks.worker",
):
    importlib.import_module(_name)
