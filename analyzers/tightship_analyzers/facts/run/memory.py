"""How full a run's devices were, and whether the run ended for lack of memory."""

from __future__ import annotations

from dataclasses import dataclass

from tightship_platform.results.memory_lack import Lack, lack_of

NEAR_FRAC = 0.95
"""A device of which a run uses this much is nearly full. Programs that size themselves to a device keep further away:
vLLM takes 90 % by default (`gpu_memory_utilization`), so what is above is not meant to be."""


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
        """Whose memory was not enough; None where nothing says that any was."""
        return lack_of(self.error, self.oom_kills)
