"""Whether a recording gets anywhere, judged by what Kineto writes and by what the processes say of themselves."""

from __future__ import annotations

from collections.abc import Sequence

from tightship_collectors.kineto.manifest import Manifest
from tightship_collectors.kineto.rank_process import RankProcess
from tightship_collectors.kineto.readiness import GiveUp
from tightship_collectors.kineto.service import Client
from tightship_platform.units import NS_PER_S

STALLED_NS = 90 * NS_PER_S
"""A trace that neither grows nor sees a step for so long after its end will not come."""
LONGEST_EXPORT_NS = 900 * NS_PER_S
AFTER_OPENING_NS = NS_PER_S // 5
"""A poll so long after the file was seen was surely sent while Kineto had it open."""


class Progress:
    """What was seen of one try of a capture."""

    def __init__(self) -> None:
        self._opened_ns: dict[int, int] = {}
        self._moved = -1
        self._moved_ns = 0

    def restart(self, now_ns: int) -> None:
        """Restart the patience."""
        self._moved, self._moved_ns = -1, now_ns

    def has_opened(self, process: RankProcess, now_ns: int) -> bool:
        """Kineto has opened the file of this process; remembers when this was first seen."""
        pid = process.rank.pid
        if pid not in self._opened_ns and process.open_bytes() is not None:
            self._opened_ns[pid] = now_ns
        return pid in self._opened_ns

    def was_dropped(self, process: RankProcess, client: Client | None, now_ns: int) -> bool:
        """The process calls itself idle although its trace had begun: a profiler of the job's own cancelled it."""
        self.has_opened(process, now_ns)
        opened_ns = self._opened_ns.setdefault(process.rank.pid, now_ns)
        return client is not None and client.idle and client.poll_ns > opened_ns + AFTER_OPENING_NS

    def check(self, manifest: Manifest, processes: Sequence[RankProcess], now_ns: int) -> None:
        """Go on only while something moves: a file grows or, where steps count, a step is made.

        :raises GiveUp: nothing has moved for too long, or the export takes for ever.
        """
        by_time = manifest.params.duration_ns is not None
        moved = sum(process.open_bytes() or 0 for process in processes)
        if not by_time:
            moved += sum(file.steps for process in processes if (file := process.control()))
        if moved != self._moved:
            self._moved, self._moved_ns = moved, now_ns
        end_ns = manifest.latest_start_ns + (manifest.params.duration_ns or 0)
        stalled = now_ns - max(self._moved_ns, end_ns) > STALLED_NS
        if stalled or (by_time and now_ns - end_ns > LONGEST_EXPORT_NS):
            late = next(process for process in processes if not process.rank.complete)
            raise GiveUp(f"the trace of {late.name} did not become complete")
