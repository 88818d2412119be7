"""Calls that block the host until the device has caught up, by place in the program and by what they wait for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Self

import numpy as np

from tightship_analyzers.facts.blocking.host_syncs import SIZED_BY_DATA, HostSyncs
from tightship_analyzers.facts.memo import Facts, Needs
from tightship_analyzers.facts.program.places import Places
from tightship_analyzers.trace.intervals import Intervals
from tightship_analyzers.trace.model import Int64s
from tightship_platform.text import shown


class SyncKind(StrEnum):
    """What the host wants."""

    SCALAR = "scalar"
    """A value."""
    SIZE = "size"
    """The size of a result that depends on values."""
    NOTHING = "nothing"
    """Only that the device has finished."""


@dataclass(frozen=True, slots=True, eq=False)
class SyncPlace:
    """The blocking calls of one place."""

    kind: SyncKind
    place: str
    operator: str
    """`aten::item`, or the runtime call of an explicit synchronization."""
    tid: int
    rows: Int64s
    """In `HostSyncs`."""
    cost: Intervals
    spans: Intervals
    """The calls themselves."""
    blocked_ns: int


@dataclass(frozen=True, slots=True, eq=False)
class SyncPlaces:
    """All of them; calls that cost the device nothing included."""

    needs: ClassVar[Needs] = (HostSyncs, Places)

    places: list[SyncPlace]

    @classmethod
    def derive(cls, facts: Facts) -> Self:
        """Needs what `HostSyncs` needs."""
        syncs, where = facts[HostSyncs], facts[Places]
        names, calls = facts.trace.names, syncs.calls
        rows: dict[tuple[SyncKind, str, str, int], list[int]] = {}
        for row, (tid, start_ns, end_ns) in enumerate(
            zip(calls.tid.tolist(), calls.start_ns.tolist(), calls.end_ns.tolist(), strict=True)
        ):
            number = int(syncs.op[row])
            operator = names[number if number >= 0 else int(calls.name[row])]
            place = where.of_span(tid, start_ns, end_ns) or shown(operator)
            rows.setdefault((_kind(operator, number), place, shown(operator), tid), []).append(row)
        return cls([_place(syncs, *key, np.array(found)) for key, found in rows.items()])


def _kind(operator: str, number: int) -> SyncKind:
    if number < 0:
        return SyncKind.NOTHING
    return SyncKind.SIZE if operator in SIZED_BY_DATA else SyncKind.SCALAR


def _place(syncs: HostSyncs, kind: SyncKind, place: str, operator: str, tid: int, rows: Int64s) -> SyncPlace:
    calls = syncs.calls.take(rows)
    return SyncPlace(
        kind=kind,
        place=place,
        operator=operator,
        tid=tid,
        rows=rows,
        cost=Intervals.of(syncs.cost_start_ns[rows], syncs.cost_end_ns[rows]),
        spans=Intervals.of_table(calls),
        blocked_ns=int(calls.dur_ns.sum()),
    )
