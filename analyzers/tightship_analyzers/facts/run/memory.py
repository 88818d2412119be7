"""How full a run's devices were, and whether the run ended for lack of memory."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

NEAR_FRAC = 0.95
"""A device of which a run uses this much is nearly full. Programs that size themselves to a device keep further away:
vLLM takes 90 % by default (`gpu_memory_utilization`), so what is above is not meant to be."""

_TYPE = re.compile(r"(?:[\w.]+\.)?(\w+)")
_DEVICE = re.compile(
    r"\b(?:CUDA|HIP|XPU|MPS|NPU)\b[^:]{0,20}(?:: )?out of memory|Cuda failure.{0,20}out of memory|"
    r"CU(?:BLAS|DNN|SOLVER|SPARSE)_STATUS_ALLOC_FAILED|RESOURCE_EXHAUSTED: Out of memory",
    re.IGNORECASE,
)
_HOST = re.compile(r"DefaultCPUAllocator: (?:can't allocate|not enough) memory|Cannot allocate memory", re.IGNORECASE)


class Lack(StrEnum):
    """Whose memory was not enough."""

    DEVICE = "device"
    HOST = "host"


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceMemory:
    """What samples say of one accelerator's memory while a run held it, from its first step on if it made any."""

    capacity_bytes: int
    samples: int
    """Samples that tell how much was in use: by the run's processes where that is known, else by all."""
    near: int
    """Those of at least NEAR_FRAC of the capacity."""
    peak_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RunEnd:
    """How a run that failed ended, as its launcher reported it."""

    exit_code: int | None
    error: str | None = None
    """`type: message` of the uncaught exception."""
    oom_kills: int | None = None
    """Processes that the kernel killed for lack of memory in the run's control group; None: not known."""

    @property
    def lack(self) -> Lack | None:
        """Whose memory was not enough; None where nothing says that any was.

        An exception speaks for itself. What the kernel killed counts where none speaks of memory: parents of a killed
        process fail with their own words.
        """
        for recorded in _exceptions(self.error or ""):
            kind = _TYPE.match(recorded)
            name = kind[1] if kind else ""
            if name == "OutOfMemoryError" or _DEVICE.search(recorded):
                return Lack.DEVICE
            if name.endswith("MemoryError") or _HOST.search(recorded):
                return Lack.HOST
        return Lack.HOST if self.oom_kills else None


def _exceptions(error: str) -> list[str]:
    """The exception, the one that it came after, and the one that a quoted traceback ends with."""
    return [part.strip() for part in re.split(r" \(after | … ", error)]
