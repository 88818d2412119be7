"""Carries what the agent knows to the server: heartbeats at once, spooled records in order.

After an outage, what is happening now does not wait for all that was saved up: records of the last FRESH_NS and older
ones take turns, each in order.

One thread, so that a slow network never delays a sample. What an answer means:

| answer | what happens |
|---|---|
| 2xx | the entry is done |
| nothing answers, 408, 425, 429, 502–504 | kept; tried again with growing, jittered pauses; see `held_back` |
| 401, 403 | kept; said once: the token is wrong, not the record |
| 404, 405 | kept; said once: whatever answers there is no tightship of this release |
| 500, other 5xx | kept; after MAX_ATTEMPTS the entry is set aside, so that one poison record blocks no other |
| other 4xx | the entry is set aside at once |
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tightship_collectors.delivery.held_back import MAX_REFUSALS, HeldBack
from tightship_collectors.delivery.pause import Pause
from tightship_collectors.delivery.spool import Entry, Spool
from tightship_platform.client import ApiClient, ApiError
from tightship_platform.errors import ServerUnreachable
from tightship_platform.processes.metrics import METRICS
from tightship_platform.units import NS_PER_S, now_ns, plural
from tightship_platform.wire import MAX_HEARTBEAT_RUNS, Heartbeat

LOG = logging.getLogger(__name__)

MAX_ATTEMPTS = 20
MAX_RECORD_BYTES = 1024 * 1024
MAX_PAUSE_S = 30.0
MAX_HEARTBEAT_PAUSE_S = 5.0
MAX_HEARTBEAT_DELAY_S = 0.3
"""How long a heartbeat lets records go before it."""
FRESH_NS = 30 * NS_PER_S
LOOK_FOR_RECORDS_S = 5.0
"""How often the folder is looked into where launchers leave the records that they could not deliver."""
PATHS = {"runs": "/runs", "batches": "/batches"}
_LATER = frozenset({408, 425, 429, 502, 503, 504})
_WAIT = _LATER | {401, 403, 404, 405}


class Sender:
    """Delivers in its own thread between `start` and `stop`.

    :param records_dir: where launchers leave run records for the agent.
    """

    def __init__(self, client: ApiClient, spool: Spool, *, records_dir: Path) -> None:
        self._client = client
        self._spool = spool
        self._records_dir = records_dir
        self._changed = threading.Condition()
        self._heartbeat: Heartbeat | None = None
        self._offered_s = 0.0
        self._refused_heartbeat = ""
        self._stop_at_s: float | None = None
        self._heartbeat_pause = Pause(MAX_HEARTBEAT_PAUSE_S)
        self._entry_pause = Pause(MAX_PAUSE_S)
        self._held_back = HeldBack()
        self._is_turn_of_old = False
        self._attempts: tuple[str, int] = ("", 0)
        self._look_at_s = 0.0
        self._outage = ""
        self.too_old = 0
        """Rows that the server did not store, because it keeps none of their days any more."""
        self.refused = 0
        """Rows that the server did not store, because a value in them cannot be."""
        self._is_refusing = False
        self._thread = threading.Thread(target=self._run, name="sender", daemon=True)

    def start(self) -> None:
        """Begin to deliver."""
        self._thread.start()

    def offer(self, heartbeat: Heartbeat) -> None:
        """Send this heartbeat as soon as possible; it takes the place of one that has not been sent yet."""
        with self._changed:
            if self._heartbeat is None:
                self._offered_s = time.monotonic()
            self._heartbeat = heartbeat
            self._changed.notify()

    def wake(self) -> None:
        """There is something new in the spool."""
        with self._changed:
            self._changed.notify()

    def finish(self, flush_s: float) -> None:
        """Deliver what is left for at most `flush_s`, without waiting for it; what remains stays in the spool."""
        with self._changed:
            self._stop_at_s = time.monotonic() + flush_s
            self._changed.notify()

    def stop(self, flush_s: float) -> None:
        """As `finish`, and wait for it."""
        if self._stop_at_s is None:
            self.finish(flush_s)
        self._thread.join(max(0.0, (self._stop_at_s or 0.0) - time.monotonic()))

    # ---- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            try:
                busy = self._deliver()
            except Exception:
                # Whatever it was, records still arrive in the spool and must not wait for a restart.
                LOG.exception("Delivery failed in an unexpected way; it goes on after a pause")
                self._entry_pause.failed()
                self._heartbeat_pause.failed()
                busy = False
            with self._changed:
                if self._stop_at_s is not None and (not busy or time.monotonic() >= self._stop_at_s):
                    return
                if not busy:
                    self._changed.wait(self._idle_s())

    def _idle_s(self) -> float:
        """Under the lock: how long nothing can happen by itself."""
        now_s = time.monotonic()
        due = [self._look_at_s]
        if self._heartbeat is not None:
            due.append(max(self._heartbeat_pause.until_s, now_s))
        if self._entry_pause.until_s > now_s:
            due.append(self._entry_pause.until_s)
        return max(0.01, min(due) - now_s)

    def _deliver(self) -> bool:
        """Send what is due: a heartbeat, or else one record. False when there is nothing to send now."""
        now_s = time.monotonic()
        if self._is_heartbeat_due(now_s):
            with self._changed:
                heartbeat, self._heartbeat = self._heartbeat, None
            if heartbeat is not None:
                self._send_heartbeat(heartbeat)
        if now_s < self._entry_pause.until_s:
            return False
        if now_s >= self._look_at_s or self._stop_at_s is not None:
            self._look_at_s = now_s + LOOK_FOR_RECORDS_S
            if not self._take_records():
                return False
        entry = self._next()
        if entry is None:
            return False
        return self._send(entry.name, PATHS[entry.kind], entry.body, self._spool_done(entry), self._spool_aside(entry))

    def _next(self) -> Entry | None:
        waiting = self._held_back.waiting()
        self._is_turn_of_old = not self._is_turn_of_old
        fresh = None if self._is_turn_of_old else self._spool.peek(waiting, since_ns=now_ns() - FRESH_NS)
        return fresh or self._spool.peek(waiting)

    def _is_heartbeat_due(self, now_s: float) -> bool:
        """Records go first, as what they say is more exact, but a backlog does not hold a heartbeat up."""
        if self._heartbeat is None or self._stop_at_s is not None or now_s < self._heartbeat_pause.until_s:
            return False
        waited = now_s - self._offered_s >= MAX_HEARTBEAT_DELAY_S
        return waited or now_s < self._entry_pause.until_s or self._spool.backlog()[0] == 0

    def _send_heartbeat(self, heartbeat: Heartbeat) -> None:
        try:
            for part in split_heartbeat(heartbeat, MAX_HEARTBEAT_RUNS):
                self._say_refused_runs(self._client.post("/hosts/heartbeat", part))
        except (ServerUnreachable, ApiError, ValueError) as error:
            if isinstance(error, ApiError) and 400 <= error.http_status < 500 and error.http_status not in _WAIT:
                # The next one is a new one: there is nothing to keep.
                if self._refused_heartbeat != str(error):
                    self._refused_heartbeat = str(error)
                    LOG.warning("The server refuses this host's heartbeats: %s", error)
                return
            self._say_outage(error)
            self._heartbeat_pause.failed(_asked_s(error))
            with self._changed:
                # Try it again unless there is a newer one by now.
                self._heartbeat = self._heartbeat or heartbeat
            return
        self._heartbeat_pause.succeeded()
        if self._outage:
            self._say_back()
            self._entry_pause.succeeded()

    def _say_refused_runs(self, answer: Any) -> None:
        refusal = str(answer.get("refusal")) if _rows(answer, "refused") else ""
        if refusal and refusal != self._refused_heartbeat:
            LOG.warning("The server leaves runs of this host's heartbeat out: %s", refusal)
        self._refused_heartbeat = refusal

    def _take_records(self) -> bool:
        """Deliver the run records that launchers left. False when the server took no more."""
        try:
            left = sorted(
                (entry.stat(follow_symlinks=False).st_mtime_ns, entry.path)
                for entry in os.scandir(self._records_dir)
                if entry.name.endswith(".json") and entry.is_file(follow_symlinks=False)
            )
        except OSError:
            return True
        waiting = self._held_back.waiting()
        for _, path in left:
            if path in waiting:
                continue
            place = Path(path)
            body = _read_record(place)
            if body is None:
                self._spool.refuse(place, "it is not a run record")
            elif not self._send(
                path,
                PATHS["runs"],
                body,
                lambda place=place: place.unlink(missing_ok=True),  # type: ignore[misc]
                lambda why, place=place: self._spool.refuse(place, why),  # type: ignore[misc]
            ):
                return False
        return True

    def _spool_done(self, entry: Entry) -> Callable[[], None]:
        return lambda: self._spool.done(entry)

    def _spool_aside(self, entry: Entry) -> Callable[[str], None]:
        return lambda why: self._spool.set_aside(entry, why)

    def _send(self, name: str, path: str, body: bytes, done: Callable[[], None], aside: Callable[[str], None]) -> bool:
        """Post one record. True when it is out of the way, whether taken or set aside."""
        try:
            decoded: Any = json.loads(body)
        except ValueError as error:
            aside(f"it is not JSON: {error}")
            return True
        try:
            answer = self._client.post(path, decoded)
        except ApiError as error:
            METRICS.count("tightship_deliveries_total", "refused")
            return self._refused(name, error, aside)
        except (ServerUnreachable, ValueError) as error:
            METRICS.count("tightship_deliveries_total", "unreachable")
            return self._put_off(name, error, aside)
        METRICS.count("tightship_deliveries_total", "taken")
        done()
        self._held_back.taken(name)
        if path == PATHS["batches"]:
            self._count_not_stored(answer)
        if self._outage:
            self._say_back()
        self._entry_pause.succeeded()
        return True

    def _count_not_stored(self, answer: Any) -> None:
        too_old, refused = _rows(answer, "too_old"), _rows(answer, "refused")
        if too_old and not self.too_old:
            LOG.warning("The server keeps no samples of days as old as some of this host's: they are not stored")
        if refused and not self._is_refusing:
            LOG.warning("The server refuses %s of this host: %s", plural(refused, "row"), answer.get("refusal"))
        self._is_refusing = refused > 0
        self.too_old += too_old
        self.refused += refused

    def _refused(self, name: str, error: ApiError, aside: Callable[[str], None]) -> bool:
        status = error.http_status
        if status in _LATER:
            return self._put_off(name, error, aside)
        if status not in _WAIT and status < 500:
            self._held_back.forget(name)
            aside(f"the server refuses it ({status}): {error}")
            return True
        if status not in _WAIT:
            count = self._attempts[1] + 1 if self._attempts[0] == name else 1
            self._attempts = (name, count)
            if count >= MAX_ATTEMPTS:
                self._held_back.forget(name)
                aside(f"the server failed on it {plural(count, 'time')} ({status}): {error}")
                return True
        self._say_outage(error)
        self._entry_pause.failed()
        return False

    def _put_off(self, name: str, error: Exception, aside: Callable[[str], None]) -> bool:
        """The server does not take it now. True when the others go on meanwhile."""
        # A server that asks to wait says that the record is not at fault.
        if _asked_s(error) or not self._held_back.put_off(name):
            self._say_outage(error)
            self._entry_pause.failed(_asked_s(error))
            return False
        if self._held_back.is_hopeless(name):
            self._held_back.forget(name)
            aside(f"the server took other records and put this one off {plural(MAX_REFUSALS, 'time')}: {error}")
        return True

    def _say_outage(self, error: Exception) -> None:
        status = getattr(error, "http_status", 0)
        if status in (401, 403):
            said = (
                f"The server refuses this agent's token ({error}); get its host another with `tightship agent enrol`, "
                "or set TIGHTSHIP_TOKEN to one with the scope ingest"
            )
        elif status == 0:
            said = f"{self._client.server} answers something that is not JSON, so it is not a tightship server"
        else:
            said = str(error)
        if self._outage != str(status):
            self._outage = str(status)
            LOG.warning("%s; records wait in the spool", said)

    def _say_back(self) -> None:
        self._outage = ""
        self._held_back.try_again()
        entries, size = self._spool.backlog()
        LOG.info("The server answers again; %d records (%d KiB) are on their way", entries, size // 1024)


def _asked_s(error: Exception) -> float:
    """How long the server asks to wait."""
    return error.wait_s if isinstance(error, ApiError) else 0.0


def split_heartbeat(heartbeat: Heartbeat, max_runs: int) -> list[Heartbeat]:
    """The heartbeat in parts of at most `max_runs` runs; what it says of the host is in each."""
    firsts = range(0, len(heartbeat.runs) or 1, max_runs)
    return [dataclasses.replace(heartbeat, runs=heartbeat.runs[first : first + max_runs]) for first in firsts]


def _rows(answer: Any, name: str) -> int:
    count = answer.get(name) if isinstance(answer, dict) else None
    return count if type(count) is int and count > 0 else 0


def _read_record(place: Path) -> bytes | None:
    """The body, if it is a JSON object of reasonable size."""
    with contextlib.suppress(OSError, ValueError):
        fd = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return None
            body = file.read(MAX_RECORD_BYTES + 1)
        if len(body) <= MAX_RECORD_BYTES and isinstance(json.loads(body), dict):
            return body
    return None
