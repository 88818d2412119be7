"""Who reports, and for which host, user and team they may speak.

[Note: whose is it] Nothing that a record says of itself is proof. What counts, first to last:
- the token: one with a host, user or team speaks for that host, user or team only;
- who came first: a host belongs to the token that first reported it for as long as that token is active, a run to the
  host, user and team that first reported it;
- the record. A token with none of the three is believed what it says of hosts and runs that nobody has reported yet.
An administrator speaks for everybody, and nothing becomes theirs.

[Note: whose metrics] A Prometheus or collector sends the metrics of many hosts, whose agents have tokens of their own.
They are taken of a host whose owner is of the same team (both of none are, too), and of hosts that nobody owns. Such a
host does not become the sender's: its agent may come later. What is stored already is never changed by them.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import case, func, or_, select, update
from sqlalchemy.orm import Session

from tightship_platform.database.locks import begin_writing
from tightship_platform.database.models import Host, Token
from tightship_platform.database.upsert import add_missing
from tightship_platform.errors import Forbidden
from tightship_platform.units import now_ns, plural

HOSTS_PER_TOKEN = 5000
"""Hosts that one token may be the first to report."""
MEASURED_HOSTS = 20_000
"""Hosts without an agent, of which only metrics come."""


@dataclass(frozen=True, kw_only=True)
class Reporter:
    """Somebody who sends records; see [Note: whose is it]."""

    name: str
    """Name of the token."""
    is_admin: bool = False
    host: str | None = None
    """The only host that they report for; null: any that is nobody else's."""
    user: str | None = None
    """The user whose runs they report; null: as the records say."""
    team: str | None = None
    """The team whose runs they report; null: none."""


ANYBODY = Reporter(name="", is_admin=True)
"""Speaks for everybody: this machine's own user, an import."""


def require_host(session: Session, reporter: Reporter, host: str) -> None:
    """Whether the reporter may speak for the host's agent.

    :raises Forbidden: the token is another host's, or the host another token's.
    """
    if not _speaks_for_all(reporter, host):
        _require_owner(session, reporter, host, session.scalar(select(Host.reported_by).where(Host.name == host)))


def _speaks_for_all(reporter: Reporter, host: str) -> bool:
    """Whether the reporter may speak for the host, whoever has reported it."""
    if reporter.host is not None and reporter.host != host:
        raise Forbidden(
            f"Token {reporter.name!r} is of host {reporter.host!r} and cannot report for {host!r}; "
            "make one for that host (`tightship token create NAME --scope ingest --host …`)"
        )
    return reporter.is_admin or reporter.host == host


def _require_owner(session: Session, reporter: Reporter, host: str, first: str | None) -> None:
    """:param first: the token that the host belongs to, if it is active."""
    if first == reporter.name:
        return
    active = Token.revoked_ns.is_(None), or_(Token.expires_ns.is_(None), Token.expires_ns > now_ns())
    owners = select(Token.name).where(or_(Token.name == (first or ""), Token.host_name == host), *active)
    owner = session.scalar(owners.order_by(Token.id).limit(1))
    if owner is not None:
        raise Forbidden(
            f"Host {host!r} is reported by the token {owner!r}, so {reporter.name!r} cannot report for it; "
            "use that one, or revoke it with `tightship token revoke`"
        )


