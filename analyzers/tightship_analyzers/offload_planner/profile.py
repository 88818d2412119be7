"""What one step of a model costs, layer by layer: the planner's input, wherever it was obtained.

A profile comes from a live measurement, from a trace, or from counting FLOPs of a model that fits nowhere. It is a YAML
file, so that it can be kept, edited and planned from on another machine.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Self

import yaml

from tightship_offload.errors import PlanError
from tightship_offload.plan.file import parse_mapping, read_mapping, write_text
from tightship_offload.plan.model import HardwareSpec, ModelSpec, Precision, Recompute
from tightship_offload.plan.schema import Line, ListOf, Nested, Real, Section, Whole, short

VERSION = 1
NS_MAX = 2**55
"""More than a year; a sum over 10,000 layers still fits 64 bits."""
BYTES_MAX = 2**50
COMMAND = Line(1000)
"""One word of a command."""
NOISE_FRAC = 0.1
"""How far times of like layers may lie from their median."""


class Origin(StrEnum):
    """How the times of a profile were obtained."""

    MEASURED = "measured"
    """A few steps of the model, on this machine."""
    TRACE = "trace"
    """A recording of a run; the profiler's own cost is in it."""
    COUNTED = "counted"
    """FLOPs of the model, counted, over the FLOP/s of the hardware."""


class UpdateForm(StrEnum):
    """How torch runs an optimizer's update on a CPU."""

    FUSED = "fused"
    OPEN = "open"
    """By a loop over operators, as the script does not say `fused=True`; a plan may."""
    LOOP = "loop"
    """By a loop over operators: the script says so, or the optimizer has no other form."""


@dataclass(frozen=True, kw_only=True)
class LayerCost(Section):
    """One layer, one micro-batch."""

    forward_ns: Annotated[int, Whole(0, NS_MAX)]
    backward_ns: Annotated[int, Whole(0, NS_MAX)]
    """Without recomputing the forward."""
    parameters: Annotated[int, Whole(0, BYTES_MAX)]
    trainable: Annotated[int, Whole(0, BYTES_MAX)]
    """Those of them that are updated."""
    activation_bytes: Annotated[int, Whole(0, BYTES_MAX)]
    """Kept from forward to backward, input included."""
    input_bytes: Annotated[int, Whole(0, BYTES_MAX)]
    """What recomputing starts from."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.trainable > self.parameters:
            raise PlanError(
                f"A layer has {self.parameters} parameters and {self.trainable} trainable ones; expected fewer"
            )


@dataclass(frozen=True, kw_only=True)
class RestCost(Section):
    """What is not in the stack, one micro-batch: embeddings before it; final norm, head and loss after it."""

    before_forward_ns: Annotated[int, Whole(0, NS_MAX)] = 0
    after_forward_ns: Annotated[int, Whole(0, NS_MAX)] = 0
    after_backward_ns: Annotated[int, Whole(0, NS_MAX)] = 0
    before_backward_ns: Annotated[int, Whole(0, NS_MAX)] = 0
    between_steps_ns: Annotated[int, Whole(0, NS_MAX)] = 0
    """Of a whole step: what is neither forward, backward nor update (input, logging)."""
    parameters: Annotated[int, Whole(0, BYTES_MAX)] = 0
    trainable: Annotated[int, Whole(0, BYTES_MAX)] = 0
    activation_bytes: Annotated[int, Whole(0, BYTES_MAX)] = 0
    """Kept or briefly alive at the peak; logits, for a language model, are most of it."""


@dataclass(frozen=True, kw_only=True)
class Profile(Section):
    """A model's step on a device that is large enough."""

    version: Annotated[int, Whole(VERSION, VERSION)] = VERSION
    model: ModelSpec
    layers: Annotated[tuple[LayerCost, ...], ListOf(Nested(LayerCost), 10_000)]
    rest: RestCost = field(default_factory=RestCost)
    precision: Precision = field(default_factory=Precision)
    micro_batches: Annotated[int, Whole(1, 1_000_000)] = 1
    """As the profiled loop runs them."""
    recompute: Recompute = Recompute.NONE
    """As the profiled loop does it; the layers' backward times are without it."""
    batch: Annotated[int, Whole(1, 2**40)] | None = None
    """Samples in a micro-batch."""
    tokens: Annotated[int, Whole(1, 2**50)] | None = None
    """In a micro-batch."""
    origin: Origin
    steps: Annotated[int, Whole(0, 10**9)] = 0
    """Steps that the times are medians of."""
    spread_frac: Annotated[float, Real(0, 10)] = 0.1
    """How far the times may be off, from the scatter between steps; half the width of the prediction's interval."""
    state_bytes_per_parameter: Annotated[int, Whole(0, 64)] = 8
    """Of the optimizer, without master weights: Adam 8, SGD with momentum 4, plain SGD 0."""
    update_form: UpdateForm = UpdateForm.FUSED
    """Of the optimizer, on a CPU; of a trace and of counted work it is not known, and taken to be fused."""
    clips: bool = False
    """The loop limits the norm of its gradients."""
    clip_norm: Annotated[float, Real(0, 1e30)] | None = None
    """The limit that the loop gives to `clip_grad_norm_`; None: it does not clip, or the limit was not seen."""
    process_bytes: Annotated[int, Whole(0, BYTES_MAX)] = 0
    """Host memory of the process beside its model, as it was when the optimizer was made, and of a launcher; 0 where
    nobody looked."""
    short: bool = False
    """It was measured where memory did not suffice for a training."""
    command: Annotated[tuple[str, ...], ListOf(COMMAND, 1000)] = ()
    """That was measured; empty: none, or one that holds a secret."""
    notes: Annotated[tuple[str, ...], ListOf(Line(500), 50)] = ()
    """What the profile could not see."""
    device: Annotated[str, Line(200)] | None = None
    """What the times of a recorded run are of; None: `hardware` says it, or nobody knows."""
    hardware: HardwareSpec | None = None
    """Where it was measured; a plan for another machine measures that one's rates."""

    @classmethod
    def from_mapping(cls, data: Any, where: str) -> Self:
        """See `Section`."""
        if isinstance(data, Mapping) and "window" in data and "layers" not in data:
            raise PlanError("it is a plan, not a profile; give the file that `tightship offload measure` wrote")
        return super().from_mapping(data, where)

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.layers) != len(self.model.layer_parameters):
            raise PlanError(
                f"A profile has costs for {len(self.layers)} layers and a model of {len(self.model.layer_parameters)}; "
                "expected one entry per layer"
            )
        for number, (cost, count) in enumerate(zip(self.layers, self.model.layer_parameters, strict=True)):
            if cost.parameters != count:
                raise PlanError(
                    f"Layer {number} of a profile has {cost.parameters} parameters and {count} in its model"
                )


