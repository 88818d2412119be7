"""How the long-running parts write their logs: one line per record, on stderr."""

from __future__ import annotations

import logging

from tightship_platform.redaction import hide_secrets

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class _OneLine(logging.Formatter):
    """Keeps a hostile name from starting its own line, while a traceback keeps its lines; hides secrets in both."""

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        if not message.isprintable():
            record = logging.makeLogRecord(record.__dict__)
            record.msg = "".join(c if c.isprintable() else repr(c)[1:-1] for c in message)
            record.args = None
        return hide_secrets(super().format(record))


def configure_logging(level: int = logging.INFO) -> None:
    """Send the records of this process to stderr; libraries speak up from WARNING on."""
    handler = logging.StreamHandler()
    handler.setFormatter(_OneLine(FORMAT))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    for package in ("tightship_platform", "tightship_collectors", "tightship_analyzers", "tightship_dashboard"):
        logging.getLogger(package).setLevel(level)
