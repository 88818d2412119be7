"""Cases that two ranks on gloo cannot show: many ranks, devices that lag, transfers, batches, ranks without a dump."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from recorder_dumps import entry, write_dumps

from tightship_analyzers.hangs import judge, read_dumps
from tightship_platform.results.hang import HangKind, HangReport


def report_of(
    folder: Path, ranks: dict[int, list[dict[str, Any]]], enqueued: dict[int, int] | None = None
) -> HangReport:
    write_dumps(folder, ranks, enqueued)
    return judge(read_dumps([folder]))


def same(ranks: int) -> dict[int, list[dict[str, Any]]]:
    return {rank: [entry(5)] for rank in range(ranks)}


def kinds(report: HangReport) -> list[tuple[int, HangKind]]:
    return [(culprit.rank, culprit.kind) for culprit in report.culprits]


def test_a_device_that_is_behind_its_peers(tmp_path: Path) -> None:
    """A kernel before it does not end: the host has queued it as all others have."""
    begun = [entry(5, state="started")]
    report = report_of(tmp_path, {0: begun, 1: begun, 2: [entry(5)], 3: begun})
    assert kinds(report) == [(2, HangKind.QUEUED)]
    assert report.verdict == (
        "Rank 2 has called all_reduce 5 of default_pg, and its device is behind its peers' there. "
        "3 ranks wait for it in all_reduce 5 of default_pg."
    )


def test_what_others_have_completed(tmp_path: Path) -> None:
    done = [entry(5, state="completed"), entry(6)]
    report = report_of(tmp_path, {0: done, 1: [entry(5), entry(6)], 2: done, 3: done})
    assert kinds(report) == [(1, HangKind.QUEUED)]
    (wait,) = report.waits
    assert (wait.waiting, wait.missing, wait.operation.seq) == ([0, 2, 3], [1], 6)


def test_all_are_in_it(tmp_path: Path) -> None:
    report = report_of(tmp_path, same(4))
    assert kinds(report) == [(rank, HangKind.INSIDE) for rank in range(4)]
    assert report.verdict == "Ranks 0, 1, 2 and 3 are in all_reduce 5 of default_pg, and none gets out."


def test_one_calls_something_else(tmp_path: Path) -> None:
    ranks = same(3) | {3: [entry(5, "broadcast")]}
    report = report_of(tmp_path, ranks)
    assert kinds(report) == [(3, HangKind.MISMATCHED)]
    assert [(w.waiting, w.missing) for w in report.waits] == [([0, 1, 2], [3])]
    assert "broadcast 5 of default_pg where peers call something else" in report.verdict


def test_tensors_of_other_sizes(tmp_path: Path) -> None:
    report = report_of(tmp_path, {rank: [entry(5, input_sizes=[[8 + rank % 2]])] for rank in range(4)})
    assert kinds(report) == [(rank, HangKind.MISMATCHED) for rank in range(4)], "there is no majority"


def test_sizes_may_differ_where_a_collective_permits_it(tmp_path: Path) -> None:
    ranks = {rank: [entry(5, "all_to_all", input_sizes=[[rank]])] for rank in range(4)}
    assert {kind for _, kind in kinds(report_of(tmp_path, ranks))} == {HangKind.INSIDE}


def test_a_rank_without_a_dump(tmp_path: Path) -> None:
    report = report_of(tmp_path, same(3))
    assert (report.ranks, kinds(report)) == (4, [(3, HangKind.NO_DUMP)])
    assert report.verdict.startswith("There is no dump of rank 3, which is missed in all_reduce 5 of default_pg.")


def test_a_chain_of_transfers_leads_to_who_holds_it(tmp_path: Path) -> None:
    """0 sends to 1, 1 waits to receive from 2, 2 from 3, and 3 does nothing."""
    report = report_of(
        tmp_path,
        {0: [entry(5, "send 0->1")], 1: [entry(5, "recv 1<-2")], 2: [entry(5, "recv 2<-3")], 3: []},
    )
    assert kinds(report) == [(3, HangKind.NOT_ENTERED)]
    assert [(w.waiting, w.missing, w.direct) for w in report.waits] == [
        ([2], [3], True),
        ([0], [1], False),
        ([1], [2], False),
    ]


def test_both_sides_of_a_transfer_are_in_it(tmp_path: Path) -> None:
    idle: list[dict[str, Any]] = []
    report = report_of(tmp_path, {0: [entry(5, "send 0->1")], 1: [entry(9, "recv 1<-0")], 2: idle, 3: idle})
    assert kinds(report) == [(0, HangKind.INSIDE), (1, HangKind.INSIDE)]


@pytest.mark.parametrize("state", ["completed", "scheduled"])
def test_a_batch_is_complete_when_its_end_is(tmp_path: Path, state: str) -> None:
    """The recorder never marks the members of a batch."""
    batch = [entry(5, "send 0->1", order=1), entry(5, "coalesced", state, order=2, is_p2p=True)]
    report = report_of(tmp_path, {0: batch, 1: [], 2: [], 3: []})
    assert [w.operation.name for w in report.waits] == ([] if state == "completed" else ["send 0->1"])


def test_how_far_a_rank_is_stands_in_its_status(tmp_path: Path) -> None:
    """Rank 3 has not called what the others wait in: it sends, and 2 does not receive."""
    ranks = {rank: [entry(5)] for rank in range(3)} | {3: [entry(9, "send 3->2")]}
    report = report_of(tmp_path, ranks, enqueued={3: 4})
    assert kinds(report) == [(2, HangKind.DEADLOCKED), (3, HangKind.DEADLOCKED)]
    assert [(w.waiting, w.missing) for w in report.waits] == [([0, 1], [3])]
