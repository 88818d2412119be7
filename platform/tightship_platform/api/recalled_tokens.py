"""Whose tokens are: what agents send all the time is recognised without asking the database about each request.

All tokens are looked at together, off the requests' way, at most twice in RECALL_S and only while something arrives.
PostgreSQL says by a digest whether any of them has changed; only then are they read. That they are used is written down
with it.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import Text, cast, func, literal, or_, select, update
from sqlalchemy.dialects.postgresql import aggregate_order_by

from tightship_platform.api.auth import LAST_USED_EVERY_NS, Access, Caller, caller_of, hash_token
from tightship_platform.database.models import Token
from tightship_platform.units import now_ns

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from tightship_platform.database.engine import Database

RECALL_S = 1.0
"""How long an agent's deliveries are still taken with a token that was revoked meanwhile."""


_COLUMNS = (
    Token.id,
    Token.sha256,
    Token.name,
    Token.scopes,
    Token.host_name,
    Token.user_name,
    Token.team,
    Token.expires_ns,
)
"""What is known of a token, except for when it was used."""


@dataclass(kw_only=True, slots=True)
class _Recalled:
    id: int
    caller: Caller
    expires_ns: int | None
    last_used_ns: int | None


class RecalledTokens:
    """Those of one server process. For its event loop's thread."""

    def __init__(self, access: Access, database: Database) -> None:
        self._access = access
        self._database = database
        self._tokens: dict[str, _Recalled] = {}
        self._digest: str | None = None
        """Of the tokens that were read; None: not known."""
        self._read_s = -RECALL_S
        self._used: set[str] = set()
        self._reading: asyncio.Future[None] | None = None

    async def caller(self, token: str) -> Caller | None:
        """The caller behind a valid token; None: `Access.recognise` knows more."""
        digest = hash_token(token)
        given = self._access.given(digest)
        if given is not None:
            return given
        age_s = time.monotonic() - self._read_s
        if age_s >= RECALL_S / 2 and (self._reading is None or self._reading.done()):
            used, self._used = self._used, set()
            self._reading = asyncio.get_running_loop().run_in_executor(None, self._read, used)
            self._reading.add_done_callback(lambda done: done.exception())  # who waits for it, hears of it
        if age_s >= RECALL_S and self._reading is not None:
            await asyncio.shield(self._reading)
        found = self._tokens.get(digest)
        if found is None or (found.expires_ns is not None and found.expires_ns <= now_ns()):
            return None
        self._used.add(digest)
        return found.caller

    def _read(self, used: set[str]) -> None:
        began_s, now = time.monotonic(), now_ns()
        # Of one that was revoked while it was used nothing is known any more.
        due = [
            known
            for digest in used
            if (known := self._tokens.get(digest)) is not None
            and (known.last_used_ns is None or now - known.last_used_ns >= LAST_USED_EVERY_NS)
        ]
        with self._database.session() as session:
            if due:
                not_since = or_(Token.last_used_ns.is_(None), Token.last_used_ns <= now - LAST_USED_EVERY_NS)
                seen = update(Token).where(Token.id.in_([known.id for known in due]), not_since)
                session.execute(seen.values(last_used_ns=now).execution_options(synchronize_session=False))
            digest_now = _digest(session)
            if digest_now is None or digest_now != self._digest:
                # What changes between the two statements shows in the next digest.
                self._tokens, self._digest = _tokens(session), digest_now
        for known in due:
            known.last_used_ns = now
        self._read_s = began_s


def _digest(session: Session) -> str | None:
    """One of all valid tokens; None: there is none, or SQLite cannot say."""
    if session.get_bind().dialect.name != "postgresql":
        return None
    each = cast(func.row(*_COLUMNS), Text)
    together = func.string_agg(each, aggregate_order_by(literal(""), Token.id))
    return session.scalar(select(func.md5(together)).where(Token.revoked_ns.is_(None)))


def _tokens(session: Session) -> dict[str, _Recalled]:
    rows = session.connection().execute(select(*_COLUMNS, Token.last_used_ns).where(Token.revoked_ns.is_(None)))
    return {
        row.sha256: _Recalled(
            id=row.id, caller=caller_of(row), expires_ns=row.expires_ns, last_used_ns=row.last_used_ns
        )
        for row in rows
    }
