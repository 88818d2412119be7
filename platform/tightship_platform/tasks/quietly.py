"""Expected trouble of a task that comes again: one line in the log, and no more."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable

from kombu.exceptions import KombuError
from kombu.exceptions import OperationalError as BrokerAway
from redis.exceptions import RedisError
from sqlalchemy.exc import DBAPIError

from tightship_platform.errors import TightshipError

log = logging.getLogger(__name__)

BROKER_TROUBLE = (BrokerAway, KombuError, RedisError, OSError)
"""What a broker that is away, silent or full raises."""
_LIBRARIES = ("celery", "kombu", "redis")


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


def without_traceback(record: logging.LogRecord) -> bool:
    """A filter of log records: trouble with the broker, of which libraries log the whole stack, is one line."""
    if record.exc_info and isinstance(record.exc_info[1], BROKER_TROUBLE) and record.name.startswith(_LIBRARIES):
        record.exc_info = record.exc_text = None
    return True
