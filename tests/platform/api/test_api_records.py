"""Records over HTTP: taken once however often they come, and refused in one line when they cannot be right."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from api_calls import HOST, RUN, Capture, Served, heartbeat, ok, refused, run_record
from sqlalchemy import func, select, text
from waiting import wait_for

from tightship_platform.api.scopes import JSON_MAX_BYTES
from tightship_platform.database.models import Base
from tightship_platform.units import NS_PER_S, now_ns


def rows(served: Served) -> dict[str, int]:
    """Rows per table."""
    with served.database.session() as session:
        return {
            name: session.scalar(select(func.count()).select_from(table)) or 0
            for name, table in Base.metadata.tables.items()
        }


def batch(**changes: Any) -> dict[str, Any]:
    now = now_ns()
    return {
        "host": HOST,
        "devices": [{"uuid": "cpu", "kind": "cpu", "name": "A processor"}],
        "samples": [{"time_ns": now - i * NS_PER_S, "device": "cpu", "util_frac": 0.5} for i in range(3)],
        "host_samples": [{"time_ns": now, "cpu_frac": 0.25}],
        "run_samples": [{"time_ns": now, "run": RUN, "device": "cpu", "cpu_cores": 1.5}],
        "steps": [{"run": RUN, "rank": 0, "time_ns": now, "width_ns": NS_PER_S, "steps": 4}],
        "allocations": [{"run": RUN, "device": "cpu", "start_ns": now - 50 * NS_PER_S}],
    } | changes


def test_a_run_from_its_start_to_its_end(http: httpx.Client) -> None:
    assert ok(http.post("/runs", json=run_record())) == {"run": RUN}
    assert ok(http.post("/hosts/heartbeat", json=heartbeat())) == {"refused": 0, "refusal": None}
    sent = batch()
    assert ok(http.post("/batches", json=sent))["rows"] == 7
    run = ok(http.get(f"/runs/{RUN}"))
    assert (run["state"], run["workflow"], run["steps"], run["account"]) == ("running", "vision", 4, None)
    assert run["devices"] == [{"host": HOST, "uuid": "cpu", "kind": "cpu", "name": "A processor"}]
    ok(http.post("/runs", json=run_record(end_ns=now_ns(), exit_code=3)))
    ok(http.post("/runs", json=run_record()))
    run = ok(http.get(f"/runs/{RUN}"))
    assert (run["state"], run["exit_code"]) == ("failed", 3)


def test_samples_older_than_the_settings_keep_them_are_counted_and_not_stored(
    served: Served, http: httpx.Client
) -> None:
    ok(http.post("/runs", json=run_record()))
    long_ago = {"time_ns": now_ns() - 32 * 86_400 * NS_PER_S, "device": "cpu", "util_frac": 0.5}
    sent = batch(samples=[long_ago, *batch()["samples"]])
    answer = ok(http.post("/batches", json=sent))
    assert answer == {"rows": 8, "too_old": 1, "refused": 0, "refusal": None, "unknown_runs": []}
    assert rows(served)["sample"] == 3


def test_the_same_records_again_change_nothing(served: Served, http: httpx.Client) -> None:
    records = [("/runs", run_record()), ("/hosts/heartbeat", heartbeat()), ("/batches", batch())]
    for path, body in records:
        ok(http.post(path, json=body))
    before = rows(served)
    for path, body in records * 2:
        ok(http.post(path, json=body))
    assert rows(served) == before
    assert before["sample"] == 3


STEP = {"run": RUN, "rank": 0, "time_ns": now_ns(), "width_ns": NS_PER_S, "steps": 4}
HOSTILE: list[tuple[str, str, Any, int, str]] = [
    ("a field is missing", "/runs", {"run": RUN}, 422, "is missing"),
    ("a field of another type", "/runs", run_record(start_ns="yesterday"), 422, "start_ns"),
    ("no object", "/runs", [1, 2], 422, "body"),
    ("an empty run id", "/runs", run_record(run=""), 422, "1 to 40"),
    ("a run id with a path", "/runs", run_record(run="../../etc"), 422, "1 to 40"),
    ("a name with a newline", "/runs", run_record(workflow="a\nb"), 422, "a\\nb"),
    ("a name with an escape", "/runs", run_record(workflow="\x1b[31m"), 422, "\\x1b[31m"),
    ("a name that is too long", "/runs", run_record(workflow="x" * 201), 422, "200"),
    ("a start in 1970", "/runs", run_record(start_ns=1), 422, "2000"),
    ("a start beyond 64 bits", "/runs", run_record(start_ns=2**63), 422, "64 bits"),
    ("an end before the start", "/runs", run_record(end_ns=1_000_000_000_000_000_000, exit_code=0), 422, "end"),
    ("a batch of nobody", "/batches", batch(host=" "), 422, "Host"),
    ("a batch without a host", "/batches", {"samples": batch()["samples"]}, 422, "body.host is missing"),
    ("samples that are no list", "/batches", batch(samples={"time_ns": 1}), 422, "body.samples"),
    ("a fault beside a bad row", "/batches", batch(host=7, steps=[7]), 422, "body.host"),
    ("a heartbeat of nobody", "/hosts/heartbeat", heartbeat() | {"host": " "}, 422, "Host"),
    ("a capture of nothing", "/captures", {"target": "nobody"}, 404, "nobody"),
    ("a lease of nobody", "/captures/lease", {"host": "", "runs": []}, 422, "Host"),
    ("a report on nothing", "/captures/nokey/report", {"host": HOST, "state": "armed"}, 404, "nokey"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "status", "word"), [h[1:] for h in HOSTILE], ids=[h[0] for h in HOSTILE])
def test_a_record_that_cannot_be_right_is_refused_and_leaves_nothing(
    served: Served, http: httpx.Client, path: str, body: Any, status: int, word: str
) -> None:
    refused(http.post(path, json=body), status, word)
    assert {name: count for name, count in rows(served).items() if count} == {}


SAMPLE = {"time_ns": now_ns(), "device": "cpu"}
BAD_ROWS: list[tuple[str, str, Any, str]] = [
    ("a ratio of 7", "samples", {**SAMPLE, "util_frac": 7}, "ratio"),
    ("watts beyond any sum", "samples", {**SAMPLE, "power_w": 1.7e308}, "power_w"),
    ("not a number", "samples", {**SAMPLE, "power_w": float("nan")}, "nan"),
    ("beyond 64 bits", "samples", {**SAMPLE, "clock_hz": 2**64}, "64 bits"),
    ("of another type", "samples", {**SAMPLE, "clock_hz": "fast"}, "clock_hz is 'fast'"),
    ("no object", "samples", 7, "body.samples."),
    ("a list", "host_samples", [[1, 2]], "body.host_samples."),
    ("without a rank", "steps", {"run": RUN, "time_ns": now_ns(), "width_ns": 1, "steps": 1}, "rank is missing"),
    ("steps below zero", "steps", {**STEP, "steps": -1}, "-1"),
    ("more steps than are counted", "steps", {**STEP, "steps": 2**62}, str(2**53)),
    ("NUL in a name", "run_samples", {**SAMPLE, "run": "a\0"}, "NUL"),
    ("a run of another form", "allocations", {"run": "../x", "device": "cpu", "start_ns": now_ns()}, "1 to 40"),
    ("no kind of device", "devices", {"uuid": "x", "kind": "toaster", "name": "x"}, "toaster"),
    ("nested 40 deep", "devices", json.loads("[" * 40 + "]" * 40), "deep"),
]


@pytest.mark.parametrize(("part", "row", "word"), [r[1:] for r in BAD_ROWS], ids=[r[0] for r in BAD_ROWS])
def test_a_bad_row_is_left_out_and_counted_and_the_others_are_stored(
    served: Served, http: httpx.Client, part: str, row: Any, word: str
) -> None:
    first = batch()
    ok(http.post("/batches", json=first))
    before = rows(served)
    fresh = batch(allocations=first["allocations"])
    fresh[part] = [row, *fresh[part], row]
    body = json.dumps(fresh).encode()  # NaN too, which httpx would refuse
    answer = ok(http.post("/batches", content=body, headers={"content-type": "application/json"}))
    assert (answer["refused"], answer["rows"]) == (2, 9)
    assert word in answer["refusal"] and answer["refusal"].isprintable()
    added = {name: count - before[name] for name, count in rows(served).items() if count != before[name]}
    assert added == {"sample": 3, "host_sample": 1, "run_sample": 1, "step_stat": 1}


RAW: list[tuple[str, bytes, int, str]] = [
    ("no JSON", b"{not json", 422, "not JSON"),
    ("empty", b"", 422, "body"),
    ("NaN", json.dumps(run_record(labels={"a": float("nan")})).encode(), 422, "NaN"),
    ("infinity by size", json.dumps(run_record()).encode()[:-1] + b', "end_ns": 1e999}', 422, "inf"),
    ("NUL in a value", json.dumps(run_record(labels={"a": "x\0y"})).encode(), 422, "NUL"),
    ("NUL in a key", json.dumps(run_record(labels={"a\0": "x"})).encode(), 422, "NUL"),
    ("half a surrogate pair", json.dumps(run_record(command=["\ud800"])).encode(), 422, "surrogate"),
    ("nested 100000 deep", b'{"run": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", 422, "deep"),
    ("nested 40 deep", b'{"run": ' + b"[" * 40 + b"]" * 40 + b"}", 422, "deep"),
    ("an integer of 5000 digits", b'{"start_ns": ' + b"9" * 5000 + b"}", 422, "64 bits"),
    ("not UTF-8", b'{"run": "\xff"}', 422, "UTF-8"),
    ("too large", b'{"run": "' + b"x" * JSON_MAX_BYTES + b'"}', 413, str(JSON_MAX_BYTES)),
]


@pytest.mark.parametrize(("body", "status", "word"), [r[1:] for r in RAW], ids=[r[0] for r in RAW])
def test_a_body_that_no_database_could_hold_is_refused(http: httpx.Client, body: bytes, status: int, word: str) -> None:
    refused(http.post("/runs", content=body, headers={"content-type": "application/json"}), status, word)
    assert ok(http.get("/runs")) == []


def test_a_body_without_a_declared_length_is_bounded_too(http: httpx.Client) -> None:
    def endless() -> Any:
        for _ in range(JSON_MAX_BYTES // 65536 + 2):
            yield b" " * 65536

    refused(http.post("/runs", content=endless(), headers={"content-type": "application/json"}), 413, "JSON body")


def test_names_keep_their_markup_as_text(http: httpx.Client) -> None:
    name = "<b>[red]x[/red]</b> & 'q' \u2603"
    ok(http.post("/runs", json=run_record(workflow=name)))
    assert [run["workflow"] for run in ok(http.get("/runs", params={"workflow": name}))] == [name]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nowhere", 404),
        ("DELETE", "/runs", 405),
        ("GET", "/runs/none", 404),
        ("GET", "/runs/%00", 404),
        ("GET", "/runs/" + "x" * 5000, 404),
        ("GET", "/runs/none/timeline", 404),
        ("GET", "/captures/none", 404),
        ("GET", "/captures?run=none", 404),
        ("GET", "/findings/1", 404),
        ("GET", "/findings/99999999999999999999999", 404),
        ("GET", "/findings/x", 422),
        ("GET", "/findings?run=none", 404),
        ("GET", "/traces/1/file", 404),
        ("GET", "/traces/-1/file", 422),
        ("GET", "/runs?limit=0", 422),
        ("GET", "/runs?limit=999999999999999999999999", 422),
        ("GET", "/runs?state=asleep", 422),
        ("GET", "/runs?workflow=%00", 200),
        ("GET", "/account?since=2h&until=3h", 422),
        ("GET", "/account?since=99999999999999999999", 422),
    ],
)
def test_whatever_is_asked_the_answer_is_json_and_one_line(
    http: httpx.Client, method: str, path: str, status: int
) -> None:
    answer = http.request(method, path)
    if status == 200 and answer.status_code == 200:
        assert answer.json() == []
    elif status == 200 or "%00" in path:
        refused(answer, answer.status_code)  # PostgreSQL takes no NUL, SQLite finds nothing
        assert answer.status_code in (404, 422)
    else:
        refused(answer, status)


def test_hosts_come_in_pages(http: httpx.Client) -> None:
    for number in range(7):
        ok(http.post("/hosts/heartbeat", json=heartbeat() | {"host": f"n{number}", "runs": []}))
    names, after = [], None
    while page := ok(http.get("/hosts", params={"limit": 3} | ({"after": after} if after else {}))):
        assert len(page) <= 3
        names += [host["host"] for host in page]
        after = names[-1]
    assert names == [f"n{number}" for number in range(7)]
    assert [host["host"] for host in ok(http.get("/hosts", params={"host": "n4"}))] == ["n4"]
    assert ok(http.get("/hosts", params={"host": "none"})) == []
    for path in ("/hosts", "/workflows", "/opportunities"):
        refused(http.get(path, params={"limit": 0}), 422, "limit")


def test_a_defect_is_one_line_and_its_traceback_stays_in_the_log(
    served: Served, http: httpx.Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr("tightship_platform.queries.hosts.list_hosts", broken)
    assert "secret" not in refused(http.get("/hosts"), 500)
    wait_for(lambda: "ZeroDivisionError: secret detail" in caplog.text)  # the answer is sent before the log is written


def test_health_tells_how_the_server_is(http: httpx.Client, served: Served) -> None:
    body = ok(http.get("/health"))
    assert set(body) == {"status", "version", "database", "broker", "schema", "reason"}
    assert (body["status"], body["database"], body["broker"]) == ("ok", "ok", "ok")


def test_a_number_that_the_database_cannot_work_with_is_no_reason_to_try_again(
    served: Served, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is the database's own; whichever it is, the same request gives it again."""
    sums = "SELECT CAST(sum(x) AS BIGINT) FROM (SELECT 9223372036854775807 AS x UNION ALL SELECT 1) AS numbers"
    monkeypatch.setattr(
        "tightship_platform.queries.hosts.list_hosts", lambda session, *_, **__: session.execute(text(sums))
    )
    refused(http.get("/hosts"), 422, "cannot work with a value")


