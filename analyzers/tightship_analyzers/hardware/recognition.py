"""Which device it is when its name is missing, generic or that of a variant.

[Note: recognition] A listed name is the device, if its reported units and memory are those of that name. A name that
has the family's word in it (`Tesla V100-DGXS-32GB`) is a variant, whose clocks no entry gives: it counts with the least
rates of those of its family that fit what it reports. A name that says no model (`""`, `AMD Radeon Graphics`, `gfx942`)
says nothing, and compute units, memory, warp size and architecture do: compute units and one more have to be reported,
and every listed device that fits all of them is a candidate. Several candidates count with the least rates of all, if
they are of one architecture; else there is none. A partition (MIG, a slice of a virtual machine) is no whole device
under any name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tightship_analyzers.hardware.devices import LEAST_VISIBLE_FRAC, Device, devices, find

GENERIC = re.compile(
    r"|unknown( device)?|graphics device|amd (radeon|instinct)( graphics)?|nvidia( graphics device)?|gfx\w+.*",
    re.IGNORECASE,
)
"""Names that drivers give where they know no model; source: names in recorded traces, and LLVM's targets."""
PARTITION = re.compile(r"\b(mig|grid|vgpu|vws|\d+g\.\d+gb|[cds]px)\b", re.IGNORECASE)
"""Words in names of parts of a device: NVIDIA's MIG and vGPU, AMD's partition modes."""
AMD_WARP = 64
"""Lanes of a wavefront on AMD's CDNA and GCN; every CUDA device has 32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """What a device says of itself; None: it does not say."""

    name: str
    units: int | None = None
    """Streaming multiprocessors or compute units."""
    memory_bytes: int | None = None
    major: int | None = None
    """Of the compute capability; of the LLVM target on AMD (9 of `gfx942`)."""
    minor: int | None = None
    warp: int | None = None
    """Threads that run in lockstep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recognised:
    """A device and how it was recognised."""

    device: Device
    """The entry of the catalogue; the least rates of several where it is one of these."""
    how: str
    """`by its name`, or by what else; the end of a sentence."""
    by_name: bool
    """The name is one that the catalogue lists."""


def recognise(reported: Reported, files: Iterable[Path] = ()) -> Recognised | None:
    """The device that reports this; None where that is none that is listed, or may be one of very different ones.

    See [Note: recognition].

    :raises HardwareError: a file is not acceptable.
    """
    files = tuple(files)
    listed = find(reported.name, units=reported.units, memory_bytes=reported.memory_bytes, files=files)
    if listed is not None:
        return Recognised(device=listed, how="by its name", by_name=True)
    name = " ".join(reported.name.split())
    if PARTITION.search(name):
        return None
    known = devices(files)
    generic = GENERIC.fullmatch(name) is not None
    found = _by_fingerprint(reported, name, known) if generic else _by_family(reported, name, known)
    if not found or len({device.architecture for device in found}) > 1:
        return None
    rates = "" if len(found) == 1 else f", with the least rates of {', '.join(device.id for device in found)}"
    how = f"by {_fingerprint(reported)}" if generic else f"as a variant of {' or '.join(_families(found))}"
    return Recognised(device=_least(found), how=how + rates, by_name=False)


def _by_family(reported: Reported, name: str, known: Sequence[Device]) -> list[Device]:
    words = f" {_words(name)} "
    if any(words == f" {_words(own)} " for device in known for own in device.names):
        return []  # a listed name with other units or memory: a part of that device
    return [
        device
        for device in known
        if device.family
        and f" {_words(device.family)} " in words
        and (reported.units is None or device.units == reported.units)
        and (reported.memory_bytes is None or reported.memory_bytes >= LEAST_VISIBLE_FRAC * device.memory_bytes)
        and _fits_architecture(reported, device)
    ]


def _by_fingerprint(reported: Reported, name: str, known: Sequence[Device]) -> list[Device]:
    target = name.partition(":")[0].casefold() if name.casefold().startswith("gfx") else None
    if reported.units is None or (reported.memory_bytes is None and reported.major is None and target is None):
        return []
    return [
        device
        for device in known
        if device.units == reported.units
        and (reported.memory_bytes is None or LEAST_VISIBLE_FRAC <= reported.memory_bytes / device.memory_bytes <= 1)
        and (target is None or device.capability == target)
        and _fits_architecture(reported, device)
    ]


def _fits_architecture(reported: Reported, device: Device) -> bool:
    if not device.capability:
        return True
    if reported.warp is not None and (reported.warp == AMD_WARP) != device.capability.startswith("gfx9"):
        return False
    if reported.major is None or reported.minor is None:
        return True
    if device.capability.startswith("gfx"):
        return device.capability.startswith(f"gfx{reported.major}{reported.minor:x}")
    return device.capability == f"{reported.major}.{reported.minor}"


def _least(found: Sequence[Device]) -> Device:
    """One device that can do what all of these can."""
    if len(found) == 1:
        return found[0]
    clocks = [device.clock_hz for device in found if device.clock_hz is not None]
    return Device(
        id=" or ".join(one.casefold().replace(" ", "-") for one in _families(found)),
        names=(),
        family=found[0].family if len(_families(found)) == 1 else "",
        vendor=found[0].vendor,
        architecture=found[0].architecture,
        capability=found[0].capability,
        units=min(device.units for device in found),
        clock_hz=min(clocks) if len(clocks) == len(found) else None,
        memory_bytes=min(device.memory_bytes for device in found),
        memory_bytes_per_s=min(device.memory_bytes_per_s for device in found),
        devices_per_package=max(device.devices_per_package for device in found),
        vector_flops=_least_rates([device.vector_flops for device in found]),
        matrix_flops=_least_rates([device.matrix_flops for device in found]),
        product_flops=_least_rates([device.product_flops for device in found]),
        link_bytes_per_s=_least_rates([device.link_bytes_per_s for device in found]),
        source="; ".join(dict.fromkeys(device.source for device in found)),
    )


def _least_rates(tables: Sequence[Mapping[str, float]]) -> Mapping[str, float]:
    shared = [key for key in tables[0] if all(key in table for table in tables)]
    return {key: min(table[key] for table in tables) for key in shared}


def _families(found: Sequence[Device]) -> list[str]:
    return list(dict.fromkeys(device.family or device.id for device in found))


def _fingerprint(reported: Reported) -> str:
    amd = reported.warp == AMD_WARP or reported.name.casefold().startswith("gfx")
    parts = [reported.name.partition(":")[0]] if reported.name.casefold().startswith("gfx") else []
    parts.append(f"{reported.units} {'compute units' if amd else 'multiprocessors'}")
    if reported.memory_bytes is not None:
        parts.append(f"{reported.memory_bytes / 2**30:.0f} GiB")
    if reported.warp is not None:
        parts.append(f"warps of {reported.warp}")
    if reported.major is not None and reported.minor is not None:
        of = f"gfx{reported.major}{reported.minor:x}" if amd else f"{reported.major}.{reported.minor}"
        parts.append(f"{'target' if amd else 'compute capability'} {of}{'x' if amd else ''}")
    return ", ".join(parts)


def _words(text: str) -> str:
    return " ".join(re.findall(r"[a-z0-9]+", text.casefold()))
