"""Every answer of the API is what `/api/v1/openapi.json` says it is: no key more, no key less, each explained."""

from __future__ import annotations

import copy
import gzip
import hashlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import route_matrix
from api_calls import HOST, RUN, Capture, Served, ok, run_record
from captured import recorded
from jsonschema import Draft202012Validator
from records import HOUR, T0
from simulated_fleet import LIVE_RUN, fill
from stepping_runs import record

from tightship_analyzers.fleet.capture_analysis import work_on
from tightship_platform.captures.artifact_store import open_artifacts
from tightship_platform.client import API
from tightship_platform.database.engine import Database
from tightship_platform.database.models import Finding, Run
from tightship_platform.database.schema import head
from tightship_platform.units import NS_PER_S, now_ns

Operation = tuple[str, str]
"""Method and path as the document has it."""
LISTS = ("/runs", "/captures", "/findings", "/opportunities", "/workflows", "/hosts")
FILE = ("GET", f"{API}/traces/{{key}}/file")
REMOTE_WRITE = ("POST", f"{API}/prometheus/write")
NOT_OURS = (FILE, REMOTE_WRITE, ("POST", f"{API}/otlp/v1/metrics"))
"""Whose answers are a file's, or as another standard has them, unless they are refusals."""
OFFLOAD = {"layers": 8, "slots": 2, "resident": 1, "predicted_step_ns": 9, "steps": 4, "step_ns": 8}


