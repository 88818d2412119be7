"""Decoded Kineto events → columns, block by block, so that no event outlives its block."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET

from tightship_analyzers.trace.kineto.growing_columns import Array, Gathered, Interned, int32s
from tightship_analyzers.trace.kineto.kinds import (
    ANNOTATIONS,
    COPIES,
    DEVICE_ANNOTATIONS,
    FORWARD_BACKWARD,
    FRAMES,
    HOST_OPS,
    KERNELS,
    LAUNCHES,
    NOTHING,
    OPS_AND_ANNOTATIONS,
    SETS,
    SYNCS,
    TABLE_OF_KIND,
    Allocation,
    Args,
    ArrowHead,
    ArrowTail,
    AutogradArrow,
    Event,
    Label,
    Number,
    Uncategorised,
    is_annotation,
)
from tightship_analyzers.trace.limits import Limits
from tightship_analyzers.trace.names import clean
from tightship_analyzers.trace.numbers import MISSING, bandwidth, integers, nanoseconds

MOST_GRIDS = 100_000
"""Distinct grids that are remembered; a program has some hundreds."""


WORTHWHILE = 200
"""Events of one kind that are made into columns at a time: numpy takes some microseconds for each call."""
MOST_BLOCKS = 4
"""After so many blocks all are: an event that waits keeps the text of its block in memory."""


class _Groups(dict[type, Callable[[Event], None]]):
    """kind of event → `append` of the list of its events."""

    __slots__ = ("lists",)

    def __init__(self) -> None:
        super().__init__()
        self.lists: dict[type, list[Any]] = {}

    def __missing__(self, kind: type) -> Callable[[Event], None]:
        group: list[Event] = []
        self.lists[kind] = group
        append = self[kind] = group.append
        return append


class _ThreadsOf(dict[int | str, int]):
    """tid → the number of that thread of one process."""

    __slots__ = ("pid", "threads")

    def __init__(self, pid: int | str, threads: Interned[tuple[int | str, int | str]]) -> None:
        super().__init__()
        self.pid = pid
        self.threads = threads

    def __missing__(self, tid: int | str) -> int:
        number = self.threads[self.pid, tid]
        if not self.threads.full:
            self[tid] = number
        return number


def _numbered(thread: tuple[int | str, int | str]) -> tuple[int | str, int | str]:
    """The oldest exporters write a thread's number as text in some events and as a number in others."""
    pid, tid = thread
    return (pid, int(tid)) if isinstance(tid, str) and len(tid) < 20 and tid.isdecimal() else thread


class _Grids(dict[bytes, int]):
    """Text of a grid → its blocks, decoded once per distinct text; what is no plausible grid is missing."""

    __slots__ = ()

    def __missing__(self, text: bytes) -> int:
        try:
            sizes = msgspec.json.decode(text, type=list[int])
        except msgspec.MsgspecError:
            sizes = []
        blocks = math.prod(sizes) if 0 < len(sizes) <= 3 and min(sizes) > 0 else MISSING
        blocks = blocks if blocks < 2**62 else MISSING
        if len(self) < MOST_GRIDS:
            self[text] = blocks
        return blocks


