"""Gathered columns → the canonical trace: absolute time, implausible events out, sorted tables, launches joined."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from tightship_analyzers.trace.columns import (
    Annotations,
    Bools,
    Collectives,
    DeviceEvents,
    EventKind,
    Evidence,
    Frames,
    HostOps,
    Int64s,
    Launches,
    Links,
    MemoryEvents,
    Overheads,
    Syncs,
    Table,
    blank_columns,
)
from tightship_analyzers.trace.communication import is_communication, launched_by_collectives
from tightship_analyzers.trace.coverage import coverage
from tightship_analyzers.trace.joins import in_order, launch_rows, new_rows, order_of
from tightship_analyzers.trace.kineto.columns import EventColumns
from tightship_analyzers.trace.kineto.growing_columns import Array, Gathered
from tightship_analyzers.trace.kineto.kinds import (
    ANNOTATIONS,
    COPIES,
    DEVICE_ANNOTATIONS,
    FRAMES,
    HOST_OPS,
    KERNELS,
    LAUNCHES,
    OVERHEADS,
    SETS,
    SYNCS,
)
from tightship_analyzers.trace.limits import Limits
from tightship_analyzers.trace.model import NO_NAME, DeviceProperties, Shapes, Thread, Trace
from tightship_analyzers.trace.names import Names, clean
from tightship_analyzers.trace.numbers import INVALID, integer
from tightship_platform.units import plural

YEAR_2001_NS = 10**18
"""Times above this are since the epoch; below, since some start of the machine's."""
LATEST_NS = 7 * 10**18
"""Year 2191; keeps sums of times inside int64."""

Columns = dict[str, Array]


