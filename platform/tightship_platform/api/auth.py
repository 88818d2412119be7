"""Who is calling, and what they may do: bearer tokens, their scopes, and the record of who did what.

[Note: who is let in]
Every request needs a token, or the session of somebody who logged in by single sign-on. A server takes the tokens of
its database, and one more that may do everything: TIGHTSHIP_TOKEN or, where that is not set and it listens on loopback
only, the one of the user who runs it. A server that can be reached beyond
loopback, or whose TIGHTSHIP_PUBLIC_URL can, does not start before there is a token for others, or single sign-on.

[Note: one local user]
A server on loopback without TIGHTSHIP_TOKEN takes a token that nobody had to make. It lies in `$TIGHTSHIP_HOME/token`,
where this user's agent, launcher and command line find it and nobody else can read it. It is good on this machine only:
the server refuses it in a request that came through a proxy or for another name, and the client sends it to nothing
that another user runs (who may have taken the port while the server was away).

A browser gets it as a cookie, in exchange for a code. Whoever can write to the home makes one (`tightship token link`):
a file in `$TIGHTSHIP_HOME/login` that is named by the code's hash. The server deletes the file as it takes the code, so
a code works once, whichever of the server's processes is asked.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from sqlalchemy import Select, func, or_, select, update
from sqlalchemy.exc import IntegrityError

from tightship_platform import validation
from tightship_platform.database.audit import audit
from tightship_platform.database.models import BrowserSession, Token
from tightship_platform.database.reporters import Reporter
from tightship_platform.database.teams import see_team
from tightship_platform.errors import Conflict, Forbidden, Invalid, NotFound, Unauthorized
from tightship_platform.results import token as results
from tightship_platform.token_file import is_loopback, local_token_path, make_token, new_token
from tightship_platform.units import NS_PER_S, now_ns, plural
from tightship_platform.validation import NAME_MAX
from tightship_platform.vocabulary import Scope

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from tightship_platform.database.engine import Database
    from tightship_platform.settings import Settings

LAST_USED_EVERY_NS = 60 * NS_PER_S
_TOKEN_MAX = 512
_LIFETIME_MAX_NS = 36_500 * 86_400 * NS_PER_S
ENVIRONMENT_LEAST = 20
"""Least length of TIGHTSHIP_TOKEN for a server that other machines can reach."""


@dataclass(frozen=True, kw_only=True)
class Caller:
    """Somebody who makes a request."""

    name: str
    """The token's name, `loopback` for that of this machine's user, `environment` for TIGHTSHIP_TOKEN, or `sso:` and a
    person's name."""
    scopes: frozenset[Scope]
    expired_ns: int | None = None
    """When the token expired; such a caller has no scopes. Null: it is valid."""
    host: str | None = None
    """The only host that they report for; this and the next two: see [Note: whose is it] in `database.reporters`."""
    user: str | None = None
    team: str | None = None
    is_session: bool = False
    """They logged in by single sign-on; else they have a token."""

    def __str__(self) -> str:
        return f"{'Session' if self.is_session else 'Token'} {self.name!r}"

    def may(self, scope: Scope) -> bool:
        """Whether the caller may do what needs `scope`; `admin` may do everything."""
        return scope in self.scopes or Scope.ADMIN in self.scopes


LOOPBACK = Caller(name="loopback", scopes=frozenset(Scope))
ENVIRONMENT = Caller(name="environment", scopes=frozenset(Scope))

_caller: ContextVar[Caller | None] = ContextVar("tightship_caller", default=None)
_is_unknown: ContextVar[bool] = ContextVar("tightship_unknown_token", default=False)


def set_caller(caller: Caller | None, *, is_unknown: bool = False) -> None:
    """Remember who makes the request that this context (task, thread-pool call) works on.

    :param is_unknown: it has a token that is nobody's; else, without a caller, it has none.
    """
    _caller.set(caller)
    _is_unknown.set(is_unknown)
    see_team(None if caller is None or Scope.ADMIN in caller.scopes else caller.team)


def current_caller() -> Caller | None:
    """Who makes the request that is being worked on; null outside of one, or when nobody was recognised."""
    return _caller.get()


def require(scope: Scope) -> Caller:
    """The caller of this request, who has `scope`. For code behind a route that serves several, such as callbacks.

    :raises Unauthorized: nobody was recognised, or the token has expired.
    :raises Forbidden: the token lacks the scope.
    """
    caller = current_caller()
    if caller is None and _is_unknown.get():
        raise Unauthorized(
            "This server does not know the token that was sent: it is revoked, mistyped, or another server's; "
            "compare TIGHTSHIP_TOKEN and TIGHTSHIP_SERVER, or have one made with `tightship token create`"
        )
    if caller is None:
        raise Unauthorized(
            "This server requires a token; set TIGHTSHIP_TOKEN to one created by `tightship token create`, "
            "or TIGHTSHIP_HOME to the folder of a server of your own"
        )
    if caller.expired_ns is not None:
        day = datetime.fromtimestamp(caller.expired_ns / NS_PER_S, UTC).strftime("%Y-%m-%d %H:%M UTC")
        again = "whoever runs the server makes a new one with `tightship token rotate`"
        raise Unauthorized(f"{caller} expired at {day}; {'log in again' if caller.is_session else again}")
    if not caller.may(scope):
        has = ", ".join(sorted(caller.scopes)) or "none"
        raise Forbidden(f"{caller} lacks the scope '{scope}'; it has: {has}")
    return caller


