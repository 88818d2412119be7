"""Agents wait at the server for captures: they get one as soon as it is asked for, whichever process was asked."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from api_calls import HOST, RUN, Capture, Served, heartbeat, ok, run_record
from waiting import PATIENCE_S, wait_for

from tightship_platform.api.polls import Polls
from tightship_platform.wire import MAX_LEASE_WAIT_S


class Waiting:
    """One agent's open request."""

    def __init__(self, served: Served, runs: list[str], wait_s: float = MAX_LEASE_WAIT_S) -> None:
        self.answers: list[dict[str, Any]] = []
        self.polls: Polls = served.app.state.polls
        body = {"host": HOST, "runs": runs, "wait_s": wait_s}

        def ask() -> None:
            with served.http() as http:
                self.answers.append(ok(http.post("/captures/lease", json=body)))

        self.thread = threading.Thread(target=ask)
        self.thread.start()

    def until_it_waits(self, run: str = RUN) -> None:
        wait_for(lambda: run in self.polls._waiting)

    def leases(self) -> list[str]:
        self.thread.join(PATIENCE_S)
        return [lease["capture"] for answer in self.answers for lease in answer["leases"]]


def close(polls: Polls) -> None:
    """As connections do when the server ends."""
    assert polls._watch is not None
    polls._watch.get_loop().call_soon_threadsafe(polls.close)


def _live(http: httpx.Client, run: str = RUN) -> None:
    ok(http.post("/runs", json=run_record(run)))
    ok(http.post("/hosts/heartbeat", json=heartbeat(run)))


def test_a_request_that_waits_is_answered_when_a_capture_is_wanted(served: Served, http: httpx.Client) -> None:
    _live(http)
    agent = Waiting(served, [RUN])
    agent.until_it_waits()
    key = ok(http.post("/captures", json={"target": RUN}))["capture"]
    assert agent.leases() == [key]


def test_a_server_beside_this_one_was_asked(served: Served, http: httpx.Client, serve: Callable[..., Served]) -> None:
    _live(http)
    agent = Waiting(served, [RUN])
    agent.until_it_waits()
    with serve(served.settings).http() as other:
        key = ok(other.post("/captures", json={"target": RUN}))["capture"]
    assert agent.leases() == [key]


def test_nobody_waits_for_what_is_not_theirs(served: Served, http: httpx.Client) -> None:
    _live(http)
    _live(http, "another")
    other, agent = Waiting(served, ["another"]), Waiting(served, [RUN])
    for waiting, run in ((other, "another"), (agent, RUN)):
        waiting.until_it_waits(run)
    key = ok(http.post("/captures", json={"target": RUN}))["capture"]
    assert agent.leases() == [key]
    assert other.thread.is_alive()
    served.app.state.polls._wake(["another"])  # nothing is there: it goes on waiting
    key = ok(http.post("/captures", json={"target": "another"}))["capture"]
    assert other.leases() == [key]


def test_a_second_capture_of_a_run_waits_for_the_first(served: Served, http: httpx.Client) -> None:
    first = Capture(http)
    first.lease()
    second = ok(http.post("/captures", json={"target": RUN}))["capture"]
    agent = Waiting(served, [RUN])
    agent.until_it_waits()
    first.report("failed", reason="no more")
    assert agent.leases() == [second]


def test_an_agent_that_has_gone_gets_no_lease(served: Served, http: httpx.Client) -> None:
    _live(http)
    body = {"host": HOST, "runs": [RUN], "wait_s": MAX_LEASE_WAIT_S}
    polls: Polls = served.app.state.polls
    with served.http() as leaving, pytest.raises(httpx.ReadTimeout):
        leaving.post("/captures/lease", json=body, timeout=httpx.Timeout(PATIENCE_S, read=0.2))
    wait_for(lambda: not polls._waiting)
    key = ok(http.post("/captures", json={"target": RUN}))["capture"]
    assert ok(http.get(f"/captures/{key}"))["state"] == "requested"


def test_who_does_not_want_to_wait_is_answered_at_once(served: Served, http: httpx.Client) -> None:
    for wait_s in (0.0, -5.0):
        assert ok(http.post("/captures/lease", json={"host": HOST, "runs": [RUN], "wait_s": wait_s})) == {
            "leases": [],
            "stacks": [],
        }


def test_a_server_that_ends_answers_first(served: Served, http: httpx.Client) -> None:
    agent = Waiting(served, [RUN])
    agent.until_it_waits()
    close(agent.polls)
    assert agent.leases() == []
    assert agent.answers == [{"leases": [], "stacks": []}]


def test_many_who_wait_hold_no_connection_to_the_database(served: Served, http: httpx.Client) -> None:
    """More than there are threads and connections together, and the server still answers others."""
    agents = [Waiting(served, [f"run-{number}"]) for number in range(80)]
    wait_for(lambda: len(agents[0].polls._waiting) == len(agents))
    _live(http)
    assert len(ok(http.get("/runs"))) == 1
    close(agents[0].polls)
    for agent in agents:
        assert agent.leases() == []