class Assembler:
    """Builds one `Trace`; used once."""

    def __init__(
        self, columns: EventColumns, members: Mapping[str, object], limits: Limits, *, cut_off: bool = False
    ) -> None:
        self._cut_off = cut_off
        self.warnings: list[str] = []
        self._columns = columns
        self._members = members
        self._limits = limits
        self._implausible = 0
        self._negative = 0
        self._base_ns = 0
        self._earliest_ns, self._latest_ns = -LATEST_NS, LATEST_NS

    def trace(self, source: str) -> Trace:
        """The finished trace; the gathered columns are used up."""
        columns, members = self._columns, self._members
        tables = columns.tables
        self._set_clock()
        host_ops, op_rows = self._host_ops(tables[HOST_OPS])
        launches = Launches(**self._table(Launches, tables[LAUNCHES])[0])
        device_events, event_rows = self._device_events(launches)
        every = (
            host_ops,
            launches,
            device_events,
            annotations := Annotations(**self._table(Annotations, tables[ANNOTATIONS])[0]),
            device_annotations := Annotations(**self._table(Annotations, tables[DEVICE_ANNOTATIONS])[0]),
            frames := Frames(**self._table(Frames, tables[FRAMES])[0]),
            syncs := self._syncs(tables[SYNCS]),
            overheads := Overheads(**self._table(Overheads, tables[OVERHEADS])[0]),
        )
        memory_events = self._memory_events()
        links = self._links()
        collectives = self._collectives(host_ops, op_rows, device_events, event_rows)
        names = Names(str(name) for name in columns.names)
        is_recorded = np.zeros(len(host_ops), dtype=np.bool_)
        is_recorded[collectives.row[~collectives.on_device]] = True
        linked = launched_by_collectives(names, host_ops, is_recorded, launches, device_events)
        moves = (device_events.kind == EventKind.COPY) | (device_events.kind == EventKind.SET)
        _mark(device_events, linked & ~moves, Evidence.LINK)
        _mark(device_events, collectives.row[collectives.on_device], Evidence.ARGUMENTS)
        distributed = members.get("distributedInfo")
        distributed = distributed if isinstance(distributed, dict) else {}
        filled = [table for table in every if len(table)]
        start_ns = min((int(table.start_ns[0]) for table in filled), default=0)
        kind, covered_end_ns = coverage(
            names, host_ops, annotations, launches, device_events, event_rows, members, start_ns, cut_off=self._cut_off
        )
        self._warn()
        name, properties = self._reported(device_events) if kind == "gpu" else ("cpu", DeviceProperties())
        return Trace(
            source=source,
            device_name=name,
            device_kind=kind,
            device_properties=properties,
            rank=_count(distributed.get("rank")),
            world_size=_count(distributed.get("world_size")),
            distributed=distributed,
            base_ns=self._base_ns,
            start_ns=start_ns,
            end_ns=max((int(table.end_ns.max()) for table in filled), default=0),
            cut_off=self._cut_off,
            covered_end_ns=covered_end_ns,
            trace_id=clean(str(members.get("trace_id") or ""), 200),
            events=columns.events,
            warnings=self.warnings,
            names=names,
            threads=self._threads(),
            shapes=tuple(Shapes(_compact(dims), _compact(types)) for dims, types in columns.shapes),
            properties={key: value for key, value in members.items() if key != "distributedInfo"},
            host_ops=host_ops,
            annotations=annotations,
            device_annotations=device_annotations,
            frames=frames,
            launches=launches,
            device_events=device_events,
            syncs=syncs,
            memory_events=memory_events,
            overheads=overheads,
            links=links,
            collectives=collectives,
        )

    # -- time --------------------------------------------------------------------------------------------------

    def _set_clock(self) -> None:
        """Finds the base time and which starts are plausible: those within `limits.span_ns` of the median."""
        starts = np.concatenate(
            [np.empty(0, dtype=np.int64), *(part for table in self._columns.tables for part in table.parts("start_ns"))]
        )
        starts = starts[starts != INVALID]
        middle = 0
        if len(starts):
            starts.partition(len(starts) // 2)
            middle = int(starts[len(starts) // 2])
        base = self._members.get("baseTimeNanoseconds")
        if base is not None:
            base_ns = integer(base)
            if not 0 < base_ns < LATEST_NS // 2:
                self.warnings.append(f"baseTimeNanoseconds is {str(base)[:40]!r}; times were left as they are")
            elif middle > YEAR_2001_NS:
                self.warnings.append("baseTimeNanoseconds was not added, because the times are absolute already")
            else:
                self._base_ns = base_ns
        self._earliest_ns = max(middle - self._limits.span_ns, -LATEST_NS)
        self._latest_ns = min(middle + self._limits.span_ns, LATEST_NS)

    def _plausible(self, start_ns: Int64s, dur_ns: Int64s | None) -> Bools:
        sound = (start_ns >= self._earliest_ns) & (start_ns <= self._latest_ns)
        if dur_ns is not None:
            negative = sound & (dur_ns < 0) & (dur_ns != INVALID)
            self._negative += int(negative.sum())
            sound &= (dur_ns <= self._limits.span_ns) & ~negative & (dur_ns != INVALID)
            self._implausible += len(sound) - int(sound.sum()) - int(negative.sum())
        else:
            self._implausible += len(sound) - int(sound.sum())
        return sound

    def _table(self, into: type[Table], gathered: Gathered, **extra: Array) -> tuple[Columns, Int64s]:
        """Plausible rows in order of start, enclosing before enclosed; also the gathered row of each."""
        start_ns = gathered.column("start_ns")
        dur_ns = gathered.column("dur_ns")
        rows = np.flatnonzero(self._plausible(start_ns, dur_ns))
        as_gathered = len(rows) == len(start_ns)
        if not as_gathered:
            start_ns, dur_ns = start_ns[rows], dur_ns[rows]
        if len(rows) and not in_order(start_ns, dur_ns):
            as_gathered = False
            order = order_of(start_ns, dur_ns)
            rows, start_ns, dur_ns = rows[order], start_ns[order], dur_ns[order]
        start_ns = start_ns + self._base_ns
        columns: Columns = {} if gathered.rows else blank_columns(into)
        columns |= {"start_ns": start_ns, "end_ns": start_ns + dur_ns}
        for name in gathered.columns():
            values = gathered.column(name)
            columns[name] = values if as_gathered else values[rows]
        for name, values in extra.items():
            columns[name] = values if as_gathered else values[rows]
        return columns, rows

    # -- the tables --------------------------------------------------------------------------------------------

    def _host_ops(self, gathered: Gathered) -> tuple[HostOps, Int64s]:
        columns, rows = self._table(HostOps, gathered)
        columns.pop("pid", None)
        pids = np.array([_fits(pid) for pid, _ in self._columns.threads] or [-1], dtype=np.int64)
        return HostOps(pid=pids[columns["tid"]], **columns), rows

    def _device_events(self, launches: Launches) -> tuple[DeviceEvents, Int64s]:
        merged = Gathered()
        kinds = []
        for table, kind in ((KERNELS, EventKind.KERNEL), (COPIES, EventKind.COPY), (SETS, EventKind.SET)):
            gathered = self._columns.tables[table]
            kinds.append(np.full(gathered.rows, kind, dtype=np.int8))
            merged.take_over(gathered)
        columns, rows = self._table(DeviceEvents, merged, kind=np.concatenate(kinds))
        columns["device"] = np.clip(columns["device"], -1, 2**31 - 1).astype(np.int32)
        names = [str(name) for name in self._columns.names]
        communicates = np.array([is_communication(name) for name in names] or [False])
        moves = np.array([name.startswith(("dma_", "Memcpy", "hipMemcpy")) for name in names] or [False])
        kernels = columns["kind"] == EventKind.KERNEL
        columns["kind"][kernels & moves[columns["name"]]] = EventKind.COPY
        columns["launch"] = launch_rows(launches, columns["correlation"], columns["start_ns"])
        columns["evidence"] = np.full(len(rows), Evidence.NONE, dtype=np.int8)
        events = DeviceEvents(**columns)
        _mark(events, kernels & ~moves[events.name] & communicates[events.name], Evidence.NAME)
        return events, rows

    def _syncs(self, gathered: Gathered) -> Syncs:
        columns, _ = self._table(Syncs, gathered)
        columns["device"] = np.clip(columns["device"], -1, 2**31 - 1).astype(np.int32)
        return Syncs(**columns)

    def _memory_events(self) -> MemoryEvents:
        gathered = self._columns.memory
        start_ns = gathered.column("start_ns")
        rows = np.flatnonzero(self._plausible(start_ns, None))
        rows = rows[np.argsort(start_ns[rows], kind="stable")]
        start_ns = start_ns[rows] + self._base_ns
        columns = {name: gathered.column(name)[rows] for name in gathered.columns()} or blank_columns(MemoryEvents)
        return MemoryEvents(**columns | {"start_ns": start_ns, "end_ns": start_ns})

    def _links(self) -> Links:
        """Arrows whose two ends are there; of several ends with one id the first counts."""
        tails, heads = self._columns.flow_starts, self._columns.flow_ends
        tail_ids, tail_rows = np.unique(tails.column("id"), return_index=True)
        head_ids, head_rows = np.unique(heads.column("id"), return_index=True)
        _, left, right = np.intersect1d(tail_ids, head_ids, assume_unique=True, return_indices=True)
        start_ns = tails.column("start_ns")[tail_rows[left]]
        end_ns = heads.column("start_ns")[head_rows[right]]
        rows = np.flatnonzero(self._plausible(start_ns, None) & self._plausible(end_ns, None))
        rows = rows[np.argsort(start_ns[rows], kind="stable")]
        return Links(
            start_ns=start_ns[rows] + self._base_ns,
            end_ns=end_ns[rows] + self._base_ns,
            name=tails.column("name", np.int32)[tail_rows[left][rows]],
            tid=tails.column("tid", np.int32)[tail_rows[left][rows]],
            to_tid=heads.column("tid", np.int32)[head_rows[right][rows]],
        )

    def _collectives(
        self, host_ops: HostOps, op_rows: Int64s, device_events: DeviceEvents, event_rows: Int64s
    ) -> Collectives:
        gathered = self._columns.collectives
        on_device = gathered.column("on_device", np.bool_)
        old_row = gathered.column("row")
        row = np.where(on_device, new_rows(event_rows, old_row), new_rows(op_rows, old_row))
        # An event that was dropped takes its collective along.
        kept = np.flatnonzero(row >= 0)
        row, on_device = row[kept], on_device[kept]
        start_ns, end_ns = np.empty(len(row), np.int64), np.empty(len(row), np.int64)
        for table, mask in ((device_events, on_device), (host_ops, ~on_device)):
            start_ns[mask], end_ns[mask] = table.start_ns[row[mask]], table.end_ns[row[mask]]
        order = np.argsort(start_ns, kind="stable")
        rest = {name: gathered.column(name, np.int32)[kept][order] for name in ("name", "group", "dtype")}
        rest |= {
            name: gathered.column(name)[kept][order] for name in ("group_size", "seq", "in_elements", "out_elements")
        }
        return Collectives(
            start_ns=start_ns[order], end_ns=end_ns[order], row=row[order], on_device=on_device[order], **rest
        )

    # -- everything else ---------------------------------------------------------------------------------------

    def _threads(self) -> tuple[Thread, ...]:
        labels = self._columns.thread_names
        threads = []
        for pid, tid in self._columns.threads:
            name = labels.get((pid, tid), "") or clean(
                " ".join(part for part in (pid, tid) if isinstance(part, str)), self._limits.name_chars
            )
            threads.append(Thread(_fits(pid), _fits(tid), name))
        return tuple(threads)

    def _reported(self, device_events: DeviceEvents) -> tuple[str, DeviceProperties]:
        """Name and properties of the device that had most events."""
        numbers, counts = np.unique(device_events.device, return_counts=True)
        busiest = int(numbers[counts.argmax()]) if len(numbers) else None
        listed = self._members.get("deviceProperties")
        known = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
        own = next(iter([entry for entry in known if entry.get("id") == busiest] or known), {})
        memory = own.get("totalGlobalMem")
        return clean(str(own.get("name") or ""), 200) or NO_NAME, DeviceProperties(
            units=_count(own.get("numSms")) or None,
            memory_bytes=memory if _fits(memory) > 0 else None,
            major=_count(own.get("computeMajor")) or None,
            minor=_count(own.get("computeMinor")),
            warp=_count(own.get("warpSize")) or None,
        )

    def _warn(self) -> None:
        columns = self._columns
        if self._implausible:
            self.warnings.append(f"left out: {plural(self._implausible, 'event')} with missing or impossible times")
        if self._negative:
            self.warnings.append(f"left out: {plural(self._negative, 'event')} with a negative duration")
        for category, count in sorted(columns.unknown.items())[:10]:
            self.warnings.append(f"left out: {plural(count, 'event')} of unknown category {category!r}")
        if columns.full:
            self.warnings.append("more distinct names, shapes or threads than the limits allow; the rest share one")


def _mark(events: DeviceEvents, rows: Array, evidence: Evidence) -> None:
    """These rows are collectives, and why."""
    events.kind[rows], events.evidence[rows] = EventKind.COLLECTIVE, evidence


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31 else None


def _fits(value: object) -> int:
    return value if isinstance(value, int) and abs(value) < 2**63 else -1


def _compact(text: bytes) -> str:
    """JSON without white space, however it was printed."""
    try:
        return msgspec.json.format(text, indent=-1).decode("utf-8", "replace")
    except msgspec.DecodeError:
        return ""
