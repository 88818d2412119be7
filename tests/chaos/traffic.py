"""Senders that remember what was acknowledged: metrics, twice and out of order, and captures as an agent makes them."""

from __future__ import annotations

import hashlib
import random
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tightship_platform.client import API
from tightship_platform.units import NS_PER_S, now_ns

HOST, RUN = "sim-1", "51a51a51a51a51a5"
TRACE = Path(__file__).parents[1] / "data" / "traces" / "starved.json.gz"
EACH_S = 0.5
LATE_FRAC, TWICE_FRAC = 0.3, 0.3


@dataclass
class Traffic:
    """What one simulated host sends while a schedule runs."""

    url: str
    token: str
    dice: random.Random
    acknowledged: set[int] = field(default_factory=set)
    """Times of samples of which the server said that it has them."""
    captures: dict[str, str] = field(default_factory=dict)
    """Capture → SHA-256 of the trace whose upload was acknowledged; empty: none was."""
    refused: list[str] = field(default_factory=list)
    """Answers that nobody should get."""

    def __post_init__(self) -> None:
        self._over = threading.Event()
        self._sent_all = threading.Event()
        self._threads = [threading.Thread(target=one, daemon=True) for one in (self._metrics, self._capturing)]
        self._started_ns = now_ns()

    def start(self) -> None:
        """Begin to send."""
        for thread in self._threads:
            thread.start()

    def finish(self, timeout_s: float) -> bool:
        """Send what is left, and the run's end; False where that was not done in time."""
        self._over.set()
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _http(self) -> httpx.Client:
        headers = {"authorization": f"Bearer {self.token}"}
        return httpx.Client(base_url=self.url + API, headers=headers, timeout=5.0, trust_env=False)

    def _post(self, http: httpx.Client, path: str, body: dict[str, Any]) -> httpx.Response | None:
        """The answer; None: there was none, or one that asks to try again."""
        try:
            answer = http.post(path, json=body)
        except httpx.HTTPError:
            return None
        if answer.status_code in (429, 500, 502, 503, 504, 507):
            return None
        return answer

    def _record(self) -> dict[str, Any]:
        return {"run": RUN, "workflow": "simulated", "start_ns": self._started_ns, "host": HOST}

    def _beat(self) -> dict[str, Any]:
        return {
            "host": HOST,
            "time_ns": now_ns(),
            "agent_version": "chaos",
            "devices": [{"uuid": "cpu", "kind": "cpu", "name": "A processor"}],
            "runs": [
                {
                    "run": RUN,
                    "ranks": [{"rank": 0, "pid": 100, "guard": True}],
                    "devices": ["cpu"],
                    "since_ns": self._started_ns,
                }
            ],
        }

    def _batch(self, at: int) -> dict[str, Any]:
        return {
            "host": HOST,
            "devices": [{"uuid": "cpu", "kind": "cpu", "name": "A processor"}],
            "samples": [{"time_ns": at, "device": "cpu", "util_frac": 0.5}],
            "host_samples": [{"time_ns": at, "cpu_frac": 0.5}],
            "run_samples": [{"time_ns": at, "run": RUN, "device": "cpu", "cpu_cores": 1.0}],
            "steps": [
                {"run": RUN, "rank": 0, "time_ns": at, "width_ns": NS_PER_S // 2, "steps": 1, "last_step_ns": at}
            ],
            "allocations": [{"run": RUN, "device": "cpu", "start_ns": self._started_ns}],
        }

    def _until_taken(self, http: httpx.Client, path: str, body: dict[str, Any]) -> None:
        while (answer := self._post(http, path, body)) is None:
            time.sleep(0.3)
        if answer.status_code != 200:
            self.refused.append(f"{path}: {answer.status_code} {answer.text[:200]}")

    def _metrics(self) -> None:
        waiting: list[int] = []
        with self._http() as http:
            self._until_taken(http, "/runs", self._record())
            while not self._over.is_set() or waiting:
                if not self._over.is_set():
                    waiting.append(now_ns())
                    self._post(http, "/hosts/heartbeat", self._beat())
                if self._over.is_set() or self.dice.random() > LATE_FRAC:
                    self.dice.shuffle(waiting)
                    waiting = [at for at in waiting if not self._deliver(http, at)]
                time.sleep(EACH_S)
            allocation = {"run": RUN, "device": "cpu", "start_ns": self._started_ns, "end_ns": now_ns()}
            self._until_taken(http, "/batches", {"host": HOST, "allocations": [allocation]})
            self._until_taken(http, "/runs", self._record() | {"end_ns": now_ns(), "exit_code": 0})

    def _deliver(self, http: httpx.Client, at: int) -> bool:
        for _ in range(2 if self.dice.random() < TWICE_FRAC else 1):
            answer = self._post(http, "/batches", self._batch(at))
            if answer is None:
                return False
            if answer.status_code != 200 or answer.json().get("refused"):
                self.refused.append(f"/batches: {answer.status_code} {answer.text[:200]}")
                return True
        self.acknowledged.add(at)
        return True

    def _capturing(self) -> None:
        data = TRACE.read_bytes()
        with self._http() as http:
            while not self._over.is_set():
                answer = self._post(http, "/captures", {"target": RUN, "params": {"passes": 1}})
                if answer is not None and answer.status_code == 200:
                    key = answer.json()["capture"]
                    self.captures[key] = ""
                    self._carry_out(http, key, data)
                self._over.wait(2.0)

    def _carry_out(self, http: httpx.Client, key: str, data: bytes) -> None:
        """One capture, as the agent does it: whatever gets no answer is sent again, for as long as that helps."""
        deadline = time.monotonic() + 40
        while time.monotonic() < deadline:
            answer = self._post(http, "/captures/lease", {"host": HOST, "runs": [RUN]})
            if answer is not None and answer.status_code == 200:
                leases = answer.json()["leases"]
                if any(lease["capture"] == key for lease in leases):
                    break
            time.sleep(0.5)
        else:
            return
        expected = [{"rank": 0, "pid": 100}]
        for state, more in (("armed", {"expected": expected}), ("recording", {}), ("written", {})):
            while True:
                answer = self._post(http, f"/captures/{key}/report", {"host": HOST, "state": state} | more)
                if answer is not None:
                    break
                if time.monotonic() > deadline:
                    return
                time.sleep(0.3)
            if answer.status_code != 200:
                return  # the lease has lapsed meanwhile
        digest = hashlib.sha256(data).hexdigest()
        while time.monotonic() < deadline:
            try:
                answer = http.put(
                    f"/captures/{key}/traces/0",
                    params={"pid": 100, "host": HOST},
                    headers={"x-sha256": digest},
                    content=data,
                )
            except httpx.HTTPError:
                answer = None
            if answer is not None and answer.status_code == 200:
                self.captures[key] = digest
                return
            if answer is not None and answer.status_code < 500 and answer.status_code != 429:
                return
            time.sleep(0.5)
