"""The step filter: what of a trace belongs to finished steps."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TypeVar

import numpy as np

from tightship_analyzers.trace.columns import Collectives, DeviceEvents, Int64s, Launches, Syncs, Table
from tightship_analyzers.trace.joins import launch_rows, new_rows
from tightship_analyzers.trace.model import Trace
from tightship_analyzers.trace.step_marks import PROFILER

T = TypeVar("T", bound=Table)


def last_step(trace: Trace) -> tuple[str, int] | None:
    """Name and start (ns) of the step that the filter drops; None where fewer than two steps are marked."""
    marked = marked_steps(trace)
    return marked[-1][:2] if len(marked) > 1 else None


def marked_steps(trace: Trace) -> list[tuple[str, int, int]]:
    """(name, start, end) of each, in order of the start of its last mark.

    Marks of one name that share time are one step (torch writes one a thread); marks that do not are several, for a
    program may count from 0 again in each epoch.
    """
    marks = trace.annotations_named(PROFILER)
    steps: list[list[int]] = []
    newest: dict[int, list[int]] = {}
    for name, start, end in zip(marks.name.tolist(), marks.start_ns.tolist(), marks.end_ns.tolist(), strict=True):
        step = newest.get(name)
        if step is None or start >= step[2]:
            step = newest[name] = [name, start, end, start]
            steps.append(step)
        step[2:] = max(step[2], end), start
    steps.sort(key=lambda step: step[3])
    return [(trace.names[name], start, end) for name, start, end, _ in steps]


def without_last_step(trace: Trace) -> Trace:
    """The trace without its last marked step, which recording usually cut off; unchanged with fewer than two.

    Definition of HolisticTraceAnalysis: what the host began before the last `ProfilerStep#` began stays; what the
    device did stays where a call that stays launched it. A device event without its launch goes, for no step owns it.
    """
    last = last_step(trace)
    if last is None:
        return trace
    cut_ns = last[1]
    launches = _begun_before(trace.launches, cut_ns)
    kept_rows, device_events = _launched(trace.device_events, launches)
    host_ops = _begun_before(trace.host_ops, cut_ns)
    kept = replace(
        trace,
        host_ops=host_ops,
        annotations=_begun_before(trace.annotations, cut_ns),
        device_annotations=_begun_before(trace.device_annotations, cut_ns),
        frames=_begun_before(trace.frames, cut_ns),
        launches=launches,
        device_events=device_events,
        syncs=_synchronised(trace.syncs, launches, cut_ns),
        memory_events=_begun_before(trace.memory_events, cut_ns),
        overheads=_begun_before(trace.overheads, cut_ns),
        links=_begun_before(trace.links, cut_ns),
        collectives=_collectives(trace.collectives, len(host_ops), kept_rows),
    )
    return replace(kept, end_ns=_last_end(kept))


def launched_between(trace: Trace, start_ns: int, end_ns: int) -> Trace:
    """The trace with only what the device did for the host's time [start, end): launched then, or begun then where the
    launch is unknown. All other tables stay whole."""
    begun = launched_ns(trace, trace.device_events)
    rows = np.flatnonzero((begun >= start_ns) & (begun < end_ns))
    collectives = _collectives(trace.collectives, len(trace.host_ops), rows)
    return replace(trace, device_events=trace.device_events.take(rows), collectives=collectives)


def launched_ns(trace: Trace, events: DeviceEvents) -> Int64s:
    """(events,) When each of some events of the trace was launched, or began where the launch is unknown."""
    begun = events.start_ns.copy()
    linked = events.launch >= 0
    begun[linked] = trace.launches.start_ns[events.launch[linked]]
    return begun


def _begun_before(table: T, cut_ns: int) -> T:
    count = int(np.searchsorted(table.start_ns, cut_ns, side="left"))
    return type(table)(**{column.name: getattr(table, column.name)[:count] for column in fields(table)})


def _launched(events: DeviceEvents, launches: Launches) -> tuple[Int64s, DeviceEvents]:
    """The events that one of these launches started, and their rows in the table given."""
    known = launches.correlation[launches.correlation > 0]
    rows = np.flatnonzero(np.isin(events.correlation, known))
    kept = events.take(rows)
    if len(kept) and int(kept.launch.max()) >= len(launches):
        # A correlation that the trace uses twice, before the cut and after it.
        kept = replace(kept, launch=launch_rows(launches, kept.correlation, kept.start_ns))
    return rows, kept


def _synchronised(syncs: Syncs, launches: Launches, cut_ns: int) -> Syncs:
    if not len(syncs):
        return syncs
    linked = syncs.correlation > 0
    return syncs.take(np.where(linked, np.isin(syncs.correlation, launches.correlation), syncs.start_ns < cut_ns))


def _collectives(collectives: Collectives, host_ops: int, kept_rows: Int64s) -> Collectives:
    on_device = collectives.on_device
    row = collectives.row.copy()
    row[on_device] = new_rows(kept_rows, row[on_device])
    row[~on_device & (row >= host_ops)] = -1
    return replace(collectives, row=row).take(row >= 0)


def _last_end(trace: Trace) -> int:
    tables = (trace.host_ops, trace.annotations, trace.frames, trace.launches, trace.device_events, trace.overheads)
    return max((int(table.end_ns.max()) for table in tables if len(table)), default=trace.start_ns)
