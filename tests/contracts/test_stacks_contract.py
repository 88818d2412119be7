"""Stacks of live runs on both databases: asked for once by several, handed to one agent, bounded whatever it brings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from records import MIN, T0, S, ended, started
from sqlalchemy.orm import Session

from tightship_platform import ingest
from tightship_platform.captures import stacks
from tightship_platform.database.engine import Database
from tightship_platform.database.reporters import Reporter
from tightship_platform.database.teams import see_team
from tightship_platform.errors import Conflict, Forbidden, Invalid, NotFound
from tightship_platform.queries.stacks import last_stacks
from tightship_platform.results.stacks import StackDump
from tightship_platform.wire import Frame, ProcessFrames, StackAnswer, StackLease

NOW = T0 + MIN
PLACE = Frame(function="endless", file="/job/train.py", line=11)


@pytest.fixture
def session(database: Database) -> Iterator[Session]:
    """With the live runs a1 of host h1 and b1 of h2."""
    with database.session() as opened:
        ingest.apply_run(opened, started("a1"), now=NOW)
        ingest.apply_run(opened, started("b1", host="h2"), now=NOW)
        yield opened


def bring(session: Session, *processes: ProcessFrames, host: str = "h1", now: int = NOW + S, **more: Any) -> StackDump:
    stacks.answer(session, "a1", StackAnswer(host=host, processes=list(processes)), now=now, **more)
    dump = last_stacks(session, "a1")
    assert dump is not None
    return dump


def test_one_request_for_all_who_ask_and_the_last_answer_stays(session: Session) -> None:
    assert last_stacks(session, "a1") is None and stacks.wanted_runs(session, now=NOW) == set()
    assert stacks.ask(session, "a", by="ann", now=NOW) == "a1"
    stacks.ask(session, "a1", by="bob", now=NOW + S)
    assert stacks.wanted_runs(session, now=NOW + S) == {"a1"}
    assert stacks.take(session, ["a1", "b1"], "h2", now=NOW + S) == []
    assert stacks.take(session, ["a1"], "h1", now=NOW + S) == [StackLease(run="a1", native=False)]
    assert stacks.take(session, ["a1"], "h1", now=NOW + S) == [] and stacks.wanted_runs(session, now=NOW + S) == set()
    dump = last_stacks(session, "a1")
    assert dump is not None and (dump.requested_by, dump.taken_ns, dump.is_awaited) == ("ann", None, True)
    dump = bring(session, ProcessFrames(pid=7, rank=0, steps=3, runs=True, frames=[PLACE]), now=NOW + 2 * S)
    assert (dump.taken_ns, dump.is_awaited, dump.processes[0].frames) == (NOW + 2 * S, False, [PLACE])
    with pytest.raises(Conflict, match="Nobody waits"):
        bring(session)
    stacks.ask(session, "a1", by="bob", native=True, now=NOW + 3 * S)
    dump = last_stacks(session, "a1")
    assert dump is not None and dump.is_awaited and dump.processes[0].pid == 7, "until the next answer comes"
    assert stacks.take(session, ["a1"], "h1", now=NOW + 3 * S) == [StackLease(run="a1", native=True)]


def test_what_is_not_answered_is_offered_again_and_then_forgotten(session: Session) -> None:
    stacks.ask(session, "a1", by="ann", now=NOW)
    assert stacks.take(session, ["a1"], "h1", now=NOW)
    later = NOW + stacks.LEASE_NS
    assert stacks.wanted_runs(session, now=later) == {"a1"} and stacks.take(session, ["a1"], "h1", now=later)
    assert stacks.wanted_runs(session, now=NOW + 2 * stacks.TTL_NS) == set()
    stacks.ask(session, "a1", by="bob", now=NOW + 2 * stacks.TTL_NS)
    assert stacks.wanted_runs(session, now=NOW + 2 * stacks.TTL_NS) == {"a1"}
    ingest.apply_run(session, ended("a1", end_ns=NOW), now=NOW)
    assert stacks.wanted_runs(session, now=NOW + 2 * stacks.TTL_NS) == set()
    with pytest.raises(Conflict, match="Run a1 is finished; only a running run has stacks"):
        stacks.ask(session, "a1", by="ann", now=NOW)


def test_who_may_bring_them(session: Session) -> None:
    stacks.ask(session, "a1", by="ann", now=NOW)
    of_other = Reporter(name="t2", host="h2")
    with pytest.raises(Forbidden):
        stacks.take(session, ["a1"], "h1", reporter=of_other, now=NOW)
    with pytest.raises(Conflict, match="Nobody waits"):
        bring(session)
    stacks.take(session, ["a1"], "h1", now=NOW)
    with pytest.raises(Conflict, match="Run a1 is of 'h1'; 'h2' cannot bring its stacks"):
        bring(session, host="h2")
    with pytest.raises(Forbidden):
        bring(session, reporter=of_other)
    with pytest.raises(NotFound):
        stacks.answer(session, "b1", StackAnswer(host="h2", processes=[]), now=NOW)
    see_team("blue")
    try:
        for call in (lambda: stacks.ask(session, "a1", by="x", now=NOW), lambda: last_stacks(session, "a1")):
            with pytest.raises(NotFound):
                call()
    finally:
        see_team(None)


def test_a_hostile_answer_is_bounded(session: Session) -> None:
    stacks.ask(session, "a1", by="ann", now=NOW)
    stacks.take(session, ["a1"], "h1", now=NOW)
    for wrong in (
        [ProcessFrames(pid=1)] * (stacks.MAX_PROCESSES + 1),
        [ProcessFrames(pid=0)],
        [ProcessFrames(pid=1, rank=-1)],
        [ProcessFrames(pid=1, steps=2**60)],
        [ProcessFrames(pid=1, last_step_ns=1)],
        [ProcessFrames(pid=1, frames=[Frame(function="f", file="g", line=-1)])],
    ):
        with pytest.raises(Invalid):
            bring(session, *wrong)
    long = Frame(function="\x1b[2J<script>\n" + "f" * 9000, file="/job/\u202e" + "g" * 9000, line=1)
    hostile = ProcessFrames(pid=1, frames=[long] * 1000, reason="\x07" + "r" * 9000 + "\nhf_abcdefghijklmnopqrstuvwxyz")
    few = ProcessFrames(pid=2, reason="token=hf_abcdefghijklmnopqrstuvwxyz is\nnot permitted")
    dump = bring(session, *[hostile] * 9, few)
    text = sum(len(frame.function) + len(frame.file) for one in dump.processes for frame in one.frames)
    assert text <= stacks.ANSWER_MAX + stacks.MAX_FRAMES * 2 * stacks.TEXT_MAX
    first, last = dump.processes[0], dump.processes[8]
    assert len(first.frames) == stacks.MAX_FRAMES and first.frames[0].function.startswith("[2J<script> fff")
    assert all(value.isprintable() for frame in first.frames for value in (frame.function, frame.file))
    assert last.frames == [] and last.reason is not None and last.reason.startswith("left out: the stacks")
    assert first.reason is not None and len(first.reason) == stacks.TEXT_MAX
    assert dump.processes[9].reason == "token=*** is not permitted"
