"""How the libraries of the device's vendor are called, for what is advised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from tightship_analyzers.facts.memo import Facts, Needs


@dataclass(frozen=True, slots=True, eq=False)
class Vendor:
    """NVIDIA's names, unless the trace holds calls of HIP."""

    needs: ClassVar[Needs] = ()

    collectives: str
    """Of the library for collectives; in torch its backend is `nccl` on both."""
    graph: str
    """Of a captured graph."""

    @classmethod
    def derive(cls, facts: Facts) -> Self:
        """By the runtime's calls."""
        trace = facts.trace
        is_amd = bool(trace.names.mask(trace.launches.name, lambda name: name.startswith("hip")).any())
        return cls("RCCL", "HIP graph") if is_amd else cls("NCCL", "CUDA graph")
