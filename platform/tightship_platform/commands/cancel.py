"""`tightship captures cancel`: a trace that was asked for and is not wanted any more."""

from __future__ import annotations

from urllib.parse import quote

import click

from tightship_platform.commands.json_option import json_option, print_json
from tightship_platform.results.capture import Capture
from tightship_platform.results.codec import decode
from tightship_platform.settings import load_settings


@click.command()
@click.argument("capture")
@json_option(Capture, "Print the capture as one JSON object.")
def cancel(capture: str, as_json: bool) -> None:
    """Cancel a capture that has not yet brought all of its traces. The job goes on as it is.

    CAPTURE is the id of a capture, the beginning of one, or @ for the newest. A recording that has begun runs to its
    end in the job, and its files are dropped. It takes a token with the scope `capture`.

    \b
    Examples:
      tightship captures cancel @
      tightship captures cancel 9c1d
    """
    from tightship_platform.client import ApiClient

    with ApiClient(load_settings()) as api:
        answer = api.post(f"/captures/{quote(capture, safe='')}/cancel", None)
    cancelled = decode(Capture, answer, "capture")
    if as_json:
        print_json(cancelled)
    else:
        click.echo(f"Capture {cancelled.capture} of run {cancelled.run} is cancelled.")