class Document:
    """The OpenAPI document, made strict: an object has exactly the properties that its schema names."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.reported = document
        strict = copy.deepcopy(document["components"])
        for schema in strict["schemas"].values():
            if "properties" in schema:
                schema |= {"additionalProperties": False, "required": list(schema["properties"])}
        self._components = strict
        self.checked: set[Operation] = set()

    @property
    def operations(self) -> dict[Operation, dict[str, Any]]:
        return {(m.upper(), path): one for path, item in self.reported["paths"].items() for m, one in item.items()}

    def check(self, response: httpx.Response) -> None:
        """The hook of a client."""
        response.read()
        method, path = response.request.method, response.request.url.path
        # A template without parameters comes first: `/captures/lease` is no capture.
        for template in sorted((t for m, t in self.operations if m == method), key=lambda t: t.count("{")):
            if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", template), path):
                break
        else:
            raise AssertionError(f"{method} {path} is not in the document")
        if (method, template) not in NOT_OURS or not response.is_success:
            answers = self.operations[method, template]["responses"]
            answer = answers.get(str(response.status_code)) or answers[f"{response.status_code // 100}XX"]
            schema = answer["content"]["application/json"]["schema"]
            assert schema, f"{method} {template} answers anything"
            Draft202012Validator(schema | {"components": self._components}).validate(response.json())
        self.checked.add((method, template))


@pytest.fixture
def document(http: httpx.Client) -> Document:
    return Document(ok(http.get("/openapi.json")))


@pytest.fixture
def checked(served: Served, document: Document) -> Iterator[httpx.Client]:
    """A client that holds every answer against the document."""
    with served.http() as client:
        client.event_hooks["response"].append(document.check)
        yield client


@pytest.fixture
def filled(served: Served) -> Database:
    """The simulated fleet, and of what it lacks one each: a finding without a saving, other kinds of evidence."""
    fill(served.database.engine)
    with served.database.session() as session:
        run = session.query(Run).filter_by(key=LIVE_RUN).one()
        reported = [
            {"kind": "plan", "workflow": "w", "command": "c"},
            {"kind": "fact", "text": "x", "value": 6, "unit": ""},
            {"kind": "environment", "variables": {"A": "b"}, "numerics": "n"},
        ]
        nothing = {"value": None, "low": None, "high": None, "method": "", "share_frac": None, "unit": "ns"}
        session.add(Finding(rule="r", run=run, title="t", fix="f", evidence=reported, created_ns=1, **nothing))
    return served.database


def test_every_answer_is_as_documented(
    checked: httpx.Client, filled: Database, document: Document, served: Served, tmp_path: Path
) -> None:
    capture = Capture(checked, pids={0: 100}, info={"cpus": 4})
    assert capture.lease()
    capture.report("armed", expected=[{"rank": 0, "pid": 100}])
    capture.report("written")
    trace = ok(capture.put(recorded("starved")))["trace"]
    assert checked.get(f"/traces/{trace}/file").content == recorded("starved")
    ok(checked.post("/runs", json=run_record("0ff10ad", end_ns=now_ns(), exit_code=1, error="E: x", offload=OFFLOAD)))
    step = {"run": RUN, "rank": 0, "time_ns": now_ns() - 9 * NS_PER_S, "width_ns": NS_PER_S, "steps": 4}
    sample = {"time_ns": now_ns() - 9 * NS_PER_S, "device": "cpu", "util_frac": 0.5}
    ok(checked.post("/batches", json={"host": HOST, "samples": [sample], "steps": [step]}))
    for every_ns in (600 * NS_PER_S, None, 900 * NS_PER_S):
        ok(checked.post("/workflows/vision/schedule", json={"every_ns": every_ns}))

    for path in LISTS:
        listed = ok(checked.get(path))
        assert len(listed) >= 2, path
    first = ok(checked.get("/opportunities"))[0]["opportunity"]
    ok(checked.post(f"/opportunities/{first}/apply", json={}))
    assert checked.post(f"/opportunities/{first}/launch", json={}).status_code == 409, "its script has to be changed"
    for verb in ("dismiss", "reopen"):
        ok(checked.post(f"/opportunities/{first}/{verb}", json={"reason": "so"}))
    assert len(ok(checked.get("/actions"))) == 3
    record(filled, tmp_path, "a", start_ns=T0, step_ms=100.0)
    record(filled, tmp_path, "b", start_ns=T0 + HOUR, step_ms=50.0, seed=2)
    assert ok(checked.get("/verify?before=a&after=b"))["verdict"] == "verified"
    for finding in ok(checked.get("/findings")):
        ok(checked.get(f"/findings/{finding['finding']}"))
    for run in (RUN, LIVE_RUN, "0ff10ad"):
        ok(checked.get(f"/runs/{run}"))
        ok(checked.get(f"/runs/{run}/timeline"))
        ok(checked.get(f"/ids?id={run}"))
    assert capture.now()["state"] == "uploaded"
    while work_on(filled, open_artifacts(served.settings), capture.key):
        pass
    assert ok(checked.get(f"/captures/{capture.key}/analysis"))["findings"][0]["rule"] == "starved-input"
    assert ok(checked.post(f"/captures/{capture.key}/analysis"))["state"] == "uploaded"
    assert ok(checked.patch(f"/runs/{RUN}", json={"name": "best", "labels": {"lr": "3e-4"}}))["name"] == "best"
    assert ok(checked.post(f"/runs/{RUN}/stacks", json={}))["taken_ns"] is None
    asked = ok(checked.post("/captures/lease", json={"host": HOST, "runs": [RUN]}))
    assert asked == {"leases": [], "stacks": [{"run": RUN, "native": False}]}
    process = {"pid": 100, "rank": 0, "frames": [{"function": "f", "file": "/job/train.py", "line": 7}]}
    ok(checked.post(f"/runs/{RUN}/stacks/answer", json={"host": HOST, "processes": [process]}))
    assert ok(checked.get(f"/runs/{RUN}/stacks"))["processes"][0]["frames"][0]["line"] == 7
    wanted = ok(checked.post("/captures", json={"target": RUN}))["capture"]
    assert ok(checked.post(f"/captures/{wanted}/cancel"))["state"] == "failed"
    for path in ("/health", "/live", "/ready"):
        ok(checked.get(path))
    names = {"host": HOST}
    assert route_matrix.remote_write(checked, names).status_code == 204
    assert route_matrix.export(checked, names).status_code == 200
    assert ok(checked.get("/samples"))
    assert ok(checked.post("/fleets/old", json={"format": "kineto"}))["parts"] == []
    second = {"start_ns": now_ns() - 2 * NS_PER_S, "end_ns": now_ns() - NS_PER_S}
    past = {"id": "a", "workflow": "w", "state": "unknown", "devices": [], **second}
    assert ok(checked.post("/fleets/old/parts", json={"part": "0" * 64, "runs": [past]})) == {"rows": 1}
    content = gzip.compress(b"{}")
    sha256 = hashlib.sha256(content).hexdigest()
    capture = {"run": "a", "start_ns": past["start_ns"], "duration_ns": 1, "traces": [{"rank": 0, "sha256": sha256}]}
    awaited = ok(checked.post("/fleets/old/captures", json=capture))
    path = f"/fleets/old/captures/{awaited['capture']}/traces/0"
    assert awaited["missing"] == [0]
    assert ok(checked.put(path, content=content, headers={"x-sha256": sha256}))["trace"] > 0
    assert ok(checked.get("/fleets"))[0]["fleet"] == "old"
    assert ok(checked.get("/account"))["groups"]
    assert ok(checked.get("/store")) == {"fault": None}
    assert ok(checked.get("/audit"))
    ok(checked.get("/collection"))
    assert ok(checked.delete("/runs/0ff10ad"))["runs"] == 1
    for path in ("/workflows/none", "/users/none", "/teams/none"):
        assert checked.delete(path).is_client_error
    assert checked.post("/hosts/enrol", json={"host": "h9"}).is_client_error, "nobody's one-time word"
    assert document.checked == set(document.operations), "an operation was not looked at"


def test_every_refusal_is_as_documented(checked: httpx.Client, document: Document) -> None:
    for path in ("/runs/none", "/findings/x", "/runs?limit=0", "/captures/none", "/captures/none/analysis"):
        assert checked.get(path).is_client_error
    assert checked.get("/traces/7/file").is_client_error
    for path, body in (("/runs", {}), ("/captures", {"target": "nobody"}), ("/workflows/none/schedule", {})):
        assert checked.post(path, json=body).is_client_error
    assert len(document.checked) == 9


def test_a_server_that_cannot_work_answers_as_documented(checked: httpx.Client, served: Served) -> None:
    with served.database.session() as session:
        session.connection().exec_driver_sql("DELETE FROM tightship_schema")
    assert checked.get("/health").status_code == checked.get("/ready").status_code == 503


def test_a_server_goes_on_with_a_newer_schema_that_it_can_read(checked: httpx.Client, served: Served) -> None:
    """During a rolling upgrade: the first new server has migrated, and the others must not be taken out for it."""
    newer = "UPDATE tightship_schema SET version_num = '9999', readable_from = "
    with served.database.session() as session:
        session.connection().exec_driver_sql(f"{newer}'{head()}'")
    assert ok(checked.get("/ready")) == {"status": "ok", "database": "ok"}
    seen = ok(checked.get("/health"))
    assert (seen["status"], seen["database"], seen["schema"]) == ("ok", "ok", "9999")
    assert "newer than this release's" in seen["reason"] and "goes on with it" in seen["reason"]
    ok(checked.get("/runs"))
    with served.database.session() as session:
        session.connection().exec_driver_sql(f"{newer}'9998'")
    assert checked.get("/ready").json() == {"status": "degraded", "database": "another schema"}
    refused = checked.get("/health")
    assert refused.status_code == 503
    assert "cannot work with it; install the newer release" in refused.json()["reason"]
    with served.database.session() as session:
        session.connection().exec_driver_sql("UPDATE tightship_schema SET version_num = '0009'")
    assert "older than this release's" in checked.get("/health").json()["reason"]


def test_the_check_sees_a_key_too_many_or_too_few(document: Document) -> None:
    def answer(body: Any) -> httpx.Response:
        return httpx.Response(200, json=body, request=httpx.Request("GET", f"http://h{API}/account"))

    sums = ("since_ns", "until_ns", "device_ns", "unproductive_ns", "runs", "unaccounted_runs", "slice_ns")
    whole: dict[str, Any] = dict.fromkeys((*sums, "waiting_runs"), 0) | {"waiting_ns": None, "goodput": None}
    whole |= {"fleet": "live", "by": "team", "buckets": {}, "groups": [], "over_time": [], "simulated": False}
    document.check(answer(whole))
    few = {key: value for key, value in whole.items() if key != "runs"}
    for wrong in (whole | {"more": 1}, few, whole | {"runs": None}, whole | {"over_time": [{"time_ns": 1}]}):
        with pytest.raises(Exception, match=r"more|runs|None|buckets"):
            document.check(answer(wrong))


def test_every_field_of_an_answer_is_explained(document: Document) -> None:
    schemas = document.reported["components"]["schemas"]
    answered: set[str] = set()
    waiting = [one["responses"]["200"] for key, one in document.operations.items() if key != REMOTE_WRITE]
    _walk(waiting, schemas, answered.add)
    assert {
        "RunDetail",
        "Capture",
        "Finding",
        "Gap",
        "Opportunity",
        "Host",
        "FleetAccount",
        "Timeline",
        "RunAnalysis",
    } <= answered
    bare = [
        f"{name}.{key}"
        for name in sorted(answered)
        for key, part in schemas[name].get("properties", {}).items()
        if not part.get("description")
    ]
    assert bare == []


def _walk(node: Any, schemas: dict[str, Any], seen: Callable[[str], None], known: set[str] | None = None) -> None:
    known = set() if known is None else known
    if isinstance(node, dict):
        name = str(node.get("$ref", "")).rpartition("/")[2]
        if name and name not in known:
            known.add(name)
            seen(name)
            _walk(schemas[name], schemas, seen, known)
    for part in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        _walk(part, schemas, seen, known)
