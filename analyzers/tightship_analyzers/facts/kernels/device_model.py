"""Which device the trace was recorded on, with its rates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

from tightship_analyzers import hardware
from tightship_analyzers.facts.memo import Facts, Needs, NotApplicable
from tightship_analyzers.trace.model import NO_NAME, Bools, Int64s
from tightship_platform.text import shown

MAX_FILLED_FRAC = 0.5
"""Blocks per multiprocessor up to which a kernel counts as small."""


@dataclass(frozen=True, slots=True, eq=False)
class DeviceModel:
    """The entry of the catalogue of devices."""

    needs: ClassVar[Needs] = ()

    device: hardware.Device
    inferred: str | None
    """By what it was recognised where not by a name that the catalogue lists; the end of a sentence."""

    @classmethod
    def derive(cls, facts: Facts) -> Self | NotApplicable:
        """Needs a device that the catalogue lists, by its name or by what it says of itself."""
        trace = facts.trace
        if trace.device_kind != "gpu":
            return NotApplicable("needs an accelerator; the trace has no device events")
        found = hardware.recognise(_reported(trace.device_name, trace.device_properties))
        if found is None:
            name = shown(trace.device_name, 60)
            return NotApplicable(f"needs the rates of {name!r}; add it to $TIGHTSHIP_HOME/{hardware.FILE_NAME}")
        return cls(found.device, None if found.by_name else found.how)


@dataclass(frozen=True, slots=True, eq=False)
class DeviceUnits:
    """How many blocks the device runs at once at least: its streaming multiprocessors or compute units."""

    needs: ClassVar[Needs] = ()

    units: int

    def half_empty(self, blocks: Int64s) -> Bools:
        """(kernels,) does a grid of so many blocks leave half of the units without work? False where it is unknown."""
        result: Bools = (blocks > 0) & (blocks <= MAX_FILLED_FRAC * self.units)
        return result

    @classmethod
    def derive(cls, facts: Facts) -> Self | NotApplicable:
        """As the device itself reports, else by its model."""
        units = _whole(facts.trace.device_properties.get("numSms"))
        if units:
            return cls(units)
        model = facts.get(DeviceModel)
        return model if isinstance(model, NotApplicable) else cls(model.device.units)


def _reported(name: str, said: Mapping[str, object]) -> hardware.Reported:
    minor = said.get("computeMinor")
    return hardware.Reported(
        name="" if name == NO_NAME else name,
        units=_whole(said.get("numSms")),
        memory_bytes=_whole(said.get("totalGlobalMem")),
        major=_whole(said.get("computeMajor")),
        minor=0 if minor == 0 else _whole(minor),
        warp=_whole(said.get("warpSize")),
    )


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
