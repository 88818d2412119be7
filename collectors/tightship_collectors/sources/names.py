"""Names of devices as people know them, out of strings that drivers and files report."""

from __future__ import annotations

import platform
from pathlib import Path

from tightship_platform.validation import NAME_MAX


def clean_name(reported: str | bytes, *, otherwise: str) -> str:
    """A reported name on one line, without control characters or runs of blanks, of at most NAME_MAX characters."""
    text = reported.decode("utf-8", "replace") if isinstance(reported, bytes) else reported
    shown = "".join(c if c.isprintable() else " " for c in text)
    return " ".join(shown.split())[:NAME_MAX] or otherwise


def processor_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Model of the host's processor, without the vendor's ornaments: 'Intel Xeon Platinum 8480C'."""
    try:
        with cpuinfo.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                key, _, value = line.partition(":")
                if key.strip() in ("model name", "Model", "cpu model"):
                    for ornament in ("(R)", "(TM)", "(r)", "(tm)", " CPU", " Processor"):
                        value = value.replace(ornament, "")
                    return clean_name(value.partition(" @ ")[0], otherwise="processor")
    except OSError:
        return clean_name(platform.machine(), otherwise="processor")
    # Arm servers name no model there.
    return clean_name(f"{platform.machine()} processor", otherwise="processor")


def slice_name(parent: str, reported: str | bytes, memory_bytes: int | None) -> str:
    """Name of a MIG slice: the driver's own when it has one ('NVIDIA H100 80GB HBM3 MIG 1g.10gb')."""
    name = clean_name(reported, otherwise="")
    if name and name != parent:
        return name
    size = f" {round(memory_bytes / 2**30)}gb" if memory_bytes else ""
    return clean_name(f"{parent} MIG{size}", otherwise="MIG slice")
