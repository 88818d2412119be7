"""Deliveries that go the long way wait for their turn: without a thread, callers in turn, and not for ever."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from api_calls import HOST, Served, heartbeat, ok, refused, run_record
from event_loop import run_async
from sqlalchemy import func, select
from waiting import wait_for

from tightship_platform.api import turns
from tightship_platform.api.turns import AT_ONCE, OF_ONE_CALLER, Turns
from tightship_platform.client import ApiError
from tightship_platform.database.locks import begin_writing
from tightship_platform.database.models import Host
from tightship_platform.errors import AskedToWait

REST = AT_ONCE - OF_ONE_CALLER


class Played:
    """Turns, and who has one or wants one."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.all: list[tuple[str, asyncio.Task[None]]] = []

    async def ask(self, *callers: str, size: int = 1) -> list[asyncio.Task[None]]:
        tasks = [asyncio.create_task(self.turns.begin(caller, size)) for caller in callers]
        self.all += zip(callers, tasks, strict=True)
        await self.rest()
        return tasks

    async def end(self, *callers: str) -> None:
        for caller in callers:
            self.turns.end(caller)
            await self.rest()

    @property
    def begun(self) -> list[str]:
        return [caller for caller, task in self.all if task.done() and not task.cancelled() and not task.exception()]

    @staticmethod
    async def rest() -> None:
        for _ in range(5):
            await asyncio.sleep(0)


def test_callers_take_turns_and_no_caller_takes_all() -> None:
    async def plot() -> None:
        played = Played()
        await played.ask(*["flood"] * 40)
        assert played.begun == ["flood"] * OF_ONE_CALLER
        await played.ask(*"abcdefgh"[: REST + 1])
        assert played.begun[OF_ONE_CALLER:] == list("abcdefgh"[:REST])
        last = "abcdefgh"[REST]
        await played.end("flood", "flood")
        assert last in played.begun
        assert played.begun.count("flood") == OF_ONE_CALLER + 1
        assert played.turns.waiting == 40 - OF_ONE_CALLER - 1
        for _ in range(40 - 2):
            await played.end("flood")
        await played.end(*"abcdefgh"[: REST + 1])
        assert (played.turns.waiting, played.begun.count("flood")) == (0, 40)
        await played.ask(*[str(number) for number in range(AT_ONCE + 1)])
        assert len(played.begun) == 40 + REST + 1 + AT_ONCE

    run_async(plot())


def test_who_waits_for_too_long_learns_when_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "WAIT_S", 0.05)

    async def plot() -> None:
        played = Played()
        callers = [str(number) for number in range(AT_ONCE)]
        await played.ask(*callers)
        with pytest.raises(AskedToWait, match="send it again in") as caught:
            await played.turns.begin("late", 1)
        assert 0 < caught.value.wait_s < turns.WAIT_S
        await played.end(*callers)
        await played.ask(*callers)
        assert len(played.begun) == 2 * AT_ONCE

    run_async(plot())


def test_who_leaves_takes_no_turn_along() -> None:
    """Neither one who waits, nor one whose turn has just come."""

    async def plot() -> None:
        played = Played()
        callers = [str(number) for number in range(AT_ONCE)]
        await played.ask(*callers)
        waiting, called = await played.ask("w", "c")
        waiting.cancel()
        await played.rest()
        played.turns.end("0")
        called.cancel()  # before it could go on
        await played.rest()
        assert called.cancelled()
        await played.ask("next")
        assert played.begun[-1] == "next"
        assert played.turns.waiting == 0

    run_async(plot())


def test_no_more_waits_than_memory_permits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "WAITING_BYTES", 100)

    async def plot() -> None:
        played = Played()
        await played.ask(*[str(number) for number in range(AT_ONCE)], size=60)
        assert len(played.begun) == AT_ONCE, "what is worked on does not wait"
        await played.ask("a", size=60)
        with pytest.raises(AskedToWait):
            await played.turns.begin("b", 60)
        await played.end("0")
        assert played.begun[-1] == "a"

    run_async(plot())


def long_heartbeats(http: httpx.Client, count: int) -> list[httpx.Response]:
    """Answers to as many hosts that report all at once, and whose heartbeats have to be made fit for one line."""

    def send(number: int) -> httpx.Response:
        body = heartbeat() | {"host": f"{HOST}-{number}", "runs": [], "agent_version": "two\nlines"}
        return http.post("/hosts/heartbeat", json=body)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(send, range(count)))


def test_what_takes_long_waits_without_a_thread(served: Served, http: httpx.Client) -> None:
    hosts = 2 * AT_ONCE
    before = set(threading.enumerate())
    with ThreadPoolExecutor(1) as background:
        with served.database.session() as session:
            begin_writing(session)  # nothing is stored before the end of this block
            answers = background.submit(long_heartbeats, http, hosts)
            wait_for(lambda: served.app.state.turns.waiting == hosts - OF_ONE_CALLER)
            ours = [thread for thread in set(threading.enumerate()) - before if "AnyIO" in thread.name]
            assert len(ours) <= OF_ONE_CALLER
            ok(http.get("/hosts"))
        assert [answer.status_code for answer in answers.result()] == [200] * hosts
    with served.database.session() as session:
        assert session.scalar(select(func.count()).select_from(Host)) == hosts


def test_what_cannot_wait_any_longer_is_sent_away_and_taken_later(
    served: Served, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "WAIT_S", 0.2)
    with ThreadPoolExecutor(1) as background:
        with served.database.session() as session:
            begin_writing(session)
            answers = background.submit(long_heartbeats, http, OF_ONE_CALLER)
            wait_for(lambda: served.app.state.turns._at_work.total() == OF_ONE_CALLER)
            answer = http.post("/runs", json=run_record())
            assert refused(answer, 503, "send it again in")
            assert int(answer.headers["retry-after"]) >= 1
            with served.api() as api, pytest.raises(ApiError) as caught:
                api.post("/batches", {"host": HOST})
            assert caught.value.wait_s >= 1
        assert {one.status_code for one in answers.result()} == {200}
    ok(http.post("/runs", json=run_record()))
