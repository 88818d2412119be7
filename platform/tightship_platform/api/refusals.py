"""Requests that were refused for their token: counted, logged and audited, each caller once a minute."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from typing import Any

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.requests import HTTPConnection

from tightship_platform import validation
from tightship_platform.database.audit import audit
from tightship_platform.database.engine import Database
from tightship_platform.processes.metrics import METRICS

log = logging.getLogger(__name__)

EVERY_S = 60.0
"""Whoever tries many tokens fills neither the log nor the database."""
MOST = 1000
"""Callers that are remembered."""
MOST_AT_ONCE = 100
"""Lines of all callers together in EVERY_S."""


def peer_of(request: HTTPConnection) -> str:
    """The address that a request came from."""
    return request.client.host if request.client else "unknown"


class Refusals:
    """Of one server."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._seen: OrderedDict[tuple[str, str], tuple[float, int]] = OrderedDict()
        self._said = (0.0, 0)

    def note(self, reason: str, who: str, request: HTTPConnection) -> None:
        """A request was refused. Waits for the database now and then.

        :param reason: `unknown` or `expired` (the token), or `scope` (it lacks the one that is needed).
        :param who: name of the token; empty where nobody knows it.
        """
        METRICS.count("tightship_refused_tokens_total", reason)
        peer = peer_of(request)
        before = self._due(reason, peer)
        if before is None:
            return
        method = request.scope.get("method", "")
        target = validation.line(f"{method} {request.scope['path']}", 200)
        since = f"; {before} more since the last such line" if before else ""
        log.warning(
            "Refused %s from %s: %s (%s)%s", f"token {who!r}" if who else "a token", peer, target, reason, since
        )
        self._write_down(who, "token.refuse", target, reason=reason, peer=peer, more=before)

    def note_login(self, reason: str, who: str, line: str, request: HTTPConnection) -> None:
        """A login by single sign-on was refused. Waits for the database now and then.

        :param reason: `state`, `provider`, `invalid` (what the provider said of the person), `group` or `away`.
        :param who: the person, by a name that the provider vouched for; empty where nobody did.
        :param line: as the person reads it.
        """
        METRICS.count("tightship_refused_logins_total", reason)
        peer = peer_of(request)
        before = self._due(f"{reason} {who}", peer)
        if before is None:
            return
        log.warning("Refused a login from %s: %s", peer, line)
        self._write_down(who, "session.refuse", who or "unknown", reason=reason, line=line, peer=peer, more=before)

    def _write_down(self, who: str, action: str, target: str, **detail: Any) -> None:
        try:
            with self._database.session() as session:
                audit(session, who or "unknown", action, target, **detail)
        except (DBAPIError, PoolTimeout) as error:
            log.warning("A refusal could not be audited: %s", " ".join(str(error).split())[:200])

    def _due(self, reason: str, peer: str) -> int | None:
        """How many of this caller were not said since the last time; None: this one is not said, either."""
        now_s = time.monotonic()
        with self._lock:
            last_s, hidden = self._seen.pop((reason, peer), (-EVERY_S, 0))
            began_s, said = self._said if now_s - self._said[0] < EVERY_S else (now_s, 0)
            is_due = now_s - last_s >= EVERY_S and said < MOST_AT_ONCE
            self._seen[reason, peer] = (now_s, 0) if is_due else (last_s, hidden + 1)
            self._said = (began_s, said + is_due)
            while len(self._seen) > MOST:
                self._seen.popitem(last=False)
        return hidden if is_due else None
