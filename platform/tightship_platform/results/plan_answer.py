"""The answer to a planning request: whether a model fits, how fast it trains, and what else there was."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class PlanSource:
    """A stored trace with stacks and shapes, which a plan can be made from."""

    capture: str
    """Id of its capture."""
    run: str
    """Id of the run that was recorded."""
    rank: int
    """Rank that was recorded."""
    trace: int
    """Id of the trace."""
    sha256: str
    """SHA-256 of the file."""
    size_bytes: int
    """Size of the file."""
    requested_ns: int
    """When its capture was requested."""


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """The simulated time of a step, and how far it may be off."""

    ns: int
    low_ns: int
    high_ns: int


@dataclass(frozen=True, kw_only=True)
class PlanAlternative:
    """A window with its simulated step, as `tightship offload plan --json` lists it."""

    step_ns: int
    """One step, simulated."""
    share_frac: float
    """Of the speed without offload on a device that is large enough."""
    slots: int
    """Buffers that the layers which move take turns in."""
    resident: int
    """Layers that never move."""
    gpu_streamed: int
    """Layers that stream through the device to be updated."""
    recompute: str
    """`none`, or `layer`: the loop checkpoints each layer."""
    micro_batches: int
    """Micro-batches in a step."""
    device_bytes: int
    """Device memory at the peak."""
    host_bytes: int
    """Host memory, pinned memory included."""
    pinned_bytes: int
    """Pinned memory."""
    bottleneck: str
    """The resource that the step waits for most; `compute` where it hardly waits."""


@dataclass(frozen=True, kw_only=True)
class PlanOption(PlanAlternative):
    """An alternative under its name, with the intervals of its figures."""

    name: str
    """`recommended`, `fastest`, `smallest`, `most headroom` or `changed loop`."""
    low_ns: int
    """Shortest that the step may be."""
    high_ns: int
    """Longest that the step may be."""
    share_low: float
    share_high: float
    waits_ns: dict[str, int]
    """Time in a step in which the device computes nothing, by the resource that it waits for."""
    h2d_bytes: int
    """Moved to the device in a step."""
    d2h_bytes: int
    """Moved to the host in a step."""


@dataclass(frozen=True, kw_only=True)
class PlanMachine:
    """The machine that was planned for."""

    device: str
    """As CUDA or HIP reports it; `cpu` where host memory plays the device."""
    device_bytes: int
    host_bytes: int
    cores: int
    h2d_bytes_per_s: float
    """Host to device, nothing running the other way."""
    d2h_bytes_per_s: float
    update_params_per_s: float
    """CPU updates: parameters of Adam, with the threads that the runtime uses."""


@dataclass(frozen=True, kw_only=True)
class PlanLimits:
    """Memory that the plan may take, and in words what sets it."""

    device_bytes: int
    device_by: str
    is_budget: bool
    """The device budget given is what binds."""
    host_bytes: int
    host_by: str


@dataclass(frozen=True, kw_only=True)
class WithoutOffload:
    """The loop as it is, everything on the device."""

    device_bytes: int
    step: StepTime
    fits: bool
    """Within the limits."""


@dataclass(frozen=True, kw_only=True)
class WindowPoint:
    """One number of slots."""

    slots: int
    device_bytes: int
    host_bytes: int
    fits: bool
    step: StepTime | None
    """Null: no number of slots fits, so none was timed."""


@dataclass(frozen=True, kw_only=True)
class WindowCurve:
    """Memory and step time over the number of slots, everything else as recommended."""

    resident: int
    recompute: str
    micro_batches: int
    chosen: int | None
    """Slots of the recommended window; null: nothing fits."""
    points: list[WindowPoint]


@dataclass(frozen=True, kw_only=True)
class PlanFit:
    """A model on a machine."""

    model: str
    """Class of the model."""
    layers: int
    parameters: int
    origin: str
    """Where the costs come from: `measured`, `trace` or `counted`."""
    machine: PlanMachine
    limits: PlanLimits
    whole: WithoutOffload
    window: WindowCurve
    refused: str | None = None
    """Why nothing fits, with the smallest change that makes it fit; null: there is a plan."""
    heading: str | None = None
    """The plan in one line; null: nothing fits."""
    change: str | None = None
    """What the loop has to do that it did not do when it was recorded; null: nothing."""
    why: list[str]
    """Why the plan is so, sentence by sentence."""
    options: list[PlanOption]
    """The recommended one first; empty: nothing fits."""
    plan: str | None = None
    """The plan file; null: nothing fits."""
    notes: list[str]
    """What was assumed or could not be seen."""
    simulated: int
    """Windows that were simulated."""


@dataclass(frozen=True, kw_only=True)
class PlanAnswer(PlanFit):
    """A model on a machine, with what it was planned from."""

    profile: str
    """The costs of the model, as YAML."""
    source: PlanSource | None
    """The trace that they come from; null: a profile was given."""
    assumed: bool
    """The machine's rates are assumed from documents; otherwise they were measured."""
