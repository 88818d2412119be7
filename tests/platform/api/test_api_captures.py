"""A capture through the API, as agent, launcher and people make it; uploads that are cut off, wrong or too large."""

from __future__ import annotations

import json
import os
import socket
from base64 import b64decode
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from api_calls import HOST, RUN, Capture, Served, authorization, heartbeat, ok, refused, run_record, sha256, trace_file
from full_disk import no_file_beyond
from services import free_port
from sqlalchemy import select

from tightship_platform import captures
from tightship_platform.api.auth import create_token
from tightship_platform.client import ApiError
from tightship_platform.database.models import Audit, Workflow
from tightship_platform.tasks.app import ANALYZE_CAPTURE
from tightship_platform.vocabulary import Scope
from tightship_platform.wire import CaptureParams, CaptureRequest


def stored_files(served: Served) -> list[Path]:
    """What uploads left in the store."""
    return [path for path in Path(served.settings.artifacts_url).rglob("rank-*") if path.is_file()]


def queued(served: Served) -> list[tuple[str, list[Any]]]:
    """Tasks in the queue of the folder broker: name and arguments."""
    messages = [json.loads(file.read_text()) for file in sorted((served.settings.home / "broker/queue").glob("*.msg"))]
    return [(message["headers"]["task"], json.loads(b64decode(message["body"]))[0]) for message in messages]


def audits(served: Served) -> list[tuple[str, str, str]]:
    with served.database.session() as session:
        return [(row.actor, row.action, row.target) for row in session.scalars(select(Audit).order_by(Audit.id))]


def test_from_the_request_to_the_file(served: Served, http: httpx.Client) -> None:
    capture = Capture(http, pids={0: 100, 1: 101})
    capture.write()
    files = {0: trace_file(1000), 1: trace_file(200_000)}
    first = ok(capture.put(files[0]))
    assert capture.now()["state"] == "written"
    second = ok(capture.put(files[1], rank=1))
    now = capture.now()
    assert now["state"] == "uploaded"
    assert now["latency_s"] > 0
    assert [(r["rank"], r["pid"], r["bytes"], r["sha256"]) for r in now["ranks"]] == [
        (rank, 100 + rank, len(data), sha256(data)) for rank, data in files.items()
    ]
    for rank, trace in ((0, first["trace"]), (1, second["trace"])):
        got = http.get(f"/traces/{trace}/file")
        assert got.content == files[rank]
        assert got.headers["content-type"] == "application/gzip"
        assert now["ranks"][rank]["url"].endswith(f"/traces/{trace}/file")
    if served.settings.broker_url == "filesystem://":
        assert queued(served) == [(ANALYZE_CAPTURE, [capture.key])] * 2, "one for each trace"


def test_the_same_file_again_is_the_same_trace(served: Served, http: httpx.Client) -> None:
    capture = Capture(http)
    capture.write()
    data = trace_file()
    assert ok(capture.put(data)) == ok(capture.put(data))
    assert len(stored_files(served)) == 1
    assert len(capture.now()["ranks"]) == 1


def test_a_file_of_another_hash_is_refused_and_not_kept(served: Served, http: httpx.Client) -> None:
    capture = Capture(http)
    capture.write()
    refused(capture.put(trace_file(), announced=sha256(b"something else")), 422, "SHA-256", "send it again")
    assert stored_files(served) == []
    assert capture.now()["ranks"] == []
    ok(capture.put(trace_file()))
    assert capture.now()["state"] == "uploaded"


def test_a_file_that_is_too_large_is_refused_and_not_kept(platform_env: Any, serve: Callable[..., Served]) -> None:
    served = serve(replace(platform_env.settings, upload_max_bytes=100_000))
    with served.http() as http:
        capture = Capture(http)
        capture.write()
        data = bytes(100_001)
        refused(capture.put(data), 413, "TIGHTSHIP_UPLOAD_MAX_BYTES")

        def unannounced() -> Any:
            for _ in range(20):
                yield bytes(10_000)

        path = f"/captures/{capture.key}/traces/0?pid=100&host={HOST}"
        answer = http.put(path, content=unannounced(), headers={"x-sha256": sha256(bytes(200_000))})
        refused(answer, 413, "TIGHTSHIP_UPLOAD_MAX_BYTES")
        assert stored_files(served) == []
        ok(capture.put(bytes(100_000)))


def test_a_full_disk_costs_no_trace(served: Served, http: httpx.Client) -> None:
    capture = Capture(http)
    capture.write()
    data = os.urandom(12_000_000)
    with no_file_beyond(8_000_000):
        refused(capture.put(data), 503, served.settings.artifacts_url, "File too large", "nothing was lost, try again")
    assert stored_files(served) == []
    assert capture.now()["state"] == "written"
    ok(capture.put(data))
    assert capture.now()["state"] == "uploaded"


