"""A host as the server sees it: what an agent with 8 busy devices and one run of 8 ranks sends, and when."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from tightship_platform.units import NS_PER_S, now_ns

DEVICES = 8
PERIOD_S = 5.0
LEASE_PERIOD_S = 1.0
POLL_S = 20.0
INGEST = ("heartbeat", "batch")


@dataclass
class Figures:
    """What all hosts saw."""

    took_s: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    errors: Counter[str] = field(default_factory=Counter)
    captures_s: list[float] = field(default_factory=list)

    def clear(self) -> None:
        """Begin again."""
        self.took_s.clear()
        self.errors.clear()
        self.captures_s.clear()

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
            "capture_s": [_quantile(captures, 0.5), captures[-1]] if captures else None,
            "captures": len(captures),
            "errors": dict(self.errors),
        }


def _quantile(values: list[float], share: float) -> float:
    return values[max(0, -int(-share * len(values) // 1) - 1)] if values else 0.0


class SimulatedHost:
    """One agent: a connection for what it delivers, one for leases."""

    def __init__(self, number: int, port: int, token: str, figures: Figures) -> None:
        self.number = number
        self.name = f"node{number:05d}"
        self.run = f"{number:016x}"
        self._figures = figures
        self._deliver = Connection(port, token)
        self._leases = Connection(port, token)
        self._users = Connection(port, token)
        self._devices = [
            {"uuid": f"GPU-{number:05d}-{n}", "kind": "gpu", "name": "NVIDIA H200", "memory_bytes": 150_754_820_096}
            for n in range(DEVICES)
        ]
        self._started_ns = now_ns()
        self._sent_ns = self._started_ns
        self._steps = 0
        self._asked: dict[str, float] = {}
        self.beats = 0
        """Heartbeats that the server took."""

    async def live(self, after_s: float) -> None:
        """Until it is cancelled."""
        await asyncio.sleep(after_s)
        await self._post(self._deliver, "run", "/runs", self._record())
        polling = asyncio.create_task(self._poll())
        try:
            due_s = time.monotonic()
            while True:
                await self._post(self._deliver, "batch", "/batches", self._batch())
                answer = await self._post(self._deliver, "heartbeat", "/hosts/heartbeat", self._heartbeat())
                self.beats += answer is not None
                due_s = max(due_s + PERIOD_S, time.monotonic())
                await asyncio.sleep(due_s - time.monotonic())
        finally:
            polling.cancel()

    async def ask_for_capture(self) -> None:
        """As a user does."""
        asked_s = time.monotonic()
        answer = await self._post(self._users, "capture", "/captures", {"target": self.run})
        if answer:
            self._asked[answer["capture"]] = asked_s

    async def _poll(self) -> None:
        while True:
            begun_s = time.monotonic()
            body = {"host": self.name, "runs": [self.run], "wait_s": POLL_S}
            answer = await self._post(self._leases, "lease", "/captures/lease", body)
            for lease in (answer or {}).get("leases", []):
                asked_s = self._asked.pop(lease["capture"], None)
                if asked_s is not None:
                    self._figures.captures_s.append(time.monotonic() - asked_s)
                report = {"host": self.name, "state": "failed", "reason": "a benchmark records nothing"}
                await self._post(self._leases, "report", f"/captures/{lease['capture']}/report", report)
            await asyncio.sleep(max(0.0, begun_s + LEASE_PERIOD_S - time.monotonic()))

    async def _post(self, connection: Connection, kind: str, path: str, body: Any) -> Any:
        begun_s = time.monotonic()
        try:
            status, answer = await connection.post(path, json.dumps(body, separators=(",", ":")).encode())
        except (OSError, EOFError) as error:
            self._figures.errors[f"{kind}: {type(error).__name__}"] += 1
            await asyncio.sleep(random.uniform(0.5, 1.0))
            return None
        self._figures.took_s[kind].append(time.monotonic() - begun_s)
        if status != 200:
            self._figures.errors[f"{kind}: {status} {answer[:120].decode(errors='replace')}"] += 1
            return None
        return json.loads(answer)

    def _record(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "workflow": f"workflow-{self.number % 50}",
            "start_ns": self._started_ns,
            "host": self.name,
            "user": "somebody",
            "team": "research",
            "labels": {"model": "tiny"},
            "command": ["python", "train.py", "--config", "configs/large.yaml"],
        }

    def _heartbeat(self) -> dict[str, Any]:
        ranks = [{"rank": n, "pid": 1000 + n, "guard": True, "steps": self._steps} for n in range(DEVICES)]
        uuids = [device["uuid"] for device in self._devices]
        sources = [{"name": name, "state": "ok", "detail": ""} for name in ("host", "nvml", "dcgm", "attribution")]
        return {
            "host": self.name,
            "time_ns": now_ns(),
            "agent_version": "0.1",
            "info": {
                "cpus": 192,
                "memory_bytes": 2 * 10**12,
                "kernel": "6.8.0",
                "agent_pid": 77,
                "boot_id": "7f0c6ac5-6ac6-41c8-9b4e-0b1b1f1c1e5d",
                "spool_entries": random.randrange(2),
                "spool_bytes": random.randrange(2),
                "spool_dropped": 0,
                "rows_too_old": 0,
                "rows_refused": 0,
            },
            "devices": self._devices,
            "sources": sources,
            "runs": [{"run": self.run, "ranks": ranks, "devices": uuids, "since_ns": self._started_ns}],
        }

    def _batch(self) -> dict[str, Any]:
        """What happened since the last one; every 60 s the allocations again, as an agent does."""
        since_ns, until_ns = self._sent_ns, now_ns()
        self._sent_ns = until_ns
        times = list(range(since_ns + NS_PER_S, until_ns + 1, NS_PER_S)) or [until_ns]
        uuids = [device["uuid"] for device in self._devices]
        first = since_ns == self._started_ns
        self._steps += 10
        batch: dict[str, Any] = {
            "host": self.name,
            "devices": self._devices,
            "samples": [self._sample(time_ns, uuid) for time_ns in times for uuid in uuids],
            "host_samples": [
                {
                    "time_ns": time_ns,
                    "cpu_frac": random.random(),
                    "memory_used_bytes": random.randrange(10**12),
                    "disk_read_bytes_per_s": random.randrange(10**9),
                    "disk_write_bytes_per_s": random.randrange(10**9),
                    "net_rx_bytes_per_s": random.randrange(10**9),
                    "net_tx_bytes_per_s": random.randrange(10**9),
                }
                for time_ns in times
            ],
            "run_samples": [
                {"time_ns": time_ns, "run": self.run, "device": uuid, "util_frac": 0.9, "memory_used_bytes": 10**10}
                for time_ns in times
                for uuid in uuids
            ],
            "steps": [
                {
                    "run": self.run,
                    "rank": rank,
                    "time_ns": until_ns // (10 * NS_PER_S) * 10 * NS_PER_S,
                    "width_ns": 10 * NS_PER_S,
                    "steps": 10,
                    "first_step_ns": self._started_ns,
                    "last_step_ns": until_ns,
                }
                for rank in range(DEVICES)
            ],
        }
        if first or random.random() < PERIOD_S / 60:
            batch["allocations"] = [{"run": self.run, "device": uuid, "start_ns": self._started_ns} for uuid in uuids]
        return batch

    @staticmethod
    def _sample(time_ns: int, uuid: str) -> dict[str, Any]:
        return {
            "time_ns": time_ns,
            "device": uuid,
            "util_frac": round(random.random(), 2),
            "sm_active_frac": round(random.random(), 3),
            "sm_occupancy_frac": round(random.random(), 3),
            "tensor_active_frac": round(random.random(), 3),
            "dram_active_frac": round(random.random(), 3),
            "memory_used_bytes": random.randrange(10**11),
            "power_w": round(random.uniform(100, 700), 1),
            "temperature_c": 61.0,
            "clock_hz": 1_980_000_000,
            "pcie_rx_bytes_per_s": random.randrange(10**9),
            "pcie_tx_bytes_per_s": random.randrange(10**9),
        }


class Connection:
    """HTTP/1.1 with as little work as possible, so that the load leaves the processor to the server."""

    def __init__(self, port: int, token: str) -> None:
        self._port = port
        self._head = f"host: 127.0.0.1:{port}\r\nauthorization: Bearer {token}\r\ncontent-type: application/json\r\n"
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, body: bytes) -> tuple[int, bytes]:
        """Status and body of the answer.

        :raises OSError, EOFError: the connection is refused or ends.
        """
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        try:
            head = f"POST /api/v1{path} HTTP/1.1\r\n{self._head}content-length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            lines = answer.decode("latin-1").split("\r\n")
            length = next(int(line[15:]) for line in lines if line.lower().startswith("content-length:"))
            return int(lines[0].split()[1]), await reader.readexactly(length)
        except BaseException:
            writer.close()
            self._streams = None
            raise
