"""Every route of the API, with a call that asks it for one thing: for tests that try each with each token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
from api_calls import heartbeat, run_record
from metric_messages import VERSION_1, labels, snappy, write_request_1

from tightship_platform.units import now_ns

Call = Callable[[httpx.Client, dict[str, Any]], httpx.Response]


def get(path: str) -> Call:
    return lambda http, names: http.get(path.format(**names))


def post(path: str, **body: Any) -> Call:
    def call(http: httpx.Client, names: dict[str, Any]) -> httpx.Response:
        filled = {key: value.format(**names) if isinstance(value, str) else value for key, value in body.items()}
        return http.post(path.format(**names), json=filled)

    return call


def patch(path: str, **body: Any) -> Call:
    return lambda http, names: http.patch(path.format(**names), json=body)


def delete(path: str) -> Call:
    return lambda http, names: http.delete(path.format(**names))


def record(http: httpx.Client, names: dict[str, Any]) -> httpx.Response:
    return http.post("/runs", json=run_record(names["run"], workflow="train", host=names["host"]))


def beat(http: httpx.Client, names: dict[str, Any]) -> httpx.Response:
    return http.post("/hosts/heartbeat", json=heartbeat(names["run"]) | {"host": names["host"]})


def upload(http: httpx.Client, names: dict[str, Any]) -> httpx.Response:
    headers = {"x-sha256": "a" * 64}
    return http.put(
        f"/captures/{names['capture']}/traces/0", params={"pid": 100, "host": names["host"]}, headers=headers
    )


def imported(http: httpx.Client, names: dict[str, Any]) -> httpx.Response:
    path = f"/fleets/of-{names['team']}/captures/{names['capture']}/traces/0"
    return http.put(path, headers={"x-sha256": "a" * 64})


def remote_write(http: httpx.Client, names: dict[str, Any]) -> httpx.Response:
    values = {
        labels("DCGM_FI_DEV_POWER_USAGE", Hostname=names["host"], UUID=f"GPU-{names['host']}"): [
            (now_ns() // 1_000_000, 90.5)
        ]
    }
    return http.post("/prometheus/write", content=snappy(write_request_1(values)), headers=VERSION_1)


def export(http: httpx.Client, names: dict[str, Any]) -> httpx.Response:
    attributes = [{"key": key, "value": {"stringValue": names["host"]}} for key in ("host.name", "hw.id")]
    point = {"timeUnixNano": str(now_ns()), "asDouble": 0.5, "attributes": attributes}
    metric = {"name": "hw.gpu.utilization", "gauge": {"dataPoints": [point]}}
    return http.post("/otlp/v1/metrics", json={"resourceMetrics": [{"scopeMetrics": [{"metrics": [metric]}]}]})


OF_ONE: dict[tuple[str, str], tuple[Call, int]] = {
    ("GET", "/ids"): (get("/ids?id={run}"), 404),
    ("GET", "/runs/{key}"): (get("/runs/{run}"), 404),
    ("GET", "/runs/{key}/timeline"): (get("/runs/{run}/timeline"), 404),
    ("GET", "/captures/{key}"): (get("/captures/{capture}"), 404),
    ("GET", "/captures/{key}/analysis"): (get("/captures/{capture}/analysis"), 404),
    ("GET", "/findings/{key}"): (get("/findings/{finding}"), 404),
    ("GET", "/traces/{key}/file"): (get("/traces/{trace}/file"), 404),
    ("POST", "/captures"): (post("/captures", target="{run}"), 404),
    ("POST", "/captures/{key}/analysis"): (post("/captures/{capture}/analysis"), 404),
    ("POST", "/captures/{key}/cancel"): (post("/captures/{capture}/cancel"), 404),
    ("POST", "/captures/{key}/report"): (post("/captures/{capture}/report", host="{host}", state="armed"), 403),
    ("GET", "/runs/{key}/stacks"): (get("/runs/{run}/stacks"), 404),
    ("POST", "/runs/{key}/stacks"): (post("/runs/{run}/stacks"), 404),
    ("POST", "/runs/{key}/stacks/answer"): (post("/runs/{run}/stacks/answer", host="{host}", processes=[]), 404),
    ("POST", "/captures/lease"): (post("/captures/lease", host="{host}", runs=[]), 200),
    ("PUT", "/captures/{key}/traces/{rank}"): (upload, 403),
    ("POST", "/opportunities/{key}/apply"): (post("/opportunities/{opportunity}/apply"), 404),
    ("POST", "/opportunities/{key}/launch"): (post("/opportunities/{opportunity}/launch"), 404),
    ("POST", "/opportunities/{key}/dismiss"): (post("/opportunities/{opportunity}/dismiss", reason="so"), 404),
    ("POST", "/opportunities/{key}/reopen"): (post("/opportunities/{opportunity}/reopen", reason="so"), 404),
    ("GET", "/verify"): (get("/verify?before={run}&after={run}"), 404),
    ("POST", "/workflows/{name:path}/schedule"): (post("/workflows/{workflow}/schedule", every_ns=None), 404),
    ("POST", "/runs"): (record, 409),
    ("PATCH", "/runs/{key}"): (patch("/runs/{run}", name="seized"), 404),
    ("POST", "/hosts/heartbeat"): (beat, 403),
    ("POST", "/batches"): (post("/batches", host="{host}"), 403),
    ("POST", "/prometheus/write"): (remote_write, 400),
    ("POST", "/otlp/v1/metrics"): (export, 200),  # which says how many points it refused
    ("GET", "/audit"): (get("/audit"), 403),
    ("DELETE", "/runs/{key}"): (delete("/runs/{run}"), 404),
    ("DELETE", "/workflows/{name:path}"): (delete("/workflows/{workflow}"), 404),
    ("DELETE", "/users/{name:path}"): (delete("/users/{user}"), 404),
    ("DELETE", "/teams/{name:path}"): (delete("/teams/{team}"), 404),
    ("POST", "/fleets/{name}"): (post("/fleets/of-{team}", format="csv"), 403),
    ("POST", "/fleets/{name}/parts"): (post("/fleets/of-{team}/parts", part="0" * 64), 403),
    ("POST", "/fleets/{name}/captures"): (
        post(
            "/fleets/of-{team}/captures",
            run="{run}",
            start_ns=now_ns(),
            duration_ns=1,
            traces=[{"rank": 0, "sha256": "a" * 64}],
        ),
        403,
    ),
    ("PUT", "/fleets/{name}/captures/{key}/traces/{rank}"): (imported, 403),
    ("POST", "/hosts/enrol"): (post("/hosts/enrol", host="{host}"), 403),
}
"""Route → a call about one thing, and the answer when that thing is another team's."""
LISTS = {
    ("GET", "/runs"): "/runs",
    ("GET", "/captures"): "/captures",
    ("GET", "/findings"): "/findings",
    ("GET", "/opportunities"): "/opportunities",
    ("GET", "/actions"): "/actions",
    ("GET", "/workflows"): "/workflows",
    ("GET", "/samples"): "/samples",
    ("GET", "/fleets"): "/fleets",
    ("GET", "/account"): "/account",
    ("GET", "/collection"): "/collection",
}
"""Routes of which each team gets its part, and the administrator all."""
COUNTS = ("/fleets", "/collection", "/account")
"""Of these, those that count what is a team's, and need not name it."""
OF_NOBODY = {
    *(("GET", path) for path in ("/health", "/live", "/ready", "/store", "/openapi.json", "/hosts")),
}
"""Routes that say nothing of a run."""
