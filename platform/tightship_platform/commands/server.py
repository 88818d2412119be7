"""`tightship server`: the API and the dashboard."""

from __future__ import annotations

import click

from tightship_platform.settings import DEFAULT_PORT, load_settings


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=DEFAULT_PORT,
    show_default=True,
    help="Port to listen on; 0: any free one.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Processes that serve beside each other; one per core that the server may have.",
)
def server(host: str, port: int, workers: int) -> None:
    """Serve the API (/api/v1) and the dashboard.

    Brings the database schema up to date first. Every request needs a token. On 127.0.0.1 your own commands, agent and
    browser have it (`tightship token link`); on an address that other machines can reach, create tokens with
    `tightship token create`, or set TIGHTSHIP_TOKEN.
    """
    settings = load_settings()
    from tightship_platform.commands.listener import bind, certificate_files
    from tightship_platform.processes.private_files import keep_files_private
    from tightship_platform.processes.start import starting

    keep_files_private()
    certificate, key = certificate_files(settings)
    with bind(host, port) as listener:
        # Most of a start goes into this import; what is wrong with port or certificate is said before.
        with starting():
            from tightship_platform.api.server import serve

        serve(settings, listener, certificate, key, host=host, workers=workers)
