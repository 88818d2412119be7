"""Requests that nobody's client sends: whatever arrives, the server answers, forgets it, and serves everybody else."""

from __future__ import annotations

import copy
import hashlib
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from agent_rig import Rig
from api_calls import HOST, NO_TLS, RUN, heartbeat, ok, run_record, trace_file
from sqlalchemy import text
from waiting import PATIENCE_S

from tightship_platform.api.auth import create_token
from tightship_platform.client import API
from tightship_platform.database.engine import open_database
from tightship_platform.database.models import Base
from tightship_platform.settings import load_settings
from tightship_platform.units import NS_PER_S, now_ns
from tightship_platform.vocabulary import Scope

ADMIN = "admin-token-of-tests"
ROUNDS, REQUESTS = 20, 500
"""Together the 10,000 requests after which everything has to be well."""
GROWTH_BYTES = 200 << 20
"""What the server may have taken by then."""
OTHERS_RUN, OTHERS_HOST = "ffee00112233aabb", "node-2"

NUMBERS: tuple[float, ...] = (
    -1,
    0,
    1,
    2**31,
    2**53,
    2**62,
    2**63 - 1,
    2**63,
    2**64,
    -(2**63),
    10**400,
    1e308,
    -0.0,
    0.5,
    1e-300,
)
WORDS: tuple[str, ...] = (
    *("", " ", "\0", "a\0b", "\ud800", "\u202e", "x" * 201, "y" * 70_000, "../../etc/passwd", "%2e%2e%2f", "a/b", "\n"),
    *("<script>alert(1)</script>", "'; DROP TABLE run; --", "=1+1", "NaN", "null", "-1", "1e999", "🚢" * 60),
    *(RUN, OTHERS_RUN, OTHERS_HOST, HOST, "cpu", "running", "failed", "requested", "uploaded", "open", "applied"),
)
BROKEN: tuple[bytes, ...] = (
    *(b"", b"{", b"[]", b"null", b'"', b"\xff\xfe", b"0" * 5_000, b'{"host":NaN}', b'{"a":1,"a":2}'),
    *(b"[" * 100_000, b'{"runs":' * 20_000, b"\x1f\x8b\x08\x00" + b"\0" * 50),
)
PAGES = ("/", "/runs", f"/runs/{RUN}", f"/runs/{OTHERS_RUN}", "/will-it-fit", "/login")


@dataclass
class Target:
    """A server in its own process, with rows of two owners."""

    rig: Rig
    pid: int
    capture: str
    """Of the other owner."""
    mine: str
    """A capture of the run that the hostile tokens may report for."""
    routes: list[tuple[str, str, list[str]]]
    """Method, path and names of query parameters of each route of the API."""
    tokens: dict[str, str]
    begun_bytes: int

    def http(self, token: str = ADMIN) -> httpx.Client:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        url = f"http://127.0.0.1:{self.rig.port}"
        return httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=PATIENCE_S, verify=NO_TLS)

    def resident_bytes(self) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmRSS"))

    def rows_of_the_other(self) -> dict[str, list[tuple[Any, ...]]]:
        """All that the database has of the other owner's run and host, in every table that names either."""
        database = open_database(load_settings(self.rig.environ))
        found = {}
        with database.session() as session:
            run = session.scalar(text("SELECT id FROM run WHERE key = :key"), {"key": OTHERS_RUN})
            host = session.scalar(text("SELECT id FROM host WHERE name = :name"), {"name": OTHERS_HOST})
            for table in Base.metadata.sorted_tables:
                where = {"run": "id = :run", "host": "id = :host"}.get(table.name)
                if table.name == "sample":
                    where = "device_id IN (SELECT id FROM device WHERE host_id = :host)"
                for column in ("host_id", "run_id"):
                    where = f"{column} = :{column[:-3]}" if column in table.columns else where
                if where is not None:
                    rows = session.execute(
                        text(f"SELECT * FROM {table.name} WHERE {where}"), {"run": run, "host": host}
                    )
                    found[table.name] = sorted(map(tuple, rows), key=repr)
        database.close()
        return found