def levelled(layers: Sequence[LayerCost]) -> tuple[LayerCost, ...]:
    """Layers of one size whose times differ by no more than measuring them does get their mean time.

    Otherwise the search would take noise for a difference between layers, and keep the one that was interrupted.
    """
    kinds: dict[tuple[int, ...], list[int]] = {}
    for number, one in enumerate(layers):
        size = (one.parameters, one.trainable, one.activation_bytes, one.input_bytes)
        kinds.setdefault(size, []).append(number)
    found = list(layers)
    for members in kinds.values():
        forward_ns = median(layers[i].forward_ns for i in members)
        backward_ns = median(layers[i].backward_ns for i in members)
        alike = [
            i
            for i in members
            if abs(layers[i].forward_ns - forward_ns) <= NOISE_FRAC * forward_ns
            and abs(layers[i].backward_ns - backward_ns) <= NOISE_FRAC * backward_ns
        ]
        for i in alike:
            found[i] = replace(
                layers[i],
                forward_ns=round(sum(layers[k].forward_ns for k in alike) / len(alike)),
                backward_ns=round(sum(layers[k].backward_ns for k in alike) / len(alike)),
            )
    return tuple(found)


def read_profile(path: str | os.PathLike[str]) -> Profile:
    """The profile in a file.

    :raises PlanError: it cannot be read, or is no profile.
    """
    data = read_mapping(path, "Profile", "`tightship offload measure`", VERSION)
    try:
        return Profile.from_mapping(data, "profile")
    except PlanError as error:
        raise PlanError(f"Profile {short(os.fspath(path))}: {error}") from None


def parse_profile(text: str) -> Profile:
    """The profile that a YAML (or JSON) text holds.

    :raises PlanError: it is no YAML, or no profile.
    """
    data = parse_mapping(text, VERSION)
    machine = data.get("hardware")
    if isinstance(machine, dict) and isinstance(machine.get("adam_params_per_s"), dict):
        machine["adam_params_per_s"] = {_whole(key): rate for key, rate in machine["adam_params_per_s"].items()}
    return Profile.from_mapping(data, "profile")


def _whole(key: object) -> object:
    """The number that a key of JSON, which is always text, stands for."""
    return int(key) if isinstance(key, str) and re.fullmatch(r"[0-9]{1,6}", key) else key


def write_profile(profile: Profile, path: str | os.PathLike[str]) -> None:
    """Write a profile; the file is whole or not there.

    :raises PlanError: it cannot be written.
    """
    text = yaml.safe_dump(profile.as_mapping(), sort_keys=False, width=200, default_flow_style=None)
    write_text(Path(path), text, "Profile")
