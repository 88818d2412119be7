"""The environment that arms a job."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tightship_collectors.jobs.run_directory import KINETO_CONF, TRACES

INJECT_DIR = Path(__file__).parent.parent / "inject"
"""Holds nothing but our sitecustomize.py: every module in it would hide one of the job's."""

QUIET = "5"
"""Above Kineto's errors: it would write two lines a second to the job's stderr while no agent listens."""


def armed(environ: Mapping[str, str], *, key: str, run_dir: Path, steps: bool) -> dict[str, str]:
    """The job's environment: the given one, the run's name, Kineto's socket, and our sitecustomize.

    :param steps: count optimizer steps.
    """
    env = injected(environ)
    env["TIGHTSHIP_RUN"] = key
    env["TIGHTSHIP_RUN_DIR"] = str(run_dir)
    env["KINETO_USE_DAEMON"] = "1"
    env["KINETO_IPC_SOCKET_DIR"] = str(run_dir)
    env["KINETO_CONFIG"] = str(run_dir / KINETO_CONF)
    # A Kineto newer than that of torch 2.13 writes on-demand traces below this folder only (its own default: /tmp).
    env["KINETO_ONDEMAND_TRACE_DIR"] = str(run_dir / TRACES)
    env.setdefault("KINETO_LOG_LEVEL", QUIET)
    if not steps:
        env["TIGHTSHIP_STEPS"] = "0"
    return env


def injected(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment with our sitecustomize, which does nothing but what other variables ask for."""
    env = dict(environ)
    inject, given = str(INJECT_DIR), env.get("PYTHONPATH", "")
    if given.split(os.pathsep)[0] == inject:
        return env
    if os.pathsep not in inject:  # PYTHONPATH has no way to name such a folder; without it there is no guard
        # An empty entry would mean the current directory, so there must be none that was not there before.
        env["PYTHONPATH"] = os.pathsep.join([inject, *([given] if given else [])])
    return env


@dataclass(frozen=True, kw_only=True)
class Offload:
    """A plan that is to be applied to the job."""

    plan: Path
    optional: bool = False
    """Where the plan does not apply, the job runs without it."""
    deadline_s: float | None = None
    """How long the job may wait for one copy or update; None: as the plan says."""

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """The job's environment with what the injected code needs to apply the plan."""
        env = injected(environ)
        env["TIGHTSHIP_OFFLOAD_PLAN"] = str(self.plan.absolute())
        env["TIGHTSHIP_OFFLOAD_OPTIONAL"] = "1" if self.optional else "0"
        if self.deadline_s is not None:
            env["TIGHTSHIP_OFFLOAD_DEADLINE"] = f"{self.deadline_s:g}"
        return env
