"""What a server remembers of tokens, on both databases: whatever changes is seen, and is read only then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from event_loop import run_async
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from tightship_platform.api import recalled_tokens
from tightship_platform.api.auth import Access, create_token, revoke_token, rotate_token
from tightship_platform.api.recalled_tokens import RecalledTokens
from tightship_platform.database.engine import Database
from tightship_platform.database.models import Token
from tightship_platform.settings import Settings
from tightship_platform.units import now_ns
from tightship_platform.vocabulary import Scope


@pytest.fixture
def recalled(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RecalledTokens:
    """Looks with each question."""
    monkeypatch.setattr(recalled_tokens, "RECALL_S", 0.0)
    return RecalledTokens(Access(Settings(home=tmp_path), database, local_token=""), database)


def test_every_change_of_a_token_is_seen(recalled: RecalledTokens, database: Database) -> None:
    async def whose(token: str) -> tuple[str, str | None, frozenset[Scope]] | None:
        found = await recalled.caller(token)
        return None if found is None else (found.name, found.team, found.scopes)

    async def change() -> None:
        ingest = frozenset({Scope.INGEST})
        with database.session() as session:
            one, two = (create_token(session, name, [Scope.INGEST]) for name in ("one", "two"))
        assert [await whose(token) for token in (one, two)] == [("one", None, ingest), ("two", None, ingest)]
        with database.session() as session:
            session.execute(update(Token).where(Token.name == "two").values(team="red", scopes=["read"]))
        assert await whose(two) == ("two", "red", frozenset({Scope.READ}))
        with database.session() as session:
            again = rotate_token(session, "two")
        assert await whose(again) is not None
        assert await whose(two) is None
        with database.session() as session:
            revoke_token(session, "one")  # which was used since it was looked at
            session.execute(update(Token).where(Token.name == "two").values(expires_ns=now_ns()))
        assert [await whose(token) for token in (one, again)] == [None, None]
        with database.session() as session:
            revoke_token(session, "two")
        assert await whose(again) is None, "there is no token at all"

    run_async(change())


def test_tokens_that_have_not_changed_are_not_read_again(
    recalled: RecalledTokens, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[Session] = []
    read = recalled_tokens._tokens

    def counted(session: Session) -> dict[str, Any]:
        reads.append(session)
        return read(session)

    monkeypatch.setattr(recalled_tokens, "_tokens", counted)

    async def use(token: str) -> None:
        for _ in range(5):
            assert await recalled.caller(token) is not None

    with database.session() as session:
        token = create_token(session, "one", [Scope.INGEST])
        is_postgresql = session.get_bind().dialect.name == "postgresql"
    run_async(use(token))
    assert len(reads) == (1 if is_postgresql else 5)
    with database.session() as session:
        assert session.scalars(select(Token.last_used_ns)).one() is not None, "its use is written down"
