"""Trace diff: what appeared, vanished, grew and shrank between two traces, or two groups of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from tightship_analyzers.metrics.duration_stats import grouped
from tightship_analyzers.metrics.launched_work import LaunchedWork
from tightship_analyzers.metrics.steps import step_count
from tightship_analyzers.trace.model import Trace
from tightship_analyzers.trace.open_rows import OpenRows
from tightship_platform.results.not_applicable import NotApplicable
from tightship_platform.vocabulary import SavingUnit

SAME_FRAC = 0.05
"""Changes of the time per unit up to this share of the larger one are within what runs differ by anyway."""

MODULE = "nn.Module: "


class Part(StrEnum):
    """What is compared."""

    OPERATOR = "operator"
    """Operators on the host, by name; those that others enclose count too."""
    KERNEL = "kernel"
    """Device events, by name."""
    MODULE = "module"
    """Calls of torch modules, where stacks were recorded."""


class Change(StrEnum):
    """How the time per unit changed."""

    APPEARED = "appeared"
    VANISHED = "vanished"
    GREW = "grew"
    SHRANK = "shrank"
    SAME = "same"


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """All events of one name in one group of traces."""

    count: int = 0
    host_ns: int = 0
    """Durations on the host; 0 for kernels."""
    device_ns: int = 0
    """Durations of the device events; of operators and modules, of those launched within them on their thread."""

    def __add__(self, other: Total) -> Total:
        return Total(
            count=self.count + other.count,
            host_ns=self.host_ns + other.host_ns,
            device_ns=self.device_ns + other.device_ns,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffRow:
    """One name in both groups; totals are exact, and over all traces of the group."""

    part: Part
    name: str
    before: Total
    after: Total
    before_units: int
    after_units: int
    within: str | None = None
    """The name that every one of its calls lies directly in, and that has as many calls and changed in the same way:
    it tells the same, and more. None: there is no such name."""

    @property
    def before_ns(self) -> float:
        """Time per unit: of kernels on the device, else on the host."""
        return self._time_ns(self.before) / self.before_units

    @property
    def after_ns(self) -> float:
        """Time per unit: of kernels on the device, else on the host."""
        return self._time_ns(self.after) / self.after_units

    @property
    def growth_ns(self) -> float:
        """By how much the time per unit grew; negative where it shrank."""
        return self.after_ns - self.before_ns

    @property
    def growth_count(self) -> float:
        """By how much the count per unit grew; negative where it fell."""
        return self.after.count / self.after_units - self.before.count / self.before_units

    @property
    def change(self) -> Change:
        """By presence, then by the time per unit."""
        if not self.before.count:
            return Change.APPEARED
        if not self.after.count:
            return Change.VANISHED
        if abs(self.growth_ns) <= SAME_FRAC * max(self.before_ns, self.after_ns):
            return Change.SAME
        return Change.GREW if self.growth_ns > 0 else Change.SHRANK

    def _time_ns(self, total: Total) -> int:
        return total.device_ns if self.part is Part.KERNEL else total.host_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceDiff:
    """The difference of two groups of traces."""

    unit: SavingUnit
    """The unit of times: a step, or a recording where not every trace holds steps; unlike units cannot be
    compared."""
    before_units: int
    """Steps of all traces of the group together, or how many recordings it has."""
    after_units: int
    rows: tuple[DiffRow, ...]
    """The largest change of time per unit first; names without any change included."""
    absent: tuple[Part, ...]
    """Parts that neither group holds anything of."""

    def of(self, part: Part) -> tuple[DiffRow, ...]:
        """The rows of one part."""
        return tuple(row for row in self.rows if row.part is part)

    def changed(self, change: Change) -> tuple[DiffRow, ...]:
        """The rows that changed in one way."""
        return tuple(row for row in self.rows if row.change is change)


class TraceTotals:
    """Totals of a group of traces, which are given one by one and need not be in memory together."""

    def __init__(self, traces: Iterable[Trace] = ()) -> None:
        self.recordings = 0
        self.steps: int | None = 0
        """Of all traces together; None where one of them holds none."""
        self.totals: dict[tuple[Part, str], Total] = {}
        self.callers: dict[tuple[Part, str], str | None] = {}
        """The one name that all calls lie directly in, of operators in operators and modules in modules."""
        for trace in traces:
            self.add(trace)

    def add(self, trace: Trace) -> None:
        """Counts one trace."""
        self.recordings += 1
        steps = step_count(trace)
        self.steps = None if steps is None or self.steps is None else self.steps + steps
        own: defaultdict[tuple[Part, str], Total] = defaultdict(Total)
        for part, name, total in _totals(trace):
            own[part, name] += total
        for key, total in own.items():
            self.totals[key] = self.totals.get(key, Total()) + total
        for key, caller in _callers(trace):
            self.callers[key] = caller if self.callers.get(key, caller) == caller else None

    def only_caller(self, part: Part, name: str) -> str | None:
        """The name that all calls of this one lie directly in, one each."""
        caller = self.callers.get((part, name))
        if caller is None or self.totals[part, caller].count != self.totals[part, name].count:
            return None
        return caller


def trace_diff(before: TraceTotals, after: TraceTotals) -> TraceDiff | NotApplicable:
    """Compare by operator, kernel and module, per step or per recording."""
    if not before.totals and not after.totals:
        return NotApplicable("needs operators, device events or module calls; the traces hold none of them")
    if not before.recordings or not after.recordings:
        return NotApplicable("needs a trace on either side")
    unit, before_units, after_units = SavingUnit.RECORDING, before.recordings, after.recordings
    if before.steps and after.steps:
        unit, before_units, after_units = SavingUnit.STEP, before.steps, after.steps
    none = Total()
    rows = [
        DiffRow(
            part=part,
            name=name,
            before=before.totals.get((part, name), none),
            after=after.totals.get((part, name), none),
            before_units=before_units,
            after_units=after_units,
        )
        for part, name in before.totals.keys() | after.totals.keys()
    ]
    by_name = {(row.part, row.name): row for row in rows}
    rows = [_placed(row, by_name, before, after) for row in rows]
    rows.sort(key=lambda row: (-abs(row.growth_ns), row.part, row.name))
    seen = {row.part for row in rows}
    return TraceDiff(
        unit=unit,
        before_units=before_units,
        after_units=after_units,
        rows=tuple(rows),
        absent=tuple(part for part in Part if part not in seen),
    )


def _placed(row: DiffRow, rows: Mapping[tuple[Part, str], DiffRow], before: TraceTotals, after: TraceTotals) -> DiffRow:
    """The row with what it lies within, on both sides where both have it."""
    sides = [side for side, total in ((before, row.before), (after, row.after)) if total.count]
    callers = {side.only_caller(row.part, row.name) for side in sides}
    caller = callers.pop() if len(callers) == 1 else None
    if caller is None or rows[row.part, caller].change is not row.change:
        return row
    return replace(row, within=caller)


def _callers(trace: Trace) -> Iterator[tuple[tuple[Part, str], str | None]]:
    modules = trace.frames.take(trace.names.mask(trace.frames.name, lambda text: text.startswith(MODULE)))
    for part, table in ((Part.OPERATOR, trace.host_ops), (Part.MODULE, modules)):
        for tid in np.unique(table.tid).tolist():
            own = table.take(table.tid == tid)
            parent = OpenRows.of(own.start_ns, own.end_ns).parent
            outer = np.append(own.name, -1)[parent]
            for number, caller in np.unique(np.stack((own.name, outer)), axis=1).T.tolist():
                around = trace.names[caller].removeprefix(MODULE) if caller >= 0 and caller != number else None
                yield (part, trace.names[number].removeprefix(MODULE)), around


def _totals(trace: Trace) -> Iterator[tuple[Part, str, Total]]:
    for number, stats in grouped(trace.device_events.dur_ns, trace.device_events.name).items():
        yield Part.KERNEL, trace.names[number], Total(count=stats.count, device_ns=stats.sum_ns)
    work = LaunchedWork.of(trace)
    modules = trace.frames.take(trace.names.mask(trace.frames.name, lambda text: text.startswith(MODULE)))
    for part, table in ((Part.OPERATOR, trace.host_ops), (Part.MODULE, modules)):
        device = grouped(work.device_ns(table.tid, table.start_ns, table.end_ns), table.name)
        for number, stats in grouped(table.dur_ns, table.name).items():
            name = trace.names[number].removeprefix(MODULE)
            total = Total(count=stats.count, host_ns=stats.sum_ns, device_ns=device[number].sum_ns)
            yield part, name, total
