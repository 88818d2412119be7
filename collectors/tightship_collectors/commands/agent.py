"""`tightship agent`: watch this host."""

from __future__ import annotations

import click

from tightship_platform.errors import Invalid
from tightship_platform.units import NS_PER_MS, NS_PER_S, parse_duration_ns

MIN_INTERVAL_NS = 100 * NS_PER_MS
MAX_INTERVAL_NS = 60 * NS_PER_S


@click.command()
@click.option("--interval", default="1s", show_default=True, help="Sampling interval.")
@click.option("--once", is_flag=True, help="Sample twice, one interval apart, send the samples and exit.")
def agent(interval: str, once: bool) -> None:
    """Watch this host's devices, processes and training steps, and take captures.

    Runs until it is stopped; start it by `tightship up` or a service manager. It reads only: jobs never wait for it and
    never notice when it dies. While the server is unreachable, records wait in the spool folder.
    """
    interval_ns = parse_duration_ns(interval)
    if not MIN_INTERVAL_NS <= interval_ns <= MAX_INTERVAL_NS:
        raise Invalid("--interval", interval, "100ms to 60s")
    from tightship_collectors.agent.process import run_agent

    run_agent(interval_ns=interval_ns, once=once)
