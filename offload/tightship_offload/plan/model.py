"""The plan: which layers are on the device when, who updates them, and what that will cost. Imports no torch.

plan = read_plan("plan.yaml")
plan.window.slots, plan.optimizer.placement(layer), plan.prediction

A layer is one block of the repeated stack, counted from 0 in the order of the forward pass. What is not in the stack
(embeddings, final norm, head) is the rest; it stays on the device.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, Any, Self

from tightship_offload.errors import PlanError
from tightship_offload.plan.capabilities import RUNTIME, Capabilities, files_exclude
from tightship_offload.plan.schema import Line, ListOf, MapOf, Real, Section, Whole

VERSION = 1
LAYERS_MAX = 10_000
CLASSES_SHOWN = 12
"""Of a model's parts, in a message."""
_LAYERS = ListOf(Whole(0, LAYERS_MAX - 1), LAYERS_MAX, ascending=True)
_BYTES = Whole(0, 2**60)
_COUNT = Whole(0, 2**60)
_RATE = Real(1, 1e18)
_NS = Whole(0, 2**60)
DEADLINE = Real(1, 7 * 86_400)
"""In seconds."""
CAPACITY_SLACK_FRAC = 0.05
"""A machine may have this much less memory than the one that was measured before it counts as another one."""


class Placement(StrEnum):
    """Where a layer's master weights and optimizer state live, and where its update runs."""

    CPU = "cpu"
    """State in host memory, update on CPU threads."""
    GPU_STREAMED = "gpu-streamed"
    """State in host memory; it streams through the device, which updates it."""
    GPU_RESIDENT = "gpu-resident"
    """State on the device; only for a resident layer."""


class UpdateOrder(StrEnum):
    """Which ready update runs first."""

    NEXT_USE = "next-use"
    """The layer that the next forward needs first: what is left over overlaps the next forward without staleness."""
    AS_READY = "as-ready"
    """First come, first served: the last layers, which the next forward needs last, are updated first."""


class UpdateStart(StrEnum):
    """When an update may begin."""

    AFTER_STEP = "after-step"
    """Not before `optimizer.step()`: every edit of gradients in the user's loop keeps its meaning."""
    DURING_BACKWARD = "during-backward"
    """As a layer's gradients are complete; `loop` then declares accumulation and clipping, which are checked."""


class Clipping(StrEnum):
    """How the norm of all gradients is respected."""

    NONE = "none"
    """The loop does not clip."""
    EXACT = "exact"
    """No update starts before the norm is known."""
    SPECULATIVE = "speculative"
    """Updates start as if nothing were clipped and are rolled back where it is; costs a copy of the state."""


class Recompute(StrEnum):
    """What becomes of a layer's activations between forward and backward."""

    NONE = "none"
    LAYER = "layer"
    """Only the layer's input is kept; backward runs its forward again (activation checkpointing)."""


class Dtype(StrEnum):
    """Number formats of weights, master weights and gradients."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"

    @property
    def bytes(self) -> int:
        """Of one number."""
        return 4 if self is Dtype.FP32 else 2


@dataclass(frozen=True, kw_only=True)
class ModelSpec(Section):
    """The model that the plan is for. What is not known (a trace shows no parameter names) is None and not compared."""

    name: Annotated[str, Line()]
    """Class of the model."""
    block: Annotated[str, Line()] | None = None
    """Class of a layer."""
    layers: Annotated[str, Line()] | None = None
    """Where the layers are in the module tree: `transformer.h.*`; None: found automatically."""
    layer_parameters: Annotated[tuple[int, ...], ListOf(_COUNT, LAYERS_MAX)]
    """Numbers of parameters, one entry per layer."""
    rest_parameters: Annotated[int, _COUNT] | None = None
    """Parameters outside of the layers; what is tied counts once."""
    fingerprint: Annotated[str, Line(64)] | None = None
    """Of all parameters, as `fingerprint` gives it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.layer_parameters:
            raise PlanError("The model of a plan has no layer; a plan needs a stack of repeated blocks")


