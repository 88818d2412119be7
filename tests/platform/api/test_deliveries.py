"""The short way of what agents send all the time: what came together is answered one by one, and stored."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from api_calls import HOST, Served, ok, run_record
from event_loop import run_async
from sqlalchemy import delete, func, select
from waiting import wait_for

from tightship_platform.api import groups as api_groups
from tightship_platform.api.auth import create_token, revoke_token
from tightship_platform.api.groups import Newcomer, Newcomers, in_turn, known_groups
from tightship_platform.database.engine import open_database
from tightship_platform.database.models import Device, Host, HostSample, Sample, Token
from tightship_platform.errors import AskedToWait
from tightship_platform.ingest import newcomers, plain, quick
from tightship_platform.ingest.known import KnownHosts
from tightship_platform.ingest.quick import Delivery
from tightship_platform.units import NS_PER_S, now_ns
from tightship_platform.vocabulary import Scope

HOSTS = 12


def body(number: int, time_ns: int) -> dict[str, Any]:
    uuid = f"GPU-{number}"
    return {
        "host": f"{HOST}-{number}",
        "devices": [{"uuid": uuid, "kind": "gpu", "name": "A GPU", "memory_bytes": None}],
        "samples": [{"time_ns": time_ns, "device": uuid, "util_frac": 0.5}],
        "host_samples": [{"time_ns": time_ns, "cpu_frac": 0.25}],
    }


def send(http: httpx.Client, time_ns: int) -> list[int]:
    """A batch of each host, all at once; their statuses."""
    with ThreadPoolExecutor(HOSTS) as pool:
        return list(
            pool.map(lambda number: http.post("/batches", json=body(number, time_ns)).status_code, range(HOSTS))
        )


def test_each_of_many_is_answered_and_stored(
    served: Served, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    together: list[tuple[str, int]] = []

    def counted(which: str, store: Callable[..., Any]) -> Callable[..., Any]:
        def count(session: Any, items: Any) -> Any:
            together.append((which, len(items)))
            return store(session, items)

        return count

    monkeypatch.setattr(quick, "store", counted("known", quick.store))
    monkeypatch.setattr(newcomers, "store", counted("new", newcomers.store))
    now = now_ns()
    for second in range(3):
        assert send(http, now + second * NS_PER_S) == [200] * HOSTS
    for which, count in (("new", HOSTS), ("known", 2 * HOSTS)):
        assert sum(items for kind, items in together if kind == which) == count
        assert max(items for kind, items in together if kind == which) > 1
    with served.database.session() as session:
        for table in (Sample, HostSample):
            assert session.scalar(select(func.count()).select_from(table)) == 3 * HOSTS


def test_what_was_removed_meanwhile_costs_the_others_nothing(served: Served, http: httpx.Client) -> None:
    now = now_ns()
    assert send(http, now) == [200] * HOSTS
    with served.database.session() as session:
        session.execute(delete(Device).where(Device.uuid == "GPU-3"))
        session.execute(delete(Host).where(Host.name == f"{HOST}-4"))
    assert send(http, now + NS_PER_S) == [200] * HOSTS
    with served.database.session() as session:
        found = session.scalars(select(Sample.time_ns).where(Sample.time_ns > now)).all()
    assert len(found) == HOSTS


def test_who_goes_the_long_way_keeps_nobody_from_the_short_one(
    platform_env: Any, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All connections of the requests are taken: a host that is known is stored all the same."""
    served = serve(platform_env.settings)
    now = now_ns()
    with served.http() as http:
        assert http.post("/batches", json=body(0, now)).status_code == 200
        pool: Any = served.database.engine.pool
        with ExitStack() as taken:
            for _ in range(pool.size() + pool._max_overflow):
                taken.enter_context(served.database.engine.connect())
            assert http.post("/batches", json=body(0, now + NS_PER_S)).status_code == 200