@pytest.fixture(scope="module")
def target(make_platform_env: Callable[..., Any]) -> Iterator[Target]:
    made = make_platform_env(database="sqlite")
    rig = Rig(variables={**made.variables, "TIGHTSHIP_TOKEN": ADMIN})
    try:
        server = rig.start_server()
        database = open_database(load_settings(rig.environ))
        with database.session() as session:
            tokens = {
                "ingest": create_token(session, "ingest", [Scope.INGEST], host=HOST),
                "read": create_token(session, "read", [Scope.READ]),
                "none": "",
                "unknown": "x" * 43,
            }
        database.close()
        target = Target(rig, server.pid, "", "", [], tokens, 0)
        with target.http() as http:
            captures = []
            for run, host in ((OTHERS_RUN, OTHERS_HOST), (RUN, HOST)):
                ok(http.post(f"{API}/runs", json=run_record(run, host=host, workflow=f"of-{host}")))
                ok(http.post(f"{API}/hosts/heartbeat", json=heartbeat(run) | {"host": host}))
                ok(http.post(f"{API}/batches", json=batch(run) | {"host": host}))
                captures.append(ok(http.post(f"{API}/captures", json={"target": run}))["capture"])
            target.capture, target.mine = captures
            for path, methods in ok(http.get(f"{API}/openapi.json"))["paths"].items():
                for method, known in methods.items():
                    named = [entry["name"] for entry in known.get("parameters", ()) if entry["in"] == "query"]
                    target.routes.append((method.upper(), path, named))
            assert len(target.routes) > 20
            everything_answers(target, http)
        target.begun_bytes = target.resident_bytes()
        yield target
    finally:
        rig.close()


def batch(run: str) -> dict[str, Any]:
    """A host's metrics of a second."""
    at = now_ns() - 30 * NS_PER_S
    return {
        "host": HOST,
        "devices": [{"uuid": "cpu", "kind": "cpu", "name": "A processor"}],
        "samples": [{"time_ns": at, "device": "cpu", "util_frac": 0.5, "memory_used_bytes": 1 << 30}],
        "host_samples": [{"time_ns": at, "cpu_frac": 0.5}],
        "run_samples": [{"time_ns": at, "run": run, "device": "cpu", "cpu_cores": 1.0}],
        "steps": [{"run": run, "rank": 0, "time_ns": at, "width_ns": NS_PER_S, "steps": 3, "last_step_ns": at + 9}],
        "allocations": [{"run": run, "device": "cpu", "start_ns": at}],
    }


def everything_answers(target: Target, http: httpx.Client) -> None:
    """Every page loads, and every list."""
    for path in PAGES:
        assert http.get(path).status_code == 200, path
    for method, path, _ in target.routes:
        if method == "GET" and "{" not in path and path not in (f"{API}/ids", f"{API}/verify"):  # these ask for ids
            assert http.get(path).status_code == 200, path
    assert ok(http.get(f"{API}/runs/{RUN}"))["run"] == RUN
    http.get(f"{API}/runs/{RUN}/timeline").raise_for_status()


