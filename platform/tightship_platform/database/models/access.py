"""Who may do what, and who did what."""

from __future__ import annotations

from sqlalchemy import BigInteger, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from tightship_platform.database.models.base import Base, json_dict, json_list, name, ns, pk


class Token(Base):
    """A bearer token; only its SHA-256 is kept."""

    __tablename__ = "token"

    id: Mapped[pk]
    name: Mapped[name] = mapped_column(String(200), unique=True)
    sha256: Mapped[str] = mapped_column(String(64), unique=True)
    scopes: Mapped[json_list]
    host_name: Mapped[str | None] = mapped_column(String(200))
    """The only host that it reports for; this and the next two: see [Note: whose is it] in `database.reporters`."""
    user_name: Mapped[str | None] = mapped_column(String(200))
    team: Mapped[str | None] = mapped_column(String(200))
    created_ns: Mapped[ns]
    last_used_ns: Mapped[int | None] = mapped_column(BigInteger)
    revoked_ns: Mapped[int | None] = mapped_column(BigInteger)
    expires_ns: Mapped[int | None] = mapped_column(BigInteger)


class BrowserSession(Base):
    """A person's session in a browser, begun by single sign-on; only the SHA-256 of its cookie is kept."""

    __tablename__ = "browser_session"

    id: Mapped[pk]
    sha256: Mapped[str] = mapped_column(String(64), unique=True)
    state_sha256: Mapped[str] = mapped_column(String(64), unique=True)
    """Of the state of the login that began it, which begins no other."""
    name: Mapped[name]
    """`sso:` and the person's name."""
    subject: Mapped[str] = mapped_column(String(255))
    """The provider's own name for them, which nobody else ever has."""
    scopes: Mapped[json_list]
    team: Mapped[str | None] = mapped_column(String(200))
    begun_ns: Mapped[ns]
    expires_ns: Mapped[ns]
    ended_ns: Mapped[int | None] = mapped_column(BigInteger)


class UserTeam(Base):
    """The team of a user, as an administrator says; for runs whose token has no team."""

    __tablename__ = "user_team"

    user_name: Mapped[str] = mapped_column(String(200), primary_key=True)
    team: Mapped[name] = mapped_column(String(200))


class Audit(Base):
    """One thing that somebody did."""

    __tablename__ = "audit"

    id: Mapped[pk]
    time_ns: Mapped[ns] = mapped_column(BigInteger, index=True)
    actor: Mapped[name]
    action: Mapped[name]
    target: Mapped[str] = mapped_column(Text)
    detail: Mapped[json_dict]
