"""Which processes compute with torch on a host without an accelerator, by the processor time that they use."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tightship_collectors.agent import seen_process as about
from tightship_collectors.jobs.processes import Known, ProcessTable

IMPORT_S = 4.0
"""Processor time that a process uses before it counts as computing; to import torch takes 2 to 3 s."""
IDLE_FRAC = 0.05
"""Share of a core that a process may use without computing: a notebook that waits, a server."""
TIDIED_EVERY = 60
"""Looks after which what is known of processes that are gone is forgotten."""


@dataclass(slots=True)
class _Use:
    """How much a process computes."""

    ticks: int
    used_ticks: int
    at_s: float
    credit_s: float
    """Processor time beyond IDLE_FRAC; never below 0."""
    looked_s: float = 0.0
    """`credit_s` when its mappings were read last; 0: never."""


class Computing:
    """Follows what processes use, from look to look."""

    def __init__(self, table: ProcessTable, hertz: int) -> None:
        self._table = table
        self._hertz = hertz
        self._use: dict[int, _Use] = {}
        self._looks = 0

    def look(
        self, processes: Iterable[tuple[int, Known]], may_be: Callable[[int, Known], bool], most: int
    ) -> tuple[list[tuple[int, Known]], int]:
        """Those that turn out to compute with torch, and how many had to wait for the next look.

        :param may_be: whether a process is looked into at all.
        :param most: processes whose mappings are read.
        """
        self._tidy()
        found, mappings, waiting = [], 0, 0
        for pid, known in processes:
            use = self._use.get(pid)
            if use is None or use.ticks != known.ticks:
                use = self._use[pid] = _Use(known.ticks, 0, 0.0, 0.0)
            if known.cpu_ticks == use.used_ticks:  # nearly all of them
                continue
            self._count(use, known)
            if use.credit_s < max(IMPORT_S, 2 * use.looked_s) or not may_be(pid, known):
                continue
            if mappings == most:
                waiting += 1
                continue
            mappings, use.looked_s = mappings + 1, use.credit_s
            if about.loads_torch(self._table, pid):
                found.append((pid, known))
        return found, waiting

    def _tidy(self) -> None:
        self._looks += 1
        if self._looks % TIDIED_EVERY == 0:
            live = ((pid, use, self._table.other(pid)) for pid, use in self._use.items())
            self._use = {pid: use for pid, use, known in live if known is not None and known.ticks == use.ticks}

    def _count(self, use: _Use, known: Known) -> None:
        age_s = self._table.age_s(known)
        used_s = (known.cpu_ticks - use.used_ticks) / self._hertz
        use.credit_s = max(0.0, use.credit_s + used_s - IDLE_FRAC * (age_s - use.at_s))
        use.used_ticks, use.at_s = known.cpu_ticks, age_s
