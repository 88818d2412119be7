"""Where in the program something was asked for: file and line, module or operator, as far as the trace tells."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Self

import numpy as np

from tightship_analyzers.facts.memo import Facts, Needs
from tightship_analyzers.facts.program.frames import ThreadFrames
from tightship_analyzers.facts.program.work_threads import AUTOGRAD_NODE
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.trace.model import HostOps, Int64s, Names
from tightship_platform.text import shown

MAX_ROWS = 2000
"""Of an operator set that is spread over more calls, the costliest ones decide about the place."""


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """The own line of code behind an operator; for one of the backward pass that of its forward operator."""

    needs: ClassVar[Needs] = (Window,)

    names: Names
    ops: HostOps
    """Those of the trace."""
    stacks: ThreadFrames | None
    main_tid: int
    _forward: tuple[Int64s, Int64s]
    """Sequence numbers, ascending, and the row of the first operator of the training thread that carries each."""
    _known: dict[int, str] = field(default_factory=dict)

    @classmethod
    def derive(cls, facts: Facts) -> Self:
        """Always there; says little about a trace without stacks."""
        window = facts[Window]
        names, ops = facts.trace.names, facts.trace.host_ops
        is_node = names.mask(ops.name, lambda name: name.startswith(AUTOGRAD_NODE))
        forward = np.flatnonzero((ops.seq >= 0) & (ops.tid == window.tid) & ~is_node)
        numbers, first = np.unique(ops.seq[forward], return_index=True)
        return cls(names, ops, facts.find(ThreadFrames), window.tid, (numbers, forward[first]))

    def of_op(self, row: int) -> str:
        """The place of one operator (row in `Trace.host_ops`); empty for -1."""
        if row < 0:
            return ""
        if row not in self._known:
            self._known[row] = self._find(row)
        return self._known[row]

    def of_span(self, tid: int, start_ns: int, end_ns: int) -> str:
        """The place of something that a thread did; empty where stacks do not tell."""
        if self.stacks is None or tid != self.main_tid:
            return ""
        return self.stacks.place_at(self.names, start_ns, end_ns)

    def costliest(self, rows: Int64s, cost_ns: Int64s, unknown: str = "") -> list[tuple[str, int]]:
        """(place, ns) of operators and their cost, the costliest first; where no place is known `unknown`."""
        known, inverse = np.unique(rows, return_inverse=True)
        total = np.zeros(len(known), dtype=np.int64)
        np.add.at(total, inverse, cost_ns)
        places: dict[str, int] = {}
        for at in np.argsort(-total, kind="stable")[:MAX_ROWS].tolist():
            place = self.of_op(int(known[at]))
            places[place] = places.get(place, 0) + int(total[at])
        nowhere = places.pop("", 0)
        return sorted(places.items(), key=lambda item: -item[1]) or [(unknown, nowhere)]

    def modules(self, rows: Int64s, cost_ns: Int64s) -> list[tuple[str, int]]:
        """(class of the innermost module, ns) of operators and what each costs, the costliest first; empty without
        stacks of modules."""
        totals: dict[str, int] = {}
        order = np.argsort(-cost_ns, kind="stable")[:MAX_ROWS]
        for row, cost in zip(rows[order].tolist(), cost_ns[order].tolist(), strict=True):
            name = self._module(row) if row >= 0 else ""
            if name:
                totals[name] = totals.get(name, 0) + int(cost)
        return sorted(totals.items(), key=lambda item: -item[1])

    def _module(self, row: int) -> str:
        tid, start_ns, end_ns = int(self.ops.tid[row]), int(self.ops.start_ns[row]), int(self.ops.end_ns[row])
        if self.stacks is None or tid != self.main_tid:
            return ""
        return self.stacks.module_at(self.names, start_ns, end_ns)

    def _find(self, row: int) -> str:
        op = int(self.ops.tid[row]), int(self.ops.start_ns[row]), int(self.ops.end_ns[row])
        place = self.of_span(*op)
        if place:
            return place
        outer = self._outermost(row)
        node = self.names[int(self.ops.name[outer])]
        if node.startswith(AUTOGRAD_NODE):
            forward = self._forward_of(outer)
            span = int(self.ops.tid[forward]), int(self.ops.start_ns[forward]), int(self.ops.end_ns[forward])
            recorded = self.of_span(*span) if forward >= 0 else ""
            return recorded or shown(node.removeprefix(AUTOGRAD_NODE))
        return shown(node)

    def _outermost(self, row: int) -> int:
        """Enclosing operators lie shortly before the enclosed one."""
        near = slice(max(0, row - 4096), row)
        around = (self.ops.tid[near] == self.ops.tid[row]) & (self.ops.end_ns[near] >= self.ops.end_ns[row])
        return near.start + int(around.argmax()) if around.any() else row

    def _forward_of(self, node: int) -> int:
        numbers, rows = self._forward
        at = int(np.searchsorted(numbers, self.ops.seq[node]))
        return int(rows[at]) if at < len(numbers) and numbers[at] == self.ops.seq[node] else -1
