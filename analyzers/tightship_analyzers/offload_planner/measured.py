"""A live measurement: a few steps of the user's own script, timed from inside, then the machine's rates."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from tightship_analyzers.offload_planner.profile import LayerCost, Origin, Profile, RestCost, UpdateForm, levelled
from tightship_collectors.launch.environment import injected
from tightship_offload.errors import PlanError
from tightship_offload.plan.model import Dtype, HardwareSpec, ModelSpec, Precision, Recompute
from tightship_platform.errors import TightshipError
from tightship_platform.processes.scratch import scratch_folder

RECORD_MAX_BYTES = 8 * 2**20
_DTYPES = {"float32": Dtype.FP32, "bfloat16": Dtype.BF16, "float16": Dtype.FP16}


class CannotProfile(TightshipError):
    """The command could not be measured."""


def measure_command(command: Sequence[str], *, steps: int, hardware: HardwareSpec) -> Profile:
    """Run a training command until so many steps are timed; it is ended then.

    :raises CannotProfile: there is no such command, or it ended without training a model of repeated blocks.
    """
    with scratch_folder() as folder:
        record = folder / "record.json"
        env = injected(os.environ) | {
            "TIGHTSHIP_OFFLOAD_MEASURE": str(record),
            "TIGHTSHIP_OFFLOAD_STEPS": str(steps),
        }
        for name in ("TIGHTSHIP_RUN", "TIGHTSHIP_RUN_DIR", "TIGHTSHIP_OFFLOAD_PLAN"):
            env.pop(name, None)
        try:
            done = subprocess.run(list(command), env=env, check=False)
        except OSError as error:
            raise CannotProfile(f"{command[0]}: {error.strerror or error}") from None
        if not record.is_file():
            raise CannotProfile(
                f"The command ended with exit code {done.returncode} before {steps} steps were timed; it must train a "
                "model of repeated blocks with one torch optimizer, for more than a few steps"
            )
        if record.stat().st_size > RECORD_MAX_BYTES:
            raise CannotProfile("The measurement is unreasonably large; is the model of thousands of layers?")
        return profile_of(json.loads(record.read_text(encoding="utf-8")), hardware)


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
    if hardware.device == "cpu":
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
        clips=record["clip_norm"] is not None,
        clip_norm=record["clip_norm"],
        notes=tuple(notes),
        hardware=hardware,
    )
