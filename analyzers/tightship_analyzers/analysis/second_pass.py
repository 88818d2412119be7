"""Two recordings of one rank made into one trace: times of the second, places and shapes of the first.

[Note: two recordings, one trace] The first recording has stacks and shapes, and recording them took so long that its
times say little; the second has neither, and its times are nearly the job's own. Jobs repeat themselves: a step of the
second is matched with one of the first in which the training thread called the same operators in the same order. An
operator then has the shapes of its counterpart. A Python frame begins and ends somewhere among the starts and ends of
operators; it keeps its place among them, and between two of them its proportion. Frames that are open during all steps
(`main`, the training loop) are open throughout. A step without a counterpart has only these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import numpy as np

from tightship_analyzers.facts.memo import Facts, NotApplicable
from tightship_analyzers.facts.window.steps import Steps
from tightship_analyzers.trace.model import Frames, HostOps, Int64s, MemoryEvents, Names, Table, Thread, Trace
from tightship_platform.units import plural

Moved = TypeVar("Moved", Frames, MemoryEvents)

MATCHED_FRAC = 0.5
"""Share of the second recording's steps that need a counterpart: where most have none, the job did other work."""


def join_passes(first: Trace, second: Trace, *, matched_frac: float = MATCHED_FRAC) -> Trace | NotApplicable:
    """The second recording with the frames, shapes and allocations of the first. See [Note: two recordings, one trace].

    :param matched_frac: share of its steps of which more need a counterpart; below 0 none does.
    :returns: or why the two cannot be joined.
    """
    ours, theirs = Facts(second).find(Steps), Facts(first).find(Steps)
    if ours is None or theirs is None:
        return NotApplicable(f"the {'second' if ours is None else 'first'} recording holds no whole step")
    if second.threads[ours.tid][:2] != first.threads[theirs.tid][:2]:
        return NotApplicable("the steps of the two recordings are of different threads")
    texts = list(second.names)
    known = {text: number for number, text in enumerate(texts)}
    names = np.array([known.get(text, -1) for text in first.names], dtype=np.int32)
    pairs = list(_pairs(first.host_ops, theirs, second.host_ops, ours, names))
    if len(pairs) <= matched_frac * ours.count:
        return NotApplicable(
            f"of {plural(ours.count, 'step')} of the second recording {len(pairs)} called the same operators as one of "
            "the first"
        )
    threads = _Threads(second.threads)
    shapes = second.host_ops.shapes.copy()
    places = _Places(first.frames, first.memory_events)
    for tid in np.unique(np.concatenate((first.host_ops.tid, first.frames.tid))).tolist():
        own = threads.row(first.threads[tid])
        before = first.host_ops.take(first.host_ops.tid == tid)
        rows = np.flatnonzero(second.host_ops.tid == own)
        steps = [
            _Pair.of(before, theirs, matched, second.host_ops, rows, ours, number, names) for number, matched in pairs
        ]
        for pair in steps:
            shapes[pair.rows] = np.where(pair.shapes >= 0, pair.shapes + len(second.shapes), -1)
        places.move(tid, own, steps, theirs, second)
    used = np.unique(places.frame_names)
    new = {number: known.get(first.names[number], len(texts) + at) for at, number in enumerate(used.tolist())}
    frames = places.frames(np.array([new.get(number, -1) for number in range(len(first.names))], dtype=np.int32))
    return replace(
        second,
        names=Names([*texts, *(first.names[number] for number in used.tolist())]),
        threads=threads.all,
        shapes=(*second.shapes, *first.shapes),
        host_ops=replace(second.host_ops, shapes=shapes),
        frames=frames,
        memory_events=places.memory() if len(first.memory_events) else second.memory_events,
    )


def _pairs(before: HostOps, theirs: Steps, after: HostOps, ours: Steps, names: np.ndarray) -> Iterator[tuple[int, int]]:
    """(step of the second recording, step of the first) where the training thread called the same operators."""
    matches: dict[bytes, int] = {}
    for number, called in enumerate(_called(before, theirs)):
        matches.setdefault(names[before.name[called]].tobytes(), number)
    for number, called in enumerate(_called(after, ours)):
        found = matches.get(after.name[called].tobytes())
        if found is not None:
            yield number, found


def _called(ops: HostOps, steps: Steps) -> Iterator[Int64s]:
    """Per step the rows of the operators that the training thread began in it."""
    rows = np.flatnonzero(ops.tid == steps.tid)
    return iter(np.split(rows, np.searchsorted(ops.start_ns[rows], steps.host_bounds_ns))[1:-1])


