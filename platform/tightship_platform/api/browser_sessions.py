"""Sessions in people's browsers: begun by single sign-on, ended by them, by an administrator or by time."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Select, delete
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from tightship_platform.api.auth import hash_token, open_sessions
from tightship_platform.database.audit import audit
from tightship_platform.database.models import BrowserSession
from tightship_platform.errors import Conflict, NotFound
from tightship_platform.results import token as results
from tightship_platform.token_file import new_token
from tightship_platform.units import NS_PER_S, now_ns
from tightship_platform.vocabulary import Scope

KEPT_NS = 86_400 * NS_PER_S
"""A session is remembered for so long after its end: somebody who comes back reads that it expired."""


def begin_session(
    session: Session,
    *,
    name: str,
    subject: str,
    scopes: Sequence[Scope],
    team: str | None,
    state_sha256: str,
    lifetime_s: int,
    peer: str,
) -> str:
    """Begin one and return the secret for its cookie, which is not kept.

    :param state_sha256: of the login's state, which begins one session only.
    :raises Conflict: it has begun one already.
    """
    made, now = new_token(), now_ns()
    session.execute(delete(BrowserSession).where(BrowserSession.expires_ns < now - KEPT_NS))
    words = [scope.value for scope in scopes]
    session.add(
        BrowserSession(
            sha256=hash_token(made),
            state_sha256=state_sha256,
            name=name,
            subject=subject,
            scopes=words,
            team=team,
            begun_ns=now,
            expires_ns=now + lifetime_s * NS_PER_S,
        )
    )
    try:
        session.flush()
    except IntegrityError as error:
        raise Conflict("The login is refused: it is done already; begin again") from error
    audit(session, name, "session.begin", name, peer=peer, subject=subject, scopes=words, team=team)
    return made


def end_session(session: Session, secret: str, *, peer: str) -> None:
    """End the session of a browser; nothing where it has none."""
    now = now_ns()
    row = session.scalar(_live(now).where(BrowserSession.sha256 == hash_token(secret)))
    if row is not None:
        row.ended_ns = now
        audit(session, row.name, "session.end", row.name, peer=peer)


def end_sessions(session: Session, name: str, *, actor: str = "cli") -> int:
    """End all sessions of a person, effective with the next request.

    :returns: how many there were.
    :raises NotFound: they have none.
    """
    now = now_ns()
    rows = session.scalars(_live(now).where(BrowserSession.name == name)).all()
    if not rows:
        raise NotFound("person with a session", name, "see `tightship token sessions`")
    for row in rows:
        row.ended_ns = now
    audit(session, actor, "session.end", name, sessions=len(rows))
    return len(rows)


def list_sessions(session: Session) -> list[results.BrowserSession]:
    """The sessions of now, the newest first."""
    return [
        results.BrowserSession(
            name=row.name,
            subject=row.subject,
            scopes=list(row.scopes),
            team=row.team,
            begun_ns=row.begun_ns,
            expires_ns=row.expires_ns,
        )
        for row in session.scalars(_live(now_ns()).order_by(BrowserSession.id.desc()))
    ]


def _live(now: int) -> Select[BrowserSession]:
    return open_sessions().where(BrowserSession.expires_ns > now)
