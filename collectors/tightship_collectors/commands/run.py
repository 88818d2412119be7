"""`tightship run`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import click


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--workflow", metavar="NAME", help="Recurring work that this run belongs to. Default: the script's name.")
@click.option("--team", metavar="NAME", help="Team that the workflow belongs to.")
@click.option("--owner", metavar="NAME", help="Person to ask about the workflow.")
@click.option("--label", "labels", metavar="K=V", multiple=True, help="A label to search by. Repeatable.")
@click.option(
    "--offload",
    metavar="PLAN",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Apply this offload plan (see: tightship offload plan) to the model that the job trains.",
)
@click.option("--offload-optional", is_flag=True, help="Run the job without the plan where it does not apply.")
@click.option(
    "--offload-deadline",
    metavar="SECONDS",
    type=click.FloatRange(1, 7 * 86_400),
    help="End the job once it has waited so long for one copy or update. Default: as the plan says, or 300.",
)
@click.option(
    "--apply",
    metavar="ID",
    help="Run it with the change of this opportunity: variables of its environment, or an offload plan. One that is "
    "open is applied by it.",
)
@click.option("--no-steps", is_flag=True, help="Do not count optimizer steps.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True)
def run(
    workflow: str | None,
    team: str | None,
    owner: str | None,
    labels: tuple[str, ...],
    offload: Path | None,
    offload_optional: bool,
    offload_deadline: float | None,
    apply: str | None,
    no_steps: bool,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND under observation: its processes, its steps, and traces on request.

    The command keeps its terminal, signals and exit code, and runs even when no other part of tightship does. Only with
    --apply it does not run where the server does not name the change, which takes a token with the scope `apply`; the
    run is then of the opportunity's workflow, and says that it has the change.

    \b
    tightship run -- python train.py --epochs 3
    tightship run --workflow pretrain --team nlp -- torchrun --nproc-per-node=8 train.py
    tightship run --apply 3 -- python train.py
    """
    from tightship_collectors.launch.environment import Offload
    from tightship_collectors.launch.naming import parse_labels
    from tightship_collectors.launch.run import Names, run_command

    plan = None if offload is None else Offload(plan=offload, optional=offload_optional, deadline_s=offload_deadline)
    names = Names(workflow=workflow, team=team, owner=owner, labels=parse_labels(labels))
    change = None
    if apply is not None:
        from tightship_collectors.launch.change import fetch_change

        change = fetch_change(
            apply,
            workflow=workflow,
            offload=plan,
            offload_optional=offload_optional,
            offload_deadline_s=offload_deadline,
        )
        plan, names = change.offload, replace(names, workflow=change.workflow)
    sys.exit(run_command(list(command), names, steps=not no_steps, offload=plan, change=change))
