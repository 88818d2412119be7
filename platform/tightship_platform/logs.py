"""How the long-running parts write their logs: one record per line on stderr, as text or as JSON."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

from tightship_platform.client import request_id
from tightship_platform.redaction import hide_secrets
from tightship_platform.text import printable

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
PACKAGES = ("tightship_platform", "tightship_collectors", "tightship_analyzers", "tightship_dashboard")


class _OneLine(logging.Formatter):
    """Keeps a hostile name from starting its own line, while a traceback keeps its lines; hides secrets in both."""

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        if not message.isprintable():
            record = logging.makeLogRecord(record.__dict__)
            record.msg = printable(message)
            record.args = None
        return hide_secrets(super().format(record))


class _Json(logging.Formatter):
    """One JSON object per record, its traceback included."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": hide_secrets(record.getMessage()),
        }
        if request_id():
            entry["request_id"] = request_id()
        if record.exc_info:
            entry["exception"] = hide_secrets(self.formatException(record.exc_info))
        return json.dumps(entry)


def configure_logging(form: str = "text", level: int = logging.INFO) -> None:
    """Send the records of this process to stderr; libraries speak up from WARNING on.

    :param form: one of `settings.LOG_FORMATS`.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(_Json() if form == "json" else _OneLine(FORMAT))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    for package in PACKAGES:
        logging.getLogger(package).setLevel(level)