class _Threads:
    """The threads of the joined trace: those of the second recording, and what the first one has besides."""

    def __init__(self, threads: tuple[Thread, ...]) -> None:
        self._all = list(threads)
        self._rows = {thread[:2]: row for row, thread in enumerate(threads)}

    @property
    def all(self) -> tuple[Thread, ...]:
        return tuple(self._all)

    def row(self, thread: Thread) -> int:
        """Its row; a new one for a thread that the second recording does not have."""
        if thread[:2] not in self._rows:
            self._rows[thread[:2]] = len(self._all)
            self._all.append(thread)
        return self._rows[thread[:2]]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Pair:
    """One thread in a step of the second recording and in its counterpart."""

    step: int
    """Number of the counterpart."""
    start_ns: int
    """Start of the counterpart."""
    end_ns: int
    known_ns: Int64s
    """Instants of the counterpart, ascending from its start to its end …"""
    moved_ns: Int64s
    """… and when the same happened in the second recording."""
    rows: Int64s
    """Operators of the second recording whose counterparts are known; rows of its table."""
    shapes: np.ndarray
    """Their shapes, as the first recording numbers them."""

    @classmethod
    def of(
        cls,
        before: HostOps,
        theirs: Steps,
        matched: int,
        after: HostOps,
        rows: Int64s,
        ours: Steps,
        number: int,
        names: np.ndarray,
    ) -> _Pair:
        """:param before: operators of the thread in the first recording.
        :param rows: those of the second."""
        known, moved = theirs.host_bounds_ns[matched : matched + 2], ours.host_bounds_ns[number : number + 2]
        old = slice(*np.searchsorted(before.start_ns, known).tolist())
        new = rows[slice(*np.searchsorted(after.start_ns[rows], moved).tolist())]
        if not np.array_equal(names[before.name[old]], after.name[new]):
            return cls(
                step=matched,
                start_ns=int(known[0]),
                end_ns=int(known[1]),
                known_ns=known,
                moved_ns=moved,
                rows=new[:0],
                shapes=before.shapes[:0],
            )
        known_ns = np.concatenate((known, before.start_ns[old], np.minimum(before.end_ns[old], known[1])))
        moved_ns = np.concatenate((moved, after.start_ns[new], np.minimum(after.end_ns[new], moved[1])))
        order = np.argsort(known_ns, kind="stable")
        return cls(
            step=matched,
            start_ns=int(known[0]),
            end_ns=int(known[1]),
            known_ns=known_ns[order],
            moved_ns=np.maximum.accumulate(np.clip(moved_ns[order], moved[0], moved[1])),
            rows=new,
            shapes=before.shapes[old],
        )

    def when(self, time_ns: Int64s) -> Int64s:
        """Instants of the counterpart, moved; what is outside of it becomes its start or end."""
        zero, moved_zero = self.known_ns[0], self.moved_ns[0]
        moved = np.interp(time_ns - zero, self.known_ns - zero, self.moved_ns - moved_zero)
        rounded: Int64s = np.rint(moved).astype(np.int64) + moved_zero
        return rounded


class _Places:
    """Frames and allocations of the first recording, moved into the second, thread by thread."""

    def __init__(self, frames: Frames, memory: MemoryEvents) -> None:
        self._frames, self._memory = frames, memory
        self._moved: dict[type[Table], list[tuple[Int64s, Int64s, Int64s, int]]] = {Frames: [], MemoryEvents: []}
        """(rows, start, end, thread) of each piece."""

    def move(self, tid: int, own: int, steps: list[_Pair], theirs: Steps, second: Trace) -> None:
        """Move those of one thread into every step of the second recording that has a counterpart."""
        rows = np.flatnonzero(self._frames.tid == tid)
        start_ns, end_ns = self._frames.start_ns[rows], self._frames.end_ns[rows]
        first_ns = min((pair.start_ns for pair in steps), default=theirs.host_start_ns)
        last_ns = max((pair.end_ns for pair in steps), default=theirs.host_end_ns)
        # The tracer ends what is still open when it has seen its last call, which may be before the last step ends.
        outer = (start_ns <= first_ns) & (end_ns >= min(last_ns, int(end_ns.max(initial=first_ns))))
        always = np.full(int(outer.sum()), second.start_ns, dtype=np.int64)
        self._moved[Frames].append((rows[outer], always, np.full_like(always, second.end_ns), own))
        within: dict[int, Int64s] = {}
        events = np.flatnonzero(self._memory.tid == tid)
        for pair in steps:
            if pair.step not in within:
                within[pair.step] = np.flatnonzero(~outer & (start_ns < pair.end_ns) & (end_ns > pair.start_ns))
            some = within[pair.step]
            self._moved[Frames].append((rows[some], pair.when(start_ns[some]), pair.when(end_ns[some]), own))
            time_ns = self._memory.start_ns[events]
            seen = (time_ns >= pair.start_ns) & (time_ns < pair.end_ns)
            when = pair.when(time_ns[seen])
            self._moved[MemoryEvents].append((events[seen], when, when, own))

    @property
    def frame_names(self) -> np.ndarray:
        """Names of the frames that were moved, as the first recording numbers them."""
        return np.concatenate([self._frames.name[rows] for rows, *_ in self._moved[Frames]])

    def frames(self, names: np.ndarray) -> Frames:
        """The frames, by start.

        :param names: numbers of the first recording's names in the joined trace.
        """
        table = self._table(Frames, self._frames)
        nobody = np.full(len(table), -1, dtype=np.int64)
        # One call of the first recording stands for several of the second: its number would not be its own.
        return replace(table, name=names[table.name], python_id=nobody, parent_id=nobody)

    def memory(self) -> MemoryEvents:
        """The allocations, by time."""
        return self._table(MemoryEvents, self._memory)

    def _table(self, kind: type[Moved], table: Moved) -> Moved:
        rows, start_ns, end_ns, tid = (
            np.concatenate(part)
            for part in zip(
                *((rows, start, end, np.full(len(rows), own)) for rows, start, end, own in self._moved[kind]),
                strict=True,
            )
        )
        order = np.lexsort((rows, -end_ns, start_ns))
        columns: Mapping[str, np.ndarray] = {field.name: getattr(table, field.name)[rows] for field in fields(table)}
        moved = {**columns, "start_ns": start_ns, "end_ns": end_ns, "tid": tid.astype(np.int32)}
        return kind(**{name: column[order] for name, column in moved.items()})
