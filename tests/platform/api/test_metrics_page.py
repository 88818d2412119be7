"""What a server says of itself at /metrics, under which id it logs, and what becomes of refused tokens."""

from __future__ import annotations

import json
import logging
from typing import Any

import httpx
import pytest
from api_calls import HOST, RUN, Capture, Served, heartbeat, ok, trace_file
from metric_text import figures_of
from processes import Running
from services import free_port
from sqlalchemy import select

from tightship_platform.api.auth import create_token
from tightship_platform.api.refusals import MOST_AT_ONCE
from tightship_platform.client import REQUEST_ID
from tightship_platform.database.models import Audit
from tightship_platform.database.teams import _team, see_team
from tightship_platform.tasks.app import ANALYZE_CAPTURE, create_celery, queue_lengths, send
from tightship_platform.units import NS_PER_S, now_ns
from tightship_platform.vocabulary import CaptureState, Scope


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"} if token else {}


def read(served: Served, token: str = "") -> dict[str, float]:
    served.app.state.figures._until_s = 0.0  # what is kept for some seconds is counted again
    answer = httpx.get(f"{served.url}/metrics", headers=bearer(token or served.local_token), trust_env=False)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return figures_of(answer.text)


def test_a_server_counts_its_requests_by_the_pattern_of_their_path(served: Served, http: httpx.Client) -> None:
    before = read(served)
    name = 'tightship_requests_total{method="GET",route="/api/v1/runs/{key}",status="404"}'
    for key in ("a", "b", "c"):
        assert http.get(f"/runs/{key}").status_code == 404
    for path in ("/x1", "/x2"):
        http.get(path)
    http.request("BREW", "/runs")
    after = read(served)
    assert after[name] - before.get(name, 0) == 3
    seconds = 'tightship_request_seconds_count{route="/api/v1/runs/{key}"}'
    assert after[seconds] - before.get(seconds, 0) == 3
    assert after["tightship_requests_in_progress"] == 1, "this one"
    assert not [name for name in after if "x1" in name or "BREW" in name], "nobody invents figures"


def test_a_server_counts_what_it_has_stored(served: Served, http: httpx.Client) -> None:
    capture = Capture(http)
    capture.write()
    body = trace_file()
    ok(capture.put(body))
    now = now_ns()
    before = read(served)
    sample = {"time_ns": now - 20 * NS_PER_S, "cpu_frac": 0.5}
    ok(http.post("/batches", json={"host": HOST, "host_samples": [sample, sample | {"time_ns": -5}]}))
    ok(http.post("/hosts/heartbeat", json=heartbeat(RUN)))
    after = read(served)
    states = {state: after[f'tightship_captures{{state="{state}"}}'] for state in CaptureState}
    assert states == dict.fromkeys(CaptureState, 0) | {CaptureState.UPLOADED: 1}
    assert after["tightship_artifact_bytes"] == len(body)
    assert after['tightship_hosts{state="live"}'] == 1
    assert after["tightship_database_up"] == 1
    grown = {name: after[name] - before.get(name, 0) for name in after if name.startswith("tightship_ingest")}
    assert grown['tightship_ingest_rows_total{outcome="stored"}'] == 1
    assert grown['tightship_ingest_rows_total{outcome="refused"}'] == 1
    assert grown["tightship_ingest_lag_seconds_count"] == 1
    assert 20 <= grown["tightship_ingest_lag_seconds_sum"] < 80
    if served.database.dialect == "postgresql":
        assert after["tightship_database_connections_max"] >= after['tightship_database_connections{state="idle"}'] >= 1


def test_counting_for_all_teams_shows_nobody_more(served: Served) -> None:
    try:
        see_team("vision")
        served.app.state.figures.read()
        assert _team.get() == "vision"
    finally:
        see_team(None)


def test_a_server_counts_the_messages_that_wait(served: Served) -> None:
    before = queue_lengths(served.settings)
    assert send(served.settings, ANALYZE_CAPTURE, "one")
    create_celery(served.settings).send_task("x", queue="tightship-periodic")
    found = read(served)
    for queue, length in before.items():
        assert found[f'tightship_queue_length{{queue="{queue}"}}'] == length + 1


def test_figures_without_database_or_broker(make_platform_env: Any, serve: Any) -> None:
    env = make_platform_env()
    served = serve(env.settings)
    with served.database.session() as session:
        session.connection().exec_driver_sql("ALTER TABLE capture RENAME TO elsewhere")
    found = read(served)
    assert found["tightship_database_up"] == 0 and "tightship_artifact_bytes" not in found


