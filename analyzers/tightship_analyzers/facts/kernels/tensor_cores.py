"""Does the device have tensor cores? From what it reports and from what its kernels were built for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Self

from tightship_analyzers.facts.kernels.device_model import DeviceModel
from tightship_analyzers.facts.memo import Facts, Needs, NotApplicable
from tightship_analyzers.trace.joins import numbers_in
from tightship_analyzers.trace.model import DeviceProperties
from tightship_platform.text import shown

BUILT_FOR = re.compile(
    r"(?<![a-z0-9])(?:(volta|turing|ampere|hopper|blackwell)_|sm_?(\d{2,3})(?:_|[a-z]?\b)|cutlass_(\d{2,3})_)",
    re.IGNORECASE,
)
"""Architectures in names of the kernels of cuBLAS, cuDNN and CUTLASS; source: kernels of the reference traces."""
CAPABILITY = {"volta": (7, 0), "turing": (7, 5), "ampere": (8, 0), "hopper": (9, 0), "blackwell": (10, 0)}
FIRST_WITH_HALF = (7, 0)
FIRST_WITH_TF32 = (8, 0)
"""Compute capabilities whose tensor cores take float16 and TF32; source: CUDA C++ Programming Guide, tensor core input
types per compute capability."""


@dataclass(frozen=True, slots=True, eq=False)
class TensorCores:
    """What float32 products gain on tensor cores, by the device's peak rates where it is known."""

    needs: ClassVar[Needs] = ()

    target: str
    """The type to use on them (`DTYPES` of `hardware`)."""
    gain: float | None
    """Their rate for that type over the float32 rate of the ordinary units; None: the device is not known."""
    text: str
    """How that is known."""

    @classmethod
    def derive(cls, facts: Facts) -> Self | NotApplicable:
        """Needs a device that is listed, or a compute capability from 7.0 on."""
        model = facts.get(DeviceModel)
        if not isinstance(model, NotApplicable):
            device = model.device
            target = "tf32" if "tf32" in device.matrix_flops else "fp16"
            plain, matrix = device.flops("fp32", matrix=False), device.matrix_flops.get(target)
            if not plain or not matrix or matrix <= plain:
                return NotApplicable(
                    f"needs a device with tensor cores; {device.id} lists none that are faster than float32"
                )
            reaches = f"{device.id} reaches {plain / 1e12:.1f} TFLOP/s in float32 and {matrix / 1e12:.0f} in {target}"
            return cls(target, matrix / plain, f"{reaches} on its tensor cores")
        if facts.trace.device_kind != "gpu":
            return model
        capability, by = _capability(facts)
        if capability < FIRST_WITH_HALF:
            return model
        number = f"{capability[0]}.{capability[1]}"
        return cls(
            "tf32" if capability >= FIRST_WITH_TF32 else "fp16",
            None,
            f"The device is not in the catalogue; compute capability {number} or later, by {by}, has tensor cores, "
            "except GeForce GTX 16: how much faster is not known",
        )


def _capability(facts: Facts) -> tuple[tuple[int, int], str]:
    """The least compute capability that the device can have, and what tells; (0, 0) where nothing does."""
    names, events = facts.trace.names, facts.trace.device_events
    built: dict[tuple[int, int], str] = {}
    for text in (names[number] for number in numbers_in(events.name).tolist()):
        found = BUILT_FOR.search(text)
        if found is not None:
            built.setdefault(_number(found), text)
    by_kernels = max(built, default=(0, 0))
    own = _reported(facts.trace.device_properties)
    if own >= by_kernels:
        return own, "what it reports"
    return by_kernels, f"kernels such as {shown(built[by_kernels], 60)}"


def _number(found: re.Match[str]) -> tuple[int, int]:
    if found[1]:
        return CAPABILITY[found[1].casefold()]
    number = int(found[2] or found[3])
    return number // 10, number % 10


def _reported(said: DeviceProperties) -> tuple[int, int]:
    if said.major is None or said.minor is None or said.warp != 32:
        return 0, 0  # AMD's targets have numbers of their own; their warps are of 64 on all devices for training
    return said.major, said.minor
