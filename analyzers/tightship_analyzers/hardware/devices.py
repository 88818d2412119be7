"""What devices can do: arithmetic rates, memory, links, power, each with its source.

from tightship_analyzers import hardware

device = hardware.find("NVIDIA H100 80GB HBM3", units=132, memory_bytes=85018279936)
device.flops("bf16")             # 989.4e12: matrix units where the device has them for that type
device.memory_bytes_per_s        # 3.35e12

The built-in devices stand in hardware.toml beside this file. More come from `hardware.toml` in $TIGHTSHIP_HOME, and
from any file that is named; a later entry for the same name takes the place of an earlier one. A device that is not
listed gives None, and so does one whose reported units or memory are not those of its name (a partition, a slice of a
virtual machine): nothing is guessed, and what needs the figures says that it is not applicable.
"""

from __future__ import annotations

import math
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from tightship_platform.errors import TightshipError
from tightship_platform.settings import load_settings

DTYPES = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8")
LINKS = ("pcie", "nvlink", "xgmi")
FILE_NAME = "hardware.toml"
MOST_FILE_BYTES = 2**20
LEAST_VISIBLE_FRAC = 0.9
"""Of the memory on the board; drivers and error correction hold back up to 8 % (T4: 14.75 of 16 GiB)."""
LEAST_REACHED_FRAC = 0.5
"""Of the peak rate of matrix units what the fastest product reaches on the device where it reaches least, the MI300X
(668 of 1307 TFLOP/s). Source: that of `product_tflops` in hardware.toml."""

_NUMBERS = {
    "units": (1, 100_000),
    "clock_mhz": (1, 100_000),
    "memory_gib": (0.001, 1_000_000),
    "memory_gb_per_s": (0.001, 10_000_000),
    "tdp_w": (1, 100_000),
    "devices_per_package": (1, 1000),
}
_WHOLE = ("units", "devices_per_package")
_TABLES = {"vector_tflops": DTYPES, "matrix_tflops": DTYPES, "product_tflops": DTYPES, "links_gb_per_s": LINKS}
_MOST_IN_TABLE = 100_000_000
_TEXTS = ("id", "family", "vendor", "architecture", "capability", "source")
_REQUIRED = ("id", "names", "vendor", "units", "memory_gib", "memory_gb_per_s", "source")
_KNOWN = (*_TEXTS, "names", *_NUMBERS, *_TABLES)


class HardwareError(TightshipError):
    """A file of devices is not acceptable. The message names the file, the device and the entry."""

    http_status = 422


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One model of device, as CUDA or HIP presents it."""

    id: str
    names: tuple[str, ...]
    """As CUDA, HIP and NVML report it."""
    family: str = ""
    """The word of the name that variants share (`V100`)."""
    vendor: str
    architecture: str = ""
    capability: str = ""
    """CUDA compute capability (`9.0`) or LLVM target (`gfx942`)."""
    units: int
    """Streaming multiprocessors or compute units."""
    clock_hz: float | None = None
    """Boost clock, at which the rates are given."""
    memory_bytes: int
    """On the board; a little less is visible to programs."""
    memory_bytes_per_s: float
    """Peak rate of the device's memory."""
    tdp_w: float | None = None
    """Power limit of the package as it is sold."""
    devices_per_package: int = 1
    """Devices that share one package, its power and its links."""
    vector_flops: Mapping[str, float] = field(default_factory=dict, hash=False)
    """FLOP/s by type (`DTYPES`), ordinary units; a multiply-add counts two."""
    matrix_flops: Mapping[str, float] = field(default_factory=dict, hash=False)
    """FLOP/s (operations for integers) by type, matrix units, dense."""
    product_flops: Mapping[str, float] = field(default_factory=dict, hash=False)
    """FLOP/s by type that the fastest matrix product reaches that somebody measured."""
    link_bytes_per_s: Mapping[str, float] = field(default_factory=dict, hash=False)
    """By kind (`LINKS`), one direction, all links of the kind together; of the package."""
    source: str
    """Document or URL of the figures."""

    def flops(self, dtype: str, *, matrix: bool = True) -> float | None:
        """Peak FLOP/s for a type; that of the matrix units where they take it and `matrix` allows them.

        None where the document gives none: the device may still be able to compute with that type.
        """
        if matrix and dtype in self.matrix_flops:
            return self.matrix_flops[dtype]
        return self.vector_flops.get(dtype)

    def reached_flops(self, dtype: str) -> float | None:
        """FLOP/s that a matrix product can be expected to reach at most: the fastest one that was measured; of another
        type as much of the peak rate as that, on a device without measurements LEAST_REACHED_FRAC of it."""
        if dtype in self.product_flops:
            return self.product_flops[dtype]
        peak = self.flops(dtype)
        shares = [rate / self.matrix_flops[of] for of, rate in self.product_flops.items() if of in self.matrix_flops]
        return None if peak is None else peak * min(shares, default=LEAST_REACHED_FRAC)


def find(
    name: str, *, units: int | None = None, memory_bytes: int | None = None, files: Iterable[Path] = ()
) -> Device | None:
    """The device that reports this name; None where it is not known, or not what it reports.

    `units` and `memory_bytes` are what the device itself reports, where that is known. `files` are read after the
    built-in devices and those of $TIGHTSHIP_HOME.

    :raises HardwareError: a file is not acceptable.
    """
    device = _by_name(files).get(_normal(name))
    if device is None or (units is not None and units != device.units):
        return None
    if memory_bytes is not None and not LEAST_VISIBLE_FRAC <= memory_bytes / device.memory_bytes <= 1:
        return None
    return device


