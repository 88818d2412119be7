"""A host's own token, in exchange for a one-time word."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from api_calls import HOST, Served, heartbeat, ok, refused
from sqlalchemy import update
from waiting import PATIENCE_S, wait_for

from tightship_platform.api.auth import create_token, list_tokens
from tightship_platform.api.enrolment import enrol_host, make_word
from tightship_platform.database.engine import Database
from tightship_platform.database.models import Token
from tightship_platform.errors import Conflict, Invalid
from tightship_platform.token_file import read_token, write_token
from tightship_platform.units import NS_PER_S
from tightship_platform.vocabulary import Scope

HOUR_NS = 3600 * NS_PER_S


@pytest.fixture
def closed(platform_env: Any, serve: Callable[..., Served]) -> Iterator[Served]:
    yield serve(replace(platform_env.settings, token="admin-token-of-tests"))


def word_for(served: Served, host: str = HOST) -> str:
    with served.database.session() as session:
        return make_word(session, host, lifetime_ns=HOUR_NS)


def test_a_word_gets_its_host_a_token_once(closed: Served) -> None:
    word = word_for(closed)
    with closed.http(word) as http:
        refused(http.post("/hosts/heartbeat", json=heartbeat()), 403, "lacks the scope 'ingest'; it has: enrol")
        refused(http.get("/hosts"), 403, "lacks the scope 'read'")
        refused(http.post("/hosts/enrol", json={"host": "evil"}), 403, f"for host '{HOST}', and this is 'evil'")
        answer = ok(http.post("/hosts/enrol", json={"host": HOST}))
        refused(http.post("/hosts/enrol", json={"host": HOST}), 401)
    assert answer["name"] == f"agent-{HOST}"
    with closed.http(answer["token"]) as http:
        ok(http.post("/hosts/heartbeat", json=heartbeat()))
        refused(http.post("/hosts/heartbeat", json=heartbeat() | {"host": "other"}), 403, f"is of host '{HOST}'")
        refused(http.post("/hosts/enrol", json={"host": HOST}), 403, "lacks the scope 'enrol'")
        refused(http.get("/hosts"), 403, "lacks the scope 'read'")
        word_for(closed)
        # Deliveries are taken for up to RECALL_S with a token that is refused elsewhere at once.
        wait_for(lambda: http.post("/hosts/heartbeat", json=heartbeat()).status_code == 401, "the end of the old token")
    with closed.http("admin-token-of-tests") as http:
        refused(http.post("/hosts/enrol", json={"host": HOST}), 409, "'environment' is no one-time word")


def test_a_word_that_has_expired_is_refused(closed: Served) -> None:
    word = word_for(closed)
    with closed.database.session() as session:
        session.execute(update(Token).values(expires_ns=1))
    with closed.http(word) as http:
        refused(http.post("/hosts/enrol", json={"host": HOST}), 401, f"Token 'agent-{HOST}' expired at")


def test_of_two_that_use_a_word_at_once_one_gets_a_token(database: Database) -> None:
    with database.session() as session:
        make_word(session, "h1", lifetime_ns=HOUR_NS)
    with database.session() as first, database.session() as second:
        for session in (first, second):  # both have seen the word
            assert list_tokens(session)[0].scopes == [Scope.ENROL]
        second.rollback()
        enrol_host(first, "agent-h1", "h1")
        first.commit()
        with pytest.raises(Conflict, match="no one-time word"):
            enrol_host(second, "agent-h1", "h1")


def test_a_word_takes_no_other_token_its_place(database: Database) -> None:
    with database.session() as session:
        create_token(session, "agent-h1", [Scope.READ])
        with pytest.raises(Conflict, match="'agent-h1' exists and is no agent's"):
            make_word(session, "h1", lifetime_ns=HOUR_NS)
    with database.session() as session:
        assert [token.scopes for token in list_tokens(session)] == [["read"]]
        with pytest.raises(Invalid, match="--expires"):
            make_word(session, "h2", lifetime_ns=0)
        with pytest.raises(Invalid, match="Host is 'a\\\\nb'"):
            make_word(session, "a\nb", lifetime_ns=HOUR_NS)


def agent(served: Served, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    environ = os.environ | {"TIGHTSHIP_SERVER": served.url, "TIGHTSHIP_HOST_NAME": HOST}
    environ.pop("TIGHTSHIP_TOKEN", None)
    return subprocess.run(
        [sys.executable, "-m", "tightship_platform.cli", "agent", *arguments],
        env=environ,
        input=given,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_an_agent_finds_the_token_of_its_host(closed: Served, platform_env: Any) -> None:
    kept: Path = platform_env.settings.home / "agent.token"
    wrong = agent(closed, "enrol", given="ts_nobody\n")
    assert (wrong.returncode, wrong.stdout, kept.exists()) == (2, "", False)
    assert "Traceback" not in wrong.stderr
    word = word_for(closed)
    done = agent(closed, "enrol", given=f"{word}\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"Host '{HOST}' is enrolled; its agent finds its token in {kept}.\n"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert word not in kept.read_text()
    assert agent(closed, "--once", "--interval", "100ms").returncode == 0
    with closed.http("admin-token-of-tests") as http:
        assert [host["host"] for host in ok(http.get("/hosts"))] == [HOST]


@pytest.mark.parametrize("given", ["", "two words\n", "\x1b[0m\n"])
def test_what_is_no_word_is_refused_unseen(given: str, closed: Served) -> None:
    done = agent(closed, "enrol", given=given)
    assert (done.returncode, done.stdout) == (2, "")
    assert "One-time word is '(not shown)'" in done.stderr


def test_a_token_file_is_its_owners_alone(tmp_path: Path) -> None:
    file = tmp_path / "home" / "agent.token"
    assert read_token(file) == ""
    write_token(file, "ts_secret")
    assert (read_token(file), stat.S_IMODE(file.stat().st_mode)) == ("ts_secret", 0o600)
    assert [path.name for path in file.parent.iterdir()] == ["agent.token"]
    file.chmod(0o640)
    with pytest.raises(Invalid, match="with mode 600, not one of"):
        read_token(file)
    link = tmp_path / "link"
    link.symlink_to(file)
    with pytest.raises(Invalid, match="a file that can be read"):
        read_token(link)
    write_token(file, "two words")
    with pytest.raises(Invalid, match="one token and nothing else"):
        read_token(file)
    with pytest.raises(Invalid, match="a file that can be written"):
        write_token(file / "below", "ts_secret")
