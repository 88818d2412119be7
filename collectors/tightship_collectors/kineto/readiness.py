"""Whether a run can be recorded now: which processes, and what stands in the way."""

from __future__ import annotations

from collections.abc import Sequence

from tightship_collectors.jobs.live_run import RankView
from tightship_collectors.kineto.manifest import Manifest
from tightship_collectors.kineto.service import KinetoService
from tightship_platform.units import NS_PER_S

PATIENCE_NS = 60 * NS_PER_S
"""A capture whose processes are not ready by then is given up, with the reason."""
SETTLE_NS = 10 * NS_PER_S
"""How long ranks may be missing from the world size before those that are here count as all of this host."""
SILENT_NS = 11 * NS_PER_S
"""A process that has not polled for this long does not listen (Kineto's slowest pace is 5 s)."""


OTHER_PROFILER = "most likely another profiler records there, such as the job's own torch.profiler"
"""Why Kineto takes no request, or drops one, again and again: a process has one profiler at a time."""


class GiveUp(Exception):
    """The capture cannot be carried out; the message is the reason that a person reads."""


def judge(
    manifest: Manifest, views: Sequence[RankView], service: KinetoService, now_ns: int, behind: str | None
) -> tuple[list[RankView], str | None]:
    """The ranks to record, and what they wait for (None: nothing).

    :raises GiveUp: waiting would not help.
    """
    ranks = [view for view in views if view.is_rank]
    if behind is not None:
        return ranks, f"waits for capture {behind}"
    if not ranks:
        if views:
            return ranks, "waits for the run's first optimizer step, to tell which of its processes train"
        return ranks, "waits for a process of the run to import torch"
    world = max(view.world_size or 0 for view in ranks)
    if len(ranks) < world and now_ns - manifest.since_ns < SETTLE_NS:
        return ranks, f"waits for ranks: {len(ranks)} of {world} are here"
    for view in ranks:
        _check_fitness(manifest, view)
    refusal = service.refusal(manifest.run)
    if refusal is not None:
        return ranks, refusal
    for view in ranks:
        name = f"rank {view.rank} (process {view.pid})"
        client = service.client(manifest.run, view.pid)
        if client is None or now_ns - client.poll_ns > SILENT_NS:
            return ranks, f"waits for {name} to ask for captures"
        if not client.idle:
            return ranks, f"waits for {name}, which is busy with another trace: {OTHER_PROFILER}"
    return ranks, None


def _check_fitness(manifest: Manifest, view: RankView) -> None:
    name = f"rank {view.rank} (process {view.pid})"
    if view.exiting:
        raise GiveUp(f"run ended: {name} is ending")
    if not view.guard and not manifest.params.insist:
        raise GiveUp(
            f"{name} has no exit guard and could abort if it ended meanwhile; --insist records it all the same"
        )
    if manifest.params.iterations is not None and not view.steps:
        why = "made no optimizer step yet" if view.steps == 0 else "does not count steps (--no-steps)"
        raise GiveUp(f"{name} {why}, so iterations cannot be counted; record a duration instead")
