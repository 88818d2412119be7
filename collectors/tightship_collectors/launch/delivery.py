"""Tells the server that a run has started and ended, without the job noticing.

[Note: two files]
What cannot be delivered waits in `<spool_dir>/runs/`: the start as `<key>.start.json`, the end as `<key>.json`. Two
names, so that whoever delivers the one and then removes it never removes the other. Every record is complete, and the
server takes them in any order and as often as they come. The agent delivers what lies there, and so does the next
`tightship run`.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tightship_collectors.jobs.run_directory import encode_record, replace_file
from tightship_collectors.jobs.small_file import small_text
from tightship_platform.errors import ServerUnreachable, TightshipError
from tightship_platform.results.run_record import RunRecord
from tightship_platform.settings import Settings

TIMEOUT_S = 2.0
"""For one answer of the server, and for everything that is left to do when the job has ended."""
NO_ANSWER_YET = "the server has not answered yet"
MAX_OLD_RECORDS = 50
"""So many records of earlier runs are delivered in passing."""
RECORD_MAX_BYTES = 1024 * 1024


class Delivery:
    """The two records of one run. `start` once the job runs, `finish` when it has ended.

    :param warn: gets a line when a record has to wait.
    """

    def __init__(self, settings: Settings, warn: Callable[[str], None]) -> None:
        self._settings = settings
        self._warn = warn
        self._folder = settings.spool_dir / "runs"
        self._announced = False
        self._refusal = NO_ANSWER_YET
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, record: RunRecord, complete: Callable[[RunRecord], RunRecord] | None = None) -> None:
        """Announce the run in the background.

        :param complete: adds to the record, there, what takes a moment to find out.
        """
        self._thread = threading.Thread(target=self._announce, args=(record, complete), name="announce", daemon=True)
        self._thread.start()

    def repeat(self, record: RunRecord) -> None:
        """Announce the run once more, in the caller's thread, if the server has it and it still lives."""
        if self._thread is not None:
            self._thread.join()
        if self._announced and not self._ended.is_set():
            self._post(record)

    def has_ended(self) -> bool:
        """Whether the job has."""
        return self._ended.is_set()

    def finish(self, record: RunRecord) -> None:
        """Report the end; returns within about TIMEOUT_S, whatever the server does."""
        give_up_s = time.monotonic() + TIMEOUT_S
        self._ended.set()
        name = f"{record.run}.json"
        trouble = self._spool(record, name)  # first of all: nobody can say how long this process may still live
        if self._thread is not None:
            self._thread.join(TIMEOUT_S)
        if self._announced:
            # A server that did not take the start will not take the end within these seconds: then it just waits.
            self._refusal = NO_ANSWER_YET
            report = threading.Thread(target=self._report, args=(record, name), name="report", daemon=True)
            report.start()
            report.join(max(0.1, give_up_s - time.monotonic()))
            if not report.is_alive() and not self._refusal:
                return
        self._say(trouble)

    def _announce(self, record: RunRecord, complete: Callable[[RunRecord], RunRecord] | None) -> None:
        record = record if complete is None else complete(record)
        self._refusal = self._post(record)
        if not self._refusal:
            self._announced = True
            self._deliver_old(except_for=record.run)
        elif not self._ended.is_set():  # else the end's record says all that this one does
            self._say(self._spool(record, f"{record.run}.start.json"))

    def _report(self, record: RunRecord, name: str) -> None:
        self._refusal = self._post(record)
        if not self._refusal:
            with contextlib.suppress(OSError):
                (self._folder / name).unlink(missing_ok=True)

    def _say(self, trouble: OSError | None) -> None:
        if trouble is None:
            self._warn(f"{self._refusal}; the record of this run waits in {self._folder} and is sent later")
        else:
            self._warn(f"{self._refusal}; the record of this run is lost, as it cannot be kept either ({trouble})")

    def _post(self, record: RunRecord) -> str:
        """Empty when the server has it, else one line that says why not."""
        try:
            from tightship_platform.client import ApiClient

            with ApiClient(self._settings, timeout_s=TIMEOUT_S) as api:
                api.post("/runs", record)
        except TightshipError as error:
            return str(error)
        except Exception as error:
            # A broken installation or an answer that is no JSON: the job must not suffer for it.
            return f"this run could not be reported to the server ({type(error).__name__}: {error})"
        return ""

    def _spool(self, record: RunRecord, name: str) -> OSError | None:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(self._folder / name, encode_record(record), durable=True)
        except OSError as error:
            return error
        return None

    def _deliver_old(self, except_for: str) -> None:
        """Send what earlier runs left, until the server answers no more. What it refuses is for the agent to judge."""
        from tightship_platform.client import ApiClient, ApiError

        with (
            contextlib.suppress(ServerUnreachable, OSError, ValueError),
            ApiClient(self._settings, timeout_s=TIMEOUT_S) as api,
        ):
            for path in _old_records(self._folder, except_for):
                record = None if self._ended.is_set() else _read_record(path)
                if record is not None:
                    with contextlib.suppress(ApiError):
                        api.post("/runs", record)
                        path.unlink(missing_ok=True)


def _old_records(folder: Path, except_for: str) -> list[Path]:
    try:
        left = sorted(path for path in folder.iterdir() if path.suffix == ".json")
    except OSError:
        return []
    return [path for path in left if not path.name.startswith((".", except_for))][:MAX_OLD_RECORDS]


def _read_record(path: Path) -> object:
    """The JSON object in the file; None when there is none, or it is too large to be a record."""
    try:
        value = json.loads(small_text(path, RECORD_MAX_BYTES, follow=False))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
