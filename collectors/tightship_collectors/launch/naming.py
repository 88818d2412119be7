"""What a run is called: the workflow a command belongs to, and what is reported of the command."""

from __future__ import annotations

import itertools
import os
import pwd
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath

from tightship_platform import validation
from tightship_platform.errors import Invalid
from tightship_platform.redaction import hide_in_command
from tightship_platform.validation import NAME_MAX

MAX_LABELS = 64
MAX_ARGUMENTS = 250
MAX_ARGUMENT = 1000

JOB_ID_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID", "FLUX_JOB_ID")
"""Where schedulers say what they call a job; the first that is set counts."""
POD_VARIABLES = ("POD_NAME", "HOSTNAME")
"""Where a container of Kubernetes finds its pod's name: what a manifest sets by convention, or else its host's name."""
IMAGE_VARIABLES = (
    *("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER", "SLURM_SPANK__SLURM_SPANK_OPTION_pyxis_container_image"),
    *("SLURM_CONTAINER", "CONTAINER_IMAGE"),
)
"""Where a container finds its image: by Apptainer, pyxis, Slurm, or a manifest that says so. The first counts."""

_INTERPRETER = re.compile(r"python[\d.]*|torchrun|accelerate|deepspeed|uv|poetry|conda")
_SHELL = re.compile(r"(?:ba|da|z|k)?sh")


def workflow_of(command: Sequence[str]) -> str:
    """The script's name without its suffix, the module's, or the program's: what recurs when the command does.

    `python -u src/train.py --lr 1` and `torchrun --nproc-per-node 8 src/train.py` are both `train`,
    `python -m pkg.train` is `pkg.train`, `bash job.sh` is `job`, `./simulate -x` is `simulate`.
    """
    program = PurePath(command[0]).name
    arguments = list(command[1:])
    name = program
    if program.endswith((".py", ".sh")):
        name = PurePath(program).stem
    elif _INTERPRETER.fullmatch(program):
        name = _script(arguments, ".py") or _module(arguments) or program
    elif _SHELL.fullmatch(program):
        name = _script(arguments, ".sh") or program
    return validation.line(os.fsencode(name).decode("utf-8", "replace"), NAME_MAX) or "unnamed"


def _script(arguments: Iterable[str], suffix: str) -> str | None:
    return next((PurePath(a).stem for a in arguments if a.endswith(suffix) and not a.startswith("-")), None)


def _module(arguments: Sequence[str]) -> str | None:
    for option, value in itertools.pairwise(arguments):
        if option in ("-m", "--module"):
            return value
    return None


def parse_labels(texts: Iterable[str]) -> dict[str, str]:
    """`k=v` texts as a mapping; the last one of a key counts.

    :raises Invalid: no `=`, or a key or value that is no name.
    """
    labels = dict(validation.label(text, "--label") for text in texts)
    if len(labels) > MAX_LABELS:
        raise Invalid("Number of labels", len(labels), f"at most {MAX_LABELS}")
    return labels


def reported_command(command: Sequence[str]) -> list[str]:
    """The command as it is reported to the server: cut to a reasonable size, secrets hidden."""
    plain = [
        validation.argument(text, MAX_ARGUMENT)
        for text in hide_in_command([os.fsencode(text).decode("utf-8", "replace") for text in command[:MAX_ARGUMENTS]])
    ]
    return plain if len(command) <= MAX_ARGUMENTS else [*plain, "…"]


def external_id_of(environ: Mapping[str, str]) -> str | None:
    """What the scheduler calls this job, `pod/<name>` in Kubernetes; None outside of one."""
    job = _first_of(JOB_ID_VARIABLES, environ)
    if job is None and environ.get("KUBERNETES_SERVICE_HOST"):
        pod = _first_of(POD_VARIABLES, environ)
        job = None if pod is None else validation.line(f"pod/{pod}", NAME_MAX)
    return job


def image_of(environ: Mapping[str, str]) -> str | None:
    """The container image that the environment names; None where it names none."""
    return _first_of(IMAGE_VARIABLES, environ)


def _first_of(variables: Iterable[str], environ: Mapping[str, str]) -> str | None:
    return next((text for name in variables if (text := validation.line(environ.get(name, ""), NAME_MAX))), None)


def user_name() -> str:
    """Login name of the user, or the number where it has none (a container)."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
