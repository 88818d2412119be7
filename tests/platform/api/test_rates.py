"""A token or host that makes too many requests is asked to wait; nobody else notices, and agents wait."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from api_calls import HOST, RUN, Served, heartbeat, ok, refused

from tightship_collectors.delivery.sender import Sender
from tightship_collectors.delivery.spool import Spool
from tightship_platform.api import auth, rates
from tightship_platform.api.rates import BURST_S, Rates, TooManyRequests
from tightship_platform.client import ApiError
from tightship_platform.database.engine import open_database
from tightship_platform.vocabulary import Scope
from tightship_platform.wire import Heartbeat


def test_a_bucket_fills_at_its_rate_and_holds_a_burst() -> None:
    now_s = 0.0
    of_hosts = Rates(2, "TIGHTSHIP_X", clock_s=lambda: now_s)
    for _ in range(int(2 * BURST_S)):
        of_hosts.take("a", "Host 'a'")
    with pytest.raises(TooManyRequests, match=r"Host 'a' makes more than 2 requests a second; wait 1 s, .*TIGHTSHIP_X"):
        of_hosts.take("a", "Host 'a'")
    of_hosts.take("b", "Host 'b'")
    now_s += 1.0
    of_hosts.take("a", "Host 'a'")
    of_hosts.take("a", "Host 'a'")
    with pytest.raises(TooManyRequests) as caught:
        of_hosts.take("a", "Host 'a'")
    assert caught.value.wait_s == 0.5
    now_s += 1000.0
    for _ in range(int(2 * BURST_S)):
        of_hosts.take("a", "Host 'a'")
    with pytest.raises(TooManyRequests):
        of_hosts.take("a", "Host 'a'")


def test_any_number_is_any_number() -> None:
    for _ in range(1000):
        Rates(0, "TIGHTSHIP_X").take("a", "Host 'a'")


def test_buckets_that_say_nothing_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "MAX_BUCKETS", 10)
    now_s = 0.0
    of_hosts = Rates(1, "TIGHTSHIP_X", clock_s=lambda: now_s)
    for number in range(100):
        now_s += 5.0
        of_hosts.take(str(number), "One")
    assert len(of_hosts._buckets) <= 10


def _until_refused(post: Callable[[], httpx.Response], most: int) -> httpx.Response:
    for _ in range(most):
        answer = post()
        if answer.status_code != 200:
            return answer
    raise AssertionError("it was never refused")


def test_a_host_that_floods_is_429_and_the_others_are_served(platform_env: Any, serve: Callable[..., Served]) -> None:
    served = serve(replace(platform_env.settings, requests_per_host=1))
    with served.http() as http:
        answer = _until_refused(lambda: http.post("/hosts/heartbeat", json=heartbeat() | {"runs": []}), 60)
        assert refused(answer, 429, repr(HOST), "TIGHTSHIP_REQUESTS_PER_HOST")
        assert answer.headers["retry-after"] == "1"
        ok(http.post("/hosts/heartbeat", json=heartbeat() | {"host": "another", "runs": []}))
        ok(http.get("/hosts"))
        for path, body in (("/batches", {"host": HOST}), ("/captures/lease", {"host": HOST, "runs": [RUN]})):
            _until_refused(lambda path=path, body=body: http.post(path, json=body), 3)  # type: ignore[misc]


def test_a_token_that_floods_is_429_and_the_others_are_served(platform_env: Any, serve: Callable[..., Served]) -> None:
    with open_database(platform_env.settings) as database, database.session() as session:
        flooding, calm = (auth.create_token(session, name, [Scope.READ]) for name in ("flooding", "calm"))
    served = serve(replace(platform_env.settings, requests_per_token=1))
    with served.http(flooding) as http, served.http(calm) as other:
        answer = _until_refused(lambda: http.get("/runs"), 60)
        assert refused(answer, 429, "'flooding'", "TIGHTSHIP_REQUESTS_PER_TOKEN")
        assert answer.headers["retry-after"] == "1"
        ok(other.get("/runs"))


class Busy:
    """A client whose server asks to wait."""

    server = "http://busy"

    def post(self, path: str, body: Any) -> Any:
        raise ApiError("too many", 429, wait_s=77.0)


def test_an_agent_waits_as_long_as_it_is_asked_to(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    spool.put("batches", b'{"host": "h"}')
    sender = Sender(Busy(), spool, records_dir=tmp_path / "runs")  # type: ignore[arg-type]
    sender.offer(Heartbeat(host="h", time_ns=1, agent_version="1"))
    before_s = time.monotonic()
    sender._deliver()
    sender._deliver()
    assert sender._entry_pause.until_s >= before_s + 77
    sender._offered_s = 0.0
    sender._deliver()
    assert sender._heartbeat_pause.until_s >= before_s + 77
    assert spool.backlog()[0] == 1


def test_a_client_reads_how_long_to_wait(platform_env: Any, serve: Callable[..., Served]) -> None:
    served = serve(replace(platform_env.settings, requests_per_host=1))
    with served.api() as api:
        with pytest.raises(ApiError) as caught:
            for _ in range(60):
                api.post("/batches", {"host": HOST})
        assert (caught.value.http_status, caught.value.wait_s) == (429, 1.0)
