"""Decoded Kineto events → columns, block by block, so that no event outlives its block."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET

from tightship_analyzers.trace.gathering import Array, Gathered, Interned, int32s
from tightship_analyzers.trace.kineto_events import (
    Args,
    Complete,
    Event,
    FlowEnd,
    FlowStart,
    Instant,
    Label,
    Number,
)
from tightship_analyzers.trace.limits import Limits
from tightship_analyzers.trace.names import clean
from tightship_analyzers.trace.numbers import MISSING, bandwidth, integers, nanoseconds

HOST_OPS, ANNOTATIONS, DEVICE_ANNOTATIONS, FRAMES, LAUNCHES, KERNELS, COPIES, SETS, SYNCS, OVERHEADS, NOTHING = range(
    11
)

TABLE_OF = {
    "cpu_op": HOST_OPS,
    "user_annotation": ANNOTATIONS,
    "gpu_user_annotation": DEVICE_ANNOTATIONS,
    "python_function": FRAMES,
    "cuda_runtime": LAUNCHES,
    "cuda_driver": LAUNCHES,
    "mtia_runtime": LAUNCHES,
    "glow_runtime": LAUNCHES,
    "xpu_runtime": LAUNCHES,
    "xpu_driver": LAUNCHES,
    "privateuse1_runtime": LAUNCHES,
    "privateuse1_driver": LAUNCHES,
    "kernel": KERNELS,
    "concurrent_kernel": KERNELS,
    "mtia_ccp_events": KERNELS,
    "hpu_op": KERNELS,
    "gpu_memcpy": COPIES,
    "gpu_memset": SETS,
    "cuda_sync": SYNCS,
    "cuda_event": SYNCS,
    "overhead": OVERHEADS,
    "Trace": NOTHING,
    "mtia_counters": NOTHING,
    "mtia_insight": NOTHING,
    "cuda_profiler_range": NOTHING,
    "gpu_pm_counter": NOTHING,
    "collective_comm": NOTHING,
    # The oldest exporters.
    "Operator": HOST_OPS,
    "Runtime": LAUNCHES,
    "Kernel": KERNELS,
    "Memcpy": COPIES,
    "Memset": SETS,
}
"""Kineto's categories (ActivityType.cpp) and the table that each goes to."""

LAUNCH_FLOWS = frozenset(("ac2g", "async_cpu_to_gpu", "async_gpu", "critical_path"))
"""Arrows that say what the correlation says already, or that other analysers drew."""


MOST_GRIDS = 100_000
"""Distinct grids that are remembered; a program has some hundreds."""


