"""`tightship token`: who may use the API."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import click

from tightship_platform.commands.json_option import json_option, print_json
from tightship_platform.errors import Conflict
from tightship_platform.results.token import BrowserSession, Token, UserTeam
from tightship_platform.settings import load_settings
from tightship_platform.units import parse_duration_ns, plural
from tightship_platform.vocabulary import Scope


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
      apply    change the state of opportunities
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
    settings = load_settings()
    from tightship_platform.api import auth
    from tightship_platform.database import engine

    engine.upgrade(settings)
    with engine.open_database(settings) as opened, opened.session() as session:
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
    settings = load_settings()
    from tightship_platform.api.enrolment import make_word
    from tightship_platform.database import engine

    engine.upgrade(settings)
    with engine.open_database(settings) as opened, opened.session() as session:
        word = make_word(session, host, team=team, lifetime_ns=parse_duration_ns(expires))
    click.echo(word)


@token.command()
@click.argument("user")
@click.argument("team", required=False)
def team(user: str, team: str | None) -> None:
    """Say that USER is of TEAM, or without TEAM that they are of none.

    It holds for runs that are reported from now on by tokens without a team.
    """
    settings = load_settings()
    from tightship_platform.api import user_teams
    from tightship_platform.database import engine

    engine.upgrade(settings)
    with engine.open_database(settings) as opened, opened.session() as session:
        user_teams.set_team(session, user, team)


@token.command()
@json_option(UserTeam)
def teams(as_json: bool) -> None:
    """List the users who are of a team by `tightship token team`."""
    settings = load_settings()
    from tightship_platform.api import user_teams
    from tightship_platform.database import engine

    with engine.open_database(settings) as opened, opened.session() as session:
        rows = user_teams.list_teams(session)
    if as_json:
        print_json(rows)
        return
    from tightship_platform.commands.terminal import Column, print_table

    print_table(
        [Column("USER"), Column("TEAM")],
        [(row.user, row.team) for row in rows],
        empty="No user is of a team. Say so with: tightship token team USER TEAM",
    )


@token.command("list")
@json_option(Token)
def list_(as_json: bool) -> None:
    """List all tokens by name; the tokens themselves are not stored."""
    settings = load_settings()
    from tightship_platform.api import auth
    from tightship_platform.database import engine

    with engine.open_database(settings) as opened, opened.session() as session:
        tokens = auth.list_tokens(session)
    if as_json:
        print_json(tokens)
        return
    from tightship_platform.commands.terminal import Column, clock, print_table

    print_table(
        [Column("NAME"), Column("SCOPES"), Column("FOR"), Column("CREATED"), Column("LAST USED"), Column("STATE")],
        [
            (
                row.name,
                " ".join(row.scopes),
                " ".join(f"{what}={value}" for what, value in _bounds(row) if value is not None) or "all",
                clock(row.created_ns),
                clock(row.last_used_ns),
                _state(row),
            )
            for row in tokens
        ],
        empty="No token exists. Make one with: tightship token create NAME --scope read",
    )


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
    settings = load_settings()
    from tightship_platform.api import auth
    from tightship_platform.database import engine

    with engine.open_database(settings) as opened, opened.session() as session:
        made = auth.rotate_token(session, name, lifetime_ns=_lifetime_ns(expires))
    click.echo(made)


@token.command()
@click.argument("name")
def revoke(name: str) -> None:
    """Revoke the token called NAME, effective with the next request."""
    settings = load_settings()
    from tightship_platform.api import auth
    from tightship_platform.database import engine

    with engine.open_database(settings) as opened, opened.session() as session:
        auth.revoke_token(session, name)
    click.echo(f"Token {name!r} is revoked.")


@token.command()
@json_option(BrowserSession)
def sessions(as_json: bool) -> None:
    """List the people who are logged in by single sign-on, newest first."""
    settings = load_settings()
    from tightship_platform.api.browser_sessions import list_sessions
    from tightship_platform.database import engine

    with engine.open_database(settings) as opened, opened.session() as session:
        rows = list_sessions(session)
    if as_json:
        print_json(rows)
        return
    from tightship_platform.commands.terminal import Column, clock, print_table

    print_table(
        [Column("NAME"), Column("SCOPES"), Column("TEAM"), Column("BEGUN"), Column("EXPIRES")],
        [
            (row.name, " ".join(row.scopes), row.team or "all", clock(row.begun_ns), clock(row.expires_ns))
            for row in rows
        ],
        empty="Nobody is logged in by single sign-on.",
    )


@token.command()
@click.argument("name")
def logout(name: str) -> None:
    """End all sessions of the person called NAME (sso:…), effective with the next request.

    They can log in again as long as the provider lets them.
    """
    settings = load_settings()
    from tightship_platform.api.browser_sessions import end_sessions
    from tightship_platform.database import engine

    with engine.open_database(settings) as opened, opened.session() as session:
        ended = end_sessions(session, name)
    click.echo(f"{name!r} is logged out of {plural(ended, 'session')}.")
