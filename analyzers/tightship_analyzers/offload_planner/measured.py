"""A live measurement: a few steps of the user's own script, timed from inside, then the machine's rates."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tightship_analyzers.offload_planner.profile import (
    COMMAND,
    LayerCost,
    Origin,
    Profile,
    RestCost,
    UpdateForm,
    levelled,
)
from tightship_analyzers.offload_planner.request import CPU
from tightship_collectors.launch.ending import OomKills, memory_limit
from tightship_collectors.launch.environment import injected
from tightship_collectors.launch.naming import reported_command
from tightship_offload.errors import PlanError
from tightship_offload.plan.capabilities import SHORTAGE
from tightship_offload.plan.host_limits import own_bytes
from tightship_offload.plan.model import Dtype, HardwareSpec, ModelSpec, Precision, Recompute
from tightship_platform.errors import TightshipError
from tightship_platform.processes.scratch import scratch_folder
from tightship_platform.units import format_bytes

LAUNCHER_PROCESSES = 2
"""Beside the job's, in its control group: `tightship run` and its watch. Each is as large as this process."""
RECORD_MAX_BYTES = 8 * 2**20
_DTYPES = {"float32": Dtype.FP32, "bfloat16": Dtype.BF16, "float16": Dtype.FP16}


class CannotProfile(TightshipError):
    """The command could not be measured."""


def measure_command(command: Sequence[str], *, steps: int, hardware: HardwareSpec) -> Profile:
    """Run a training command until so many steps are timed; it is ended then.

    Where it dies for lack of memory, once more with layers that share memory; see tightship_offload.job.small_memory.

    :raises CannotProfile: there is no such command, or it ended without training a model of repeated blocks.
    """
    with scratch_folder() as folder:
        record, oom_kills = folder / "record.json", OomKills()
        code = _run(command, steps, record, short=False)
        killed = oom_kills.count()
        if not record.is_file() and code and (killed or (folder / SHORTAGE).exists()):
            sys.stderr.write("tightship: out of memory; measuring once more, with layers that share memory\n")
            oom_kills = OomKills()
            code = _run(command, steps, record, short=True)
            if oom_kills.count():
                limit = memory_limit()
                allowed = "" if limit is None else f"; the control group allows {format_bytes(limit)}"
                raise CannotProfile(
                    f"The command was killed for lack of memory although layers shared theirs{allowed}: the model's "
                    "weights, which the script makes first, or the activations of a batch do not fit; take 16-bit "
                    "weights, a smaller batch or more memory"
                )
        if not record.is_file():
            raise CannotProfile(
                f"The command ended with exit code {code} before {steps} steps were timed; it must train a "
                "model of repeated blocks with one torch optimizer, for more than a few steps"
            )
        if record.stat().st_size > RECORD_MAX_BYTES:
            raise CannotProfile("The measurement is unreasonably large; is the model of thousands of layers?")
        profile = profile_of(json.loads(record.read_text(encoding="utf-8")), hardware)
    is_plain = list(command) == reported_command(command) and all(0 < len(word) <= COMMAND.most for word in command)
    return replace(
        profile,
        command=tuple(command) if is_plain else (),
        process_bytes=profile.process_bytes + LAUNCHER_PROCESSES * (own_bytes() or 0),
    )


def _run(command: Sequence[str], steps: int, record: Path, *, short: bool) -> int:
    env = injected(os.environ) | {
        "TIGHTSHIP_OFFLOAD_MEASURE": str(record),
        "TIGHTSHIP_OFFLOAD_STEPS": str(steps),
        "TIGHTSHIP_OFFLOAD_SHORT": "1" if short else "0",
    }
    for name in ("TIGHTSHIP_RUN", "TIGHTSHIP_RUN_DIR", "TIGHTSHIP_OFFLOAD_PLAN"):
        env.pop(name, None)
    try:
        return subprocess.run(list(command), env=env, check=False).returncode
    except OSError as error:
        raise CannotProfile(f"{command[0]}: {error.strerror or error}") from None


def profile_of(record: Mapping[str, Any], hardware: HardwareSpec) -> Profile:
    """The profile that a probe's record holds.

    :raises PlanError: the record holds what no profile may.
    """
    try:
        return _profile(record, hardware)
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise PlanError(f"The measurement is not acceptable ({type(error).__name__}: {error}); measure again") from None


def _profile(record: Mapping[str, Any], hardware: HardwareSpec) -> Profile:
    model = ModelSpec.from_mapping(record["model"], "model")
    layers = tuple(
        LayerCost(
            forward_ns=round(forward_ns),
            backward_ns=max(0, round(backward_ns) - (round(forward_ns) if record["recomputes"] else 0)),
            parameters=parameters,
            trainable=trainable,
            activation_bytes=max(activations, inputs),
            input_bytes=inputs,
        )
        for parameters, trainable, forward_ns, backward_ns, activations, inputs in zip(
            model.layer_parameters,
            record["trainable"],
            record["forward_ns"],
            record["backward_ns"],
            record["activation_bytes"],
            record["input_bytes"],
            strict=True,
        )
    )
    weights = _DTYPES.get(record["dtype"])
    if weights is None:
        raise PlanError(f"The model's weights are {record['dtype']!r}; plans know float32, bfloat16 and float16")
    notes = []
    unseen = any(kept <= given for kept, given in zip(record["activation_bytes"], record["input_bytes"], strict=True))
    if record["recomputes"] and unseen:
        notes.append("The loop recomputes activations: what layers would keep without that was not seen.")
    if record["short"]:
        notes.append("Memory was short: layers of one kind shared one layer's while they were timed, none was updated.")
    if hardware.device == CPU:
        notes.append("There is no accelerator: host memory plays the device, and updates share the cores with it.")
    if record["update_form"] == UpdateForm.OPEN:
        notes.append(
            "The optimizer was made without fused=True: on the CPU layers are updated by a loop over operators, "
            "several times as slow. Say fused=True in the script, or plan with --fused."
        )
    return Profile(
        model=model,
        layers=levelled(layers),
        rest=RestCost(
            before_forward_ns=round(record["before_forward_ns"]),
            after_forward_ns=round(record["head_ns"]),
            after_backward_ns=round(record["after_backward_ns"]),
            between_steps_ns=round(record["between_steps_ns"]),
            parameters=model.rest_parameters or 0,
            trainable=record["rest_trainable"],
            activation_bytes=record["rest_activation_bytes"],
        ),
        # The update is done where the optimizer is: 16-bit weights have no fp32 master unless a plan says so.
        precision=Precision(weights=weights, master=weights, gradients=weights),
        micro_batches=record["micro_batches"],
        recompute=Recompute.LAYER if record["recomputes"] else Recompute.NONE,
        batch=record["batch"],
        tokens=record["tokens"],
        origin=Origin.MEASURED,
        steps=record["steps"],
        spread_frac=min(1.0, float(record["spread_frac"])),
        state_bytes_per_parameter=record["state_bytes_per_parameter"],
        update_form=UpdateForm(record["update_form"]),
        process_bytes=record["process_bytes"],
        short=record["short"],
        clips=record["clip_norm"] is not None,
        clip_norm=record["clip_norm"],
        notes=tuple(notes),
        hardware=hardware,
    )
