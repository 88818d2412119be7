"""Leads from a finding about memory to a plan: the command that computes one from a trace of the workflow itself."""

from __future__ import annotations

import shlex

from tightship_platform.results.evidence import PlanAdvice


def plan_command(workflow: str) -> str:
    """The command line, quoted for a shell; a name that begins with a dash is no option."""
    return f"tightship offload plan {shlex.quote('--workflow=' + workflow)}"


def plan_fix(workflow: str) -> str:
    """What to change, in words."""
    return (
        "Train it through a window of its layers: compute the plan from a trace of this workflow with "
        f"{plan_command(workflow)}; or use less: a smaller micro-batch, activation checkpointing"
    )


def plan_evidence(workflow: str) -> PlanAdvice:
    """Where the plan comes from; pages link it to *Will it fit, and how fast?*."""
    return PlanAdvice(workflow=workflow, command=plan_command(workflow))
