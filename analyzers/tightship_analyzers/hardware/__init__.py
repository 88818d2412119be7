"""What devices can do: arithmetic rates, memory, links, power, each with its source."""

from tightship_analyzers.hardware.devices import (
    DTYPES,
    FILE_NAME,
    LINKS,
    Device,
    HardwareError,
    devices,
    find,
    read_devices,
)
from tightship_analyzers.hardware.recognition import Recognised, Reported, recognise

__all__ = [
    "DTYPES",
    "FILE_NAME",
    "LINKS",
    "Device",
    "HardwareError",
    "Recognised",
    "Reported",
    "devices",
    "find",
    "read_devices",
    "recognise",
]