class _Groups(dict[str, Callable[[Event], None]]):
    """category → `append` of the list of its events."""

    __slots__ = ("lists",)

    def __init__(self) -> None:
        super().__init__()
        self.lists: dict[str, list[Event]] = {}

    def __missing__(self, category: str) -> Callable[[Event], None]:
        group = self.lists[category] = []
        append = self[category] = group.append
        return append


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
            limits.threads, (-1, "(more threads than the limit)")
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
        self._limits = limits

    @property
    def full(self) -> bool:
        """There were more distinct names, threads or shapes than the limits allow."""
        return self.names.full or self.threads.full or self.shapes.full

    def portions(self) -> Iterator[Any]:
        """All that was gathered, in pieces that another process can take; it is given up."""
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
        events, (names, threads, shapes), (unknown, process_names, thread_names) = next(portions)
        self.events += events
        known = {"name": self.names.numbers(names), "tid": self.threads.numbers(threads)}
        known |= {"group": known["name"], "dtype": known["name"], "shapes": self.shapes.numbers(shapes)}
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
        groups = _Groups()
        for event in events:
            groups[event.cat](event)
        for category, group in groups.lists.items():
            if category in LAUNCH_FLOWS:
                continue
            kinds = set(map(type, group))
            for kind in kinds:
                alike = group if len(kinds) == 1 else [event for event in group if type(event) is kind]
                self._add_alike(category, kind, alike)

    def _add_alike(self, category: str, kind: type, group: list[Any]) -> None:
        """Events of one phase and one category."""
        if kind is Complete:
            table = TABLE_OF.get(category)
            if table is None:
                self.unknown[category[:40]] += len(group)
            elif table != NOTHING:
                self._complete(table, group)
        elif kind is Instant:
            self._instants(group)
        elif kind is FlowStart:
            self._flows(self.flow_starts, group)
        elif kind is FlowEnd:
            self._flows(self.flow_ends, group)
        elif kind is Label:
            self._labels(group)

    def _complete(self, table: int, group: list[Complete]) -> None:
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
        if all(a.dims is UNSET for a in args) and all(a.old_dims is UNSET for a in args):
            return np.full(len(args), -1, dtype=np.int32)
        numbers = []
        for a in args:
            dims = a.dims if a.dims is not UNSET else a.old_dims
            if dims is UNSET:
                numbers.append(-1)
                continue
            key = bytes(dims), b"" if a.types is UNSET else bytes(a.types)
            numbers.append(shapes[key] if len(key[0]) <= limit and len(key[1]) <= limit else -1)
        return int32s(numbers)

    def _blocks(self, args: Sequence[Args]) -> Array:
        known = self.grids
        return integers([MISSING if a.grid is UNSET else known[bytes(a.grid)] for a in args])

    def _collectives(self, table: int, args: list[Args]) -> None:
        rows = [row for row, a in enumerate(args) if a.collective is not None]
        if not rows:
            return
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
        return np.array([-1 if value is None else self.names[str(value)] for value in values], dtype=np.int32)

    def _thread_rows(self, group: list[Any]) -> Array:
        pids, tids = [event.pid for event in group], [event.tid for event in group]
        if len(set(pids)) > 1:
            return self.threads.numbers(zip(pids, tids, strict=True))
        # Most groups are of one process: a number as key is found much sooner than a pair.
        rows = {tid: self.threads[pids[0], tid] for tid in dict.fromkeys(tids)}
        return int32s(list(map(rows.__getitem__, tids)))

    def _instants(self, group: list[Instant]) -> None:
        group = [event for event in group if event.cat == "cpu_instant_event" and event.args.bytes is not None]
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

    def _flows(self, table: Gathered, group: list[Any]) -> None:
        table.add(
            len(group),
            id=integers([event.id for event in group]),
            start_ns=nanoseconds([event.ts for event in group]),
            name=np.full(len(group), self.names[group[0].cat], dtype=np.int32),
            tid=self._thread_rows(group),
        )

    def _labels(self, group: list[Label]) -> None:
        for event in group:
            limit = self._limits.name_chars
            if event.name == "process_name" and len(self.process_names) < self._limits.threads:
                self.process_names[event.pid] = clean(str(event.args.name or ""), limit)
            elif event.name == "thread_name" and len(self.thread_names) < self._limits.threads:
                self.thread_names[event.pid, event.tid] = clean(str(event.args.name or ""), limit)


def _transfer_ns(table: int, args: Sequence[Args], sizes: Array) -> Array:
    if table == KERNELS:
        return np.full(len(args), MISSING, dtype=np.int64)
    told = [bandwidth(a.bandwidth) if a.bandwidth is not UNSET else 0.0 for a in args]
    # 1 GB/s is one byte per nanosecond.
    return np.array(
        [
            round(size / speed) if speed > 0 and size > 0 else MISSING
            for size, speed in zip(sizes.tolist(), told, strict=True)
        ],
        dtype=np.int64,
    )


def _either(values: list[Number], others: Callable[[], list[Number]]) -> Array:
    """`values`, and where one is missing the other one: an older key, or what the event was drawn under."""
    column = integers(values)
    if (column < 0).any():
        column = np.where(column < 0, integers(others()), column)
    return column
