"""What rules say about a program without a defect."""

from __future__ import annotations

import pytest

from tightship_analyzers.graph.edits import Edits
from tightship_analyzers.trace.intervals import Intervals


def test_edits_join_thread_by_thread() -> None:
    both = Edits.without_host(1, Intervals.one(0, 10)) | Edits.without_host(1, Intervals.one(5, 20))
    both |= Edits.without_host(2, Intervals.one(0, 3)) | Edits.without_syncs(1, Intervals.one(7, 8))
    assert both.host[1] == Intervals.one(0, 20)
    assert both.host[2] == Intervals.one(0, 3)
    assert both.syncs[1] == Intervals.one(7, 8)


def test_the_smaller_share_of_a_device_event_holds() -> None:
    both = Edits.without_device([3, 4], [0.5, 0.25]) | Edits.without_device([4, 5], 0.75)
    assert both.device == {3: 0.5, 4: 0.25, 5: 0.75}
    assert (both | Edits.without_device([3])).device[3] == 0.0


def test_joined_events_are_a_union() -> None:
    assert (Edits.launched_together([1, 2]) | Edits.launched_together([2, 3])).joined == {1, 2, 3}


@pytest.mark.parametrize("share", [-0.1, float("nan")])
def test_impossible_shares_are_refused(share: float) -> None:
    with pytest.raises(ValueError, match="share"):
        Edits.without_device([1], share)
