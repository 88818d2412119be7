"""Runs a Supervisor as `tightship up` does, over parts given as JSON: `supervisor_driver.py LOGS '{"name": […]}'`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from tightship_platform.errors import TightshipError
from tightship_platform.processes import supervisor


def say(line: str) -> None:
    """One line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    """Exit code as the command line's."""
    supervisor.KILL_AFTER_S = float(os.environ.get("KILL_AFTER_S", "10"))
    supervisor.FIRST_BACKOFF_S = 0.1
    parts = [supervisor.Part(name=name, command=command) for name, command in json.loads(sys.argv[2]).items()]
    for part in parts:
        part.backoff_s = supervisor.FIRST_BACKOFF_S
    try:
        supervisor.Supervisor(parts, log_dir=Path(sys.argv[1]), say=say).run()
    except TightshipError as error:
        say(f"tightship: {error}")
        return error.exit_code
    say("ended")
    return 0


sys.exit(main())
