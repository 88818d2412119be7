"""The daemon's side of Kineto's socket: one thread that answers every job's polls, and hands out configs.

[Note: whom the service answers]
A wrong answer aborts the job: libkineto terminates its process when a reply comes from an address that is not in the
process's own socket folder. So a reply leaves through the very socket that was asked, goes only to a socket named
`dynoconfigclient<uuid>` in that same folder, of the run's user, and is sent through an open handle of it: a name that
was swapped for a link to another job's socket leads nowhere. The kernel's credentials of a datagram decide who sent it;
the process ids inside are claims and have to agree. What does not fit is dropped and counted, never answered.

[Note: late is worse than never]
libkineto waits 90 ms for an answer and then goes on; an answer that comes later stays in its queue, is taken for the
answer to its next poll, and every later one is a poll behind for ever. The kernel's time stamp says how old a question
is; old ones (the agent was suspended or starved) are dropped.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tightship_collectors.jobs.control_file import rank_path, read_rank_file
from tightship_collectors.jobs.live_run import HostRun
from tightship_collectors.jobs.ranks import is_alive
from tightship_collectors.kineto.endpoint import Endpoint, Unservable
from tightship_collectors.kineto.protocol import Malformed, Poll, decode, encode_config, encode_registered
from tightship_platform.units import NS_PER_MS, now_ns

log = logging.getLogger(__name__)

MAX_AGE_NS = 60 * NS_PER_MS
"""A question older than this is not answered; libkineto waits 90 ms."""
BURST = 64
"""Datagrams taken from the sockets of one user before those of the others have their turn."""
MAX_PROCESSES = 1024
"""Processes remembered per run; a job has no reason to have more that poll."""

Compose = Callable[[int], bytes | None]
"""Gives the config for a process, at the UTC time of its poll; None: not at this poll. Called with a lock held."""


@dataclass(frozen=True, kw_only=True)
class Client:
    """What is known of one polling process."""

    pid: int
    poll_ns: int
    """UTC time of its last poll."""
    period_ns: int | None
    """Time between its last two polls."""
    idle: bool
    """It could start a trace; false while it takes one."""


class KinetoService:
    """Serves the socket `<run_dir>/dynolog` of every live run.

    `update` tells it the runs, `arm` leaves a config for a process's next poll. Thread-safe; owns one thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._endpoints: dict[str, Endpoint] = {}
        self._refused: dict[str, str] = {}
        self._clients: dict[tuple[str, int], Client] = {}
        self._armed: dict[tuple[str, int], Compose] = {}
        self._handed: dict[tuple[str, int], int] = {}
        self._dropped: Counter[str] = Counter()
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._closed = False
        self._turn = 0
        self._thread = threading.Thread(target=self._serve, name="kineto-service", daemon=True)
        self._thread.start()

    def update(self, runs: Sequence[HostRun]) -> None:
        """Bind the sockets of new runs, give up those of runs that are gone. Call it about once a second."""
        live = {run.run: run for run in runs}
        with self._lock:
            if self._closed:
                return
            for key in [key for key in self._endpoints if key not in live]:
                self._unbind(key)
            for table in (self._clients, self._armed, self._handed):
                for entry in [entry for entry in table if entry[0] not in live]:
                    del table[entry]
            for key in [key for key in self._refused if key not in live]:
                del self._refused[key]
            for key, run in live.items():
                endpoint = self._endpoints.get(key)
                if endpoint is not None and endpoint.still_bound():
                    endpoint.run = run
                    continue
                if endpoint is not None:
                    self._unbind(key)
                self._bind(run)

    def arm(self, run: str, pid: int, compose: Compose) -> None:
        """Answer the next idle poll of a process with `compose(now_ns)`, once."""
        with self._lock:
            self._armed[run, pid] = compose
            self._handed.pop((run, pid), None)

    def handed_ns(self, run: str, pid: int) -> int | None:
        """UTC time at which the config last armed was handed out; None while it was not."""
        with self._lock:
            return self._handed.get((run, pid))

    def disarm(self, run: str, pid: int) -> bool:
        """Withdraw a config; True if it was not handed out, and now never will be."""
        with self._lock:
            self._armed.pop((run, pid), None)
            return (run, pid) not in self._handed

    def forget(self, run: str, pid: int) -> None:
        """Drop what an earlier capture left of a process: neither armed nor handed out."""
        with self._lock:
            self._armed.pop((run, pid), None)
            self._handed.pop((run, pid), None)

    def client(self, run: str, pid: int) -> Client | None:
        """What is known of a process; None if it never polled."""
        with self._lock:
            return self._clients.get((run, pid))

    def refusal(self, run: str) -> str | None:
        """Why the run's socket cannot be served; None when it is."""
        with self._lock:
            return self._refused.get(run)

    def dropped(self) -> dict[str, int]:
        """How many datagrams went unanswered, by cause."""
        with self._lock:
            return dict(self._dropped)

    def close(self) -> None:
        """Stop serving and remove the sockets."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        os.write(self._wake_write, b"x")
        self._thread.join(timeout=5)
        with self._lock:
            for key in list(self._endpoints):
                self._unbind(key)
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _bind(self, run: HostRun) -> None:
        try:
            endpoint = Endpoint.bind(run)
        except Unservable as error:
            if self._refused.get(run.run) != str(error):
                log.warning("run %s cannot be captured: %s", run.run, error)
                self._refused[run.run] = str(error)
            return
        self._refused.pop(run.run, None)
        self._endpoints[run.run] = endpoint
        self._selector.register(endpoint.socket, selectors.EVENT_READ, endpoint)

    def _unbind(self, key: str) -> None:
        endpoint = self._endpoints.pop(key)
        self._selector.unregister(endpoint.socket)
        endpoint.close()

    def _serve(self) -> None:
        while not self._closed:
            endpoints = []
            for ready, _ in self._selector.select(timeout=1.0):
                if ready.data is None:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._wake_read, 64)
                else:
                    endpoints.append(ready.data)
            if self._take_turns(endpoints):
                time.sleep(0.01)  # bounds what a flood costs the host; an honest poll still has 80 ms

    def _take_turns(self, ready: list[Endpoint]) -> bool:
        """Answer what waits, at most BURST of each user; True if a user sends more than honest runs do.

        However many runs of a user are flooded, the others wait for BURST datagrams of theirs, not for as many of each.
        """
        left: dict[int, int] = {}
        for endpoint in sorted(ready, key=lambda one: one.turn):
            uid = endpoint.run.uid
            left.setdefault(uid, BURST)
            if left[uid] == 0:
                continue
            self._turn += 1
            endpoint.turn = self._turn  # whoever did not come to be asked is first the next time
            with self._lock:
                try:
                    left[uid] -= self._drain(endpoint, left[uid])
                except Exception as error:
                    # The socket of one run must not end the service of all the others; update() binds it again.
                    log.exception("socket of run %s: %s", endpoint.run.run, error)
                    self._dropped["socket error"] += 1
                    if self._endpoints.get(endpoint.run.run) is endpoint:
                        self._unbind(endpoint.run.run)
        return 0 in left.values()

    def _drain(self, endpoint: Endpoint, most: int) -> int:
        """Answer what waits, up to so many datagrams; how many it took."""
        if endpoint.socket.fileno() < 0:  # closed by update() after select() had reported it
            return 0
        for taken in range(most):
            received = endpoint.receive()
            if received is None:
                return taken
            try:
                if received.fault:
                    raise Malformed(received.fault)
                message = decode(received.data)
            except Malformed:
                self._dropped["malformed"] += 1
                continue
            claimed = message.pids[0] if isinstance(message, Poll) else message.pid
            if received.uid != endpoint.run.uid or received.pid != claimed:
                self._dropped["forged"] += 1
            elif not _belongs(endpoint.run, received.pid):
                self._dropped["stranger"] += 1
            elif not endpoint.is_client_address(received.address):
                self._dropped["foreign address"] += 1
            elif now_ns() - received.time_ns > MAX_AGE_NS:
                self._dropped["late"] += 1
            elif isinstance(message, Poll):
                self._answer_poll(endpoint, received.address, received.pid, message)
            else:
                endpoint.registered.add(received.pid)
                self._reply(endpoint, received.address, encode_registered(len(endpoint.registered)))
        return most

    def _answer_poll(self, endpoint: Endpoint, address: str, pid: int, poll: Poll) -> None:
        key = (endpoint.run.run, pid)
        now = now_ns()
        known = self._clients.get(key)
        if known is None and sum(run == key[0] for run, _ in self._clients) >= MAX_PROCESSES:
            self._dropped["too many processes"] += 1
            return
        period_ns = now - known.poll_ns if known else None
        self._clients[key] = Client(pid=pid, poll_ns=now, period_ns=period_ns, idle=poll.idle)
        compose = self._armed.get(key) if poll.idle else None
        config = compose(now) if compose else None
        delivered = self._reply(endpoint, address, encode_config(config or b""))
        if config is not None:
            if delivered:
                del self._armed[key]
                self._handed[key] = now
            else:
                log.info("config for process %d of run %s was not delivered; it stays armed", pid, key[0])

    def _reply(self, endpoint: Endpoint, address: str, datagram: bytes) -> bool:
        if endpoint.send(address, datagram):
            return True
        self._dropped["undeliverable"] += 1
        return False


def _belongs(run: HostRun, pid: int) -> bool:
    """The process is one of the run's: seen by the agent's walk, or it has its own control file."""
    if pid in run.pids or any(rank.pid == pid for rank in run.ranks):
        return True
    file = read_rank_file(rank_path(run.run_dir, pid), uid=run.uid)
    return file is not None and is_alive(pid, file.start_ticks, run.uid)
