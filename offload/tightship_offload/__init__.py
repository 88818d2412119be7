"""Train models that do not fit: a window of layers on the device, the rest in host memory.

import tightship_offload as offload

model, optimizer = offload.apply(model, optimizer, "plan.yaml")

The plan and its errors are importable without torch; what needs torch is loaded at its first use.
"""

from __future__ import annotations

import os
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tightship_offload.errors import OffloadError, PlanError
    from tightship_offload.plan.file import read_plan
    from tightship_offload.plan.model import Plan
    from tightship_offload.runtime.apply import apply
    from tightship_offload.runtime.clipping import clip_grad_norm_
    from tightship_offload.runtime.early_updates import EarlyUpdates
    from tightship_offload.runtime.engine import engine_of
    from tightship_offload.runtime.nvme import NvmeTier
    from tightship_offload.runtime.stats import OffloadStats

__all__ = [
    "EarlyUpdates",
    "NvmeTier",
    "OffloadError",
    "OffloadStats",
    "Plan",
    "PlanError",
    "apply",
    "clip_grad_norm_",
    "engine_of",
    "read_plan",
]

_HOMES = {
    "EarlyUpdates": "runtime.early_updates",
    "NvmeTier": "runtime.nvme",
    "OffloadError": "errors",
    "OffloadStats": "runtime.stats",
    "Plan": "plan.model",
    "PlanError": "errors",
    "apply": "runtime.apply",
    "clip_grad_norm_": "runtime.clipping",
    "engine_of": "runtime.engine",
    "read_plan": "plan.file",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if os.environ.get("TIGHTSHIP_OFFLOAD_PLAN") or os.environ.get("TIGHTSHIP_OFFLOAD_MEASURE"):
    # The launcher's code acts as soon as torch is there, and imports most of this package: at a moment when no module
    # of it is half-way through its own imports.
    with suppress(ImportError):
        import_module("torch")
