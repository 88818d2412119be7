"""`tightship up`: everything on this machine."""

from __future__ import annotations

import os
import shlex
import stat
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from tightship_platform.settings import DEFAULT_PORT, DEFAULT_SERVER, Settings, default_home, load_settings

if TYPE_CHECKING:
    from urllib.request import OpenerDirector


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address of the server.")
@click.option("--port", type=click.IntRange(1, 65535), default=DEFAULT_PORT, show_default=True, help="Its port.")
@click.option("--no-agent", is_flag=True, help="Do not watch this host.")
@click.option("--no-worker", is_flag=True, help="Do not run background tasks here.")
def up(host: str, port: int, no_agent: bool, no_worker: bool) -> None:
    """Start server, worker and agent, keep them running, and end them on Ctrl-C.

    Logs are in $TIGHTSHIP_HOME/logs. A part that dies is started again, ever later the more often it dies.
    """
    settings = load_settings()
    from tightship_platform.processes.liveness import hold_lock
    from tightship_platform.processes.private_files import keep_files_private
    from tightship_platform.processes.supervisor import KILL_AFTER_S, Part, Supervisor, part_command
    from tightship_platform.token_file import is_loopback

    keep_files_private()
    lock = hold_lock(settings.home, "up", "stop that one first, or set another TIGHTSHIP_HOME")
    near = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
    url = f"http://{near}:{port}"
    if settings.tls_cert_file is not None:
        # A certificate is made for names; whoever has one says by which to call the server.
        url = settings.server if settings.server.startswith("https://") else f"https://{near}:{port}"
    os.environ["TIGHTSHIP_SERVER"] = url  # the agent's server is this one
    command = part_command("server", "--host", host, "--port", str(port))
    parts = [Part(name="server", command=command, ends_within_s=settings.drain_s + KILL_AFTER_S)]
    if not no_worker:
        parts.append(Part(name="worker", command=part_command("worker", "--beat")))
    if not no_agent:
        parts.append(Part(name="agent", command=part_command("agent"), waits=True))
    announcer = _announcer(replace(settings, server=url), is_local=is_loopback(host) and not settings.token)
    supervisor = Supervisor(parts, log_dir=settings.home / "logs", say=_say)
    try:
        supervisor.run(announcer)
    finally:
        lock.close()
    _say("All parts have ended.")


def _say(line: str) -> None:
    try:
        click.echo(line)
    except OSError:
        # The terminal or pipe is gone; the log files still get every line.
        return


def _announcer(settings: Settings, *, is_local: bool) -> Callable[[], bool]:
    """Says where the server is, once, as soon as the server answers; true from then on.

    :param is_local: its user's browser gets in by a link.
    :raises Invalid: its certificate is to be checked by a file that is of no use.
    """
    import urllib.request

    # No proxy: the environment's is for the outside world.
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if settings.server.startswith("https://"):
        from tightship_platform.client import server_trust

        handlers.append(urllib.request.HTTPSHandler(context=server_trust(settings)))
    opener, url = urllib.request.build_opener(*handlers), settings.server
    answers, next_look = False, 0.0

    def look() -> bool:
        nonlocal answers, next_look
        now = time.monotonic()
        if not answers and now >= next_look:
            next_look = now + 0.5
            answers = _is_well(opener, url)
            if answers:
                _announce(settings, is_local)
        return answers

    return look


def _announce(settings: Settings, is_local: bool) -> None:
    if is_local and not _is_read_by_others():
        from tightship_platform.processes.login_codes import login_link

        _say(f"Dashboard: {login_link(settings.server, settings.home)}")
        _say("The link works once, within five minutes; `tightship token link` prints another.")
    else:
        _say(f"Dashboard: {settings.server}")
        if is_local:
            _say("`tightship token link` prints a link that logs your browser in.")
    needed = {}
    if settings.server != DEFAULT_SERVER:
        needed["TIGHTSHIP_SERVER"] = settings.server
    if is_local and settings.home != default_home():
        needed["TIGHTSHIP_HOME"] = str(settings.home)
    if needed:
        _say("\n".join(["Other shells need:", *(f"export {name}={shlex.quote(needed[name])}" for name in needed)]))


def _is_read_by_others() -> bool:
    """What is printed goes into a file that is not this user's alone."""
    try:
        mode = os.fstat(sys.stdout.fileno()).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(mode) and bool(mode & 0o077)


def _is_well(opener: OpenerDirector, url: str) -> bool:
    import urllib.error

    try:
        with opener.open(f"{url}/api/v1/health", timeout=5):
            return True
    except urllib.error.HTTPError as error:
        error.close()
    except (OSError, ValueError):
        return False
    return False