def test_a_store_that_is_away_is_said_as_such(served: Served, http: httpx.Client) -> None:
    capture = Capture(http)
    capture.write()
    place = Path(served.settings.artifacts_url)
    place.write_bytes(b"no folder")
    refused(capture.put(trace_file()), 503, "cannot be used now")
    place.unlink()
    ok(capture.put(trace_file()))


def test_an_upload_that_breaks_off_leaves_nothing(served: Served, http: httpx.Client) -> None:
    capture = Capture(http)
    capture.write()
    data = trace_file(100_000)
    host, port = served.url.removeprefix("http://").split(":")
    head = (
        f"PUT /api/v1/captures/{capture.key}/traces/0?pid=100&host={HOST} HTTP/1.1\r\nHost: {host}\r\n"
        f"{authorization(served.settings.home)}"
        f"Content-Length: {len(data)}\r\nX-SHA256: {sha256(data)}\r\n\r\n"
    )
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(head.encode() + data[: len(data) // 2])
    # The next request is served after the server has noticed, or before; either way the whole file wins.
    ok(capture.put(data))
    (file,) = stored_files(served)
    assert file.read_bytes() == data


def test_an_upload_that_falls_silent_is_given_up(
    served: Served, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tightship_platform.api.routes.traces.STALL_S", 0.2)
    capture = Capture(http)
    capture.write()
    host, port = served.url.removeprefix("http://").split(":")
    head = (
        f"PUT /api/v1/captures/{capture.key}/traces/0?pid=100&host={HOST} HTTP/1.1\r\nHost: {host}\r\n"
        f"{authorization(served.settings.home)}"
        f"Content-Length: 1000\r\nX-SHA256: {sha256(b'')}\r\n\r\nhalf"
    )
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(head.encode())
        assert connection.recv(12) == b"HTTP/1.1 408"
    assert stored_files(served) == []


@pytest.mark.parametrize(
    ("change", "status", "word"),
    [
        ({"rank": 7}, 409, "rank 7"),
        ({"pid": 999}, 409, "pid 999"),
        ({"host": "elsewhere"}, 409, "elsewhere"),
        ({"pid": 0}, 422, "Pid"),
        ({"pid": 2**70}, 422, "Pid"),
        ({"host": "a\nb"}, 422, "Host"),
        ({"announced": "abc"}, 422, "x-sha256"),
        ({"announced": "G" * 64}, 422, "x-sha256"),
    ],
)
def test_a_file_that_nobody_asked_for_is_refused(
    served: Served, http: httpx.Client, change: dict[str, Any], status: int, word: str
) -> None:
    capture = Capture(http)
    capture.write()
    refused(capture.put(trace_file(), **change), status, word)
    assert stored_files(served) == []


def test_a_capture_that_is_not_armed_takes_no_file(served: Served, http: httpx.Client) -> None:
    capture = Capture(http)
    refused(capture.put(trace_file()), 409, "requested")
    assert stored_files(served) == []


def test_a_file_without_a_hash_is_refused(http: httpx.Client) -> None:
    capture = Capture(http)
    capture.write()
    answer = http.put(f"/captures/{capture.key}/traces/0", params={"pid": 100, "host": HOST}, content=b"x")
    refused(answer, 422, "x-sha256")


def test_without_a_broker_uploads_go_on(platform_env: Any, serve: Callable[..., Served]) -> None:
    served = serve(replace(platform_env.settings, broker_url=f"redis://127.0.0.1:{free_port()}/0"))
    with served.http() as http:
        capture = Capture(http)
        capture.write()
        ok(capture.put(trace_file()))
        assert capture.now()["state"] == "uploaded"
        health = ok(http.get("/health"))
        assert (health["status"], health["broker"]) == ("ok", "unreachable")


def test_who_asked_is_what_the_token_says_and_is_written_down(platform_env: Any, serve: Callable[..., Served]) -> None:
    served = serve(replace(platform_env.settings, token="admin-token-of-tests"))
    with served.database.session() as session:
        token = create_token(session, "alice", [Scope.CAPTURE])
    with served.http("admin-token-of-tests") as http:
        ok(http.post("/runs", json=run_record()))
        ok(http.post("/hosts/heartbeat", json=heartbeat()))
    with served.http(token) as http:
        answer = ok(http.post("/captures", json={"target": "vision", "requested_by": "somebody else"}))
    assert answer["requested_by"] == "alice"
    assert audits(served) == [("cli", "token.create", "alice"), ("alice", "capture.request", answer["capture"])]


def test_of_the_servers_own_user_the_request_says_who_asked(served: Served, http: httpx.Client) -> None:
    ok(http.post("/runs", json=run_record()))
    answer = ok(http.post("/captures", json={"target": RUN, "requested_by": "dashboard"}))
    assert answer["requested_by"] == "dashboard"
    assert answer["params"]["duration_ns"] == 1_000_000_000
    assert audits(served) == [("loopback", "capture.request", answer["capture"])]


def test_a_request_that_is_refused_is_not_written_down(served: Served, http: httpx.Client) -> None:
    ok(http.post("/runs", json=run_record()))
    params = {"duration_ns": 1, "iterations": None}
    refused(http.post("/captures", json={"target": RUN, "params": params}), 422, "duration")
    assert audits(served) == []
    assert ok(http.get("/captures")) == []


def test_a_schedule_is_set_shown_written_down_and_ended(served: Served, http: httpx.Client) -> None:
    name = "team/vision é"
    ok(http.post("/runs", json=run_record(workflow=name)))
    path = "/workflows/team%2Fvision%20%C3%A9/schedule"
    hour = 3600 * 10**9
    answer = ok(http.post(path, json={"every_ns": hour, "params": {"iterations": 5, "duration_ns": None}}))
    assert answer["schedule"]["every_ns"] == hour
    assert answer["schedule"]["params"]["iterations"] == 5
    (workflow,) = ok(http.get("/workflows"))
    assert workflow["schedule"] == answer["schedule"]
    assert ok(http.post(path, json={"every_ns": None})) == {"workflow": name, "schedule": None}
    refused(http.post(path, json={"every_ns": 5}), 422, "Schedule")
    refused(http.post("/workflows/none/schedule", json={"every_ns": hour}), 404, "none")
    assert [(action, target) for _, action, target in audits(served)] == [("workflow.schedule", name)] * 2


def test_the_client_that_everybody_uses_reads_answers_and_refusals(served: Served, http: httpx.Client) -> None:
    ok(http.post("/runs", json=run_record()))
    with served.api() as api:
        answer = api.post("/captures", CaptureRequest(target=RUN, params=CaptureParams(duration_ns=10**9)))
        assert answer["run"] == RUN
        with pytest.raises(ApiError, match="No run or workflow named 'nobody'") as refusal:
            api.post("/captures", CaptureRequest(target="nobody"))
        assert refusal.value.http_status == 404


def test_an_opportunity_changes_its_state_and_the_change_is_written_down(served: Served, http: httpx.Client) -> None:
    from tightship_platform.database.models import Opportunity

    ok(http.post("/runs", json=run_record()))
    with served.database.session() as session:
        workflow = session.scalars(select(Workflow)).one()
        row = Opportunity(
            workflow=workflow, key="starved-input", title="t", rules=["starved-input"], findings=[], fix="f",
            device_ns=10, position=1, updated_ns=1, method="bound", value=5, low=1, high=6, state="open",
        )  # fmt: skip
        session.add(row)
        session.flush()
        path = f"/opportunities/{row.id}"
    done = ok(http.post(f"{path}/dismiss", json={"reason": "by design"}))
    assert (done["kind"], done["reason"], done["state"]) == ("dismiss", "by design", None)
    refused(http.post(f"{path}/dismiss", json={"reason": "again"}), 409, "is dismissed already")
    assert ok(http.get("/opportunities")) == []
    [listed] = ok(http.get("/opportunities?dismissed=true"))
    assert listed["state"] == "dismissed"
    refused(http.post(f"{path}/reopen", json={"reason": " "}), 422, "Reason")
    ok(http.post(f"{path}/reopen", json={"reason": "it costs too much"}))
    applied = ok(http.post(f"{path}/apply", json={}))
    assert (applied["state"], applied["change"]["fix"], applied["predicted"]["saving_frac"]) == ("applied", "f", 0.5)
    assert [one["kind"] for one in ok(http.get("/actions"))] == ["apply", "reopen", "dismiss"]
    refused(http.post("/opportunities/999/apply", json={}), 404, "999")
    refused(http.get("/actions?opportunity=999"), 404, "999")
    verbs = ["opportunity.dismiss", "opportunity.reopen", "opportunity.apply"]
    assert [action for _, action, _ in audits(served)] == verbs


def test_a_capture_is_analyzed_again_on_request(served: Served, http: httpx.Client) -> None:
    capture = Capture(http)
    capture.write()
    refused(http.get(f"/captures/{capture.key}/analysis"), 404, "is written", "when they have arrived")
    refused(http.post(f"/captures/{capture.key}/analysis"), 409, "its traces are analyzed when they are there")
    ok(capture.put(trace_file()))
    before = len(queued(served))
    with served.database.session() as session:
        captures.fail(session, capture.key, "it did not work")
    refused(http.get(f"/captures/{capture.key}/analysis"), 404, "has failed")
    answer = ok(http.post(f"/captures/{capture.key}/analysis"))
    assert (answer["state"], answer["reason"]) == ("uploaded", None)
    assert audits(served)[-1] == ("loopback", "capture.analyze", capture.key)
    if served.settings.broker_url == "filesystem://":
        assert queued(served)[before:] == [(ANALYZE_CAPTURE, [capture.key])]
    refused(http.get(f"/captures/{capture.key}/analysis"), 404, "being analyzed")
    refused(http.post("/captures/none/analysis"), 404, "tightship captures")
