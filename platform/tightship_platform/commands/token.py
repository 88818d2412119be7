"""`tightship token`: who may use the API."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from tightship_platform.commands.direct import database_session
from tightship_platform.commands.list_form import ListForm, in_forms
from tightship_platform.errors import Conflict
from tightship_platform.results.token import BrowserSession, Token, UserTeam
from tightship_platform.settings import load_settings
from tightship_platform.units import parse_duration_ns, plural
from tightship_platform.vocabulary import Scope

if TYPE_CHECKING:
    from tightship_platform.commands.terminal import Listed


def _expires(default: str) -> Callable[[Any], Any]:
    return click.option("--expires", metavar="TIME", help=f"Refuse it after this time, such as 30d. {default}")


def _lifetime_ns(expires: str | None) -> int | None:
    return None if expires is None else parse_duration_ns(expires)


@click.group()
def token() -> None:
    """Create, list, rotate and revoke tokens, directly in the database (TIGHTSHIP_DATABASE_URL).

    Your own server on this machine needs none: see `tightship token link`.

    \b
    Scopes:
      ingest   send runs, samples and traces (agents, launchers)
      read     see everything (people, dashboards)
      capture  ask for traces of running jobs
      apply    apply or dismiss opportunities
      delete   delete runs that are over, with their traces
      admin    all of these
    """


@token.command()
@click.argument("name")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    required=True,
    type=click.Choice([scope.value for scope in Scope if scope is not Scope.ENROL]),
    help="What the token permits; repeat for several.",
)
@click.option("--host", metavar="HOST", help="Let it report for this host only, which is then no other token's.")
@click.option("--user", metavar="USER", help="Whose the runs are that it reports, whatever their records say.")
@click.option("--team", metavar="TEAM", help="The team whose runs it reports.")
@_expires("For ever by default.")
def create(
    name: str, scopes: tuple[str, ...], host: str | None, user: str | None, team: str | None, expires: str | None
) -> None:
    """Create a token called NAME and print it once; only its hash is stored."""
    from tightship_platform.api import auth

    with database_session(upgraded=True) as session:
        made = auth.create_token(
            session,
            name,
            [Scope(scope) for scope in scopes],
            host=host,
            user=user,
            team=team,
            lifetime_ns=_lifetime_ns(expires),
        )
    click.echo(made)


@token.command()
def link() -> None:
    """Print a link that logs a browser in at your own server on this machine.

    It works once, within five minutes. Whoever has no account of yours here needs a token instead.
    """
    settings = replace(load_settings(), token="")
    from tightship_platform.client import ApiClient, ApiError
    from tightship_platform.processes.login_codes import login_link

    try:
        with ApiClient(settings) as api:
            api.get("/runs", {"limit": 1})
    except ApiError as error:
        if error.http_status not in (401, 403):
            raise
        raise Conflict(
            f"{settings.server} is no server of yours with the home {settings.home}; "
            f"log in at {settings.server}/login with a token, or set TIGHTSHIP_HOME to the server's"
        ) from error
    click.echo(login_link(settings.server, settings.home))


@token.command()
@click.argument("host")
@click.option("--team", metavar="TEAM", help="The team whose runs the host reports.")
@click.option("--expires", metavar="TIME", default="1h", show_default=True, help="Refuse the word after this time.")
def enrol(host: str, team: str | None, expires: str) -> None:
    """Print a one-time word with which the agent of HOST gets its own token (`tightship agent enrol`).

    A token that the host got by an earlier word is refused from now on.
    """
    from tightship_platform.api.enrolment import make_word

    with database_session(upgraded=True) as session:
        word = make_word(session, host, team=team, lifetime_ns=parse_duration_ns(expires))
    click.echo(word)


@token.command()
@click.argument("user")
@click.argument("team", required=False)
def team(user: str, team: str | None) -> None:
    """Say that USER is of TEAM, or without TEAM that they are of none.

    It holds for runs that are reported from now on by tokens without a team.
    """
    from tightship_platform.api import user_teams

    with database_session(upgraded=True) as session:
        user_teams.set_team(session, user, team)


@token.command()
@in_forms(UserTeam)
def teams(form: ListForm) -> None:
    """List the users who are of a team by `tightship token team`."""
    from tightship_platform.api import user_teams

    def read() -> list[UserTeam]:
        with database_session() as session:
            return user_teams.list_teams(session)

    def table(rows: list[UserTeam]) -> Listed:
        from tightship_platform.commands.terminal import Column, Listed

        return Listed([Column("USER"), Column("TEAM")], [(row.user, row.team) for row in rows])

    form.show(read, table, lambda: "No user is of a team. Say so with: tightship token team USER TEAM")


@token.command("list")
@in_forms(Token)
def list_(form: ListForm) -> None:
    """List all tokens by name; the tokens themselves are not stored."""
    from tightship_platform.api import auth

    def read() -> list[Token]:
        with database_session() as session:
            return auth.list_tokens(session)

    form.show(read, _tokens, lambda: "No token exists. Make one with: tightship token create NAME --scope read")


def _tokens(tokens: list[Token]) -> Listed:
    from tightship_platform.commands.terminal import Column, Listed, clock

    columns = [
        Column("NAME"),
        Column("SCOPES"),
        Column("FOR"),
        Column("CREATED", spare=2),
        Column("LAST USED", spare=1),
        Column("STATE", state=True),
    ]
    rows = [
        (
            row.name,
            " ".join(row.scopes),
            " ".join(f"{what}={value}" for what, value in _bounds(row) if value is not None) or "all",
            clock(row.created_ns),
            clock(row.last_used_ns),
            _state(row),
        )
        for row in tokens
    ]
    return Listed(columns, rows)


def _bounds(row: Token) -> tuple[tuple[str, str | None], ...]:
    return ("host", row.host), ("user", row.user), ("team", row.team)


def _state(row: Token) -> str:
    from tightship_platform.commands.terminal import clock
    from tightship_platform.units import now_ns

    if row.revoked_ns is not None:
        return f"revoked {clock(row.revoked_ns)}"
    if row.scopes == [Scope.ENROL] and row.expires_ns is not None and row.expires_ns > now_ns():
        return f"waits for its host until {clock(row.expires_ns)}"
    if row.expires_ns is None:
        return "active"
    return f"{'expires' if row.expires_ns > now_ns() else 'expired'} {clock(row.expires_ns)}"


@token.command()
@click.argument("name")
@_expires("By default after as long as the old one had.")
def rotate(name: str, expires: str | None) -> None:
    """Replace the token called NAME and print the new one; the old one is refused from the next request on."""
    from tightship_platform.api import auth

    with database_session() as session:
        made = auth.rotate_token(session, name, lifetime_ns=_lifetime_ns(expires))
    click.echo(made)


@token.command()
@click.argument("name")
def revoke(name: str) -> None:
    """Revoke the token called NAME, effective with the next request."""
    from tightship_platform.api import auth

    with database_session() as session:
        auth.revoke_token(session, name)
    click.echo(f"Token {name!r} is revoked.")


@token.command()
@in_forms(BrowserSession)
def sessions(form: ListForm) -> None:
    """List the people who are logged in by single sign-on, newest first."""
    from tightship_platform.api.browser_sessions import list_sessions

    def read() -> list[BrowserSession]:
        with database_session() as session:
            return list_sessions(session)

    def table(rows: list[BrowserSession]) -> Listed:
        from tightship_platform.commands.terminal import Column, Listed, clock

        columns = [Column("NAME"), Column("SCOPES"), Column("TEAM"), Column("BEGUN", spare=1), Column("EXPIRES")]
        return Listed(
            columns,
            [
                (row.name, " ".join(row.scopes), row.team or "all", clock(row.begun_ns), clock(row.expires_ns))
                for row in rows
            ],
        )

    form.show(read, table, lambda: "Nobody is logged in by single sign-on.")


@token.command()
@click.argument("name")
def logout(name: str) -> None:
    """End all sessions of the person called NAME (sso:…), effective with the next request.

    They can log in again as long as the provider lets them.
    """
    from tightship_platform.api.browser_sessions import end_sessions

    with database_session() as session:
        ended = end_sessions(session, name)
    click.echo(f"{name!r} is logged out of {plural(ended, 'session')}.")
