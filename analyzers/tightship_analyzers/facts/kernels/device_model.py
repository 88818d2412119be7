"""Which device the trace was recorded on, with its rates."""

from __future__ import annotations

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
        said, name = trace.device_properties, trace.device_name
        found = hardware.recognise(
            hardware.Reported(
                name="" if name == NO_NAME else name,
                units=said.units,
                memory_bytes=said.memory_bytes,
                major=said.major,
                minor=said.minor,
                warp=said.warp,
            )
        )
        if found is None:
            return NotApplicable(
                f"needs the rates of {shown(name, 60)!r}; add it to $TIGHTSHIP_HOME/{hardware.FILE_NAME}"
            )
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
        units = facts.trace.device_properties.units
        if units:
            return cls(units)
        model = facts.get(DeviceModel)
        return model if isinstance(model, NotApplicable) else cls(model.device.units)
