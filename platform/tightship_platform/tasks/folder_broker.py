"""Celery's `filesystem://` broker, made safe to kill, to race and to litter.

[Note: Why not kombu's channel as it is]
kombu's filesystem channel reads messages and binding tables that their writer may not have finished, so a process
killed at the wrong moment leaves an empty binding table that stops every later publisher and consumer, and a file that
is no message ends the worker with a traceback. It also lists the folder again for every message, which makes a long
queue quadratic, and names messages by the monotonic clock, which restarts with the host. Here every file appears whole
(written aside, then renamed), a table that cannot be read is rebuilt from what this process has declared, and a file
that is no message is set aside in `rejected/` with one log line. URL and message format stay kombu's.
"""

from __future__ import annotations

import base64
import logging
import os
import tempfile
import time
import uuid
from collections import deque
from pathlib import Path
from queue import Empty
from typing import Any

from kombu.exceptions import ChannelError
from kombu.transport import filesystem
from kombu.utils.json import dumps, loads

log = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 1 << 20
"""Tasks carry keys, never data; a larger file in the queue folder is not ours."""
MAX_WAIT_S = 0.5
"""Longest time that a consumer stays in one wait, so that a worker notices its stop signal soon."""
STALE_CLAIM_S = 3600.0
"""A claimed file this old belongs to a process that died between claiming and reading it."""


def folders(home: Path) -> dict[str, object]:
    """`broker_transport_options` for a broker below `home`; creates the folders, for this user only."""
    root = home / "broker"
    for name in ("queue", "processed", "control", "rejected"):
        (root / name).mkdir(mode=0o700, parents=True, exist_ok=True)
    queue = str(root / "queue")
    return {
        # One folder for both directions: what a process writes, every process of this home may read.
        "data_folder_in": queue,
        "data_folder_out": queue,
        "processed_folder": str(root / "processed"),
        "control_folder": str(root / "control"),
        "polling_interval": 0.25,
    }