@dataclass(frozen=True, kw_only=True)
class Machine(Section):
    """One device and its host."""

    device: Annotated[str, Line()]
    """As CUDA or HIP reports it; `cpu` where host memory plays the device."""
    device_bytes: Annotated[int, _BYTES]
    """Device memory that the process may use."""
    host_bytes: Annotated[int, _BYTES]
    """Host memory that the process may use."""
    cores: Annotated[int, Whole(1, 100_000)]


@dataclass(frozen=True, kw_only=True)
class HardwareSpec(Machine):
    """A machine as measured. Rates are per second; None where not measured."""

    h2d_bytes_per_s: Annotated[float, _RATE]
    """Pinned host memory to device, nothing running the other way."""
    d2h_bytes_per_s: Annotated[float, _RATE]
    h2d_duplex_bytes_per_s: Annotated[float, _RATE]
    """While the other direction is busy, too."""
    d2h_duplex_bytes_per_s: Annotated[float, _RATE]
    adam_params_per_s: Annotated[dict[int, float], MapOf(Whole(1, 100_000), _RATE, 1000)]
    """torch's fused AdamW on CPU, all threads together, by number of threads."""
    master_adam_params_per_s: Annotated[float, _RATE] | None = None
    """bf16 weights with fp32 masters, as the runtime updates them there, with the threads that it takes by itself."""
    loop_adam_params_per_s: Annotated[float, _RATE] | None = None
    """torch's AdamW that is not fused, on CPU, with as many threads."""
    norm_bytes_per_s: Annotated[float, _RATE] | None = None
    """Gradients in host memory of which the runtime takes the norm."""
    device_adam_params_per_s: Annotated[float, _RATE] | None = None
    """The same on the device."""
    flops_per_s: Annotated[float, _RATE] | None = None
    """What a large matrix product reaches in the format of the weights."""
    nvme_read_bytes_per_s: Annotated[float, _RATE] | None = None
    nvme_write_bytes_per_s: Annotated[float, _RATE] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.adam_params_per_s:
            raise PlanError("hardware.adam_params_per_s is empty; give the rate for at least one number of threads")


@dataclass(frozen=True, kw_only=True)
class Window(Section):
    """Which layers have their weights on the device."""

    slots: Annotated[int, Whole(1, LAYERS_MAX)]
    """Buffers that the layers which move take turns in."""
    resident: Annotated[tuple[int, ...], _LAYERS] = ()
    """Layers that never move."""
    prefetch: Annotated[int, Whole(0, LAYERS_MAX)] = 1
    """How many layers ahead of the one that computes are being fetched; less than `slots`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prefetch >= self.slots:
            raise PlanError(
                f"window.prefetch is {self.prefetch} with {self.slots} slots; expected at most {self.slots - 1}: the "
                "layer that computes holds one slot"
            )


@dataclass(frozen=True, kw_only=True)
class OptimizerPlan(Section):
    """Who updates which layer, where, and in which order. A plan may hold what `capabilities.RUNTIME` offers."""

    gpu_streamed: Annotated[tuple[int, ...], _LAYERS] = ()
    gpu_resident: Annotated[tuple[int, ...], _LAYERS] = ()
    """All other layers are placed on the CPU. Empty in a plan: as the runtime does it, every resident layer."""
    order: UpdateOrder = UpdateOrder.NEXT_USE
    start: UpdateStart = UpdateStart.AFTER_STEP
    clipping: Clipping = Clipping.EXACT
    threads: Annotated[int, Whole(1, 100_000)] | None = None
    """CPU threads that updates may use; None: as many as torch has, less `CORES_LEFT` beside an accelerator."""
    fused: bool = False
    """Layers updated on the CPU take the optimizer's fused form where the script leaves the form open."""

    def placement(self, layer: int) -> Placement:
        """Where a layer is updated."""
        if layer in self.gpu_streamed:
            return Placement.GPU_STREAMED
        return Placement.GPU_RESIDENT if layer in self.gpu_resident else Placement.CPU


@dataclass(frozen=True, kw_only=True)
class Loop(Section):
    """What the plan takes the training loop to do; what it declares where updates start during backward."""

    micro_batches: Annotated[int, Whole(1, 1_000_000)] = 1
    """Backward passes between two optimizer steps."""
    clip_norm: Annotated[float, Real(0, 1e30)] | None = None
    """The limit given to `clip_grad_norm_`; None: not known, or none."""
    recompute: Recompute = Recompute.NONE
    tokens: Annotated[int, Whole(1, 2**60)] | None = None
    """In one micro-batch, where the model reads tokens."""


