"""`tightship offload`: measure, plan, explain, simulate, run."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tightship_platform.errors import Invalid, TightshipError
from tightship_platform.units import parse_bytes

if TYPE_CHECKING:
    from tightship_analyzers.offload_planner.constraints import Constraints
    from tightship_analyzers.offload_planner.profile import Profile
    from tightship_offload.plan.model import HardwareSpec

_FILE = click.Path(dir_okay=False, path_type=Path)
LAYERS_FOLDER = "layers"
"""Folder for layers that `measure` names in the next command."""
_LEAST_SIZE = 2**20
"""A smaller budget holds no layer: its unit was forgotten."""


class _Size(click.ParamType):  # type: ignore[type-arg]
    """A size such as 8GiB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Bytes."""
        size = value if isinstance(value, int) else parse_bytes(str(value))
        if size < _LEAST_SIZE:
            raise Invalid("Size", value, "at least 1MiB; give a unit, such as 8GiB")
        return size


@contextmanager
def _one_line() -> Iterator[None]:
    """The runtime's own errors as those of the command line."""
    try:
        from tightship_offload.errors import OffloadError
    except ImportError as error:
        raise TightshipError(f"{error}; offloading needs: pip install 'tightship[offload]'") from None
    try:
        yield
    except OffloadError as error:
        raise TightshipError(str(error)) from error


@click.group()
def offload() -> None:
    """Train models that do not fit: plan which layers are on the device when, and run the plan.

    \b
    tightship offload measure -o profile.yaml -- python train.py
    tightship offload plan profile.yaml --device-memory 8GiB -o plan.yaml
    tightship offload run plan.yaml -- python train.py
    """


