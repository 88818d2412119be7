"""Rank comparison: who arrives when, who keeps whom waiting, and on whose clock."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trace_files
from device_trace import DeviceTrace
from reference_data import TRACES

from tightship_analyzers import trace as traces
from tightship_analyzers.ranks.arrivals import CollectiveArrivals, collective_arrivals
from tightship_analyzers.ranks.skew import ArrivalSkew, arrival_skew
from tightship_analyzers.trace.model import Trace
from tightship_platform.results.codec import as_json
from tightship_platform.results.not_applicable import NotApplicable

NS = 1_000_000
TRANSFER_NS = 50_000


def rank_trace(
    folder: Path,
    rank: int,
    arrivals: list[int],
    ends: list[int],
    *,
    clock_ns: int = 0,
    numbered: bool = True,
    computing: list[tuple[int, int]] | None = None,
) -> Trace:
    """A rank that arrives at collective number i at `arrivals[i]` and leaves it at `ends[i]`, by its own clock."""
    trace = DeviceTrace()
    for number, (start, end) in enumerate(zip(arrivals, ends, strict=True)):
        reported = {"Collective name": "allreduce", "Process Group Name": "0", "Seq": number + 7} if numbered else {}
        trace.on_device(start + clock_ns, end + clock_ns, name="ncclDevKernel_AllReduce_Sum", stream=20, **reported)
    for start, end in computing or []:
        trace.on_device(start + clock_ns, end + clock_ns, name="gemm")
    folder.mkdir(exist_ok=True)
    path = folder / f"{rank}.json"
    path.write_bytes(trace_files.trace_text(trace.events, before={"baseTimeNanoseconds": 10**18}, after={}))
    return traces.open(path)


def taken(trace: Trace) -> CollectiveArrivals:
    found = collective_arrivals(trace)
    assert isinstance(found, CollectiveArrivals)
    return found


def compared(**ranks: CollectiveArrivals) -> ArrivalSkew:
    found = arrival_skew({int(name[1:]): one for name, one in ranks.items()})
    assert isinstance(found, ArrivalSkew), found
    return found


@pytest.mark.parametrize("numbered", [True, False])
def test_the_late_rank_is_charged_with_what_the_others_wait(tmp_path: Path, numbered: bool) -> None:
    arrivals = {0: [1 * NS, 11 * NS], 1: [3 * NS, 12 * NS], 2: [6 * NS, 10 * NS]}
    ends = [6 * NS + TRANSFER_NS, 12 * NS + TRANSFER_NS]
    found = compared(
        **{f"r{rank}": taken(rank_trace(tmp_path, rank, at, ends, numbered=numbered)) for rank, at in arrivals.items()}
    )
    rows = {row.rank: row for row in found.ranks}
    assert [row.rank for row in found.ranks] == [2, 1, 0]
    assert (rows[2].last, rows[2].kept_waiting_ns, rows[2].late_ns) == (1, 8 * NS, 3 * NS)
    assert (rows[1].last, rows[1].kept_waiting_ns, rows[1].late_ns) == (1, 3 * NS, 1 * NS)
    assert rows[0].waited_ns == rows[0].waited_exposed_ns == 6 * NS
    assert [(row.skew_ns, row.first_rank, row.last_rank) for row in found.collectives] == [
        (5 * NS, 0, 2),
        (2 * NS, 2, 1),
    ]
    assert found.steps is None and found.left_out == 0
    assert found.late_at == {0: 0, 1: 1, 2: 1}
    assert sum(row.waited_ns for row in found.ranks) == sum(row.kept_waiting_ns for row in found.ranks)


@pytest.mark.parametrize(
    ("shifted", "steps", "numbers"),
    [(0, 4, [8, 9, 10, 11]), (1, 3, [9, 10, 11])],
)
def test_totals_are_over_the_whole_steps_that_all_ranks_recorded(
    tmp_path: Path, shifted: int, steps: int, numbers: list[int]
) -> None:
    """One collective a step, before and after the whole steps, too; rank 1 comes 1 ms late. It may have recorded one
    step more at the end and one less at the beginning."""
    ranks = {}
    for rank, late in ((0, 0), (1, NS)):
        arrivals = [step * 10 * NS + 5 * NS + late for step in range(6)]
        trace = rank_trace(tmp_path, rank, arrivals, [step * 10 * NS + 7 * NS for step in range(6)])
        first = 1 + shifted * rank
        bounds = 10**18 + np.arange(first, min(first + 5, 7), dtype=np.int64) * 10 * NS + rank * 10_000
        found = collective_arrivals(trace, bounds)
        assert isinstance(found, CollectiveArrivals)
        ranks[f"r{rank}"] = found
    skew = compared(**ranks)
    assert (skew.steps, [row.number for row in skew.collectives]) == (steps, numbers)
    assert {row.rank: row.late_ns for row in skew.ranks} == {0: 0, 1: steps * NS}


def test_what_computing_hides_costs_nothing(tmp_path: Path) -> None:
    ends = [6 * NS]
    early = taken(rank_trace(tmp_path, 0, [1 * NS], ends, computing=[(2 * NS, 5 * NS)]))
    found = compared(r0=early, r1=taken(rank_trace(tmp_path, 1, [5 * NS], ends)))
    rows = {row.rank: row for row in found.ranks}
    assert (rows[0].waited_ns, rows[0].waited_exposed_ns) == (4 * NS, 1 * NS)
    assert (rows[1].late_ns, rows[1].late_exposed_ns) == (4 * NS, 1 * NS)


def test_clocks_are_set_by_the_ends(tmp_path: Path) -> None:
    """Half a second apart, which is far more than any skew."""
    dice = random.Random(5)
    ends = [number * 10 * NS for number in range(1, 30)]
    arrivals = {rank: [end - TRANSFER_NS - dice.randrange(NS) for end in ends] for rank in range(3)}
    true = compared(**{f"r{r}": taken(rank_trace(tmp_path, r, at, ends)) for r, at in arrivals.items()})
    apart = {
        f"r{rank}": taken(rank_trace(tmp_path / "apart", rank, at, ends, clock_ns=rank * 500 * NS))
        for rank, at in arrivals.items()
    }
    found = compared(**apart)
    assert {row.rank: row.clock_offset_ns for row in found.ranks} == {0: 0, 1: -500 * NS, 2: -1000 * NS}
    ours = [(row.rank, row.waited_ns, row.kept_waiting_ns, row.late_ns) for row in found.ranks]
    assert ours == [(row.rank, row.waited_ns, row.kept_waiting_ns, row.late_ns) for row in true.ranks]


def test_ranks_that_share_collectives_only_by_way_of_others_get_one_clock(tmp_path: Path) -> None:
    """Ranks 0 and 1 are one group, 1 and 2 another."""
    ends = [10 * NS, 20 * NS]

    def of(rank: int, numbers: list[int], clock_ns: int) -> CollectiveArrivals:
        trace = DeviceTrace()
        for number in numbers:
            reported = {"Collective name": "allreduce", "Process Group Name": f"g{number}", "Seq": 0}
            end = ends[number] + clock_ns
            trace.on_device(end - NS - rank * NS, end, name="ncclDevKernel_AllReduce", **reported)
        path = tmp_path / f"{rank}.json"
        path.write_bytes(trace_files.trace_text(trace.events, before={"baseTimeNanoseconds": 10**18}, after={}))
        return taken(traces.open(path))

    found = compared(r0=of(0, [0], 0), r1=of(1, [0, 1], 3 * NS), r2=of(2, [1], -5 * NS))
    assert {row.rank: row.clock_offset_ns for row in found.ranks} == {0: 0, 1: -3 * NS, 2: 5 * NS}
    assert [row.ranks for row in found.collectives] == [2, 2]


def test_collectives_without_a_partner_are_counted(tmp_path: Path) -> None:
    whole = taken(rank_trace(tmp_path, 0, [NS, 11 * NS, 21 * NS], [5 * NS, 15 * NS, 25 * NS]))
    cut = taken(rank_trace(tmp_path, 1, [2 * NS, 12 * NS], [5 * NS, 15 * NS]))
    found = compared(r0=whole, r1=cut)
    assert len(found.collectives) == 2 and found.left_out == 1


@pytest.mark.parametrize(
    ("make", "words"),
    [
        ("one", "at least two ranks"),
        ("none", "at least two ranks"),
        ("different", "share none"),
        ("shifted", "never ran on all ranks at one moment"),
        ("days", "more than a minute apart"),
    ],
)
def test_why_ranks_are_not_compared(tmp_path: Path, make: str, words: str) -> None:
    first = collective_arrivals(rank_trace(tmp_path, 0, [1 * NS, 11 * NS, 41 * NS], [5 * NS, 15 * NS, 45 * NS]))
    ranks: dict[int, Any] = {0: first}
    if make == "none":
        empty = DeviceTrace()
        empty.on_device(0, 100)
        ranks[1] = collective_arrivals(empty.read(tmp_path))
    elif make == "different":
        ranks = {
            rank: collective_arrivals(
                rank_trace(tmp_path, rank, [NS] * (rank + 1), [2 * NS] * (rank + 1), numbered=False)
            )
            for rank in (0, 1)
        }
    elif make == "shifted":
        # The second collective is missing in the middle, so those behind it are put together with the wrong ones.
        full = rank_trace(
            tmp_path, 0, [k * 10 * NS for k in range(5)], [k * 10 * NS + NS for k in range(5)], numbered=False
        )
        odd = [0, 13 * NS, 24 * NS, 39 * NS, 41 * NS]
        ranks = {
            0: collective_arrivals(full),
            1: collective_arrivals(rank_trace(tmp_path, 1, odd, [at + NS for at in odd], numbered=False)),
        }
    elif make == "days":
        late = rank_trace(tmp_path, 1, [1 * NS, 11 * NS], [5 * NS, 15 * NS], clock_ns=86_400 * 1000 * NS)
        ranks[1] = collective_arrivals(late)
    found = arrival_skew(ranks)
    assert isinstance(found, NotApplicable) and words in found.reason, found


@pytest.mark.reference
def test_eight_recorded_ranks() -> None:
    """One step of DLRM on eight V100s; the last one is late at all collectives of the forward pass."""
    ranks = {}
    for path in sorted((TRACES / "param" / "dlrm_8rank").glob("*.gz")):
        recorded = traces.open(path)
        assert recorded.rank is not None
        ranks[recorded.rank] = collective_arrivals(recorded)
    found = arrival_skew(ranks)
    assert isinstance(found, ArrivalSkew)
    assert found.left_out == 0 and len(found.collectives) == 8
    assert found.ranks[0].rank == 7 and found.ranks[0].last == 5
    assert all(abs(row.clock_offset_ns) <= 10_000 for row in found.ranks), "one host, one clock"
    assert sum(row.waited_ns for row in found.ranks) == sum(row.kept_waiting_ns for row in found.ranks)
    assert as_json(found.as_record())["ranks"][0]["rank"] == 7


def on_host(starts_ns: list[int], ends_ns: list[int], tmp_path: Path) -> CollectiveArrivals:
    made = DeviceTrace()
    made.host("aten::mm", starts_ns[0] - 1_000, starts_ns[0] - 500)
    for start_ns, end_ns in zip(starts_ns, ends_ns, strict=True):
        made.host("gloo:all_reduce", start_ns, end_ns, category="user_annotation", thread=77)
    path = tmp_path / f"{len(list(tmp_path.iterdir()))}.json"
    path.write_bytes(trace_files.trace_text(made.events, before={"baseTimeNanoseconds": 10**18 * 2}, after={}))
    found = collective_arrivals(traces.open(path))
    assert isinstance(found, CollectiveArrivals)
    return found


def test_ranks_of_gloo_on_the_cpu_are_compared_though_one_began_to_record_later(tmp_path: Path) -> None:
    """The late rank's recording misses the first two collectives."""
    begun = [1_000_000 * step + 300_000 for step in range(9)]
    ends = [start + 450_000 for start in begun]
    early = on_host(begun, ends, tmp_path)
    late = on_host([start + 400_000 for start in begun[2:]], ends[2:], tmp_path)
    skew = arrival_skew({0: early, 1: late})
    assert isinstance(skew, ArrivalSkew)
    assert [row.skew_ns for row in skew.collectives] == [400_000] * 7
    assert {row.last_rank for row in skew.collectives} == {1} and skew.left_out == 2


def test_recordings_that_share_no_moment_are_not_compared(tmp_path: Path) -> None:
    begun = [1_000_000 * step + 300_000 for step in range(30)]
    ends = [start + 100_000 for start in begun]
    apart = arrival_skew({0: on_host(begun[:9], ends[:9], tmp_path), 1: on_host(begun[20:28], ends[20:28], tmp_path)})
    assert isinstance(apart, NotApplicable) and "share none" in apart.reason