@dataclass(frozen=True, kw_only=True)
class Precision(Section):
    """Number formats."""

    weights: Dtype = Dtype.FP32
    """On the device."""
    master: Dtype = Dtype.FP32
    """Where the optimizer updates them. The same format as the weights means that there is one copy only."""
    gradients: Dtype = Dtype.FP32

    @property
    def has_masters(self) -> bool:
        """16-bit weights are updated as fp32 copies."""
        return self.weights.bytes < self.master.bytes


@dataclass(frozen=True, kw_only=True)
class Nvme(Section):
    """Layers whose optimizer state, and if so said weights, are in files."""

    folder: Annotated[str, Line(4000)]
    layers: Annotated[tuple[int, ...], _LAYERS]
    weights: bool = False
    prefetch: Annotated[int, Whole(1, 1000)] = 2
    """How many layers ahead files are read."""


@dataclass(frozen=True, kw_only=True)
class Budget(Section):
    """What the plan was made to stay within, in bytes. None: what the machine allows."""

    device_bytes: Annotated[int, _BYTES] | None = None
    host_bytes: Annotated[int, _BYTES] | None = None
    pinned_bytes: Annotated[int, _BYTES] | None = None
    nvme_bytes: Annotated[int, _BYTES] | None = None


@dataclass(frozen=True, kw_only=True)
class Interval(Section):
    """A number and how far it may be off."""

    value: Annotated[float, Real(0, 1e30)]
    low: Annotated[float, Real(0, 1e30)]
    high: Annotated[float, Real(0, 1e30)]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.low <= self.value <= self.high:
            raise PlanError(f"Interval {self.low:g} to {self.high:g} does not hold its value {self.value:g}")


class Bottleneck(StrEnum):
    """What the step waits for most, beside its own computation."""

    COMPUTE = "compute"
    H2D = "h2d"
    D2H = "d2h"
    CPU_UPDATE = "cpu-update"
    SLOT = "slot"
    CLIPPING = "clipping"
    """The norm of all gradients, which the next step must not begin without."""


@dataclass(frozen=True, kw_only=True)
class Prediction(Section):
    """What the plan will do, simulated on the rates of `hardware`."""

    step_ns: Interval
    """One optimizer step, in the steady state."""
    no_offload_step_ns: Interval
    """The same step with everything on a device that is large enough, with the same recompute."""
    device_bytes: Annotated[int, _BYTES]
    """Peak."""
    host_bytes: Annotated[int, _BYTES]
    pinned_bytes: Annotated[int, _BYTES]
    nvme_bytes: Annotated[int, _BYTES] = 0
    h2d_bytes: Annotated[int, _BYTES]
    """Moved in a step."""
    d2h_bytes: Annotated[int, _BYTES]
    bottleneck: Bottleneck
    waits_ns: Annotated[dict[str, int], MapOf(Line(40), _NS, 100)] = field(default_factory=dict)
    """Time in a step in which the device computes nothing, by what it waits for."""

    @property
    def share_frac(self) -> Interval:
        """Of the speed without offload."""
        step, free = self.step_ns, self.no_offload_step_ns
        value = free.value / step.value
        # The computation is in both: errors in it cancel, so that only what is beyond it widens the ratio.
        low, high = free.value / step.high, min(1.0, free.value / step.low)
        return Interval(value=min(1.0, value), low=min(low, 1.0, value), high=max(high, min(1.0, value)))