def _write_whole(path: Path, data: bytes) -> None:
    """Let `path` appear with all of `data`, or not at all."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _is_task_message(payload: Any) -> bool:
    """Whether this is a JSON task message as Celery's protocol 2 writes it.

    Strict on purpose: Celery's consumer takes the fields below on trust, and one of another type ends the worker.
    """
    if not isinstance(payload, dict) or payload.get("content-type") != "application/json":
        return False
    properties, headers, body = payload.get("properties"), payload.get("headers"), payload.get("body")
    if not (isinstance(properties, dict) and isinstance(headers, dict) and isinstance(body, str)):
        return False
    origin, limits = properties.get("delivery_info"), headers.get("timelimit", [None, None])
    if not (
        payload.get("content-encoding") == "utf-8"
        and properties.get("body_encoding") == "base64"
        and isinstance(properties.get("delivery_tag"), str)
        and isinstance(origin, dict)
        and all(isinstance(origin.get(key), str) for key in ("exchange", "routing_key"))
        and all(isinstance(headers.get(key), str) for key in ("task", "id"))
        and all(isinstance(headers.get(key), str | None) for key in ("eta", "expires", "shadow", "compression"))
        and isinstance(limits, list)
        and len(limits) == 2
        and all(isinstance(limit, int | float | None) for limit in limits)
    ):
        return False
    match loads(base64.b64decode(body, validate=True)):
        case [list(), dict(), dict()]:
            return not headers.get("compression")
    return False


class Channel(filesystem.Channel):  # type: ignore[misc]  # kombu's transports carry no types
    """A channel over folders; see [Note: Why not kombu's channel as it is]."""

    # The worker takes part in no broadcasts here: each would leave files in queues that nobody reads.
    supports_fanout = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._listed: dict[str, deque[str]] = {}
        self._clear_claims()

    def _clear_claims(self) -> None:
        horizon = time.time() - STALE_CLAIM_S
        for path in Path(self.processed_folder).glob("*.msg"):
            try:
                if path.stat().st_mtime < horizon:
                    path.unlink()
            except OSError:
                continue  # another process was faster

    def get_table(self, exchange: str) -> list[Any]:
        """Bindings of an exchange: those on file and those that this process has declared."""
        try:
            rows = loads(self._exchange_file(exchange).read_text(encoding="utf-8"))
            table = [filesystem.exchange_queue_t(*map(str, row)) for row in rows]
        except FileNotFoundError:
            table = []
        except (OSError, ValueError, TypeError) as error:
            log.warning("Binding table of exchange %s is unreadable (%s); using this process's own", exchange, error)
            table = []
        declared = self.state.exchanges.get(exchange, {}).get("table", [])
        known = set(table)
        return table + [row for row in (filesystem.exchange_queue_t(*meta) for meta in declared) if row not in known]

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str, queue: str) -> None:
        row = filesystem.exchange_queue_t(routing_key or "", pattern or "", queue or "")
        file = self._exchange_file(exchange)
        try:
            file.parent.mkdir(exist_ok=True)
            # Two processes that bind at once may drop a row of each other's; get_table adds what is declared here.
            rows = [row, *(other for other in self.get_table(exchange) if other != row)]
            _write_whole(file, dumps(rows).encode())
        except OSError as error:
            raise ChannelError(f"Cannot write {file}: {error.strerror}") from error

    def _put(self, queue: str, message: Any, **_: Any) -> None:
        file = Path(self.data_folder_out) / f"{time.time_ns():020d}_{uuid.uuid4()}.{queue}.msg"
        try:
            _write_whole(file, dumps(message).encode())
        except OSError as error:
            raise ChannelError(f"Cannot write {file}: {error.strerror}") from error

    def _get(self, queue: str, timeout: float | None = None) -> Any:
        """Claim and return the oldest message of a queue.

        :raises Empty: there is none.
        """
        listed = self._listed.get(queue)
        if not listed:
            listed = self._listed[queue] = self._list(queue)
        while listed:
            payload = self._claim(listed.popleft())
            if payload is not None:
                return payload
        raise Empty

    def _size(self, queue: str) -> int:
        """Messages that wait."""
        return len(self._list(queue))

    def _list(self, queue: str) -> deque[str]:
        suffix = f"{queue}.msg"
        try:
            names = [entry.name for entry in os.scandir(self.data_folder_in)]
        except FileNotFoundError:
            Path(self.data_folder_in).mkdir(mode=0o700, parents=True, exist_ok=True)
            names = []
        return deque(sorted(name for name in names if name.partition(".")[2] == suffix))

    def _claim(self, name: str) -> Any:
        """The message in this file, which is gone afterwards; None: another consumer has it, or it is no message."""
        claimed = Path(self.processed_folder) / name
        try:
            claimed.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            (Path(self.data_folder_in) / name).rename(claimed)  # only one consumer succeeds
        except OSError:
            return None
        try:
            if claimed.stat().st_size > MAX_MESSAGE_BYTES:
                raise ValueError("larger than the limit of a message")
            payload = loads(claimed.read_text(encoding="utf-8"))
            if not _is_task_message(payload):
                raise ValueError("not a message of this broker")
            claimed.unlink()
        except (OSError, ValueError, TypeError, RecursionError) as error:
            self._reject(claimed, error)
            return None
        return payload

    def _reject(self, claimed: Path, error: Exception) -> None:
        rejected = claimed.parent.parent / "rejected" / claimed.name
        log.warning("Not a task message, set aside in %s: %r (%s)", rejected.parent, claimed.name, error)
        try:
            rejected.parent.mkdir(mode=0o700, exist_ok=True)
            claimed.rename(rejected)
        except OSError as problem:
            log.warning("Cannot set aside %r: %s", claimed.name, problem)


class Transport(filesystem.Transport):  # type: ignore[misc]  # kombu's transports carry no types
    """kombu's filesystem transport with the channel above."""

    Channel = Channel

    def drain_events(self, connection: Any, timeout: float | None = None, **_: Any) -> None:
        """Wait for one message, at most `MAX_WAIT_S`: Celery's loop looks for its stop signal only in between."""
        super().drain_events(connection, timeout=MAX_WAIT_S if timeout is None else min(timeout, MAX_WAIT_S))