def test_a_database_that_is_gone_is_503_and_one_line(
    served: Served, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served.database.session() as session:
        session.connection().exec_driver_sql("DELETE FROM tightship_schema")
    assert http.get("/health").status_code == 503
    assert http.get("/health").json()["status"] == "degraded"


def test_a_run_of_another_host_stays_as_it_is_however_often_it_is_claimed(http: httpx.Client) -> None:
    """The second time and later, the server takes what it remembers of the host's first."""
    ok(http.post("/runs", json=run_record()))
    ok(http.post("/hosts/heartbeat", json=heartbeat()))
    ok(http.post("/hosts/heartbeat", json=heartbeat("b" * 16) | {"host": "other"}))
    before = ok(http.get(f"/runs/{RUN}"))
    for _ in range(3):
        claimed = heartbeat(pids={7: 7}) | {"host": "other"}
        assert ok(http.post("/hosts/heartbeat", json=claimed))["refused"] == 1
        answer = ok(http.post("/batches", json=batch() | {"host": "other"}))
        assert (answer["rows"], answer["refused"]) == (7, 3)
        assert f"Run {RUN} is of '{HOST}'" in answer["refusal"]
    after = ok(http.get(f"/runs/{RUN}"))
    assert [after[key] for key in ("ranks", "steps", "devices", "last_seen_ns", "host")] == [
        before[key] for key in ("ranks", "steps", "devices", "last_seen_ns", "host")
    ]


LISTS = ("/runs", "/captures", "/findings", "/hosts", "/workflows")


def test_lists_are_filtered(http: httpx.Client) -> None:
    Capture(http)
    ok(http.post("/runs", json=run_record(labels={"lr": "3e-4", "é": "a=b&c"}, external_id="47")))
    for path in ("/runs", "/captures", "/hosts", "/workflows"):
        for given in (
            {"label": ["lr=3e-4", "é=a=b&c"]},
            {"job_id": "47", "since": "1d", "until": "0s", "workflow": ""},
        ):
            assert len(ok(http.get(path, params=given))) == 1, (path, given)
        for given in (
            {"label": ["lr=3e-4", "é=other"]},
            {"until": "1d"},
            {"state": "failed" if path != "/hosts" else "silent"},
        ):
            assert ok(http.get(path, params=given)) == [], (path, given)
    assert [run["run"] for run in ok(http.get("/runs", params={"since": "2000-01-01T00:00+01:00"}))] == [RUN]


@pytest.mark.parametrize("path", LISTS)
def test_a_filter_that_is_none_is_refused_in_one_line(http: httpx.Client, path: str) -> None:
    for given in (
        {"since": "soon"}, {"until": "1e9d"}, {"state": "dancing"}, {"label": "lr"}, {"label": ["a=b"] * 17},
        {"commit": "HEAD"}, {"rule": "'; DROP TABLE run"}, {"workflow": "a\nb"}, {"host": "x" * 201}, {"user": "\0"},
        {"limit": "0"}, {"limit": "many"}, {"since": "1h", "until": "2h"},
    ):  # fmt: skip
        refused(http.get(path, params=given), 422)
