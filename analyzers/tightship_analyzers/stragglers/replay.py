"""Running the dependency graph again, with the measured costs or with others in their place.

[Note: cost] A computation costs its duration. Communication costs what remains of it after its last participant has
started, its transfer; before that it only waits for others, and waiting is what a replay finds out again. Operations
start as soon as what they wait for has ended. That they started later when measured, because the host was busy with
work that op tables do not hold, is their launch delay; a replay leaves it out and so is shorter than the original.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from tightship_analyzers.stragglers.dependencies import Dependencies
from tightship_analyzers.stragglers.grid import OpGrid

Float64s = NDArray[np.float64]
Bools = NDArray[np.bool_]

CLOCK_ERROR_NS = 10_000_000
"""A transfer that ends this long before its last participant starts is taken as 0, not as negative; source: the
published analysis (10 ms)."""
BATCH_BYTES = 64 * 2**20
"""For the end times of scenarios that are replayed together."""


class Replay:
    """One job's graph with its measured costs, ready to be run."""

    def __init__(self, grid: OpGrid, graph: Dependencies) -> None:
        self.grid = grid
        self.graph = graph
        self.cost_ns = _costs(grid, graph)
        """(slots, steps, dp_ranks), see [Note: cost]."""

    def steps_ns(self, scenarios: Iterable[Bools], otherwise_ns: Float64s) -> Float64s:
        """Step lengths of each scenario (scenarios, steps).

        A scenario (slots, dp_ranks) says which operations keep their measured costs; the others cost `otherwise_ns`
        (slots,).
        """
        together = max(BATCH_BYTES // max(self.cost_ns.nbytes, 1), 1)
        rest, lengths = iter(scenarios), []
        while batch := list(islice(rest, together)):
            lengths.append(self._run(np.stack(batch), otherwise_ns))
        return np.concatenate(lengths)

    def _run(self, measured: Bools, otherwise_ns: Float64s) -> Float64s:
        grid, parents = self.grid, self.graph.parents
        shape = (len(measured), len(grid.steps), grid.dp_ranks)
        ends, last, begin_of_step = np.zeros((len(grid), *shape)), np.zeros(shape), np.zeros(shape)
        for unit in self.graph.units:
            begin = begin_of_step
            for parent in {parent for slot in unit.slots for parent in parents[slot]}:
                begin = np.maximum(begin, ends[parent])
            if unit.all_dp_ranks:
                begin = begin.max(axis=2, keepdims=True)
            for slot in unit.slots:
                cost = np.where(measured[:, slot, None, :], self.cost_ns[slot], otherwise_ns[slot])
                np.add(begin, cost, out=ends[slot])
                np.maximum(last, ends[slot], out=last)
        lengths: Float64s = last.max(axis=2)
        return lengths


def _costs(grid: OpGrid, graph: Dependencies) -> Float64s:
    costs = (grid.end_ns - grid.start_ns).astype(np.float64)
    for unit in graph.units:
        if not unit.waits:
            continue
        slots = list(unit.slots)
        started = grid.start_ns[slots].max(axis=0)
        if unit.all_dp_ranks:
            started = started.max(axis=1, keepdims=True)
        transfer = grid.end_ns[slots] - started
        costs[slots] = np.where(transfer <= -CLOCK_ERROR_NS, 0, transfer)
    return costs
