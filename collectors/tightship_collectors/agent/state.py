"""What an agent must remember over its own restart: open allocations and step counters as last sent.

One small JSON file in the spool folder, replaced atomically. Losing it costs no record that was made before; it only
makes the next agent take runs that it finds for new.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tightship_collectors.jobs.step_reader import RunSteps
from tightship_platform.errors import Invalid
from tightship_platform.results.codec import decode, fields_of

LOG = logging.getLogger(__name__)

VERSION = 1


@dataclass(kw_only=True)
class AgentState:
    """See Allocations.snapshot and StepReader.snapshot."""

    allocations: list[list[Any]] = field(default_factory=list)
    steps: dict[str, RunSteps] = field(default_factory=dict)


def load_state(path: Path) -> AgentState:
    """The state that an earlier agent left; an empty one when there is none or it makes no sense."""
    try:
        content = json.loads(path.read_bytes())
        if content["version"] != VERSION:
            raise ValueError(f"version {content['version']!r}")
        allocations = [[str(run), str(device), int(start)] for run, device, start in content["allocations"]]
        return AgentState(allocations=allocations, steps=_steps(path, content["steps"]))
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


def save_state(path: Path, state: AgentState) -> None:
    """Replace the file. A disk that is full is no error here: the spool has said so."""
    content = json.dumps({"version": VERSION} | vars(state), default=fields_of)
    draft = path.with_suffix(".new")
    try:
        draft.write_text(content, encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        LOG.debug("Cannot write %s: %s", path, error)
