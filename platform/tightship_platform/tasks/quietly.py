"""Expected trouble of a task that comes again: one line in the log, and no more."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable

from sqlalchemy.exc import DBAPIError

from tightship_platform.errors import TightshipError

log = logging.getLogger(__name__)


def quietly(work: Callable[..., None]) -> Callable[..., None]:
    """Let trouble with database, broker or store be one line: the sweep or the next period tries again."""

    @functools.wraps(work)
    def run(*args: str) -> None:
        try:
            work(*args)
        except (TightshipError, DBAPIError, OSError) as error:
            cause = getattr(error, "orig", None) or error
            log.warning("%s could not run: %s", work.__name__, " ".join(str(cause).split()))

    return run
