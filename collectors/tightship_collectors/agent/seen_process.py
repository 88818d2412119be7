"""What is known of a process that `tightship run` did not start: its job, its command, whether it only starts others.

Its command and its environment are what its user wrote: they name a run and join processes of that user, no more. What
the kernel says (user, parent, process group, control group) goes before them.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from tightship_collectors.jobs.processes import ProcessTable
from tightship_collectors.jobs.unarmed import LIBRARY
from tightship_collectors.launch import naming
from tightship_platform import validation
from tightship_platform.validation import NAME_MAX

MAX_ENVIRON_BYTES = 1024 * 1024
MAX_COMMAND_BYTES = 256 * 1024
MAX_CGROUP_BYTES = 16 * 1024
MAX_MAPS_BYTES = 8 * 1024 * 1024
MAX_STEP = 40
MAX_ELDERS = 16
"""Ancestors that are looked at for whoever launched a rank."""

RANK_VARIABLES = ("RANK", "LOCAL_RANK")
LAUNCHERS = frozenset(
    {
        *("torchrun", "torch.distributed.run", "torch.distributed.launch", "deepspeed", "deepspeed.launcher.runner"),
        *("deepspeed.launcher.launch", "accelerate", "accelerate.commands.launch"),
        *("tightship", "tightship_platform", "horovodrun", "mpirun", "mpiexec", "srun", "raylet"),
        *("jupyter-lab", "jupyter-notebook", "jupyter-server", "jupyterhub", "jupyterhub-singleuser", "jupyterlab"),
    }
)
"""Programs and modules that start others, and may load torch without computing by it."""
DAEMONS = ("nvidia-cuda-mps", "nvidia-persiste", "nv-hostengine", "dcgm", "Xorg")
"""Beginnings of the names of root's processes that hold a device for others."""
NO_JOB_NAMES = frozenset({"wrap", "bash", "sh", "interactive"})
"""What Slurm calls a job that nobody gave a name."""

_PYTHON = re.compile(r"python[\d.]*|pypy[\d.]*")
_OPTIONS_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
_SLURM_CGROUP = re.compile(r"/job_(\d{1,20})(?:/step_([0-9A-Za-z_+.-]{1,40}))?(?:/|$)", re.MULTILINE)
_POD_CGROUP = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})")


@dataclass(frozen=True, kw_only=True)
class Job:
    """What the scheduler, or a rendezvous, calls the job of a process."""

    kind: str
    """`slurm` or `pod`, by its control group; `job`, by its environment; empty: by neither."""
    id: str = ""
    external_id: str | None = None


def loads_torch(table: ProcessTable, pid: int) -> bool | None:
    """Whether a process has mapped torch; None: its mappings may not be read, or it is gone."""
    try:
        with (table.proc / str(pid) / "maps").open("rb") as file:  # of which one read yields a page at most
            return LIBRARY in file.read(MAX_MAPS_BYTES)
    except OSError:
        return None


def command_of(table: ProcessTable, pid: int) -> list[str]:
    """Its arguments; empty: it is gone, or has none."""
    content = table.read(pid, "cmdline", MAX_COMMAND_BYTES)
    return [os.fsdecode(word) for word in content.split(b"\0")[:-1]]


def environment_of(table: ProcessTable, pid: int) -> dict[str, str] | None:
    """Its environment as it was started; None: it may not be read. Of two values of one name the first counts."""
    content = table.read(pid, "environ", MAX_ENVIRON_BYTES)
    if not content and not table.may_read(pid):
        return None
    values: dict[str, str] = {}
    for entry in content.split(b"\0"):
        name, found, value = entry.partition(b"=")
        if found:
            values.setdefault(name.decode("utf-8", "replace"), value.decode("utf-8", "replace"))
    return values


def job_of(cgroup: str, environ: Mapping[str, str]) -> Job:
    """The job that a process is part of, by its control group or else by its environment."""
    slurm = _SLURM_CGROUP.search(cgroup)
    if slurm is not None:
        return Job(kind="slurm", id=f"{slurm[1]}.{slurm[2] or ''}", external_id=slurm[1])
    pod = _POD_CGROUP.search(cgroup)
    if pod is not None:
        uid = pod[1].replace("_", "-")
        return Job(kind="pod", id=uid, external_id=f"pod/{uid}")
    job = naming.external_id_of(environ)
    if job is None:
        return Job(kind="")
    step = validation.line(environ.get("SLURM_STEP_ID", ""), MAX_STEP)
    return Job(kind="job", id=f"{job}.{step}", external_id=job)


def cgroup_of(table: ProcessTable, pid: int) -> str:
    """The control groups of a process, a line each."""
    return table.read(pid, "cgroup", MAX_CGROUP_BYTES).decode("utf-8", "replace")


def is_rank(environ: Mapping[str, str]) -> bool:
    """Whether somebody started it as one of several."""
    return any(environ.get(name) for name in RANK_VARIABLES)


def is_launcher(command: Sequence[str]) -> bool:
    """Whether it starts others and takes no part in their work, by what it is called."""
    return bool(LAUNCHERS.intersection(_programs(command)))


def is_daemon(table: ProcessTable, pid: int, uid: int) -> bool:
    """Whether it is a part of the system that holds devices for others; only root's are believed to be."""
    name = table.read(pid, "comm", 64).decode("utf-8", "replace").strip()
    return uid == 0 and name.startswith(DAEMONS)


def is_multiprocessing(command: Sequence[str]) -> bool:
    """Whether Python's multiprocessing started it: its command says nothing of the job."""
    return any(word.startswith("from multiprocessing.") for word in command[1:])


def workflow_name(command: Sequence[str], environ: Mapping[str, str]) -> str:
    """The scheduler's name of the job, or else the script's, as `tightship run` names it."""
    name = validation.line(environ.get("SLURM_JOB_NAME", ""), NAME_MAX)
    if name and name not in NO_JOB_NAMES:
        return name
    return naming.workflow_of(command) if command else "unnamed"


def user_name(uid: int) -> str:
    """Login name of a user, or the number where it has none here (a container)."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _programs(command: Sequence[str]) -> set[str]:
    """The program, and the script or module that an interpreter runs."""
    if not command:
        return set()
    found = {PurePath(command[0]).name}
    if not _PYTHON.fullmatch(PurePath(command[0]).name):
        return found
    words = iter(command[1:])
    for word in words:
        if word == "-m":
            return found | {next(words, "")}
        if word in _OPTIONS_WITH_VALUE:
            next(words, None)
        elif not word.startswith("-"):
            return found | {PurePath(word).name}
        elif word == "-c":
            break
    return found
