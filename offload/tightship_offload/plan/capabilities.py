"""The runtime's capabilities, defined once: the runtime works by them, the planner plans by them. Imports no torch.

A plan may only say what the runtime does: `Plan` refuses a field that the runtime would ignore, whoever wrote it. The
field stays in the schema, and what it means stays written there; once the runtime honours it, one line here changes.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """The choices that a runtime offers to a plan."""

    gradients_in_flight: int
    """Layers whose gradients may be on their way to the host at a time; it bounds the device memory that they take."""
    staging_buffers: int
    """Pinned buffers, each of the largest gradient, in which gradients that are added on the host cross in turn."""
    update_orders: tuple[str, ...]
    """Values of `UpdateOrder` that it follows, the default first."""
    sets_threads: bool
    """Updates run on as many CPU threads as the plan says; otherwise on as many as torch has."""
    streams_updates: bool
    """The state of a layer in host memory can stream through the device to be updated there."""
    updates_residents_on_cpu: bool
    """A resident layer can be updated on the CPU; otherwise every resident layer is updated on the device."""
    divides_layers_over_files: bool
    """Some of the moving layers, or their optimizer state alone, can be in files; otherwise all with their weights."""


RUNTIME = Capabilities(
    gradients_in_flight=2,
    staging_buffers=2,
    update_orders=("next-use", "as-ready"),
    sets_threads=True,
    streams_updates=False,
    updates_residents_on_cpu=False,
    divides_layers_over_files=False,
)


SHORTAGE = "short-of-memory"
"""File that a measured script leaves beside its record where it ends for lack of memory."""
CORES_LEFT = 3
"""That updates leave free beside an accelerator: for the thread that launches its work, autograd's, and a loader's."""


def update_threads(cores: int, *, on_cpu: bool) -> int:
    """CPU threads for updates where a plan says nothing.

    :param on_cpu: the CPU plays the device, and has nothing to keep free for it.
    """
    return cores if on_cpu else max(1, cores - CORES_LEFT)


def files_exclude(*, early: bool, masters: bool, ranks: bool = False) -> str | None:
    """The first part of a training that does not go together with layers in files; None: all do."""
    for what, asked in (("updates during backward", early), ("fp32 masters", masters), ("several ranks", ranks)):
        if asked:
            return f"Layers in files do not go together with {what} yet; leave one of the two out"
    return None