@pytest.fixture
def closed(platform_env: Any, serve: Any) -> tuple[Served, dict[str, str]]:
    from tightship_platform.database.engine import open_database

    with open_database(platform_env.settings) as database, database.session() as session:
        tokens = {scope: create_token(session, scope, [Scope(scope)]) for scope in ("read", "ingest")}
    return serve(platform_env.settings), tokens


def test_figures_are_for_those_who_may_read(closed: tuple[Served, dict[str, str]]) -> None:
    served, tokens = closed
    assert read(served, tokens["read"])["tightship_database_up"] == 1
    for token, status in (("", 401), ("ts_unknown", 401), (tokens["ingest"], 403)):
        answer = httpx.get(f"{served.url}/metrics", headers=bearer(token), trust_env=False)
        assert (answer.status_code, "process_cpu" in answer.text) == (status, False)


def test_refused_tokens_are_counted_logged_and_audited(
    closed: tuple[Served, dict[str, str]], caplog: pytest.LogCaptureFixture
) -> None:
    served, tokens = closed
    before = read(served, tokens["read"])
    with (
        served.http("ts_" + "guess" * 8) as stranger,
        served.http(tokens["ingest"]) as ingest,
        served.http("") as nobody,
    ):
        for _ in range(50):
            assert stranger.get("/runs").status_code == 401
        for _ in range(3):
            assert ingest.get("/runs").status_code == 403
        assert nobody.get("/runs").status_code == 401
    after = read(served, tokens["read"])
    names = {reason: f'tightship_refused_tokens_total{{reason="{reason}"}}' for reason in ("unknown", "scope")}
    assert {reason: after[name] - before.get(name, 0) for reason, name in names.items()} == {"unknown": 50, "scope": 3}
    lines = [record.getMessage() for record in caplog.records if "Refused" in record.getMessage()]
    assert lines == [
        "Refused a token from 127.0.0.1: GET /api/v1/runs (unknown)",
        "Refused token 'ingest' from 127.0.0.1: GET /api/v1/runs (scope)",
    ]
    assert "guess" not in caplog.text
    with served.database.session() as session:
        rows = session.scalars(select(Audit).where(Audit.action == "token.refuse").order_by(Audit.id)).all()
        assert [(row.actor, row.target, row.detail["reason"], row.detail["peer"]) for row in rows] == [
            ("unknown", "GET /api/v1/runs", "unknown", "127.0.0.1"),
            ("ingest", "GET /api/v1/runs", "scope", "127.0.0.1"),
        ]


def test_many_who_try_tokens_fill_no_log(closed: tuple[Served, dict[str, str]]) -> None:
    served, _ = closed
    refusals = served.app.state.refusals
    said = [refusals._due("unknown", f"10.0.{n // 250}.{n % 250}") is not None for n in range(3000)]
    assert sum(said) == MOST_AT_ONCE and len(refusals._seen) <= 1000


def test_a_request_keeps_its_id_from_the_client_into_the_message(
    served: Served, http: httpx.Client, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = http.get("/runs", headers={REQUEST_ID: "0123abcd-from-agent"})
    assert answer.headers[REQUEST_ID] == "0123abcd-from-agent"
    for odd in ("", "short", "x" * 65, "a b c d e f g", "\"';--------"):
        made = http.get("/runs", headers={REQUEST_ID: odd}).headers[REQUEST_ID]
        assert made != odd and len(made) == 16
    sent: list[Any] = []
    monkeypatch.setattr(
        create_celery(served.settings), "send_task", lambda *args, **options: sent.append(options["headers"])
    )
    capture = Capture(http)
    capture.write()
    http.headers[REQUEST_ID] = "0123abcd-upload"
    ok(capture.put(trace_file()))
    assert sent == [{"tightship_request_id": "0123abcd-upload"}]


def test_logs_as_json_name_the_request(make_platform_env: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    env = make_platform_env()
    environ = env.environ | {"TIGHTSHIP_LOG_FORMAT": "json", "TIGHTSHIP_TOKEN": "an-administrators-token"}
    port = free_port()
    with Running(environ, "server", "--port", str(port)) as server:
        server.hear("Serving")
        url = f"http://127.0.0.1:{port}/api/v1/runs"
        headers = {"authorization": "Bearer guessed", REQUEST_ID: "0123abcd-json"}
        assert httpx.get(url, headers=headers, trust_env=False).status_code == 401
        server.hear("Refused")
        assert server.end() == 0
        records = [json.loads(line) for line in server.output().splitlines()]
    (refusal,) = (record for record in records if record["message"].startswith("Refused"))
    assert (refusal["request_id"], refusal["level"]) == ("0123abcd-json", "WARNING")
    assert refusal["logger"] == "tightship_platform.api.refusals" and refusal["time"].endswith("+00:00")
    assert logging.getLevelName(refusal["level"]) == logging.WARNING