def reporter() -> Reporter:
    """The caller of this request, who has the scope `ingest`, as the one who reports.

    :raises Unauthorized: nobody was recognised, or the token has expired.
    :raises Forbidden: the token lacks the scope.
    """
    caller = require(Scope.INGEST)
    is_admin = Scope.ADMIN in caller.scopes
    return Reporter(name=caller.name, is_admin=is_admin, host=caller.host, user=caller.user, team=caller.team)


def hash_token(token: str) -> str:
    """What is kept of a token. It is random and long, so a plain SHA-256 cannot be turned back."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


class Access:
    """Recognises callers by their token."""

    def __init__(self, settings: Settings, database: Database, *, local_token: str) -> None:
        self.local_token = local_token
        """Of the user who runs this server; empty: it takes none. See [Note: who is let in]."""
        given = ((settings.token, ENVIRONMENT), (local_token, LOOPBACK))
        self._given = [(hash_token(token), caller) for token, caller in given if token]
        self._database = database

    def given(self, digest: str) -> Caller | None:
        """The caller with TIGHTSHIP_TOKEN or the local user's token; null: it is another token."""
        return next((caller for known, caller in self._given if hmac.compare_digest(digest, known)), None)

    def recognise(self, token: str) -> Caller | None:
        """The caller behind a token, who has no scopes once it has expired; null when it is unknown or revoked."""
        if not token or len(token) > _TOKEN_MAX:
            return None
        digest, now = hash_token(token), now_ns()
        given = self.given(digest)
        if given is not None:
            return given
        with self._database.session() as session:
            row = session.scalar(select(Token).where(Token.sha256 == digest))
            if row is None:
                begun = session.scalar(open_sessions().where(BrowserSession.sha256 == digest))
                return None if begun is None else _caller_in(begun, now)
            if row.revoked_ns is not None or not hmac.compare_digest(row.sha256, digest):
                return None
            if row.expires_ns is not None and row.expires_ns <= now:
                return Caller(name=row.name, scopes=frozenset(), expired_ns=row.expires_ns)
            caller = caller_of(row)
            if row.last_used_ns is None or now - row.last_used_ns >= LAST_USED_EVERY_NS:
                # Once more in SQL: of many requests at once, one writes.
                session.execute(
                    update(Token)
                    .where(Token.id == row.id)
                    .where(or_(Token.last_used_ns.is_(None), Token.last_used_ns <= now - LAST_USED_EVERY_NS))
                    .values(last_used_ns=now)
                    .execution_options(synchronize_session=False)
                )
            return caller


def caller_of(row: Any) -> Caller:
    """Who has this token.

    :param row: a valid `Token`, or its columns.
    """
    return Caller(
        name=row.name, scopes=_known(tuple(row.scopes)), host=row.host_name, user=row.user_name, team=row.team
    )


def open_sessions() -> Select[BrowserSession]:
    """Sessions in browsers that nobody has ended; some have expired."""
    return select(BrowserSession).where(BrowserSession.ended_ns.is_(None))


def _caller_in(begun: BrowserSession, now: int) -> Caller:
    if begun.expires_ns <= now:
        return Caller(name=begun.name, scopes=frozenset(), expired_ns=begun.expires_ns, is_session=True)
    return Caller(name=begun.name, scopes=_known(tuple(begun.scopes)), team=begun.team, is_session=True)


@lru_cache(maxsize=256)
def _known(names: tuple[Any, ...]) -> frozenset[Scope]:
    """Scopes of a stored token; one that this release does not know grants nothing."""
    return frozenset(Scope(name) for name in names if name in {scope.value for scope in Scope})


def local_token(host: str, settings: Settings, database: Database) -> str:
    """The token of the user who runs a server that listens on `host`, made where there is none; empty: it takes none.

    See [Note: who is let in].

    :raises Conflict: others can reach it, or a proxy before it, and there is no token for them.
    :raises Invalid: others can reach it, and TIGHTSHIP_TOKEN could be guessed; or the local user's token is of no use.
    """
    named = urlsplit(settings.public_url).hostname or "localhost"
    exposed = not is_loopback(host) or not is_loopback(named)
    if exposed and 0 < len(settings.token) < ENVIRONMENT_LEAST:
        expected = f"at least {ENVIRONMENT_LEAST} characters where other machines reach the server"
        raise Invalid("TIGHTSHIP_TOKEN", f"{plural(len(settings.token), 'character')}, not shown", expected)
    if exposed and not settings.token and not settings.sso_issuer:
        with database.session() as session:
            if not any_active(session):
                raise Conflict(_nobody(host, settings))
    return "" if settings.token or not is_loopback(host) else make_token(local_token_path(settings.home))


