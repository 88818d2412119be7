"""`python -m tightship_platform.processes.health PART`: exit code 0 when that part is well, else 1.

For the health checks of containers. The server is asked over HTTP; the others leave a sign of life in the home that
they share with this command, which therefore needs no token. A server whose database is away is well itself: to start
it again would not help.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from tightship_platform.client import ApiClient
from tightship_platform.errors import TightshipError
from tightship_platform.processes.liveness import FRESH_S, liveness_age_s
from tightship_platform.settings import Settings, load_settings


def _server(settings: Settings) -> str | None:
    with ApiClient(settings, timeout_s=5) as api:
        api.get("/live")
    return None


def _liveness(*parts: str) -> Callable[[Settings], str | None]:
    def check(settings: Settings) -> str | None:
        for part in parts:
            age_s = liveness_age_s(settings.home, part)
            if age_s is None:
                return f"no sign of life of {part} in {settings.home}"
            if age_s > FRESH_S:
                return f"the last sign of life of {part} is {age_s:.0f} s old"
        return None

    return check


CHECKS: dict[str, Callable[[Settings], str | None]] = {
    "server": _server,
    "agent": _liveness("agent"),
    "worker": _liveness("worker", "worker-periodic"),
    "beat": _liveness("beat"),
}
"""Part → a function that says what is wrong; null: nothing."""


def main(arguments: list[str]) -> int:
    """Check the one part that is named; the exit code."""
    if len(arguments) != 1 or arguments[0] not in CHECKS:
        sys.stderr.write(f"Name one of: {', '.join(CHECKS)}\n")
        return 2
    part = arguments[0]
    try:
        fault = CHECKS[part](load_settings())
    except TightshipError as error:
        fault = str(error)
    if fault is not None:
        sys.stderr.write(f"{part}: {fault}\n")
    return 0 if fault is None else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
