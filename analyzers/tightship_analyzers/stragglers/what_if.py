"""What would the job's steps take if nobody straggled, and who is to blame for the difference?

Definitions, with T(…) the mean over the steps of a replay without launch delays (see [Note: cost] in `replay`):

- actual: T with all measured costs. ideal: T when every operation costs what its type usually does, over all steps,
  ranks and stages: the mean of computations, the median of communication.
- slowdown = actual / ideal; of one step: its lengths, likewise. 1.0: nobody straggles.
- A contributor's slowdown: T with the measured costs of this rank, stage or type only, all others ideal, / ideal.
- A contributor's saving: actual − T with its costs alone made ideal. This is what its repair would give; two
  contributors' savings are not to be added, as each may hide behind the other.
- A worker's score: the smaller one of the slowdowns of its data-parallel rank and of its stage.
- share of a set of workers: their saving / (actual − ideal). `worst_workers_share` takes the 3 % of workers with the
  highest scores (M_W), `last_stage_share` the last stage (M_S).
- launch slowdown: measured step length / actual. What the host's delays cost on top. They are all that tells an
  unchanged replay from the measured step, so |actual − measured| / measured is its simulation error.

Source: Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis", 2025
(https://arxiv.org/abs/2505.05713), equations 1, 2, 4 and 5, and its artifact.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

import numpy as np

from tightship_analyzers.stragglers.dependencies import dependencies
from tightship_analyzers.stragglers.grid import OpGrid, Worker, op_grid
from tightship_analyzers.stragglers.replay import Bools, Float64s, Replay
from tightship_analyzers.trace.op_table.op_types import COMMUNICATES, OpType, family
from tightship_analyzers.trace.op_table.table import DEFAULT_LIMITS, Limits, OpTable, OpTableError

WORST_WORKERS_FRAC = 0.03
"""Of the workers, rounded up: the few that a broken machine would account for; source: equation 5."""

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Contribution(Generic[Key]):
    """What one rank, stage, type or worker does to the steps."""

    key: Key
    slowdown: float
    """With only its measured costs; 1.0: none of it comes from here. Below 1: it is faster than usual."""
    step_slowdown: Float64s
    """The same for each step (steps,)."""
    saving_ns: float
    """Mean per step if its costs alone were the usual ones; below 0 where they are better than usual."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """How much of the difference between actual and ideal a set of operations explains; mean ns per step."""

    actual_ns: float
    ideal_ns: float
    repaired_ns: float
    """With this set ideal and the rest measured."""
    alone_ns: float
    """With this set measured and the rest ideal."""

    @property
    def removed_frac(self) -> float | None:
        """Share of the difference that goes with its repair; None where there is no difference."""
        return self._of(self.actual_ns - self.repaired_ns)

    @property
    def added_frac(self) -> float | None:
        """Share of the difference that it makes alone; None where there is no difference."""
        return self._of(self.alone_ns - self.ideal_ns)

    def _of(self, part_ns: float) -> float | None:
        whole = self.actual_ns - self.ideal_ns
        return part_ns / whole if abs(whole) >= 1 else None


class WhatIf:
    """Replays of one job, made when they are first asked for.

    :raises OpTableError: the table's operations do not fit together.
    """

    def __init__(self, table: OpTable, *, limits: Limits = DEFAULT_LIMITS) -> None:
        self.grid: OpGrid = op_grid(table, limits=limits)
        self._replay = Replay(self.grid, dependencies(self.grid))
        self._usual_ns = _usual_costs(self.grid, self._replay.cost_ns)
        if not self.ideal_ns.min() > 0:
            raise OpTableError(
                f"Op table {table.source}: its operations usually take no time; expected durations > 0 s"
            )

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was left out of the table, one line each."""
        return self.grid.warnings

    @property
    def workers(self) -> tuple[Worker, ...]:
        """The job's ranks, by data-parallel rank, then stage."""
        return self.grid.workers

    @cached_property
    def measured_ns(self) -> Float64s:
        """Length of each step as measured (steps,)."""
        return self.grid.step_ns.astype(np.float64)

    @cached_property
    def actual_ns(self) -> Float64s:
        """Length of each step without launch delays (steps,)."""
        lengths: Float64s = self._with([self._slots(True)])[0]
        return lengths

    @cached_property
    def ideal_ns(self) -> Float64s:
        """Length of each step if no operation straggled (steps,)."""
        lengths: Float64s = self._with([self._slots(False)])[0]
        return lengths

    @property
    def slowdown(self) -> float:
        """Actual over ideal; 1.0 without stragglers."""
        return float(self.actual_ns.mean() / self.ideal_ns.mean())

    @property
    def step_slowdown(self) -> Float64s:
        """The same of each step (steps,)."""
        return np.divide(self.actual_ns, self.ideal_ns)

    @property
    def launch_slowdown(self) -> float:
        """Measured over actual: the cost of operations that started later than they could."""
        return float(self.measured_ns.mean() / max(float(self.actual_ns.mean()), 1))

    @property
    def simulation_error_frac(self) -> Float64s:
        """How far the unchanged replay is from each measured step (steps,)."""
        return np.divide(np.abs(self.actual_ns - self.measured_ns), np.maximum(self.measured_ns, 1))

    @cached_property
    def by_dp_rank(self) -> tuple[Contribution[int], ...]:
        """The data-parallel ranks, the greatest slowdown first."""
        return self._contributions(range(self.grid.dp_ranks), self._of_dp_rank)

    @cached_property
    def by_stage(self) -> tuple[Contribution[int], ...]:
        """The pipeline stages, the greatest slowdown first."""
        return self._contributions(range(self.grid.stages), lambda stage: self._of_slots(self.grid.stage == stage))

    @cached_property
    def by_op_type(self) -> tuple[Contribution[str], ...]:
        """The op types, the greatest slowdown first; the ends of the pipeline's transfers count as one type."""
        families = np.array([family(OpType(code)) for code in self.grid.op_type.tolist()])
        return self._contributions(np.unique(families).tolist(), lambda name: self._of_slots(families == name))

    @cached_property
    def by_worker(self) -> tuple[Contribution[Worker], ...]:
        """Every single worker, the greatest slowdown first; two replays each, so minutes for a thousand workers."""
        return self._contributions(self.workers, lambda worker: self._of_workers([worker]))

    @cached_property
    def worker_scores(self) -> dict[Worker, float]:
        """The published estimate for each worker, without its own replay; the highest first."""
        dp_rank = {row.key: row.slowdown for row in self.by_dp_rank}
        stage = {row.key: row.slowdown for row in self.by_stage}
        scores = {worker: min(dp_rank[worker.dp_rank], stage[worker.stage]) for worker in self.workers}
        return dict(sorted(scores.items(), key=lambda item: (-item[1], item[0].rank)))

    @cached_property
    def worst_workers_share(self) -> Share:
        """Of the 3 % of workers with the highest scores (M_W). High: a few machines are broken."""
        count = int(np.ceil(len(self.workers) * WORST_WORKERS_FRAC))
        return self.share_of(tuple(self.worker_scores)[:count])

    @cached_property
    def last_stage_share(self) -> Share:
        """Of the last pipeline stage (M_S). High: the model is cut into unequal stages."""
        return self.share_of([worker for worker in self.workers if worker.stage == self.grid.stages - 1])

    def share_of(self, workers: Sequence[Worker]) -> Share:
        """How much of the slowdown these workers explain together."""
        chosen = self._of_workers(workers)
        repaired, alone = self._with([~chosen, chosen]).mean(axis=1).tolist()
        return Share(
            actual_ns=float(self.actual_ns.mean()),
            ideal_ns=float(self.ideal_ns.mean()),
            repaired_ns=repaired,
            alone_ns=alone,
        )

    def _slots(self, value: bool) -> Bools:
        return np.full((len(self.grid), self.grid.dp_ranks), value, dtype=np.bool_)

    def _of_slots(self, slots: Bools) -> Bools:
        return np.broadcast_to(slots[:, None], (len(self.grid), self.grid.dp_ranks))

    def _of_dp_rank(self, dp_rank: int) -> Bools:
        chosen = self._slots(False)
        chosen[:, dp_rank] = True
        return chosen

    def _of_workers(self, workers: Iterable[Worker]) -> Bools:
        chosen = self._slots(False)
        for worker in workers:
            chosen[:, worker.dp_rank] |= self.grid.stage == worker.stage
        return chosen

    def _with(self, scenarios: Iterable[Bools]) -> Float64s:
        return self._replay.steps_ns(scenarios, self._usual_ns)

    def _contributions(self, keys: Sequence[Key], chosen: Callable[[Key], Bools]) -> tuple[Contribution[Key], ...]:
        alone = self._with(chosen(key) for key in keys)
        repaired = self._with(~chosen(key) for key in keys)
        ideal, actual = self.ideal_ns, float(self.actual_ns.mean())
        rows = [
            Contribution(
                key=key,
                slowdown=float(alone[number].mean() / ideal.mean()),
                step_slowdown=alone[number] / ideal,
                saving_ns=actual - float(repaired[number].mean()),
            )
            for number, key in enumerate(keys)
        ]
        return tuple(sorted(rows, key=lambda row: -row.slowdown))


def _usual_costs(grid: OpGrid, cost_ns: Float64s) -> Float64s:
    """What each slot's type costs usually (slots,)."""
    usual = np.empty(len(grid))
    for code in np.unique(grid.op_type):
        of_type = grid.op_type == code
        costs = cost_ns[of_type]
        usual[of_type] = np.median(costs) if OpType(code) in COMMUNICATES else costs.mean()
    return usual