def test_a_group_that_is_held_up_holds_up_no_other(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def store(_session: Any, deliveries: list[Delivery]) -> list[Delivery]:
        if deliveries[0].seen_ns == 0:
            assert release.wait(60)
        return deliveries

    monkeypatch.setattr(quick, "store", store)
    database = open_database(served.settings)
    groups = known_groups(database)

    async def both() -> None:
        held, free = (
            Delivery(known=None, answer=None, seen_ns=seen, is_due=False, runs={})  # type: ignore[arg-type]
            for seen in (0, 1)
        )
        monkeypatch.setattr(Delivery, "remember", lambda _: None)
        first = asyncio.create_task(groups.store(held))
        while not groups._under_way:
            await asyncio.sleep(0.01)
        assert await groups.store(free)
        assert not first.done()
        release.set()
        assert await first

    run_async(both())
    groups.close()
    database.close()


def test_what_is_not_plain_reaches_the_route_as_it_was_sent(http: httpx.Client) -> None:
    for wrong, status in ((b"{", 422), (b"[]", 422), (json.dumps({"host": HOST, "samples": 1}).encode(), 422)):
        assert http.post("/batches", content=wrong).status_code == status
    assert http.get("/batches").status_code == 404
    assert ok(http.post("/runs", json=run_record()))


def test_tokens_of_agents_are_known_while_they_are_valid(platform_env: Any, serve: Any) -> None:
    """Their use is written down, and a revoked one is refused soon."""
    with open_database(platform_env.settings) as database, database.session() as session:
        token = create_token(session, "agent", [Scope.INGEST])
    served = serve(platform_env.settings)
    with served.http(token) as http:
        beat = {"host": HOST, "time_ns": now_ns(), "agent_version": "x"}
        wait_for(lambda: ok(http.post("/hosts/heartbeat", json=beat)) and _last_used(served))
        with served.database.session() as session:
            revoke_token(session, "agent")
        wait_for(lambda: http.post("/hosts/heartbeat", json=beat).status_code == 401)
        assert http.post("/batches", json={"host": HOST}).status_code == 401


def _last_used(served: Served) -> int:
    with served.database.session() as session:
        return session.scalars(select(Token.last_used_ns)).one() or 0


def test_a_heartbeat_of_a_host_that_is_known_is_plain() -> None:
    assert plain.read_heartbeat(b'{"host": "h", "time_ns": 1800000000000000000, "agent_version": "x"}') is not None


def test_callers_share_what_newcomers_have() -> None:
    flood = [("flood", number) for number in range(5)]
    mixed = [*flood, ("a", 0), ("b", 0), ("a", 1)]
    assert in_turn(mixed, lambda item: item[0]) == [
        *(flood[0], ("a", 0), ("b", 0), flood[1], ("a", 1)),
        *flood[2:],
    ]


def test_what_is_too_much_for_newcomers_is_asked_to_come_later(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one caller half of what may wait; of all, all of it. What waits is stored all the same."""
    release = threading.Event()
    monkeypatch.setattr(api_groups, "MOST_OF_ONE", 3)
    monkeypatch.setattr(api_groups, "MOST_WAITING", 5)
    monkeypatch.setattr(api_groups, "MOST_TOGETHER", 1)
    monkeypatch.setattr(newcomers, "store", lambda _session, _arrivals: release.wait(60) and [])

    async def plot() -> list[Any]:
        waiting = Newcomers(served.database, KnownHosts())

        def ask(caller: str) -> asyncio.Task[bool | None]:
            item = Newcomer(arrival=None, caller=caller, is_own=False)  # type: ignore[arg-type]
            return asyncio.create_task(waiting.store(item))

        first = [ask(caller) for caller in ("x", "y")]
        while waiting._under_way < 2:
            await asyncio.sleep(0.01)
        kept = [ask("flood") for _ in range(3)]
        over = [ask("flood")]
        kept += [ask("a"), ask("b")]
        over += [ask("c")]
        refused = await asyncio.gather(*over, return_exceptions=True)
        release.set()
        assert await asyncio.gather(*first, *kept) == [False] * 7
        waiting.close()
        return refused

    refused = run_async(plot())
    assert [type(one) for one in refused] == [AskedToWait] * 2
    assert len({round(one.wait_s, 3) for one in refused}) == 2, "they do not come back at one moment"
