"""Op tables for tests: jobs whose every operation starts as soon as it can, so that their lengths follow on paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

FORWARD, BACKWARD = "forward", "backward"
Cost = Callable[[int, int, int, str], float]
"""(step, dp rank, stage, forward or backward) → seconds."""
Transfer = Callable[[int, int, str, int], float]
"""(step, dp rank, forward or backward, microbatch) → seconds, into any stage."""
Row = dict[str, Any]


def usual_cost(_step: int, _dp_rank: int, _stage: int, way: str) -> float:
    """A forward of one second, a backward of two."""
    return 1.0 if way == FORWARD else 2.0


def one_forward_one_backward(stage: int, stages: int, microbatches: int) -> list[tuple[str, int]]:
    """The order of a stage's computations: (direction, microbatch)."""
    ahead = min(stages - 1 - stage, microbatches)
    order = [(FORWARD, number) for number in range(ahead)]
    for number in range(microbatches - ahead):
        order += [(FORWARD, ahead + number), (BACKWARD, number)]
    return order + [(BACKWARD, number) for number in range(microbatches - ahead, microbatches)]


class _Lane:
    """One step on one data-parallel rank, run in simulated time: chunk g of the model is on stage g % stages."""

    def __init__(
        self,
        stages: int,
        chunks: int,
        microbatches: int,
        cost: Callable[[int, str], float],
        transfer: Callable[[str, int], float],
    ) -> None:
        self.stages, self.chunks, self.cost, self.transfer = stages, chunks * stages, cost, transfer
        self.rows: list[Row] = []
        self.pending: dict[int, list[tuple[str, int, int]]] = {}
        for stage in range(stages):
            if chunks == 1:
                order = [(way, stage, number) for way, number in one_forward_one_backward(stage, stages, microbatches)]
            else:
                mine = [chunk * stages + stage for chunk in range(chunks)]
                order = [(FORWARD, chunk, number) for chunk in mine for number in range(microbatches)]
                order += [(BACKWARD, chunk, number) for chunk in reversed(mine) for number in range(microbatches)]
            self.pending[stage] = order
        self.seq: dict[tuple[str, int], int] = {}
        self.free = dict.fromkeys(range(stages), 1.0)
        self.posted: dict[tuple[str, int], float] = {}
        self.sends: dict[tuple[str, int, int], tuple[float, Row]] = {}

    def row(self, kind: str, stage: int, start: float, end: float, chunk: int = -1) -> Row:
        seq = self.seq[kind, stage] = self.seq.get((kind, stage), -1) + 1
        row = {"stage": stage, "optype": kind, "seq_id": seq, "start_ts": start, "end": end}
        row |= {"mc": chunk // self.stages if chunk >= 0 else -1, "gmc": chunk}
        self.rows.append(row)
        return row

    def run(self) -> None:
        """All computations with their transfers; each gather of parameters took the first second."""
        for stage in range(self.stages):
            for chunk in range(stage, self.chunks, self.stages):
                self.row("params-all-gather", stage, 0.0, 1.0, chunk)["gmc"] = -1
        while any(self.pending.values()):
            before = sum(map(len, self.pending.values()))
            for stage, order in self.pending.items():
                while order and self.runs(stage, *order[0]):
                    order.pop(0)
            assert sum(map(len, self.pending.values())) < before, "the schedule of the test is stuck"

    def runs(self, stage: int, way: str, chunk: int, number: int) -> bool:
        """Runs one computation with its transfers; False while its input is not there."""
        towards = 1 if way == FORWARD else -1
        first, last = not 0 <= chunk - towards < self.chunks, not 0 <= chunk + towards < self.chunks
        interleaved = self.chunks > self.stages
        start = self.free[stage]
        posted = self.posted.get((way, stage), 0.0)
        if not first:
            if (way, chunk, number) not in self.sends:
                return False
            sent, send = self.sends[way, chunk, number]
            arrived = send["end"] = max(sent, posted) + self.transfer(way, number)
            self.row(f"{way}-recv", stage, posted, arrived)
            start = max(start, arrived)
        elif interleaved:
            self.row(f"{way}-recv", stage, posted, posted)
        end = start + self.cost(stage, way)
        self.row(f"{way}-compute", stage, start, end, chunk)
        self.free[stage] = self.posted[way, stage] = end
        if not last:
            send = self.row(f"{way}-send", stage, end, end)
            self.sends[way, chunk + towards, number] = (end, send)
        elif interleaved:
            self.row(f"{way}-send", stage, end, end)
        return True


def job_rows(
    *,
    dp_ranks: int = 2,
    stages: int = 2,
    microbatches: int = 4,
    chunks: int = 1,
    steps: Sequence[int] = (3, 4),
    cost: Cost = usual_cost,
    transfer: Transfer = lambda *_: 0.0,
) -> list[Row]:
    """The rows of a job: a gather of parameters of 1 s, the pipeline, and an optimizer of 1 s; the rest takes no time.

    All stages wait for each other before the optimizer. With the usual cost a step takes
    2 + 3 · (microbatches + stages − 1) seconds.
    """
    rows: list[Row] = []
    for step in steps:
        lanes = []
        for dp_rank in range(dp_ranks):
            lane = _Lane(stages, chunks, microbatches, partial(cost, step, dp_rank), partial(transfer, step, dp_rank))
            lane.run()
            lanes.append(lane)
        _end_step(lanes)
        for dp_rank, lane in enumerate(lanes):
            for row in lane.rows:
                row |= {"step": step, "dp_rank": dp_rank, "rank": dp_rank * stages + row["stage"], "mb_id": -1}
                row["duration"] = row.pop("end") - row["start_ts"]
                rows.append(row)
    return rows


def _end_step(lanes: list[_Lane]) -> None:
    stages = lanes[0].stages
    done = {(n, stage): lane.free[stage] for n, lane in enumerate(lanes) for stage in range(stages)}
    for n, lane in enumerate(lanes):
        for stage in range(stages):
            lane.row("gc", stage, done[n, stage], done[n, stage])
            lane.row("layernorm-grads-all-reduce", stage, done[n, stage], done[n, stage])
        ends = (0, stages - 1) if stages > 1 else (0,)
        both = max(done[n, stage] for stage in ends)
        for stage in ends:
            lane.row("embedding-grads-all-reduce", stage, done[n, stage], both)
            done[n, stage] = both
    for stage in range(stages):
        reduced = max(done[n, stage] for n in range(len(lanes)))
        for n, lane in enumerate(lanes):
            lane.row("grads-reduce-scatter", stage, done[n, stage], reduced, stage)["gmc"] = -1
            done[n, stage] = reduced
    clipped = max(done.values())
    for n, lane in enumerate(lanes):
        for stage in range(stages):
            lane.row("optimizer-clip-main-grad", stage, done[n, stage], clipped)
            lane.row("optimizer", stage, clipped, clipped + 1.0)


def write(path: Path, rows: list[Row], types: Mapping[str, pa.DataType] | None = None) -> Path:
    """The rows as a Parquet file with the published columns."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {name: [row.get(name) for row in rows] for name in names}
    table = pa.table({name: pa.array(values, (types or {}).get(name)) for name, values in columns.items()})
    pq.write_table(table, path)
    return path
