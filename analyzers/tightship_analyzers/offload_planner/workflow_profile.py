"""The profile that the first usable one of a workflow's traces holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import IO

from tightship_analyzers.offload_planner.profile import Profile
from tightship_analyzers.offload_planner.traced import profile_of_trace
from tightship_offload.errors import PlanError
from tightship_platform.errors import TightshipError
from tightship_platform.processes.scratch import scratch_folder
from tightship_platform.results.plan_answer import PlanSource

Fetch = Callable[[PlanSource, IO[bytes]], None]
"""Writes the trace file of a source into an open file."""


def profile_of_workflow(found: Sequence[PlanSource], fetch: Fetch) -> tuple[Profile, PlanSource]:
    """The profile in the first of the traces that holds one.

    :raises PlanError: none does; the line says why the first does not.
    """
    reasons = []
    for source in found:
        try:
            return _profile(source, fetch), source
        except (PlanError, TightshipError) as error:
            reasons.append(str(error))
    raise PlanError(reasons[0] if reasons else "There is no trace with stacks and shapes to plan from")


def _profile(source: PlanSource, fetch: Fetch) -> Profile:
    with scratch_folder() as folder:
        path = folder / f"rank-{source.rank}.json.gz"
        try:
            with path.open("wb") as file:
                fetch(source, file)
            return profile_of_trace(path)
        except OSError as error:
            raise PlanError(f"The trace cannot be kept for reading: {error.strerror or error}") from None
        except TightshipError as error:
            raise PlanError(str(error).replace(str(path), f"of capture {source.capture}")) from None
