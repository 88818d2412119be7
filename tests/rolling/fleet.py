"""Clients of servers that come and go: hosts that remember what was acknowledged, and somebody who reads pages."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any

import httpx

from tightship_platform.client import API
from tightship_platform.units import NS_PER_S, now_ns

EACH_S = 1.0
PROBE_S = 0.2
DEVICE = {"uuid": "g0", "kind": "gpu", "name": "A device"}


@dataclass(kw_only=True)
class Host:
    """A host with one run, whose agent sends one row of each kind a second and sends it again until it is taken."""

    name: str
    run: str
    token: str
    servers: list[str]
    """Addresses, which may change meanwhile: where one does not answer, the next is asked."""
    late_ns: int = 0
    """How old its rows are when it sends them, as after an outage."""
    acknowledged: set[int] = field(default_factory=set)
    """Times of rows that a server said it has."""
    refused: list[str] = field(default_factory=list)
    """Answers that nobody should get."""

    def __post_init__(self) -> None:
        self.start_ns = now_ns() - self.late_ns - 60 * NS_PER_S
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._turn = 0

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def finish(self, timeout_s: float) -> bool:
        """Send what is left, and the run's end; False where that was not done in time."""
        self._over.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _live(self) -> None:
        headers = {"authorization": f"Bearer {self.token}"}
        with httpx.Client(headers=headers, timeout=10.0, trust_env=False) as http:
            record = {"run": self.run, "workflow": "rolling", "start_ns": self.start_ns, "host": self.name}
            self._send(http, "/runs", record)
            held = {"run": self.run, "device": "g0", "start_ns": self.start_ns}
            self._send(http, "/batches", {"host": self.name, "devices": [DEVICE], "allocations": [held]})
            while not self._over.wait(EACH_S):
                self._send(http, "/hosts/heartbeat", self._beat())
                at = now_ns() - self.late_ns
                if self._send(http, "/batches", self._batch(at)):
                    self.acknowledged.add(at)
            self._send(http, "/batches", {"host": self.name, "allocations": [held | {"end_ns": now_ns()}]})
            self._send(http, "/runs", record | {"end_ns": now_ns(), "exit_code": 0})

    def _send(self, http: httpx.Client, path: str, body: dict[str, Any]) -> bool:
        """Until a server took it; False where one refused it."""
        while True:
            server = self.servers[self._turn % len(self.servers)]
            try:
                answer = http.post(server + API + path, json=body)
            except httpx.HTTPError:
                answer = None
            if answer is not None and answer.status_code == 200:
                if answer.json().get("refused"):
                    self.refused.append(f"{path}: {answer.text[:200]}")
                    return False
                return True
            self._turn += 1
            if answer is not None and answer.status_code not in (429, 500, 502, 503, 504, 507):
                self.refused.append(f"{path}: {answer.status_code} {answer.text[:200]}")
                return False
            time.sleep(0.1)

    def _beat(self) -> dict[str, Any]:
        live = {
            "run": self.run,
            "ranks": [{"rank": 0, "pid": 100, "guard": True}],
            "devices": ["g0"],
            "since_ns": self.start_ns,
        }
        return {
            "host": self.name,
            "time_ns": now_ns(),
            "agent_version": "rolling",
            "devices": [DEVICE],
            "runs": [live],
        }

    def _batch(self, at: int) -> dict[str, Any]:
        step = {"run": self.run, "rank": 0, "time_ns": at, "width_ns": NS_PER_S // 2, "steps": 1, "last_step_ns": at}
        return {
            "host": self.name,
            "devices": [DEVICE],
            "samples": [{"time_ns": at, "device": "g0", "util_frac": 0.5}],
            "host_samples": [{"time_ns": at, "cpu_frac": 0.5}],
            "run_samples": [{"time_ns": at, "run": self.run, "device": "g0", "cpu_cores": 1.0}],
            "steps": [step],
        }


@dataclass(kw_only=True)
class Reader:
    """Somebody who asks for a page again and again, at the next address where one does not answer."""

    page: str
    token: str
    servers: list[str]
    body: dict[str, Any] | None = None
    """Of a page that is drawn by a callback."""
    asked: int = 0
    turned_away: int = 0
    """Requests that the next server had to answer."""
    worst_s: float = 0.0
    """Longest time between two answers."""
    worst_at: float = 0.0
    """When that one ended, by the monotonic clock."""

    def __post_init__(self) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def finish(self) -> None:
        """Ask no more."""
        self._over.set()
        self._thread.join()

    def _read(self) -> None:
        headers = {"authorization": f"Bearer {self.token}"}
        with httpx.Client(headers=headers, timeout=3.0, trust_env=False) as http:
            last = time.monotonic()
            while not self._over.wait(PROBE_S):
                self.asked += 1
                for server in list(self.servers):
                    if self._answers(http, server):
                        break
                    self.turned_away += 1
                else:
                    continue
                now = time.monotonic()
                self.worst_s, self.worst_at = max((self.worst_s, self.worst_at), (now - last, now))
                last = now

    def _answers(self, http: httpx.Client, server: str) -> bool:
        try:
            if self.body is None:
                answer = http.get(server + self.page)
            else:
                answer = http.post(server + "/_dash-update-component", json=self.body)
        except httpx.HTTPError:
            return False
        return answer.status_code == 200


def drawn(path: str) -> dict[str, Any]:
    """The body with which a browser has a page drawn."""
    outputs = [{"id": "page", "property": "children"}, {"id": "title", "property": "data"}]
    return {
        "output": "..page.children...title.data..",
        "outputs": outputs,
        "inputs": [{"id": "url", "property": "pathname", "value": path}],
        "state": [{"id": "url", "property": "search", "value": ""}],
        "changedPropIds": ["url.pathname"],
    }