class Attacker:
    """Makes requests from one seed."""

    def __init__(self, target: Target, seed: int) -> None:
        self.dice = random.Random(seed)
        self.target = target

    def request(self) -> dict[str, Any]:
        """One request, as httpx takes it, and the kind of its token."""
        dice = self.dice
        method, path, query = dice.choice(self.target.routes)
        if dice.random() < 0.05:
            method = dice.choice(["GET", "POST", "PUT", "DELETE", "PATCH"])
        for part in [part for part in path.split("/") if part.startswith("{")]:
            path = path.replace(part, self._path_value())
        made: dict[str, Any] = {
            "method": method,
            "url": path,
            "params": {name: self._text() for name in query if dice.random() < 0.6},
            "token": "read" if method == "GET" else "ingest",
        }
        if dice.random() < 0.2:
            made["token"] = dice.choice(list(self.target.tokens))
        if method in ("POST", "PUT", "PATCH"):
            made["content"] = self._body(path)
            kind = dice.choice(["application/json"] * 9 + ["text/plain", "multipart/form-data"])
            made["headers"] = {"content-type": kind}
            if method == "PUT":
                digest = hashlib.sha256(made["content"]).hexdigest()
                made["headers"]["x-sha256"] = dice.choice([digest, digest, "0" * 64, "zz", ""])
        return made

    def _path_value(self) -> str:
        known = (RUN, OTHERS_RUN, self.target.capture, self.target.mine, "0", "1", "2", str(2**63), "of-node-2")
        return self.dice.choice(known) if self.dice.random() < 0.7 else quote(self._text(), safe="%")

    def _text(self) -> str:
        word = self.dice.choice([*WORDS, *map(str, NUMBERS)])
        return word.encode("utf-8", "replace").decode()[:3_000]

    def _body(self, path: str) -> bytes:
        dice = self.dice
        if dice.random() < 0.1:
            return dice.choice(BROKEN)
        if "/traces/" in path:
            return dice.choice([trace_file(10), trace_file(10)[:-9], b"\x1f\x8b", b"{}", b""])
        run = dice.choice([RUN, RUN, OTHERS_RUN])
        shapes: dict[str, dict[str, Any]] = {
            "runs": run_record(run) | {"end_ns": now_ns(), "exit_code": 1, "labels": {"a": "b"}, "command": ["python"]},
            "heartbeat": heartbeat(run),
            "batches": batch(run),
            "captures": {"target": run, "params": {"duration_ns": NS_PER_S, "passes": 2}},
            "lease": {"host": HOST, "runs": [run]},
            "report": {"host": HOST, "state": dice.choice(["armed", "recording", "written", "failed", "requested"]),
                       "reason": "none", "expected": [{"rank": 0, "pid": 100}]},
            "schedule": {"every_ns": 3600 * NS_PER_S},
            "state": {"state": "dismissed"},
        }  # fmt: skip
        shape = shapes.get(path.rpartition("/")[2]) or dice.choice(list(shapes.values()))
        body = copy.deepcopy(shape)
        for _ in range(dice.choice([0, 1, 1, 1, 2, 5])):
            self._spoil(body)
        return json.dumps(body).encode("utf-8", "surrogatepass")

    def _spoil(self, body: dict[str, Any]) -> None:
        """Change one thing somewhere within."""
        dice = self.dice
        at: Any = body
        while True:
            if not at:
                return
            key = dice.choice(list(at) if isinstance(at, dict) else range(len(at)))
            if not isinstance(at[key], (dict, list)) or dice.random() < 0.3:
                break
            at = at[key]
        match dice.randrange(6):
            case 0:
                at[key] = dice.choice(NUMBERS)
            case 1:
                at[key] = dice.choice(WORDS)
            case 2:
                at[key] = dice.choice([None, True, [], {}, [[]], {"": {}}, [None] * 50])
            case 3 if isinstance(at, dict):
                del at[key]
            case 4 if isinstance(at[key], list):
                at[key] = at[key] * dice.choice([2, 300])
            case _ if isinstance(at, dict):
                at[dice.choice(WORDS)] = dice.choice(NUMBERS)


@pytest.mark.sliced(1)
@pytest.mark.parametrize("seed", range(ROUNDS))
def test_whatever_is_sent_is_answered_and_harms_nobody(target: Target, seed: int) -> None:
    before = target.rows_of_the_other()
    attacker = Attacker(target, seed)
    clients = {name: target.http(token) for name, token in target.tokens.items()}
    answers: dict[int, int] = {}
    for number in range(REQUESTS):
        made = attacker.request()
        token = made.pop("token")
        url = made.pop("url")
        answer = clients[token].request(made.pop("method"), url, **made)
        where = f"{number}: {token} {answer.request.method} {url[:200]} {made} → {answer.text[:300]}"
        assert answer.status_code < 500, where[:3_000]
        assert "Traceback" not in answer.text, where[:3_000]
        if answer.status_code >= 400 and url.startswith(API) and answer.request.method != "HEAD":
            # "message" is OTLP's own form: https://opentelemetry.io/docs/specs/otlp/#failures
            said = {"error", "message"} if url.startswith(f"{API}/otlp/") else {"error"}
            assert said & answer.json().keys(), where[:3_000]
        answers[answer.status_code] = answers.get(answer.status_code, 0) + 1
    for client in clients.values():
        client.close()
    assert {200, 401, 403, 404, 422} <= answers.keys(), answers
    assert target.rows_of_the_other() == before
    with target.http() as http:
        everything_answers(target, http)
    assert target.resident_bytes() - target.begun_bytes < GROWTH_BYTES
    assert "Traceback" not in target.rig.log()