def devices(files: Iterable[Path] = ()) -> tuple[Device, ...]:
    """All known devices, by id.

    :raises HardwareError: a file is not acceptable.
    """
    known = {device.id: device for device in _by_name(files).values()}
    return tuple(known[id_] for id_ in sorted(known))


def read_devices(path: Path) -> tuple[Device, ...]:
    """The devices of one file.

    :raises HardwareError: it cannot be read, or an entry is missing, unknown or out of range.
    """
    shown = str(path)[:1000]
    try:
        if not path.is_file():
            raise HardwareError(f"No file of devices at {shown!r}; expected TOML with [[device]] entries")
        if path.stat().st_size > MOST_FILE_BYTES:
            raise HardwareError(f"File of devices {shown!r} has more than {MOST_FILE_BYTES} bytes; give a smaller one")
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise HardwareError(f"File of devices {shown!r} is not UTF-8 text") from None
    except OSError as error:
        raise HardwareError(f"File of devices {shown!r} cannot be read: {error.strerror or error}") from None
    return _parsed(text, shown)


def _by_name(files: Iterable[Path]) -> dict[str, Device]:
    listed = list(_built_in())
    for path in (*_of_home(), *files):
        listed += read_devices(path)
    return {_normal(name): device for device in listed for name in device.names}


def _of_home() -> tuple[Path, ...]:
    path = load_settings().home / FILE_NAME
    try:
        return (path,) if path.exists() else ()
    except OSError:  # such as a folder that may not be entered; reading it says so
        return (path,)


@cache
def _built_in() -> tuple[Device, ...]:
    return _parsed(resources.files(__package__ or "").joinpath(FILE_NAME).read_text(encoding="utf-8"), FILE_NAME)


def _normal(name: str) -> str:
    return " ".join(name.split()).casefold()


def _parsed(text: str, shown: str) -> tuple[Device, ...]:
    try:
        content = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise HardwareError(f"File of devices {shown!r} is not TOML: {_one_line(str(error))}") from None
    entries = content.pop("device", [])
    if content or not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise HardwareError(f"File of devices {shown!r} may hold [[device]] entries only")
    found = [_device(entry, f"Device {number} of {shown!r}") for number, entry in enumerate(entries, start=1)]
    for given in ([device.id for device in found], [_normal(name) for device in found for name in device.names]):
        twice = [name for name, count in Counter(given).items() if count > 1]
        if twice:
            raise HardwareError(f"File of devices {shown!r} gives {twice[0]!r} twice; expected it once")
    return tuple(found)


def _device(entry: Mapping[str, object], where: str) -> Device:
    unknown = [name for name in entry if name not in _KNOWN]
    if unknown:
        raise HardwareError(f"{where} has the entry {_one_line(unknown[0])!r}; known: {', '.join(_KNOWN)}")
    missing = [name for name in _REQUIRED if name not in entry]
    if missing:
        raise HardwareError(f"{where} has no {missing[0]}; needed: {', '.join(_REQUIRED)}")
    texts = {name: _text(entry[name], f"{where}: {name}") for name in _TEXTS if name in entry}
    names = entry["names"]
    if not isinstance(names, list) or not names:
        raise HardwareError(f"{where}: names is {_one_line(repr(names))}; expected a list of names")
    numbers = {
        name: _number(entry[name], f"{where}: {name}", *limits, whole=name in _WHOLE)
        for name, limits in _NUMBERS.items()
        if name in entry
    }
    tables = {name: _rates(entry.get(name, {}), f"{where}: {name}", keys) for name, keys in _TABLES.items()}
    return Device(
        **texts,
        names=tuple(_text(name, f"{where}: names") for name in names),
        units=int(numbers["units"]),
        clock_hz=numbers["clock_mhz"] * 1e6 if "clock_mhz" in numbers else None,
        memory_bytes=round(numbers["memory_gib"] * 2**30),
        memory_bytes_per_s=numbers["memory_gb_per_s"] * 1e9,
        tdp_w=numbers.get("tdp_w"),
        devices_per_package=int(numbers.get("devices_per_package", 1)),
        vector_flops=_scaled(tables["vector_tflops"], 1e12),
        matrix_flops=_scaled(tables["matrix_tflops"], 1e12),
        product_flops=_scaled(tables["product_tflops"], 1e12),
        link_bytes_per_s=_scaled(tables["links_gb_per_s"], 1e9),
    )


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value.strip() or not value.isprintable() or len(value) > 500:
        raise HardwareError(f"{where} is {_one_line(repr(value))}; expected a line of text")
    return value


def _number(value: Any, where: str, least: float, most: float, *, whole: bool = False) -> float:
    kinds = (int,) if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not (least <= value <= most):
        kind = "a whole number" if whole else "a number"
        raise HardwareError(f"{where} is {_one_line(repr(value))}; expected {kind} from {least:g} to {most:g}")
    return float(value)


def _rates(value: Any, where: str, keys: tuple[str, ...]) -> dict[str, float]:
    if not isinstance(value, dict):
        raise HardwareError(f"{where} is {_one_line(repr(value))}; expected a table of numbers")
    for key in value:
        if key not in keys:
            raise HardwareError(f"{where} has the entry {_one_line(key)!r}; known: {', '.join(keys)}")
    return {key: _number(rate, f"{where}.{key}", math.ulp(0), _MOST_IN_TABLE) for key, rate in value.items()}


def _scaled(rates: dict[str, float], factor: float) -> Mapping[str, float]:
    return {key: rate * factor for key, rate in rates.items()}


def _one_line(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text[:120])
