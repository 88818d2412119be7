"""Which device the trace was recorded on, with its rates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

from tightship_analyzers import hardware
from tightship_analyzers.facts.memo import Facts, Needs, NotApplicable
from tightship_platform.text import shown


@dataclass(frozen=True, slots=True, eq=False)
class DeviceModel:
    """The entry of the catalogue of devices."""

    needs: ClassVar[Needs] = ()

    device: hardware.Device

    @classmethod
    def derive(cls, facts: Facts) -> Self | NotApplicable:
        """Needs a device that the catalogue lists."""
        trace = facts.trace
        if trace.device_kind != "gpu":
            return NotApplicable("needs an accelerator; the trace has no device events")
        reported = reported_properties(facts)
        found = hardware.find(
            trace.device_name,
            units=_whole(reported.get("numSms")),
            memory_bytes=_whole(reported.get("totalGlobalMem")),
        )
        if found is None:
            name = shown(trace.device_name, 60)
            return NotApplicable(f"needs the rates of {name!r}; add it to $TIGHTSHIP_HOME/{hardware.FILE_NAME}")
        return cls(found)


@dataclass(frozen=True, slots=True, eq=False)
class DeviceUnits:
    """How many blocks the device runs at once at least: its streaming multiprocessors or compute units."""

    needs: ClassVar[Needs] = ()

    units: int

    @classmethod
    def derive(cls, facts: Facts) -> Self | NotApplicable:
        """As the device itself reports, else by its model."""
        units = _whole(reported_properties(facts).get("numSms"))
        if units:
            return cls(units)
        model = facts.get(DeviceModel)
        return model if isinstance(model, NotApplicable) else cls(model.device.units)


def reported_properties(facts: Facts) -> Mapping[str, object]:
    """What the device of this name says about itself (`deviceProperties`); empty where the trace holds nothing."""
    listed = facts.trace.properties.get("deviceProperties")
    for entry in listed if isinstance(listed, list) else ():
        if isinstance(entry, dict) and entry.get("name") == facts.trace.device_name:
            return entry
    return {}


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
