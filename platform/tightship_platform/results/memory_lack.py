"""Whose memory was not enough, by what a run's record says of its end."""

from __future__ import annotations

import re
from enum import StrEnum

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


def lack_of(error: str | None, oom_kills: int | None) -> Lack | None:
    """Whose memory a job that failed was out of; None where nothing says that it was of any.

    An exception speaks for itself. What the kernel killed counts where none speaks of memory: parents of a killed
    process fail with their own words.

    :param error: `type: message` of the uncaught exception.
    :param oom_kills: processes that the kernel killed for lack of memory in the job's control group; None: not known.
    """
    for recorded in _exceptions(error or ""):
        kind = _TYPE.match(recorded)
        name = kind[1] if kind else ""
        if name == "OutOfMemoryError" or _DEVICE.search(recorded):
            return Lack.DEVICE
        if name.endswith("MemoryError") or _HOST.search(recorded):
            return Lack.HOST
    return Lack.HOST if oom_kills else None


def _exceptions(error: str) -> list[str]:
    """The exception, the one that it came after, and the one that a quoted traceback ends with."""
    return [part.strip() for part in re.split(r" \(after | … ", error)]
