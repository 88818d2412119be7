"""`tightship agent`: watch this host."""

from __future__ import annotations

import click

from tightship_platform.errors import Invalid
from tightship_platform.units import NS_PER_MS, NS_PER_S, parse_duration_ns

MIN_INTERVAL_NS = 100 * NS_PER_MS
MAX_INTERVAL_NS = 60 * NS_PER_S


@click.command()
@click.option("--interval", default="1s", show_default=True, help="Time between two looks at the host.")
@click.option("--once", is_flag=True, help="Look twice, one interval apart, deliver that and end.")
def agent(interval: str, once: bool) -> None:
    """Watch this host: devices, processes and steps of its runs; carry out captures.

    Runs until it is stopped; start it by `tightship up` or a service manager. It reads only: a job
    never waits for it and never notices when it dies. While no server answers, what it sees waits in the spool folder.
    """
    interval_ns = parse_duration_ns(interval)
    if not MIN_INTERVAL_NS <= interval_ns <= MAX_INTERVAL_NS:
        raise Invalid("--interval", interval, "100ms to 60s")
    from tightship_collectors.agent.process import run_agent

    run_agent(interval_ns=interval_ns, once=once)
