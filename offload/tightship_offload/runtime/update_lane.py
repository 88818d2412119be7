"""The lane that updates: how many threads it has, and on which cores.

[Note: threads of updates] torch's number of threads is one per thread that calls it, and what the last one said holds
for threads to come. So the lane sets its own, and the thread that made it says its own again. What the lane starts
(OpenMP's threads and ours) inherits its cores.
"""

from __future__ import annotations

import os
from contextlib import suppress

import torch

from tightship_offload.backends.base import COMPUTE, Backend, Lane
from tightship_offload.errors import OffloadError
from tightship_offload.plan.capabilities import update_threads
from tightship_offload.plan.host_limits import cores


def threads_for(asked: int | None, *, on_cpu: bool) -> int:
    """How many threads update.

    :param asked: what a plan says; None: as many as torch has, within what should be left free.
    :raises OffloadError: there are not so many cores.
    """
    most = cores()
    if asked is None:
        return min(torch.get_num_threads(), update_threads(most, on_cpu=on_cpu))
    if asked > most:
        raise OffloadError(
            f"optimizer.threads is {asked}, and this process may run on {most} cores; give at most {most}, or none to "
            "have it chosen"
        )
    return asked


def cores_for(threads: int, *, on_cpu: bool) -> frozenset[int] | None:
    """The cores that updates keep to; None: all. Beside an accelerator they leave the first ones to what feeds it."""
    if on_cpu or not hasattr(os, "sched_getaffinity") or os.environ.get("LOCAL_WORLD_SIZE", "1") != "1":
        return None
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) != cores() or threads >= len(allowed):  # of a quota nobody knows which cores it will be
        return None
    return frozenset(allowed[-threads:])


def open_lane(backend: Backend, threads: int) -> Lane:
    """A lane that updates on so many threads. See [Note: threads of updates]."""
    lane = backend.lane("update", on_host=True, by_place=True)
    mine = torch.get_num_threads()
    kept = cores_for(threads, on_cpu=backend.device.type == "cpu")
    if threads == mine and kept is None:
        return lane

    def prepare() -> None:
        torch.get_num_threads()  # a thread's first use of torch gives it what was said last
        torch.set_num_threads(threads)
        if kept is not None:
            with suppress(OSError):  # a core may have gone
                os.sched_setaffinity(0, kept)

    backend.reach(lane.submit("the threads of updates", prepare), COMPUTE, on_host=True)
    torch.set_num_threads(mine)
    return lane
