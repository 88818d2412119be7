"""Whose tokens are: what agents send all the time is recognised without asking the database about each request.

All tokens are read at once, off the requests' way, at most twice in RECALL_S and only while something arrives. That
they are used is written down with it.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import or_, select, update

from tightship_platform.api.auth import LAST_USED_EVERY_NS, Access, Caller, caller_of, hash_token
from tightship_platform.database.models import Token
from tightship_platform.units import now_ns

if TYPE_CHECKING:
    from tightship_platform.database.engine import Database

RECALL_S = 1.0
"""How long an agent's deliveries are still taken with a token that was revoked meanwhile."""


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
            self._reading = asyncio.get_running_loop().run_in_executor(None, self._read)
            self._reading.add_done_callback(lambda done: done.exception())  # who waits for it, hears of it
        if age_s >= RECALL_S and self._reading is not None:
            await asyncio.shield(self._reading)
        found = self._tokens.get(digest)
        if found is None or (found.expires_ns is not None and found.expires_ns <= now_ns()):
            return None
        self._used.add(digest)
        return found.caller

    def _read(self) -> None:
        began_s, now = time.monotonic(), now_ns()
        used, self._used = self._used, set()
        due = [
            self._tokens[digest].id
            for digest in used
            if (last_ns := self._tokens[digest].last_used_ns) is None or now - last_ns >= LAST_USED_EVERY_NS
        ]
        columns = Token.id, Token.sha256, Token.name, Token.scopes, Token.host_name, Token.user_name, Token.team
        with self._database.session() as session:
            if due:
                not_since = or_(Token.last_used_ns.is_(None), Token.last_used_ns <= now - LAST_USED_EVERY_NS)
                seen = update(Token).where(Token.id.in_(due), not_since).values(last_used_ns=now)
                session.execute(seen.execution_options(synchronize_session=False))
            found = select(*columns, Token.expires_ns, Token.last_used_ns).where(Token.revoked_ns.is_(None))
            rows = session.connection().execute(found).all()
        self._tokens = {
            row.sha256: _Recalled(
                id=row.id, caller=caller_of(row), expires_ns=row.expires_ns, last_used_ns=row.last_used_ns
            )
            for row in rows
        }
        self._read_s = began_s
