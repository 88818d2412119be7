"""What the simulation runs: costs in nanoseconds and bytes, a machine's links, and a choice of window.

[Note: one step of a windowed run]
Forward and backward visit the layers in opposite orders, so the last layers of a forward are the first of the backward
that follows: what is still in a slot then is not fetched again. A forward begins with slots whose content no longer
counts. Which visits find their layer in a slot is fixed beforehand: a layer stays if fewer other layers than there are
slots are visited until it is needed again.

A fetch may begin when its turn has come, a slot is free, the model's forward has begun, the layer has been updated, and
it lies within the prefetch distance of the moving layer that computes, or is the one that is waited for. A slot is free
after the layer's computation. Gradients leave layer by layer; `GRADIENTS_IN_FLIGHT` layers' may be on their way while
the next backward computes, and at the end of a backward all have arrived. Updates may begin after the step was asked
for (which clipping delays by the norm of all gradients), or, where the plan says so, as gradients arrive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from tightship_offload.plan.capabilities import RUNTIME
from tightship_offload.plan.model import Clipping, Placement, UpdateOrder, UpdateStart

GRADIENTS_IN_FLIGHT = RUNTIME.gradients_in_flight
ORDER = UpdateOrder(RUNTIME.update_orders[0])
"""In which the runtime updates by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWork:
    """One layer as the simulation sees it. Times in ns, sizes in bytes, of one micro-batch where it computes."""

    forward_ns: int
    backward_ns: int
    """What recomputation adds is included."""
    weight_bytes: int
    """To the device, for each fetch."""
    gradient_bytes: int
    """To the host, for each micro-batch; 0 for a frozen layer, which is not updated either."""
    update_ns: int
    """On the CPU, or, for a layer that is updated on the device, there."""
    accumulate_ns: int = 0
    """Time on the way to the host to add the gradients of a further micro-batch."""
    stream_in_bytes: int = 0
    stream_out_bytes: int = 0
    """State of a layer that streams through the device to be updated."""
    placement: Placement = Placement.CPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One optimizer step of the model."""

    layers: tuple[LayerWork, ...]
    micro_batches: int = 1
    before_forward_ns: int = 0
    after_forward_ns: int = 0
    before_backward_ns: int = 0
    after_backward_ns: int = 0
    rest_update_ns: int = 0
    """On the device."""
    between_steps_ns: int = 0
    norm_ns: int = 0
    """CPU time to get the norm of the gradients, where the loop clips."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """Rates in bytes per second; `duplex` while the other direction is busy, too."""

    h2d: int
    d2h: int
    h2d_duplex: int
    d2h_duplex: int
    latency_ns: int = 0
    """Of each transfer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The window and the update rule."""

    slots: int
    resident: frozenset[int] = frozenset()
    prefetch: int
    order: UpdateOrder = ORDER
    start: UpdateStart = UpdateStart.AFTER_STEP
    clipping: Clipping = Clipping.EXACT


class Kind(IntEnum):
    """What the compute stream does in an operation."""

    OTHER = 0
    FORWARD = 1
    BACKWARD = 2
    STEP = 3
    BEGIN = 4
    """What the model computes before its layers."""
    LANDED = 5
    """Backward returns: all gradients are on the host."""


@dataclass(frozen=True, slots=True)
class Op:
    """One operation of the compute stream."""

    step: int
    micro_batch: int
    kind: Kind
    layer: int
    """-1 where it is none's."""
    dur_ns: int
    visit: int
    """Number of this visit among those of moving layers; -1 where the layer does not move."""
    load: int
    """Number of the load that brings the layer; -1 where the layer does not move."""
    last: bool
    """The load's slot is given back after this visit."""


@dataclass(frozen=True, slots=True)
class Load:
    """One fetch of a layer into a slot."""

    layer: int
    step: int
    """The layer must have been updated in all steps before this one."""
    visit: int
    """The first visit that needs it."""
    op: int
    """Row of that visit in the operations."""
    begins: int
    """Row of the operation with which the micro-batch begins."""


def operations(work: Work, choice: Choice, steps: int) -> tuple[list[Op], list[Load]]:
    """The compute stream's operations of so many steps, and the loads that they need, both in order."""
    plain = [entry for step in range(steps) for entry in _step(work, step)]
    moving = [row for row, (_, _, _, layer, _) in enumerate(plain) if layer >= 0 and layer not in choice.resident]
    stays = _stays([plain[row][:4] for row in moving], choice.slots)
    ops: list[Op] = []
    loads: list[Load] = []
    held: dict[int, int] = {}
    visit_of = {row: visit for visit, row in enumerate(moving)}
    begins = 0
    for row, (step, micro_batch, kind, layer, dur_ns) in enumerate(plain):
        visit = visit_of.get(row, -1)
        if kind is Kind.BEGIN:
            begins = row
        load, last = -1, False
        if visit >= 0:
            if layer not in held:
                held[layer] = len(loads)
                loads.append(Load(layer, step, visit, row, begins))
            load, last = held[layer], not stays[visit]
            if last:
                del held[layer]
        ops.append(Op(step, micro_batch, kind, layer, dur_ns, visit, load, last))
    return ops, loads


def _step(work: Work, step: int) -> list[tuple[int, int, Kind, int, int]]:
    layers = range(len(work.layers))
    found = [(step, 0, Kind.OTHER, -1, work.between_steps_ns)]
    for micro_batch in range(work.micro_batches):
        found.append((step, micro_batch, Kind.BEGIN, -1, work.before_forward_ns))
        found += [(step, micro_batch, Kind.FORWARD, i, work.layers[i].forward_ns) for i in layers]
        found.append((step, micro_batch, Kind.OTHER, -1, work.after_forward_ns + work.before_backward_ns))
        found += [(step, micro_batch, Kind.BACKWARD, i, work.layers[i].backward_ns) for i in reversed(layers)]
        found.append((step, micro_batch, Kind.OTHER, -1, work.after_backward_ns))
        found.append((step, micro_batch, Kind.LANDED, -1, 0))
    on_device = sum(one.update_ns for one in work.layers if one.placement is Placement.GPU_RESIDENT)
    found.append((step, work.micro_batches - 1, Kind.STEP, -1, work.rest_update_ns + on_device))
    return found


def _stays(visits: Sequence[tuple[int, int, Kind, int]], slots: int) -> list[bool]:
    """For each visit (step, micro-batch, kind, layer): whether the layer is still in its slot at its next one."""
    stays = [False] * len(visits)
    latest: dict[int, int] = {}
    recent: list[int] = []  # layers by their last visit, the latest first
    for number, (step, micro_batch, _, layer) in enumerate(visits):
        if layer in latest:
            between = recent.index(layer)  # distinct other layers visited since
            before = latest[layer]
            stays[before] = between < slots and visits[before][:2] == (step, micro_batch)
            recent.pop(between)
        latest[layer] = number
        recent.insert(0, layer)
    return stays
