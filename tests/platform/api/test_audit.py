"""Who did what: written down, listed for administrators only, and gone when it is old."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import httpx
import pytest
from api_calls import Capture, Served, ok, refused, trace_file
from processes import tightship
from sqlalchemy import select, update

from tightship_platform.api.auth import create_token
from tightship_platform.database.audit import audit, remove_old_entries
from tightship_platform.database.engine import Database
from tightship_platform.database.models import Audit
from tightship_platform.errors import Invalid
from tightship_platform.queries.audit import list_audit
from tightship_platform.units import NS_PER_S, now_ns
from tightship_platform.vocabulary import Scope

ADMIN = "an-administrators-own-token"
DAY_NS = 86_400 * NS_PER_S


@pytest.fixture
def closed(platform_env: Any, serve: Any) -> Served:
    return serve(replace(platform_env.settings, token=ADMIN))


def entries(served: Served, **filters: Any) -> list[tuple[str, str, str]]:
    with served.http(ADMIN) as http:
        return [(e["actor"], e["action"], e["target"]) for e in ok(http.get("/audit", params=filters))]


def test_a_download_and_a_login_are_written_down(closed: Served) -> None:
    with closed.database.session() as session:
        ann = create_token(session, "ann", [Scope.READ])
        feeder = create_token(session, "feeder", [Scope.INGEST])
    with closed.http(ADMIN) as http:
        capture = Capture(http)
        capture.write()
        body = trace_file()
        trace = ok(capture.put(body))["trace"]
    with closed.http(ann) as http:
        assert http.get(f"/traces/{trace}/file").content == body
        assert http.get("/traces/999/file").status_code == 404
        refused(http.get("/audit"), 403, "lacks the scope 'admin'")
    pages = httpx.Client(base_url=closed.url, trust_env=False, follow_redirects=False)
    for token, status in ((ann, 303), (feeder, 403), ("guessed", 401)):
        assert pages.post("/login", data={"token": token}).status_code == status
    pages.close()
    assert entries(closed, action="trace") == [("ann", "trace.download", str(trace))]
    assert entries(closed, action="session.begin") == [("ann", "session.begin", "ann")]
    assert entries(closed, action="token.refuse") == [
        ("unknown", "token.refuse", "POST /login"),
        ("ann", "token.refuse", "GET /api/v1/audit"),
    ], "one line a minute for each address and reason"
    assert entries(closed, actor="feeder") == []
    assert len(entries(closed, limit=2)) == 2
    assert "guessed" not in repr(entries(closed)) and ann not in repr(entries(closed))


def test_the_list_goes_on_where_it_ended(database: Database) -> None:
    with database.session() as session:
        for number in range(5):
            session.add(Audit(time_ns=number, actor="a", action="x.y", target=str(number), detail={"n": {"m": 1}}))
        session.flush()
        first = list_audit(session, limit=2)
        assert [entry.target for entry in first] == ["4", "3"]
        assert json.loads(first[0].detail) == {"n": {"m": 1}}
        assert [entry.target for entry in list_audit(session, before_ns=first[-1].time_ns, limit=2)] == ["2", "1"]
        assert [entry.target for entry in list_audit(session, since_ns=3)] == ["4", "3"]
        assert list_audit(session, action="x") and not list_audit(session, action="%")
        for limit in (0, 10_001):
            with pytest.raises(Invalid, match="limit"):
                list_audit(session, limit=limit)


def test_old_entries_go_and_a_wrong_clock_removes_none(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    now = now_ns()
    with database.session() as session:
        audit(session, "ann", "x.new", "1")
        audit(session, "ann", "x.old", "2")
        session.flush()
        session.execute(update(Audit).where(Audit.action == "x.old").values(time_ns=now - 10 * DAY_NS))
    assert remove_old_entries(database, 0) == 0
    assert remove_old_entries(database, 11, now=now + 9000 * DAY_NS) == 0
    monkeypatch.setattr("tightship_platform.database.audit.AT_ONCE", 1)
    assert remove_old_entries(database, 9) == 1
    with database.session() as session:
        assert session.scalars(select(Audit.action)).all() == ["x.new"]


def test_the_command_lists_it(platform_env: Any, served: Served) -> None:
    with served.database.session() as session:
        audit(session, "ann", "trace.download", "7", recording=1)
        audit(session, "bob\x1b[31m", "token.revoke", "x")
    done = tightship(platform_env.environ, "audit", "--since", "1h")
    assert done.returncode == 0 and "trace.download" in done.stdout and "\x1b" not in done.stdout
    (entry,) = json.loads(tightship(platform_env.environ, "audit", "--action", "trace", "--json").stdout)
    assert (entry["actor"], entry["target"], json.loads(entry["detail"])) == ("ann", "7", {"recording": 1})
    wrong = tightship(platform_env.environ, "audit", "--since", "soon")
    assert wrong.returncode == 2 and len(wrong.stderr.splitlines()) == 1
