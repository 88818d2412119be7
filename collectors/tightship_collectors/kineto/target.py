"""What a person names when asking for a capture: a run, a workflow, or a process of this host."""

from __future__ import annotations

import os
import re
from pathlib import Path

from tightship_platform import validation
from tightship_platform.errors import Invalid, NotFound

RUN_VARIABLE = b"TIGHTSHIP_RUN="
_PID = re.compile(r"\d{1,9}", re.ASCII)


def resolve_target(text: str) -> str:
    """A run id or workflow name as the server takes it; a number is a process of this host and becomes its run.

    :raises NotFound: there is no such process.
    :raises Invalid: the process was not launched by `tightship run`, or belongs to another user.
    """
    if not _PID.fullmatch(text):
        return validation.name("Target", text)
    pid = int(text)
    run = _run_of(pid)
    if run is None:
        run = _run_of_launcher(pid)
    if run is None:
        raise Invalid("Process", pid, "one that was launched by `tightship run`, or a run id or workflow name")
    return run


def _run_of(pid: int) -> str | None:
    """The run in a process's environment; None when it has none."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError) as error:
        raise NotFound("process", str(pid), "it has ended, or runs on another host; see `tightship runs`") from error
    except PermissionError as error:
        raise Invalid("Process", pid, f"a process whose environment user {os.geteuid()} may read") from error
    for entry in environment.split(b"\0"):
        if entry.startswith(RUN_VARIABLE):
            return validation.key("TIGHTSHIP_RUN of the process", entry[len(RUN_VARIABLE) :].decode("utf-8", "replace"))
    return None


def _run_of_launcher(pid: int) -> str | None:
    """The run of a child: `tightship run` itself does not carry what it gives to its command."""
    import psutil

    try:
        children = psutil.Process(pid).children()
    except psutil.Error:
        return None
    for child in children:
        try:
            run = _run_of(child.pid)
        except (NotFound, Invalid):
            continue
        if run is not None:
            return run
    return None
