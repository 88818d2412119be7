"""A host as the server sees it: what its agent sends, and when."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from parts.post_connection import PostConnection
from parts.prepared_bodies import PERIOD_S, PreparedBodies

from tightship_platform.units import NS_PER_S, now_ns

LEASE_PERIOD_S = 1.0
POLL_S = 20.0
REPEAT = 12
"""Every so many batches the open allocations are repeated, once a minute."""
STEPS = 5
"""Of each rank in a batch."""
INGEST = ("heartbeat", "batch")


@dataclass
class Figures:
    """What all hosts saw."""

    took_s: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    errors: Counter[str] = field(default_factory=Counter)
    captures_s: list[float] = field(default_factory=list)
    ages_s: list[float] = field(default_factory=list)
    """How old the newest sample of each fresh batch was when the server had stored it."""
    old: int = 0
    """Batches of an outage that are stored."""
    asked_to_wait: int = 0
    """Deliveries that the server did not take then."""

    def clear(self) -> None:
        """Begin again."""
        self.took_s.clear()
        self.errors.clear()
        self.captures_s.clear()
        self.ages_s.clear()
        self.asked_to_wait = 0

    def summary(self) -> dict[str, Any]:
        """Requests by kind, and the errors."""
        ingest = sorted(took for kind in INGEST for took in self.took_s[kind])
        captures = sorted(self.captures_s)
        return {
            "requests": {
                kind: {
                    "count": len(took),
                    "p50_s": round(_quantile(sorted(took), 0.5), 4),
                    "p99_s": round(_quantile(sorted(took), 0.99), 4),
                }
                for kind, took in sorted(self.took_s.items())
            },
            "p99_s": round(_quantile(ingest, 0.99), 4),
            "oldest_fresh_s": round(max(self.ages_s, default=0.0), 2),
            "capture_s": [_quantile(captures, 0.5), captures[-1]] if captures else None,
            "captures": len(captures),
            "asked_to_wait": self.asked_to_wait,
            "errors": dict(self.errors),
        }


def _quantile(values: list[float], share: float) -> float:
    return values[max(0, -int(-share * len(values) // 1) - 1)] if values else 0.0


class SimulatedHost:
    """One agent: a connection for what it delivers, one for leases.

    :param away_s: how long it was cut off before it begins: it has the batches of that time to deliver, too.
    """

    def __init__(self, number: int, port: int, token: str, figures: Figures, *, away_s: int = 0) -> None:
        self.number = number
        self._figures = figures
        self._deliver = PostConnection(port, token)
        self._leases = PostConnection(port, token)
        self._users = PostConnection(port, token)
        self._away = away_s // PERIOD_S
        self._next_old = -self._away
        self._asked: dict[str, float] = {}
        self.beats = 0
        """Heartbeats that the server took."""
        self._due_s = 0.0

    @property
    def late_s(self) -> float:
        """How long its next fresh batch has been due."""
        return time.monotonic() - self._due_s

    @property
    def is_settled(self) -> bool:
        """Whether the server knows it, and takes what it delivers when it is due."""
        return self.beats >= 2 and self.late_s <= PERIOD_S

    @property
    def behind(self) -> int:
        """Old batches that wait."""
        return -self._next_old

    async def live(self, after_s: float) -> None:
        """Until it is cancelled."""
        await asyncio.sleep(after_s)
        self._begun_s, self._begun_ns = time.monotonic(), now_ns()
        self._bodies = PreparedBodies(self.number, self._begun_ns - (self._away + 1) * PERIOD_S * NS_PER_S)
        while await self._post(self._deliver, "run", "/runs", self._bodies.record()) is None:
            pass
        polling = asyncio.create_task(self._poll())
        try:
            number = 0
            while True:
                # A batch is due when its time is over; what is fresh goes first, as in an agent.
                self._due_s = self._begun_s + (number + 1) * PERIOD_S
                while time.monotonic() < self._due_s:
                    if not self.behind:
                        await asyncio.sleep(self._due_s - time.monotonic())
                    elif await self._deliver_batch(self._next_old, "old batch"):
                        self._next_old += 1
                        self._figures.old += 1
                if await self._deliver_batch(number, "batch"):
                    self._figures.ages_s.append(time.monotonic() - (self._due_s - 1))
                    number += 1
                beat = self._bodies.heartbeat(now_ns(), self.behind, (self._away + number) * STEPS)
                answer = await self._post(self._deliver, "heartbeat", "/hosts/heartbeat", beat)
                self.beats += answer is not None
        finally:
            polling.cancel()

    async def _deliver_batch(self, number: int, kind: str) -> bool:
        """:param number: of the batch; those before 0 are of the time when the host was cut off."""
        since_ns = self._begun_ns + number * PERIOD_S * NS_PER_S
        body = self._bodies.batch(
            since_ns, STEPS, repeats=(number + self.number) % REPEAT == 0 or number == -self._away
        )
        return await self._post(self._deliver, kind, "/batches", body) is not None

    async def ask_for_capture(self) -> None:
        """As a user does."""
        asked_s = time.monotonic()
        body = json.dumps({"target": self._bodies.run}).encode()
        answer = await self._post(self._users, "capture", "/captures", body)
        if answer:
            self._asked[json.loads(answer)["capture"]] = asked_s

    async def _poll(self) -> None:
        body = self._bodies.lease(POLL_S)
        while True:
            begun_s = time.monotonic()
            answer = await self._post(self._leases, "lease", "/captures/lease", body)
            for lease in json.loads(answer)["leases"] if answer else ():
                asked_s = self._asked.pop(lease["capture"], None)
                if asked_s is not None:
                    self._figures.captures_s.append(time.monotonic() - asked_s)
                report = {"host": self._bodies.host, "state": "failed", "reason": "a benchmark records nothing"}
                path = f"/captures/{lease['capture']}/report"
                await self._post(self._leases, "report", path, json.dumps(report).encode())
            await asyncio.sleep(max(0.0, begun_s + LEASE_PERIOD_S - time.monotonic()))

    async def _post(self, connection: PostConnection, kind: str, path: str, body: bytes) -> bytes | None:
        begun_s = time.monotonic()
        try:
            answer = await connection.post(path, body)
        except OSError as error:
            self._figures.errors[f"{kind}: {type(error).__name__}"] += 1
            await asyncio.sleep(random.uniform(0.5, 1.0))
            return None
        self._figures.took_s[kind].append(time.monotonic() - begun_s)
        if answer.status == 200:
            return answer.body
        if answer.wait_s:
            self._figures.asked_to_wait += 1
        else:
            self._figures.errors[f"{kind}: {answer.status} {answer.body[:120].decode(errors='replace')}"] += 1
        await asyncio.sleep(max(answer.wait_s * random.uniform(1.0, 1.5), random.uniform(0.5, 1.0)))
        return None