def put_host(session: Session, name: str, seen_ns: int, reporter: Reporter = ANYBODY) -> int:
    """The host's id; made when it is new. `last_seen_ns` only grows.

    :raises Forbidden: the reporter may not speak for this host, or has reported too many others.
    """
    speaks_for_all = _speaks_for_all(reporter, name)
    found = select(Host.id, Host.reported_by, Host.last_seen_ns, Host.fleet_id).where(Host.name == name)
    host = session.execute(found).one_or_none()
    if host is not None:
        _refuse_imported(name, host.fleet_id)
    if not speaks_for_all:
        _require_owner(session, reporter, name, None if host is None else host.reported_by)
    reported_by = None if reporter.is_admin else reporter.name
    if host is None or (reported_by is not None and host.reported_by != reported_by):
        _require_room(session, reporter)
    if host is None:
        row = {
            "name": name,
            "first_seen_ns": seen_ns,
            "last_seen_ns": seen_ns,
            "info": {},
            "sources": [],
            "reported_by": reported_by,
        }
        add_missing(session, Host, [row])
        host = session.execute(found).one()
        if (host.reported_by, host.last_seen_ns) == (reported_by, seen_ns):
            return int(host.id)
        return put_host(session, name, seen_ns, reporter)  # another made it at the same moment
    if reported_by is not None and host.reported_by != reported_by:
        _write(session, update(Host).where(Host.name == name).values(reported_by=reported_by))
    # Also where it changes nothing: the table's lock comes before those of the samples.
    older = Host.id == host.id, Host.last_seen_ns < seen_ns
    _write(session, update(Host).where(*older).values(last_seen_ns=seen_ns))
    return int(host.id)


def put_measured_host(session: Session, name: str, seen_ns: int, reporter: Reporter) -> int:
    """The id of a host whose metrics come from elsewhere than its agent; made when it is new. The row is locked.

    That a host with an agent is heard of is for the agent to say.

    :raises Forbidden: see [Note: whose metrics]; or it is of an imported fleet, or too many hosts have no agent.
    """
    if not _speaks_for_all(reporter, name):
        _require_team_of_owner(session, reporter, name)
    begin_writing(session)
    found = select(Host.id, Host.fleet_id).where(Host.name == name)
    host = session.execute(found).one_or_none()
    if host is None:
        alone = Host.agent_version.is_(None), Host.reported_by.is_(None), Host.fleet_id.is_(None)
        if (session.scalar(select(func.count()).select_from(Host).where(*alone)) or 0) >= MEASURED_HOSTS:
            raise Forbidden(
                f"Host {name!r} is new, and {MEASURED_HOSTS} hosts without an agent are known already; "
                "name hosts by a label that does not change"
            )
        row = {"name": name, "first_seen_ns": seen_ns, "last_seen_ns": seen_ns, "info": {}, "sources": []}
        add_missing(session, Host, [row])
        host = session.execute(found).one()
    _refuse_imported(name, host.fleet_id)
    seen = case((Host.agent_version.is_(None) & (Host.last_seen_ns < seen_ns), seen_ns), else_=Host.last_seen_ns)
    _write(session, update(Host).where(Host.id == host.id).values(last_seen_ns=seen))
    return int(host.id)


def _refuse_imported(host: str, fleet_id: int | None) -> None:
    if fleet_id is not None:
        raise Forbidden(f"Host {host!r} is of an imported fleet; set TIGHTSHIP_HOST_NAME to another name")


def _require_team_of_owner(session: Session, reporter: Reporter, host: str) -> None:
    first = session.scalar(select(Host.reported_by).where(Host.name == host))
    active = Token.revoked_ns.is_(None), or_(Token.expires_ns.is_(None), Token.expires_ns > now_ns())
    owners = select(Token.name, Token.team).where(or_(Token.name == (first or ""), Token.host_name == host), *active)
    for owner in session.execute(owners.order_by(Token.id)):
        if owner.name != reporter.name and (owner.team != reporter.team or reporter.user is not None):
            raise Forbidden(
                f"Host {host!r} is reported by the token {owner.name!r}, whose team is not that of {reporter.name!r}, "
                "so its metrics are not taken from there; use a token of that team, and of no user"
            )


def _require_room(session: Session, reporter: Reporter) -> None:
    if reporter.is_admin or reporter.host is not None:
        return
    count = session.scalar(select(func.count()).select_from(Host).where(Host.reported_by == reporter.name)) or 0
    if count >= HOSTS_PER_TOKEN:
        raise Forbidden(
            f"Token {reporter.name!r} has reported {plural(count, 'host')}, as many as one token may; "
            "give further hosts tokens of their own (`tightship token create NAME --scope ingest --host …`)"
        )


def _write(session: Session, statement: object) -> None:
    session.execute(statement.execution_options(synchronize_session=False))  # type: ignore[attr-defined]