class EventColumns:
    """Takes events of one trace, block by block."""

    def __init__(self, limits: Limits) -> None:
        self.events = 0
        self.names: Interned[str] = Interned(
            limits.name_table_bytes, "(more names than the limit)", len, lambda name: clean(name, limits.name_chars)
        )
        self.threads: Interned[tuple[int | str, int | str]] = Interned(
            limits.threads, (-1, "(more threads than the limit)"), cut=_numbered
        )
        self.shapes: Interned[tuple[bytes, bytes]] = Interned(
            limits.name_table_bytes, (b"", b""), lambda key: len(key[0]) + len(key[1]) + 1
        )
        self.grids = _Grids()
        self.tables = tuple(Gathered() for _ in range(NOTHING))
        self.memory = Gathered()
        self.flow_starts = Gathered()
        self.flow_ends = Gathered()
        self.collectives = Gathered()
        self.process_names: dict[int | str, str] = {}
        self.thread_names: dict[tuple[int | str, int | str], str] = {}
        self.unknown: defaultdict[str, int] = defaultdict(int)
        """Events whose category has no table, by category."""
        self._waiting = _Groups()
        self._given = 0
        self._threads_of = _ThreadsOf(-1, self.threads)
        self._limits = limits

    @property
    def full(self) -> bool:
        """There were more distinct names, threads or shapes than the limits allow."""
        return self.names.full or self.threads.full or self.shapes.full

    def portions(self) -> Iterator[Any]:
        """All that was gathered, in pieces that another process can take; it is given up."""
        self.add_waiting()
        yield (
            self.events,
            (list(self.names), list(self.threads), list(self.shapes)),
            (dict(self.unknown), self.process_names, self.thread_names),
        )
        for number, gathered in enumerate(self._every()):
            for rows, columns in gathered.portions():
                yield number, rows, columns

    def append(self, portions: Iterator[Any]) -> None:
        """The portions of the events that come after those seen so far; the result is as if they had been added."""
        self.add_waiting()
        events, (names, threads, shapes), (unknown, process_names, thread_names) = next(portions)
        self.events += events
        known = {"name": self.names.numbers(names), "tid": self.threads.numbers(threads)}
        known |= dict.fromkeys(("group", "dtype", "kernel"), known["name"])
        known |= {"shapes": self.shapes.numbers(shapes)}
        # A number of -1 means that there is none: the extra last cell answers for it.
        known = {column: np.append(numbers, np.int32(-1)) for column, numbers in known.items()}
        for category, count in unknown.items():
            self.unknown[category] += count
        self.process_names |= process_names
        self.thread_names |= thread_names
        before = self.tables[HOST_OPS].rows, self.tables[KERNELS].rows
        every = self._every()
        for number, rows, columns in portions:
            for column in columns.keys() & known.keys():
                columns[column] = known[column][columns[column]]
            if every[number] is self.collectives:
                columns["row"] = columns["row"] + np.where(columns["on_device"], before[1], before[0])
            every[number].add(rows, **columns)

    def _every(self) -> tuple[Gathered, ...]:
        return *self.tables, self.memory, self.flow_starts, self.flow_ends, self.collectives

    def add(self, events: Sequence[Event]) -> None:
        """One block of events."""
        self.events += len(events)
        groups = self._waiting
        for event in events:
            groups[type(event)](event)
        self._given += 1
        self._add_groups(WORTHWHILE if self._given % MOST_BLOCKS else 1)

    def add_waiting(self) -> None:
        """What was kept for larger groups; after the last event."""
        self._add_groups(1)

    def _add_groups(self, least: int) -> None:
        for kind, group in self._waiting.lists.items():
            if len(group) >= least:
                self._add_alike(kind, group)
                group.clear()

    def _add_alike(self, kind: type, group: list[Any]) -> None:
        """Events of one kind."""
        table = TABLE_OF_KIND.get(kind)
        if table is not None:
            if table == OPS_AND_ANNOTATIONS:
                self._ops_and_annotations(group)
            elif table != NOTHING:
                self._complete(table, group)
        elif kind is Uncategorised:
            for event in group:
                self.unknown[event.cat[:40]] += 1
        elif issubclass(kind, Allocation):
            self._allocations(group)
        elif issubclass(kind, AutogradArrow):
            tails = [event for event in group if event.ph == "s"]
            heads = [event for event in group if event.ph == "f"]
            self._arrows(self.flow_starts, FORWARD_BACKWARD, tails)
            self._arrows(self.flow_ends, FORWARD_BACKWARD, heads)
        elif kind is ArrowTail or kind is ArrowHead:
            for category in dict.fromkeys(event.cat for event in group):
                alike = [event for event in group if event.cat == category]
                self._arrows(self.flow_starts if kind is ArrowTail else self.flow_ends, category, alike)
        elif kind is Label:
            self._labels(group)

    def _ops_and_annotations(self, group: list[Any]) -> None:
        marks = [is_annotation(event.name) for event in group]
        for table, of_table in ((HOST_OPS, False), (ANNOTATIONS, True)):
            chosen = [event for event, mark in zip(group, marks, strict=True) if mark == of_table]
            if chosen:
                self._complete(table, chosen)

    def _complete(self, table: int, group: list[Any]) -> None:
        args = [event.args for event in group]
        columns: dict[str, Array] = {
            "start_ns": nanoseconds([event.ts for event in group]),
            "dur_ns": nanoseconds([event.dur for event in group]),
            "name": self.names.numbers([event.name for event in group]),
        }
        if table not in (KERNELS, COPIES, SETS, SYNCS):
            columns["tid"] = self._thread_rows(group)
        if table == FRAMES:
            columns["python_id"] = integers([a.python_id for a in args])
            columns["parent_id"] = integers([a.python_parent_id for a in args])
        elif table in (LAUNCHES, KERNELS, COPIES, SETS, SYNCS):
            columns["correlation"] = integers([a.correlation for a in args])
        if table in (HOST_OPS, ANNOTATIONS, DEVICE_ANNOTATIONS, LAUNCHES, KERNELS, COPIES, SETS):
            columns["external_id"] = _either([a.external_id for a in args], lambda: [a.old_external_id for a in args])
        if table == LAUNCHES:
            columns["kernel"] = self._texts([a.kernel for a in args])
        if table == HOST_OPS:
            columns["seq"] = integers([a.sequence for a in args])
            columns["shapes"] = self._shapes(args)
        if table in (KERNELS, COPIES, SETS, SYNCS):
            columns["device"] = _either([a.device for a in args], lambda: [event.pid for event in group])
            columns["stream"] = _either([a.stream for a in args], lambda: [event.tid for event in group])
        if table == SYNCS:
            columns["wait_stream"] = integers([a.wait_stream for a in args])
            columns["wait_record"] = integers([a.wait_record for a in args])
        if table in (KERNELS, COPIES, SETS):
            columns["bytes"] = _either([a.bytes for a in args], lambda: [a.size for a in args])
            columns["transfer_ns"] = _transfer_ns(table, args, columns["bytes"])
            columns["blocks"] = self._blocks(args)
        if table in (HOST_OPS, KERNELS):
            self._collectives(table, args)
        self.tables[table].add(len(group), **columns)

    def _shapes(self, args: Sequence[Args]) -> Array:
        shapes, limit = self.shapes, self._limits.name_chars
        dims = [a.dims for a in args]
        if dims.count(UNSET) == len(dims):
            dims = [a.old_dims for a in args]
            if dims.count(UNSET) == len(dims):
                return np.full(len(args), -1, dtype=np.int32)
        numbers = []
        for a in args:
            recorded = a.dims if a.dims is not UNSET else a.old_dims
            if recorded is UNSET:
                numbers.append(-1)
                continue
            key = bytes(recorded), b"" if a.types is UNSET else bytes(a.types)
            numbers.append(shapes[key] if len(key[0]) <= limit and len(key[1]) <= limit else -1)
        return int32s(numbers)

    def _blocks(self, args: Sequence[Args]) -> Array:
        known = self.grids
        return integers([MISSING if a.grid is UNSET else known[bytes(a.grid)] for a in args])

    def _collectives(self, table: int, args: list[Args]) -> None:
        names = [a.collective for a in args]
        if names.count(None) == len(names):
            return
        rows = [row for row, name in enumerate(names) if name is not None]
        chosen = [args[row] for row in rows]
        self.collectives.add(
            len(rows),
            row=np.array(rows, dtype=np.int64) + self.tables[table].rows,
            on_device=np.full(len(rows), table == KERNELS),
            name=self._texts([a.collective for a in chosen]),
            group=self._texts([a.group for a in chosen]),
            dtype=self._texts([a.dtype for a in chosen]),
            group_size=integers([a.group_size for a in chosen]),
            seq=integers([a.collective_seq for a in chosen]),
            in_elements=integers([a.in_elements for a in chosen]),
            out_elements=integers([a.out_elements for a in chosen]),
        )

    def _texts(self, values: list[int | str | None]) -> Array:
        if values.count(None) == len(values):
            return np.full(len(values), MISSING, dtype=np.int32)
        return np.array([-1 if value is None else self.names[str(value)] for value in values], dtype=np.int32)

    def _thread_rows(self, group: list[Any]) -> Array:
        pids, tids = [event.pid for event in group], [event.tid for event in group]
        if pids.count(pids[0]) < len(pids):
            return self.threads.numbers(zip(pids, tids, strict=True))
        # Most groups are of one process: a number as key is found much sooner than a pair.
        return np.fromiter(map(self._of_process(pids[0]).__getitem__, tids), dtype=np.int32, count=len(tids))

    def _of_process(self, pid: int | str) -> _ThreadsOf:
        if self._threads_of.pid != pid:
            self._threads_of = _ThreadsOf(pid, self.threads)
        return self._threads_of

    def _allocations(self, group: list[Any]) -> None:
        group = [event for event in group if event.args.bytes is not None]
        if not group:
            return
        args = [event.args for event in group]
        on_device = integers([a.device_type for a in args]) > 0
        self.memory.add(
            len(group),
            start_ns=nanoseconds([event.ts for event in group]),
            tid=self._thread_rows(group),
            device=np.where(on_device, integers([a.device_id for a in args]), -1).astype(np.int32),
            address=integers([a.address for a in args]),
            bytes=integers([a.bytes for a in args]),
            allocated=integers([a.allocated for a in args]),
            reserved=integers([a.reserved for a in args]),
        )

    def _arrows(self, table: Gathered, category: str, group: list[Any]) -> None:
        if not group:
            return
        table.add(
            len(group),
            id=integers([event.id for event in group]),
            start_ns=nanoseconds([event.ts for event in group]),
            name=np.full(len(group), self.names[category], dtype=np.int32),
            tid=self._thread_rows(group),
        )

    def _labels(self, group: list[Label]) -> None:
        for event in group:
            limit = self._limits.name_chars
            if event.name == "process_name" and len(self.process_names) < self._limits.threads:
                self.process_names[event.pid] = clean(str(event.args.name or ""), limit)
            elif event.name == "thread_name" and len(self.thread_names) < self._limits.threads:
                self.thread_names[_numbered((event.pid, event.tid))] = clean(str(event.args.name or ""), limit)


def _transfer_ns(table: int, args: Sequence[Args], sizes: Array) -> Array:
    if table == KERNELS:
        return np.full(len(args), MISSING, dtype=np.int64)
    recorded = [bandwidth(a.bandwidth) if a.bandwidth is not UNSET else 0.0 for a in args]
    # 1 GB/s is one byte per nanosecond.
    return np.array(
        [
            round(size / speed) if speed > 0 and size > 0 else MISSING
            for size, speed in zip(sizes.tolist(), recorded, strict=True)
        ],
        dtype=np.int64,
    )


def _either(values: list[Number], others: Callable[[], list[Number]]) -> Array:
    """`values`, and where one is missing the other one: an older key, or what the event was drawn under."""
    column = integers(values)
    if (column < 0).any():
        column = np.where(column < 0, integers(others()), column)
    return column
