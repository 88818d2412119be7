"""A machine that nobody measured, and times that were recorded on another device: what documents allow to be said.

The catalogue of devices gives memory, links and arithmetic; the host is described by its agent or its owner. The rest
is assumed here, and `ASSUMED_SPREAD_FRAC` is in every prediction made with it.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TypeVar

from tightship_analyzers import hardware
from tightship_analyzers.offload_planner.profile import LayerCost, Profile, RestCost
from tightship_analyzers.offload_planner.request import CPU
from tightship_offload.errors import PlanError
from tightship_offload.plan.model import Dtype, HardwareSpec

ASSUMED_SPREAD_FRAC = 0.25
"""Half the width of a prediction's interval at least, where links and updates were not measured."""
LINK_FRAC = 0.86
"""Of a link's rate that copies of whole layers reach: 55 of the 64 GB/s of PCIe 5."""
DUPLEX_FRAC = 0.8
"""Of that which is left of either direction while both are busy."""
ADAM_PER_CORE = 250e6
"""Parameters per second that a core updates: 4 G/s on 16 cores."""
ADAM_MOST = 4e9
"""No more is assumed of any host: updates are bound by its memory."""
DEVICE_ADAM_BYTES = 35
"""Traffic of an update on the device, at 80 % of its memory's rate: 28 bytes per parameter."""
CPU_COPY_BYTES_PER_S = 8e9
"""One thread within host memory, where that plays the device."""
VISIBLE_FRAC = 0.95
"""Of the memory on a board: drivers and error correction hold back a part."""
NOTE = (
    "Links and CPU updates are assumed from documents, not measured; `tightship offload measure` on that host gives "
    "them."
)


Cost = TypeVar("Cost", LayerCost, RestCost)


def assumed_hardware(device: str, *, device_bytes: int | None, host_bytes: int, cores: int) -> HardwareSpec:
    """A machine by the name of its device (`cpu`: host memory plays it), its host's memory and its cores.

    :param device_bytes: as the device reports it; None: what the catalogue gives, less what is held back.
    :raises PlanError: the catalogue does not have the device, or no link of it.
    """
    adam = {cores: min(ADAM_MOST, ADAM_PER_CORE * cores)}
    if device == CPU:
        return HardwareSpec(
            device=CPU,
            device_bytes=host_bytes,
            host_bytes=host_bytes,
            cores=cores,
            h2d_bytes_per_s=CPU_COPY_BYTES_PER_S,
            d2h_bytes_per_s=CPU_COPY_BYTES_PER_S,
            h2d_duplex_bytes_per_s=CPU_COPY_BYTES_PER_S / 2,
            d2h_duplex_bytes_per_s=CPU_COPY_BYTES_PER_S / 2,
            adam_params_per_s=adam,
        )
    known = _known(device)
    if "pcie" not in known.link_bytes_per_s:
        raise PlanError(
            f"No link of {device!r} is known; measure on it, `tightship offload measure`, and plan from that"
        )
    link = LINK_FRAC * known.link_bytes_per_s["pcie"] / known.devices_per_package
    return HardwareSpec(
        device=device,
        device_bytes=device_bytes or int(VISIBLE_FRAC * known.memory_bytes),
        host_bytes=host_bytes,
        cores=cores,
        h2d_bytes_per_s=link,
        d2h_bytes_per_s=link,
        h2d_duplex_bytes_per_s=DUPLEX_FRAC * link,
        d2h_duplex_bytes_per_s=DUPLEX_FRAC * link,
        adam_params_per_s=adam,
        device_adam_params_per_s=known.memory_bytes_per_s / DEVICE_ADAM_BYTES,
    )


def on_device(profile: Profile, recorded: str, target: str) -> Profile:
    """The profile with its times as they would be on another device.

    Layers are bound by arithmetic or by memory, and nobody knows which: the times lie between what the two rates say,
    and the profile's spread covers both.

    :raises PlanError: there are no rates to compare, as between a CPU and a GPU.
    """
    if recorded == target:
        return profile
    if CPU in (recorded, target):
        raise PlanError(
            f"The times were recorded on {recorded!r}, and how long layers take on {target!r} does not follow from "
            f"them; choose {recorded!r}, or record a run on {target!r}"
        )
    before, after = _known(recorded), _known(target)
    dtype = {Dtype.FP32: "fp32", Dtype.BF16: "bf16", Dtype.FP16: "fp16"}[profile.precision.weights]
    rates = before.flops(dtype), after.flops(dtype)
    if rates[0] is None or rates[1] is None:
        lacking = recorded if rates[0] is None else target
        raise PlanError(f"The {dtype} rate of {lacking!r} is not known; record a run on {target!r}")
    ends = rates[0] / rates[1], before.memory_bytes_per_s / after.memory_bytes_per_s
    factor, spread = sum(ends) / 2, abs(ends[0] - ends[1]) / sum(ends)
    return replace(
        profile,
        layers=tuple(_scaled(layer, factor) for layer in profile.layers),
        rest=_scaled(profile.rest, factor),
        spread_frac=min(0.9, (1 + profile.spread_frac) * (1 + spread) - 1),
        notes=(
            *profile.notes,
            f"Times were recorded on {recorded} and are {min(ends):.2f} to {max(ends):.2f} as long on {target}, by the "
            "rates of their arithmetic and their memory.",
        ),
    )


def _scaled(cost: Cost, factor: float) -> Cost:
    # The time between steps is the host's.
    times = [one.name for one in fields(cost) if one.name.endswith("_ns") and one.name != "between_steps_ns"]
    return replace(cost, **{name: round(getattr(cost, name) * factor) for name in times})


def _known(name: str) -> hardware.Device:
    found = hardware.find(name)
    if found is None:
        raise PlanError(
            f"No device named {name!r} is known; add it to $TIGHTSHIP_HOME/{hardware.FILE_NAME}, or measure on it"
        )
    return found