@offload.command(context_settings={"allow_interspersed_args": False})
@click.option("-o", "--output", type=_FILE, metavar="FILE", help="File to write the profile to. Default: profile.yaml.")
@click.option("--steps", type=click.IntRange(2, 1000), default=5, show_default=True, help="Steps to time, after two.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: the profile, or the machine's rates.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def measure(output: Path | None, steps: int, as_json: bool, command: tuple[str, ...]) -> None:
    """Measure this machine's rates and, with COMMAND, what each layer of its model costs.

    COMMAND is an unmodified training script; it is stopped once the steps are timed. Where memory does not suffice for
    a training, layers of one kind share the memory of one while they are timed: the weights have to fit into host
    memory once. For a larger model `plan` counts the work instead, or reads a trace of a machine where it fits.
    """
    with _one_line():
        from tightship_analyzers.offload_planner.measured import measure_command
        from tightship_analyzers.offload_planner.profile import write_profile
        from tightship_analyzers.offload_planner.rates import measure_rates
        from tightship_analyzers.offload_planner.tables import print_hardware, print_profile

        hardware = measure_rates()
        if not command:
            if as_json:
                click.echo(json.dumps(hardware.as_mapping(), indent=2))
            else:
                print_hardware(hardware)
            return
        profile = measure_command(command, steps=steps, hardware=hardware)
        target = output or Path("profile.yaml")
        write_profile(profile, target)
        if as_json:
            click.echo(json.dumps(profile.as_mapping(), indent=2))
            return
        print_profile(profile)
        files = f" --nvme {LAYERS_FOLDER}" if profile.short else ""
        click.echo(f"Written to {target}. Next: tightship offload plan {shlex.quote(str(target))}{files}", err=True)


def _plan_options(command: Callable[..., None]) -> Callable[..., None]:
    """What the user may fix."""
    for option in reversed(
        [
            click.option("--device-memory", type=_Size(), help="Most device memory to use, such as 8GiB."),
            click.option("--host-memory", type=_Size(), help="Most host memory to use."),
            click.option("--pinned-budget", type=_Size(), help="Most pinned memory, in place of the memlock limit."),
            click.option(
                "--nvme",
                type=click.Path(file_okay=False, path_type=Path),
                metavar="FOLDER",
                help="Folder on a fast disk for weights and optimizer state that host memory does not hold.",
            ),
            click.option("--slots", type=click.IntRange(1, 10_000), help="Slots. Default: what is best."),
            click.option("--resident", metavar="LAYERS", help="Resident layers, such as 0-3,8. Default: what is best."),
            click.option(
                "--recompute", type=click.Choice(["none", "layer"]), help="Whether the loop checkpoints layers."
            ),
            click.option("--micro-batches", type=click.IntRange(1, 1_000_000), help="Micro-batches in a step."),
            click.option(
                "--early", is_flag=True, help="Let updates start during backward, each provisional until step()."
            ),
            click.option(
                "--threads",
                type=click.IntRange(1, 100_000),
                help="CPU threads for updates. Default: torch's, less some cores beside a GPU.",
            ),
            click.option(
                "--fused", is_flag=True, help="Update layers with the fused optimizer, where the script does not say."
            ),
            click.option("--hardware", type=_FILE, help="A profile whose machine to plan for. Default: this machine."),
        ]
    ):
        command = option(command)
    return command


@offload.command()
@click.argument("source", type=click.Path(path_type=Path), required=False)
@click.option("--workflow", metavar="NAME", help="Plan from the newest trace of this workflow that the server has.")
@click.option("-o", "--output", type=_FILE, metavar="FILE", help="File to write the plan to. Default: plan.yaml.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object. Keys: plan, alternatives, simulated.")
@_plan_options
def plan(source: Path | None, workflow: str | None, output: Path | None, as_json: bool, **options: Any) -> None:
    """Find the smallest window with the shortest step, and write it as a plan.

    SOURCE is a profile that `measure` wrote; a trace of a run (.json, .json.gz), recorded with stacks and shapes; or,
    for a model that fits nowhere, a factory `module:function` that returns the model and a batch: it is called with
    tensors that have no storage, and its work is counted. Or name a workflow in its place.
    """
    if (source is None) == (workflow is None):
        named = "neither" if source is None else f"both {str(source)!r} and --workflow"
        raise TightshipError(f"Give either SOURCE or --workflow, not {named}")
    with _one_line():
        from tightship_analyzers.offload_planner.assumed import on_device
        from tightship_analyzers.offload_planner.disk import disk_rates
        from tightship_analyzers.offload_planner.plans import make_plan
        from tightship_analyzers.offload_planner.tables import alternative_of, heading, print_alternatives, print_lines
        from tightship_offload.plan.explain import explain
        from tightship_offload.plan.file import write_plan

        given = _hardware(options["hardware"])
        if workflow is not None:
            profile, hardware = _of_workflow(workflow), given or _measured()
            profile = on_device(profile, profile.device or hardware.device, hardware.device)
        else:
            assert source is not None
            profile, hardware = _profile(source, given)
        constraints = _constraints(options, profile)
        if constraints.nvme is not None:
            read_rate, write_rate = disk_rates(constraints.nvme)
            hardware = replace(hardware, nvme_read_bytes_per_s=read_rate, nvme_write_bytes_per_s=write_rate)
        planned = make_plan(profile, hardware, constraints)
        target = output or Path("plan.yaml")
        lines = [f"{heading(planned.plan)}.", *explain(planned.plan)]
        lines[1:1] = [planned.change] if planned.change else []
        write_plan(planned.plan, target, "\n".join(lines))
        if as_json:
            listed = {name: asdict(alternative_of(option)) for name, option in planned.options.items()}
            document = {"plan": planned.plan.as_mapping(), "alternatives": listed, "simulated": planned.simulated}
            click.echo(json.dumps(document, indent=2))
            return
        print_alternatives(planned.options)
        print_lines(lines)
        command = shlex.join(profile.command) or "python train.py"
        click.echo(
            f"Written to {target}. Next: tightship offload run {shlex.quote(str(target))} -- {command}", err=True
        )


@offload.command("explain")
@click.argument("path", type=_FILE, metavar="PLAN")
def explain_plan(path: Path) -> None:
    """Explain PLAN: what limits it, and what would make it faster."""
    with _one_line():
        from tightship_analyzers.offload_planner.tables import heading, print_lines
        from tightship_offload.plan.explain import explain
        from tightship_offload.plan.file import read_plan

        read = read_plan(path)
        print_lines([f"{heading(read)}.", *explain(read)])


@offload.command()
@click.argument("source", type=click.Path(path_type=Path))
@click.option("--plan", "path", type=_FILE, required=True, help="The plan to simulate.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: step_ns, busy_ns{}, waits_ns{}, ….")
@click.option("--hardware", type=_FILE, help="A profile whose machine to simulate. Default: the plan's.")
def simulate(source: Path, path: Path, as_json: bool, hardware: Path | None) -> None:
    """Simulate a plan on the costs of SOURCE, a profile or a trace: the use of each resource and the device's waits."""
    with _one_line():
        from tightship_analyzers.offload_planner.plans import prediction_of
        from tightship_analyzers.offload_planner.replay import replay
        from tightship_analyzers.offload_planner.tables import print_simulation
        from tightship_offload.plan.file import read_plan
        from tightship_platform.units import format_ns

        read = read_plan(path)
        profile, machine = _profile(source, _hardware(hardware) or read.hardware)
        option = replay(read, profile, machine)
        if as_json:
            click.echo(json.dumps(prediction_of(option).as_mapping(), indent=2))
            return
        click.echo(f"A step takes {format_ns(option.step_ns)}.")
        print_simulation(option)


@offload.command(context_settings={"allow_interspersed_args": False})
@click.argument("path", type=_FILE, metavar="PLAN")
@click.option("--optional", is_flag=True, help="Run the job without the plan where it does not apply.")
@click.option("--workflow", metavar="NAME", help="Recurring work that this run belongs to. Default: the script's name.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True)
def run(path: Path, optional: bool, workflow: str | None, command: tuple[str, ...]) -> None:
    """Run the unmodified COMMAND with PLAN applied to the model that it trains.

    The same as `tightship run --offload PLAN -- COMMAND`, but a bad plan is refused before anything starts.
    """
    with _one_line():
        from tightship_collectors.launch.environment import Offload
        from tightship_collectors.launch.run import Names, run_command
        from tightship_offload.plan.file import read_plan

        read_plan(path)
    asked = Offload(plan=path, optional=optional)
    words = list(command[1:] if command[0] == "--" else command)
    sys.exit(run_command(words, Names(workflow=workflow), offload=asked))


def _profile(source: Path, given: HardwareSpec | None) -> tuple[Profile, HardwareSpec]:
    """The costs in a profile, a trace or a factory, and the machine to plan for: the given, else theirs, else this."""
    from tightship_analyzers.offload_planner.assumed import on_device
    from tightship_analyzers.offload_planner.profile import read_profile

    if source.name.endswith((".json", ".json.gz")):
        from tightship_analyzers.offload_planner.traced import profile_of_trace

        profile, hardware = profile_of_trace(source), given or _measured()
        return on_device(profile, profile.device or hardware.device, hardware.device), hardware
    if re.fullmatch(r"[\w.]+:\w+", str(source)) and not source.exists():
        from tightship_analyzers.offload_planner.counted import profile_of_factory

        machine = given or _measured()
        return profile_of_factory(str(source), machine), machine
    profile = read_profile(source)
    hardware = given or profile.hardware or _measured()
    recorded = profile.hardware.device if profile.hardware is not None else hardware.device
    return on_device(profile, recorded, hardware.device), hardware


def _of_workflow(workflow: str) -> Profile:
    """The profile in the newest trace of a workflow that holds one; says on stderr which trace that is."""
    from tightship_analyzers.offload_planner.sources import LOOKED_AT, command_for, lacking, sources
    from tightship_analyzers.offload_planner.workflow_profile import profile_of_workflow
    from tightship_platform.client import ApiClient
    from tightship_platform.results.capture import Capture
    from tightship_platform.results.codec import decode
    from tightship_platform.settings import load_settings

    settings = load_settings()
    with ApiClient(settings) as api:
        captures = decode(list[Capture], api.get("/captures", {"workflow": workflow, "limit": LOOKED_AT}), "captures")
        why = lacking(captures)
        if why:
            raise TightshipError(f"Workflow {workflow!r} cannot be planned: {why}; try `{command_for(workflow)}`")
        profile, used = profile_of_workflow(
            sources(captures),
            lambda one, file: api.get_file(f"/traces/{one.trace}/file", file, max_bytes=settings.upload_max_bytes),
        )
    click.echo(f"Planned from rank {used.rank} of capture {used.capture} of run {used.run}.", err=True)
    return profile


def _hardware(path: Path | None) -> HardwareSpec | None:
    from tightship_analyzers.offload_planner.profile import read_profile

    if path is None:
        return None
    found = read_profile(path).hardware
    if found is None:
        raise TightshipError(f"Profile {str(path)!r} does not name its machine; measure there")
    return found


def _measured() -> HardwareSpec:
    from tightship_analyzers.offload_planner.rates import measure_rates

    return measure_rates()


def _constraints(options: dict[str, Any], profile: Profile) -> Constraints:
    from tightship_analyzers.offload_planner.constraints import Constraints
    from tightship_analyzers.offload_planner.disk import open_disk
    from tightship_analyzers.offload_planner.plans import rules_for
    from tightship_offload.plan.host_limits import read_host_limits
    from tightship_offload.plan.model import Recompute

    here = options["hardware"] is None
    recompute, resident, slots = options["recompute"], options["resident"], options["slots"]
    count = len(profile.layers)
    if slots is not None and slots > count:
        raise Invalid("--slots", slots, f"1 to {count}, the number of layers")
    return Constraints(
        device_bytes=options["device_memory"],
        host_bytes=options["host_memory"],
        pinned_bytes=options["pinned_budget"],
        slots=slots,
        resident=None if resident is None else _layers(resident, count),
        recompute=None if recompute is None else Recompute(recompute),
        micro_batches=options["micro_batches"],
        rules=rules_for(profile, early=options["early"], threads=options["threads"], fused=options["fused"]),
        nvme=None if options["nvme"] is None else open_disk(options["nvme"]),
        host=read_host_limits() if here else None,
    )


def _layers(text: str, count: int) -> tuple[int, ...]:
    """`0-3,8` → (0, 1, 2, 3, 8); an empty text is none."""
    found: set[int] = set()
    for part in text.split(",") if text.strip() else []:
        first, _, last = part.strip().partition("-")
        ends = [int(end) for end in (first, last or first) if end.isdigit() and len(end) < 7]
        if len(ends) != 2 or not ends[0] <= ends[1] < count:
            raise Invalid("--resident", text, f"layers from 0 to {count - 1}, such as 0-3,8")
        found.update(range(ends[0], ends[1] + 1))
    return tuple(sorted(found))
