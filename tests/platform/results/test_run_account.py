"""What the account of a run says: one rule for pages and lists."""

from __future__ import annotations

from typing import Any

import pytest
from made_records import make

from tightship_platform.results.run import Run
from tightship_platform.results.run_account import (
    BUCKET_LABEL,
    awaits_account,
    has_no_trace,
    largest_loss,
    listed_account,
    losses,
)
from tightship_platform.vocabulary import Bucket


def test_every_bucket_has_a_label_of_its_own() -> None:
    assert set(BUCKET_LABEL) == set(Bucket)
    assert len(set(BUCKET_LABEL.values())) == len(Bucket)


def test_losses_are_largest_first_and_unexplained_is_last_and_never_hidden() -> None:
    buckets = {"productive": 50, "input": 3, "unexplained": 40, "host": 7, "startup": 0}
    assert losses(buckets) == [(Bucket.HOST, 7), (Bucket.INPUT, 3), (Bucket.UNEXPLAINED, 40)]
    assert losses({}) == [(Bucket.UNEXPLAINED, 0)]


def test_a_bucket_of_a_newer_server_counts_as_unexplained() -> None:
    assert losses({"tea_break": 5, "unexplained": 1}) == [(Bucket.UNEXPLAINED, 6)]


@pytest.mark.parametrize(
    ("account", "loss"),
    [
        ({"startup": 38, "shutdown": 8, "unexplained": 54}, (Bucket.UNEXPLAINED, 54)),
        ({"startup": 54, "unexplained": 38}, (Bucket.STARTUP, 54)),
        ({"productive": 90, "input": 10}, (Bucket.INPUT, 10)),
        ({"productive": 9}, (Bucket.UNEXPLAINED, 0)),
    ],
)
def test_the_largest_loss_is_the_largest_also_where_nobody_knows_what_it_is(
    account: dict[str, int], loss: tuple[Bucket, int]
) -> None:
    assert largest_loss(account) == loss


def test_without_a_trace_nothing_is_said_of_work() -> None:
    assert has_no_trace({"startup": 1, "productive": 0, "unexplained": 1})
    assert not has_no_trace({"productive": 1, "unexplained": 1})
    assert not has_no_trace({"held_idle": 1, "productive": 0, "unexplained": 0})


def run(**changes: Any) -> Run:
    account = {"productive": 3, "input": 1}
    return make(
        Run, {"state": "finished", "end_ns": 9, "accounted_ns": 9, "device_ns": 4, "account": account}, **changes
    )


def test_of_a_run_that_has_ended_only_a_complete_account_is_listed() -> None:
    assert listed_account(run()) == run().account
    late = run(accounted_ns=8)
    assert awaits_account(late) and listed_account(late) is None
    live = run(state="running", end_ns=None, accounted_ns=8)
    assert not awaits_account(live) and listed_account(live) == live.account, "lists say: so far"
    assert listed_account(run(account=None, accounted_ns=None)) is None
    assert listed_account(run(account={}, device_ns=0)) is None
