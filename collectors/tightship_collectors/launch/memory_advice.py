"""The last line of a job that died for lack of memory: what was short, and the command that leads on from there."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from tightship_collectors.jobs.control_file import FOLDER
from tightship_collectors.launch.naming import reported_command
from tightship_platform.results.memory_lack import Lack
from tightship_platform.units import format_bytes

LINE_MAX = 4000
"""Of a command that is to be copied whole."""


def memory_advice(
    lack: Lack, *, oom_kills: int | None, limit_bytes: int | None, next_command: str | None, plan: Path | None
) -> str:
    """One line.

    :param limit_bytes: of the job's control group; None: it has none.
    :param next_command: what to run next; None: nothing of ours helps.
    :param plan: the job ran under it.
    """
    if lack is Lack.DEVICE:
        cause = "the job was out of device memory"
    elif not oom_kills:
        cause = "the job was out of host memory"
    elif limit_bytes is None:
        cause = "the kernel killed the job for lack of memory"
    else:
        allowed = format_bytes(limit_bytes)
        cause = f"the kernel killed the job for lack of memory: its control group allows {allowed} in all"
    if plan is not None:
        option = "--device-memory" if lack is Lack.DEVICE else "--host-memory"
        return f"{cause}; it took more than {plan} predicts: plan again with a smaller {option}"
    return cause if next_command is None else f"{cause}. Next: {next_command}"


def measure_command(command: Sequence[str]) -> str:
    """The shell line that measures a job's model within the memory that there is.

    Where the job's command holds a secret, or is too long for a line, it is left out of it.
    """
    line = shlex.join(command)
    is_whole = len(line) <= LINE_MAX and line.isprintable() and reported_command(command) == list(command)
    return f"tightship offload measure -o profile.yaml -- {line if is_whole else 'python train.py'}"


def has_torch(run_dir: Path) -> bool:
    """Whether some process of the job imported torch."""
    try:
        return any((run_dir / FOLDER).iterdir())
    except OSError:
        return False