@dataclass(frozen=True, kw_only=True)
class Plan(Section):
    """All of it. `hardware` and `prediction` are missing in a plan made by hand."""

    version: Annotated[int, Whole(VERSION, VERSION)] = VERSION
    model: ModelSpec
    window: Window
    optimizer: OptimizerPlan = field(default_factory=OptimizerPlan)
    loop: Loop = field(default_factory=Loop)
    precision: Precision = field(default_factory=Precision)
    budget: Budget = field(default_factory=Budget)
    nvme: Nvme | None = None
    deadline_s: Annotated[float, DEADLINE] | None = None
    """How long one wait for a copy or an update may take before the job ends; None: the runtime's own limit."""
    hardware: HardwareSpec | None = None
    prediction: Prediction | None = None

    @classmethod
    def from_mapping(cls, data: Any, where: str) -> Self:
        """See `Section`."""
        if isinstance(data, Mapping) and "layers" in data and "window" not in data:
            raise PlanError("it is a profile, not a plan; give the file that `tightship offload plan` wrote")
        return super().from_mapping(data, where)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_layers()
        resident, optimizer, window = set(self.window.resident), self.optimizer, self.window
        if window.slots > self.layer_count:
            raise PlanError(
                f"window.slots is {window.slots} and the model has {self.layer_count} layers; expected 1 to "
                f"{self.layer_count}"
            )
        both = set(optimizer.gpu_streamed) & set(optimizer.gpu_resident)
        if both:
            raise PlanError(f"Layer {min(both)} is both gpu-streamed and gpu-resident; list it once")
        stray = set(optimizer.gpu_resident) - resident
        if stray:
            raise PlanError(
                f"optimizer.gpu_resident has layer {min(stray)}, which is not in window.resident; add it there too"
            )
        if self.moving and window.slots < 2 and window.slots < len(self.moving):
            raise PlanError(
                f"window.slots is 1 with {len(self.moving)} layers that move; expected at least 2: one computes while "
                "the next one arrives"
            )
        if optimizer.start is UpdateStart.DURING_BACKWARD:
            if optimizer.clipping is Clipping.EXACT:
                raise PlanError(
                    "optimizer.start is during-backward with clipping exact, which must wait for the last gradient; "
                    "use clipping speculative or none, or start after-step"
                )
            if optimizer.clipping is Clipping.SPECULATIVE and self.loop.clip_norm is None:
                raise PlanError(
                    "optimizer.clipping is speculative without loop.clip_norm; give the limit that the loop uses"
                )
        if self.hardware is not None and (optimizer.threads or 0) > (cores := self.hardware.cores):
            raise PlanError(f"optimizer.threads is {optimizer.threads} and the machine has {cores} cores; give fewer")
        refused = self.refused_by(RUNTIME)
        if refused is not None:
            raise PlanError(refused)
        if resident and not optimizer.gpu_resident and not RUNTIME.updates_residents_on_cpu:
            object.__setattr__(self, "optimizer", replace(optimizer, gpu_resident=self.window.resident))

    def refused_by(self, runtime: Capabilities) -> str | None:
        """In one line, what the plan asks for that a runtime would ignore or cannot do; None: it does all of it."""
        optimizer, nvme = self.optimizer, self.nvme
        on_cpu = set(self.window.resident) - set(optimizer.gpu_resident) if optimizer.gpu_resident else set()
        if optimizer.gpu_streamed and not runtime.streams_updates:
            return "optimizer.gpu_streamed lists layers, which this runtime does not do yet; plan without it"
        if on_cpu and not runtime.updates_residents_on_cpu:
            return (
                f"optimizer.gpu_resident lacks the resident layer {min(on_cpu)}, and this runtime updates every "
                "resident layer on the device; list all of window.resident, or none"
            )
        if optimizer.order.value not in runtime.update_orders:
            return (
                f"optimizer.order is {optimizer.order.value}, which this runtime does not do yet; expected "
                f"{' or '.join(runtime.update_orders)}"
            )
        if optimizer.threads is not None and not runtime.sets_threads:
            return (
                f"optimizer.threads is {optimizer.threads}, and this runtime updates with as many threads as torch "
                f"has; leave it out and start the job with OMP_NUM_THREADS={optimizer.threads}"
            )
        if optimizer.clipping is Clipping.SPECULATIVE and optimizer.start is UpdateStart.AFTER_STEP:
            return "optimizer.clipping is speculative with start after-step, which has nothing to roll back; use exact"
        if nvme is None:
            return None
        if not runtime.divides_layers_over_files and (set(nvme.layers) != set(self.moving) or not nvme.weights):
            return (
                "The plan keeps some layers in files and others in host memory, which could not go on after a crash; "
                "name all layers that move in nvme.layers and set nvme.weights"
            )
        return files_exclude(early=optimizer.start is UpdateStart.DURING_BACKWARD, masters=self.precision.has_masters)

    def _check_layers(self) -> None:
        """Every list of layers names layers that exist."""
        lists = {
            "window.resident": self.window.resident,
            "optimizer.gpu_streamed": self.optimizer.gpu_streamed,
            "optimizer.gpu_resident": self.optimizer.gpu_resident,
            "nvme.layers": self.nvme.layers if self.nvme is not None else (),
        }
        for where, layers in lists.items():
            if layers and layers[-1] >= self.layer_count:
                raise PlanError(f"{where} has layer {layers[-1]}; the model has layers 0 to {self.layer_count - 1}")

    @property
    def layer_count(self) -> int:
        """Layers of the stack."""
        return len(self.model.layer_parameters)

    @property
    def moving(self) -> tuple[int, ...]:
        """Layers that come and go."""
        resident = set(self.window.resident)
        return tuple(layer for layer in range(self.layer_count) if layer not in resident)