def _nobody(host: str, settings: Settings) -> str:
    if not is_loopback(host):
        return (
            f"Host {host!r} can be reached from other machines and no token exists; make one with "
            "`tightship token create NAME --scope …` or set TIGHTSHIP_TOKEN, or listen on 127.0.0.1"
        )
    return (
        f"TIGHTSHIP_PUBLIC_URL is {settings.public_url!r}, which other machines can reach, and no token exists; "
        "make one with `tightship token create NAME --scope …` or set TIGHTSHIP_TOKEN, or unset it"
    )


def any_active(session: Session) -> bool:
    """Whether a token exists that has not been revoked."""
    return bool(session.scalar(select(func.count()).select_from(Token).where(Token.revoked_ns.is_(None))))


def create_token(
    session: Session,
    name: str,
    scopes: Sequence[Scope],
    *,
    host: str | None = None,
    user: str | None = None,
    team: str | None = None,
    lifetime_ns: int | None = None,
    actor: str = "cli",
) -> str:
    """Make a token and return it: the only time that it can be seen.

    :param host: the only host that it reports for; this and the next two: see [Note: whose is it].
    :param lifetime_ns: after which it is refused; None: never.
    :raises Invalid: the name is empty, too long or not printable, there is no scope, or the lifetime is none.
    :raises Conflict: the name is taken, also by a revoked token.
    """
    if not name.strip() or len(name) > NAME_MAX or not name.isprintable():
        raise Invalid("Token name", name, f"1 to {NAME_MAX} printable characters")
    named = {"host": host, "user": user, "team": team}
    bounds = {what: validation.name(f"--{what}", value) for what, value in named.items() if value is not None}
    if not scopes:
        raise Invalid("Scopes", list(scopes), f"at least one of {', '.join(Scope)}")
    token, now = new_token(), now_ns()
    chosen = sorted({scope.value for scope in scopes})
    expires_ns = expiry(now, lifetime_ns)
    session.add(
        Token(
            name=name,
            sha256=hash_token(token),
            scopes=chosen,
            host_name=host,
            user_name=user,
            team=team,
            created_ns=now,
            expires_ns=expires_ns,
        )
    )
    try:
        session.flush()
    except IntegrityError as error:
        raise Conflict(f"A token named {name!r} exists or existed; choose another name") from error
    audit(session, actor, "token.create", name, scopes=chosen, **bounds)
    return token


def rotate_token(session: Session, name: str, *, lifetime_ns: int | None = None, actor: str = "cli") -> str:
    """Replace a token by a new one of the same name and rights, and return that; the old one is worthless at once.

    :param lifetime_ns: of the new one; None: as long as the old one had, which may be for ever.
    :raises NotFound: there is no such token.
    :raises Conflict: it was revoked.
    :raises Invalid: the lifetime is none.
    """
    row = _named(session, name)
    if row.revoked_ns is not None:
        raise Conflict(f"Token {name!r} was revoked and stays so; make another with `tightship token create`")
    if lifetime_ns is None and row.expires_ns is not None:
        lifetime_ns = row.expires_ns - row.created_ns
    token, now = new_token(), now_ns()
    row.sha256, row.created_ns, row.last_used_ns = hash_token(token), now, None
    row.expires_ns = expiry(now, lifetime_ns)
    audit(session, actor, "token.rotate", name)
    return token


def expiry(now: int, lifetime_ns: int | None) -> int | None:
    """When a token that is made now is refused; None: never.

    :raises Invalid: no lifetime that a token can have.
    """
    if lifetime_ns is None:
        return None
    if not NS_PER_S <= lifetime_ns <= _LIFETIME_MAX_NS:
        raise Invalid("--expires", f"{lifetime_ns / NS_PER_S:g} s", "a duration from 1s to 36500d, such as 30d")
    return now + lifetime_ns


def _named(session: Session, name: str) -> Token:
    row = session.scalar(select(Token).where(Token.name == name))
    if row is None:
        raise NotFound("token", name, "see `tightship token list`")
    return row


def list_tokens(session: Session) -> list[results.Token]:
    """All tokens, oldest first."""
    return [
        results.Token(
            name=row.name,
            scopes=list(row.scopes),
            host=row.host_name,
            user=row.user_name,
            team=row.team,
            created_ns=row.created_ns,
            last_used_ns=row.last_used_ns,
            revoked_ns=row.revoked_ns,
            expires_ns=row.expires_ns,
        )
        for row in session.scalars(select(Token).order_by(Token.id))
    ]


def revoke_token(session: Session, name: str, *, actor: str = "cli") -> None:
    """Make a token worthless from the next request on; a second time changes nothing.

    :raises NotFound: there is no such token.
    """
    row = _named(session, name)
    if row.revoked_ns is None:
        row.revoked_ns = now_ns()
        audit(session, actor, "token.revoke", name)
