"""What the server answers to remote-write and OTLP: senders repeat 5xx and give up 4xx, and the rest is kept."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from api_calls import Served, serving
from metric_messages import VERSION_1, VERSION_2, labels, snappy, write_request_1, write_request_2
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse

from tightship_platform.api.auth import create_token
from tightship_platform.database.engine import Database
from tightship_platform.ingest.standards import compressed
from tightship_platform.units import now_ns
from tightship_platform.vocabulary import Scope

WRITE, EXPORT = "/prometheus/write", "/otlp/v1/metrics"
WRITTEN = "x-prometheus-remote-write-samples-written"
PROTOBUF, JSON = {"content-type": "application/x-protobuf"}, {"content-type": "application/json; charset=utf-8"}


@pytest.fixture(scope="module")
def served(make_platform_env: Callable[..., Any]) -> Iterator[Served]:
    with serving(make_platform_env().settings) as made:
        yield made


@pytest.fixture
def http(served: Served) -> Iterator[httpx.Client]:
    with served.http() as opened:
        yield opened


def now_ms() -> int:
    return now_ns() // 1_000_000


def power(http: httpx.Client, host: str) -> list[float]:
    rows = http.get("/samples", params={"host": host, "metric": "power_w"}).json()
    return [row["value"] for row in rows]


@pytest.mark.parametrize(
    ("write", "headers"), [(write_request_1, VERSION_1), (write_request_2, VERSION_2)], ids=["1.0", "2.0"]
)
def test_a_write_is_stored_once_and_its_faults_are_named(
    http: httpx.Client, write: Callable[..., bytes], headers: dict[str, str], request: pytest.FixtureRequest
) -> None:
    host, at = request.node.callspec.id, now_ms()
    right = {labels("DCGM_FI_DEV_POWER_USAGE", Hostname=host): [(at, 90.5)], labels("up", job="x"): [(at, 1.0)]}
    for _ in range(2):
        answer = http.post(WRITE, content=snappy(write(right)), headers=headers)
        assert (answer.status_code, answer.content, answer.headers[WRITTEN]) == (204, b"", "2")
    assert power(http, host) == [90.5]
    wrong = {
        labels("DCGM_FI_DEV_POWER_USAGE", Hostname=host): [(at + 1, 91.5), (0, 1.0), (4_102_444_800_000, 1.0)],
        labels("DCGM_FI_PROF_SM_ACTIVE", Hostname=host): [(at + 1, 41.0)],
    }
    answer = http.post(WRITE, content=snappy(write(wrong)), headers=headers)
    assert (answer.status_code, answer.headers[WRITTEN]) == (400, "1")
    assert answer.json()["error"].startswith("3 of 4 values were not stored. The first: ")
    assert power(http, host) == [91.5, 90.5]


def test_a_body_that_cannot_be_read_is_given_up(http: httpx.Client) -> None:
    body = write_request_1({labels("DCGM_FI_DEV_POWER_USAGE"): [(now_ms(), 1.0)]})
    bomb = b"\0" * (compressed.UNPACKED_MAX + 1)
    for content, headers, status in (
        (snappy(body)[:-1], VERSION_1, 400),
        (snappy(body[:-1]), VERSION_1, 400),
        (b"", VERSION_1, 400),
        (snappy(bomb), VERSION_1, 413),
        (snappy(body), {"content-type": "application/x-protobuf"}, 415),
        (snappy(body), VERSION_1 | {"content-type": "text/plain"}, 415),
        (snappy(body), VERSION_1 | {"content-type": "application/x-protobuf;proto=another.Request"}, 415),
    ):
        answer = http.post(WRITE, content=content, headers=headers)
        assert answer.status_code == status, answer.text
        assert answer.json()["error"]
    for content, more, status in (
        (b"\x0a\x05", {}, 400),
        (b"{", JSON, 400),
        (gzip.compress(bomb), {"content-encoding": "gzip"}, 413),
        (b"", {"content-encoding": "br"}, 415),
        (b"", {"content-type": "text/plain"}, 415),
    ):
        answer = http.post(EXPORT, content=content, headers=PROTOBUF | more)
        assert answer.status_code == status, answer.text


def test_a_token_needs_the_scope_and_the_team_of_the_host(served: Served, http: httpx.Client) -> None:
    with served.database.session() as session:
        tokens = {name: create_token(session, name, [Scope.INGEST], team=name) for name in ("red", "blue")}
        reader = create_token(session, "reader", [Scope.READ])
    at = now_ms()
    body = {labels("DCGM_FI_DEV_POWER_USAGE", Hostname=host): [(at, 5.0)] for host in ("of-red", "of-nobody")}
    content = snappy(write_request_1(body))
    with served.http("nobody's") as stranger, served.http(reader) as reading:
        assert stranger.post(WRITE, content=content, headers=VERSION_1).status_code == 401
        assert reading.post(WRITE, content=content, headers=VERSION_1).status_code == 403
        assert reading.post(EXPORT, content=b"", headers=PROTOBUF).status_code == 403
    with served.http(tokens["red"]) as red, served.http(tokens["blue"]) as blue:
        assert red.post("/batches", json={"host": "of-red"}).status_code == 200
        answer = blue.post(WRITE, content=content, headers=VERSION_1)
        assert answer.status_code == 400
        assert "1 of 2 values were not stored. The first: Host 'of-red' is reported by the token 'red'" in answer.text
        assert (power(http, "of-red"), power(http, "of-nobody")) == ([], [5.0])
        assert red.post(WRITE, content=content, headers=VERSION_1).status_code == 204
        assert power(http, "of-red") == [5.0]


def point(value: float, at_ns: int) -> dict[str, Any]:
    named = {"host.name": "otlp", "hw.id": "GPU-1"}
    attributes = [{"key": key, "value": {"stringValue": text}} for key, text in named.items()]
    return {"timeUnixNano": str(at_ns), "asDouble": value, "attributes": attributes}


def test_refused_points_are_a_partial_success(http: httpx.Client) -> None:
    gauge = {"dataPoints": [point(0.5, now_ns()), point(7.0, now_ns()), point(0.5, 0)]}
    body = {"resourceMetrics": [{"scopeMetrics": [{"metrics": [{"name": "hw.gpu.utilization", "gauge": gauge}]}]}]}
    answer = http.post(EXPORT, content=json.dumps(body), headers=JSON)
    partial = answer.json()["partialSuccess"]
    assert (answer.status_code, partial["rejectedDataPoints"]) == (200, "2")
    assert "util_frac is 7.0; expected a ratio from 0 to 1" in partial["errorMessage"]
    assert [one["value"] for one in http.get("/samples", params={"host": "otlp"}).json()] == [0.5]
    empty = http.post(EXPORT, content=b"", headers=PROTOBUF)
    assert (empty.status_code, empty.content, empty.headers["content-type"]) == (200, b"", "application/x-protobuf")
    assert ExportMetricsServiceResponse.FromString(empty.content) == ExportMetricsServiceResponse()


def test_trouble_with_the_database_is_to_be_tried_again(
    served: Served, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sqlalchemy.exc import OperationalError

    def away(_database: Database) -> None:
        raise OperationalError("SELECT 1", {}, Exception("the server is away"))

    content = snappy(write_request_1({labels("DCGM_FI_DEV_POWER_USAGE", Hostname="away"): [(now_ms(), 5.0)]}))
    gauge = {"dataPoints": [point(0.5, now_ns())]}
    body = {"resourceMetrics": [{"scopeMetrics": [{"metrics": [{"name": "hw.gpu.utilization", "gauge": gauge}]}]}]}
    with monkeypatch.context() as patched:
        patched.setattr(Database, "session", away)
        answers = [
            http.post(WRITE, content=content, headers=VERSION_1),
            http.post(EXPORT, content=json.dumps(body), headers=JSON),
        ]
    assert [answer.status_code for answer in answers] == [503, 503]
    assert http.post(WRITE, content=content, headers=VERSION_1).status_code == 204