def are_blocks(kinds: Sequence[object]) -> bool:
    """Whether the children of a ModuleList or Sequential are repeated blocks, by the classes of those with parameters:
    the one rule by which layers are found, in a model as in a trace."""
    return len(kinds) > 1 and len(set(kinds)) == 1


def no_blocks(model: str, children: Iterable[str]) -> str:
    """The one line for a model without them: why, by the classes of its children, and what to do."""
    kinds = ", ".join(sorted(set(children))[:CLASSES_SHOWN]) or "none"
    return (
        f"{model} has no repeated blocks among its modules: no ModuleList or Sequential whose children with parameters "
        f"are two or more of one class (its children: {kinds}); name its layers in the script: "
        "tightship_offload.apply(model, optimizer, window=3, layers='part.*')"
    )


def fingerprint(parameters: Iterable[tuple[str, Sequence[int]]]) -> str:
    """Of a model: its parameters' names and shapes in order, each tensor once under its first name (32 hex digits).

    The number format is not part of it: the same model may be trained in several.
    """
    digest = hashlib.sha256()
    for name, shape in parameters:
        digest.update(f"{name}\0{','.join(str(int(size)) for size in shape)}\n".encode())
    return digest.hexdigest()[:32]


def model_differences(planned: ModelSpec, found: ModelSpec) -> list[str]:
    """In words, what keeps a plan from fitting a model; empty where it fits."""
    said: list[str] = []
    counts, other_counts = planned.layer_parameters, found.layer_parameters
    if len(counts) != len(other_counts):
        said.append(f"the plan is for {len(counts)} layers, this model has {len(other_counts)}")
    elif counts != other_counts:
        layer = next(i for i, (a, b) in enumerate(zip(counts, other_counts, strict=True)) if a != b)
        said.append(
            f"layer {layer} has {counts[layer]:,} parameters in the plan and {other_counts[layer]:,} in this model"
        )
    if (
        None not in (planned.rest_parameters, found.rest_parameters)
        and planned.rest_parameters != found.rest_parameters
    ):
        said.append(
            f"the rest has {planned.rest_parameters:,} parameters in the plan, {found.rest_parameters:,} in this model"
        )
    if None not in (planned.block, found.block) and planned.block != found.block:
        said.append(f"the plan's layers are of class {planned.block!r}, this model's of {found.block!r}")
    if not said and None not in (planned.fingerprint, found.fingerprint) and planned.fingerprint != found.fingerprint:
        said.append("the parameters have other names or shapes than those of the plan")
    return said


def hardware_differences(planned: Machine, found: Machine) -> list[str]:
    """In words, what makes this another machine than the plan's, or less of one. Empty where it fits."""
    said: list[str] = []
    if planned.device != found.device:
        said.append(f"the plan is for a {planned.device!r}, this machine has a {found.device!r}")
    least = 1 - CAPACITY_SLACK_FRAC
    for what, want, have in (
        ("device memory", planned.device_bytes, found.device_bytes),
        ("host memory", planned.host_bytes, found.host_bytes),
    ):
        if have < want * least:
            counted, allowed = f"{want / 2**30:.1f} GiB", f"{have / 2**30:.1f} GiB"
            said.append(f"the plan counts on {counted} of {what}, this machine allows {allowed}")
    if found.cores < planned.cores:
        said.append(f"the plan counts on {planned.cores} cores, this machine has {found.cores}")
    return said
