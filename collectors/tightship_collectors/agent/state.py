"""What an agent must remember over its own restart: open allocations, step counters as last
sent, and runs that nobody launched.

One small JSON file in the spool folder, replaced atomically. Losing it costs no record that was made before; it only
makes the next agent take runs that it finds for new, and count their steps again.

[Note: a state on a full disk]
While the disk is full, records reach the server from memory, and a state that says less than they did would have the
next agent count the same steps twice. So the file is longer than it has to be, and its blocks are written over where no
new ones can be had. File systems that copy on write (Btrfs, ZFS) do not permit that.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tightship_collectors.agent.seen_runs import SeenRun
from tightship_collectors.jobs.step_reader import RunSteps
from tightship_platform.errors import Invalid
from tightship_platform.results.codec import decode, fields_of

LOG = logging.getLogger(__name__)

VERSION = 1
ROOM_BYTES = 16 * 1024
"""The file has a multiple of this size, and at least half of it is blank."""


@dataclass(kw_only=True)
class AgentState:
    """See Allocations.snapshot, StepReader.snapshot and SeenRuns.snapshot."""

    allocations: list[list[Any]] = field(default_factory=list)
    steps: dict[str, RunSteps] = field(default_factory=dict)
    seen: list[SeenRun] = field(default_factory=list)


def load_state(path: Path) -> AgentState:
    """The state that an earlier agent left; an empty one when there is none or it makes no sense."""
    try:
        content = json.loads(path.read_bytes())
        if content["version"] != VERSION:
            raise ValueError(f"version {content['version']!r}")
        allocations = [[str(run), str(device), int(start)] for run, device, start in content["allocations"]]
        seen = _seen(path, content.get("seen", []))
        return AgentState(allocations=allocations, steps=_steps(path, content["steps"]), seen=seen)
    except FileNotFoundError:
        return AgentState()
    except (OSError, ValueError, KeyError, TypeError) as error:
        LOG.warning("The state file %s is invalid and is ignored: %s", path, error)
        return AgentState()


def _steps(path: Path, content: object) -> dict[str, RunSteps]:
    try:
        return decode(dict[str, RunSteps], content, "steps")
    except Invalid as error:
        LOG.warning("The step counters in %s are invalid and are counted again: %s", path, error)
        return {}


def _seen(path: Path, content: object) -> list[SeenRun]:
    try:
        return decode(list[SeenRun], content, "seen")
    except Invalid as error:
        LOG.warning("The runs in %s that nobody launched are invalid and are looked for again: %s", path, error)
        return []


def save_state(path: Path, state: AgentState) -> None:
    """Replace the file, or write over it. A disk that is full is no error here: the spool has said so."""
    content = json.dumps({"version": VERSION} | vars(state), default=fields_of).encode()
    room = -(-2 * len(content) // ROOM_BYTES) * ROOM_BYTES
    draft = path.with_suffix(".new")
    try:
        draft.write_bytes(content.ljust(room))
        draft.replace(path)
    except OSError as error:
        LOG.debug("Cannot replace %s: %s", path, error)
        _write_over(path, content)


def _write_over(path: Path, content: bytes) -> None:
    with contextlib.suppress(OSError):
        path.with_suffix(".new").unlink(missing_ok=True)
    try:
        with path.open("r+b", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if len(content) <= size:
                file.write(content.ljust(size))
    except OSError as error:
        LOG.debug("Cannot write over %s: %s", path, error)
