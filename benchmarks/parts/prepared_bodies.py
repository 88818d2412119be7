"""What an agent with 8 busy devices and one run of 8 ranks sends, prepared so that sending it costs next to nothing.

The figures are drawn once per host; times, steps and spool sizes are those of each body.
"""

from __future__ import annotations

import json
import random
from typing import Any

from tightship_platform.units import NS_PER_S

DEVICES = 8
PERIOD_S = 5
"""Seconds of one batch; a sample of each device every second."""
BUCKET_NS = 10 * NS_PER_S
_HOLE = -987_654_321
_FACTS = {
    "cpus": 192,
    "memory_bytes": 2 * 10**12,
    "kernel": "6.8.0",
    "agent_pid": 77,
    "boot_id": "7f0c6ac5-6ac6-41c8-9b4e-0b1b1f1c1e5d",
    "spool_entries": _HOLE,
    "spool_bytes": _HOLE,
    "spool_dropped": 0,
    "rows_too_old": 0,
    "rows_refused": 0,
}


class PreparedBodies:
    """The bodies of one host.

    :param start_ns: when its run began.
    """

    def __init__(self, number: int, start_ns: int) -> None:
        self.host = f"node{number:05d}"
        self.run = f"{number:016x}"
        self._start_ns = start_ns
        self._uuids = [f"GPU-{number:05d}-{n}" for n in range(DEVICES)]
        self._devices = [
            {"uuid": uuid, "kind": "gpu", "name": "NVIDIA H200", "memory_bytes": 150_754_820_096}
            for uuid in self._uuids
        ]
        self._batch = _template(self._of_batch())
        self._repeated = _template(self._of_batch() | {"allocations": self._held()})
        self._heartbeat = _template(self._of_heartbeat())

    def record(self) -> bytes:
        """The run, as its launcher tells it."""
        return json.dumps(
            {
                "run": self.run,
                "workflow": f"workflow-{self.run[-1]}",
                "start_ns": self._start_ns,
                "host": self.host,
                "user": "somebody",
                "team": "research",
                "labels": {"model": "tiny"},
                "command": ["python", "train.py", "--config", "configs/large.yaml"],
            }
        ).encode()

    def batch(self, since_ns: int, steps: int, *, repeats: bool) -> bytes:
        """The PERIOD_S seconds from `since_ns` on.

        :param steps: that each rank has made in them.
        :param repeats: the open allocations stand in it.
        """
        times = [since_ns + second * NS_PER_S for second in range(PERIOD_S)]
        of_devices = [time_ns for time_ns in times for _ in range(DEVICES)]
        of_steps = [times[0] // BUCKET_NS * BUCKET_NS, steps, times[-1]] * DEVICES
        template = self._repeated if repeats else self._batch
        return template % (*of_devices, *times, *of_devices, *of_steps)

    def heartbeat(self, time_ns: int, waiting: int, steps: int) -> bytes:
        """A sign of life.

        :param waiting: records that the server does not have yet.
        """
        return self._heartbeat % (time_ns, waiting, waiting * 20_000, *[steps] * DEVICES)

    def lease(self, wait_s: float) -> bytes:
        """A request for captures."""
        return json.dumps({"host": self.host, "runs": [self.run], "wait_s": wait_s}).encode()

    def _of_batch(self) -> dict[str, Any]:
        seconds = range(PERIOD_S)
        run_sample = {"time_ns": _HOLE, "run": self.run, "util_frac": 0.9, "memory_used_bytes": 10**10}
        step = {"run": self.run, "time_ns": _HOLE, "width_ns": BUCKET_NS, "steps": _HOLE}
        step |= {"first_step_ns": self._start_ns, "last_step_ns": _HOLE}
        return {
            "host": self.host,
            "devices": self._devices,
            "samples": [_sample(uuid) for _ in seconds for uuid in self._uuids],
            "host_samples": [_host_sample() for _ in seconds],
            "run_samples": [run_sample | {"device": uuid} for _ in seconds for uuid in self._uuids],
            "steps": [step | {"rank": rank} for rank in range(DEVICES)],
        }

    def _held(self) -> list[dict[str, Any]]:
        return [{"run": self.run, "device": uuid, "start_ns": self._start_ns} for uuid in self._uuids]

    def _of_heartbeat(self) -> dict[str, Any]:
        ranks = [{"rank": n, "pid": 1000 + n, "guard": True, "steps": _HOLE} for n in range(DEVICES)]
        sources = [{"name": name, "state": "ok", "detail": ""} for name in ("host", "nvml", "dcgm", "attribution")]
        return {
            "host": self.host,
            "time_ns": _HOLE,
            "agent_version": "0.1",
            "info": _FACTS,
            "devices": self._devices,
            "sources": sources,
            "runs": [{"run": self.run, "ranks": ranks, "devices": self._uuids, "since_ns": self._start_ns}],
        }


def _template(body: dict[str, Any]) -> bytes:
    text = json.dumps(body, separators=(",", ":"))
    return text.replace("%", "%%").replace(str(_HOLE), "%d").encode()


def _sample(uuid: str) -> dict[str, Any]:
    return {
        "time_ns": _HOLE,
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


def _host_sample() -> dict[str, Any]:
    return {
        "time_ns": _HOLE,
        "cpu_frac": random.random(),
        "memory_used_bytes": random.randrange(10**12),
        "disk_read_bytes_per_s": random.randrange(10**9),
        "disk_write_bytes_per_s": random.randrange(10**9),
        "net_rx_bytes_per_s": random.randrange(10**9),
        "net_tx_bytes_per_s": random.randrange(10**9),
    }
