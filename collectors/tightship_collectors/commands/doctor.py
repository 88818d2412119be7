"""`tightship doctor`: what works here, what does not, and what to do."""

from __future__ import annotations

import sys

import click

from tightship_collectors.doctor.check import WRONG, Check
from tightship_platform.commands.json_option import json_option, print_json
from tightship_platform.errors import TightshipError
from tightship_platform.settings import load_settings


@click.command()
@json_option(Check)
def doctor(as_json: bool) -> None:
    """Check this host, its installation and the server that it reports to.

    States: ok; note (works, but worth knowing); wrong (does not work; the line below says what to do). Exit code: 0
    when nothing is wrong, else 1.
    """
    from tightship_collectors.doctor.host_checks import host_checks
    from tightship_collectors.doctor.server_checks import server_checks
    from tightship_collectors.doctor.settings_in_force import settings_checks
    from tightship_collectors.doctor.table import print_checks

    try:
        settings = load_settings()
        checks = [*settings_checks(settings), *host_checks(settings), *server_checks(settings)]
    except TightshipError as error:
        checks = [Check(check="settings", state=WRONG, detail=str(error), advice="correct this setting")]
    if as_json:
        print_json(checks)
    else:
        print_checks(checks)
    sys.exit(any(check.state == WRONG for check in checks))
