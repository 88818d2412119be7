"""How the agent of a host gets its own token, and nobody has to hand one out.

[Note: one row] A word and the token that it is exchanged for are one row of `token`: the word has the scope `enrol` and
an expiry, and the exchange puts the token in its place. So a word works once, and a new word ends the host's old token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import select, update

from tightship_platform import validation
from tightship_platform.api.auth import expiry, hash_token
from tightship_platform.database.audit import audit
from tightship_platform.database.models import Token
from tightship_platform.database.upsert import Row, add_missing
from tightship_platform.errors import Conflict, Forbidden
from tightship_platform.token_file import new_token
from tightship_platform.units import now_ns
from tightship_platform.validation import NAME_MAX
from tightship_platform.vocabulary import Scope

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

_OURS = ([Scope.ENROL.value], [Scope.INGEST.value])


def make_word(session: Session, host: str, *, team: str | None = None, lifetime_ns: int, actor: str = "cli") -> str:
    """A word for `enrol_host`, which can be seen this once. The host's former token is refused, for
    deliveries after RECALL_S at most.

    :raises Invalid: the host or the team is no name, or the lifetime is none.
    :raises Conflict: a token of another kind has the name that the host's would have.
    """
    name = f"agent-{validation.name('Host', host)}"[:NAME_MAX]
    bounds = {"host_name": host, "team": validation.optional_name("--team", team)}
    word, now = new_token(), now_ns()
    made: Row = {
        "sha256": hash_token(word),
        "scopes": [Scope.ENROL.value],
        "created_ns": now,
        "expires_ns": expiry(now, lifetime_ns),
        "last_used_ns": None,
        "revoked_ns": None,
        **bounds,
    }
    add_missing(session, Token, [{"name": name, **made}])
    row = session.scalars(select(Token).where(Token.name == name).with_for_update()).one()
    if row.host_name != host or row.scopes not in _OURS:
        raise Conflict(f"A token named {name!r} exists and is no agent's; revoke it and name the host's differently")
    for column, value in made.items():
        setattr(row, column, value)
    audit(session, actor, "token.enrol", name, host=host, team=bounds["team"])
    return word


def enrol_host(session: Session, name: str, host: str) -> str:
    """The token of the host, in exchange for the word of this name; the word is used up.

    :raises Conflict: it is no word, or was used a moment ago.
    :raises Forbidden: it is another host's; it can still be used.
    """
    row = session.scalar(select(Token).where(Token.name == name))
    if row is None or row.scopes != [Scope.ENROL.value]:
        raise Conflict(
            f"{name!r} is no one-time word; whoever runs the server makes one with `tightship token enrol HOST`"
        )
    if row.host_name != host:
        raise Forbidden(
            f"This word is for host {row.host_name!r}, and this is {host!r}; "
            "set TIGHTSHIP_HOST_NAME to the former, or ask for another word"
        )
    token = new_token()
    used = (
        update(Token)
        .where(Token.id == row.id, Token.sha256 == row.sha256)
        .values(sha256=hash_token(token), scopes=[Scope.INGEST.value], created_ns=now_ns(), expires_ns=None)
        .execution_options(synchronize_session=False)
    )
    result: Any = session.execute(used)
    if result.rowcount != 1:
        raise Conflict(
            "This word has been used; whoever runs the server makes another with `tightship token enrol HOST`"
        )
    audit(session, name, "host.enrol", host)
    return token
