"""The CPU as the device: host memory plays both sides, threads play the copy engines.

It serves where there is no accelerator, so that the same line of a training script runs everywhere, and it is what the
engine is tested on: copies can be delayed at random, and a slot that was given up is filled with NaN, so that a missing
wait or a stale view shows as a wrong result and does not hide behind luck.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tightship_offload.backends.base import DEADLINE_S, Backend, CopyOut, Limits
from tightship_offload.backends.race_detector import Ledger

_POISON = 0xFF
"""As every byte of a number: NaN in fp16, bf16, fp32 and fp64; -1 in the integers."""


class CpuBackend(Backend):
    """See the module."""

    device = torch.device("cpu")

    def __init__(
        self,
        *,
        deadline_s: float = DEADLINE_S,
        ledger: Ledger | None = None,
        poison: bool = False,
        delay_s: float = 0.0,
        seed: int = 0,
    ) -> None:
        """:param delay_s: before each piece of a lane's work it sleeps up to so long, at random from `seed`."""
        super().__init__(deadline_s=deadline_s, ledger=ledger)
        self._poison = poison
        self._delay_s = delay_s
        self._seed = seed
        self._random: dict[str, random.Random] = {}

    def device_buffer(self, size_bytes: int) -> Tensor:
        buffer = self.host_buffer(size_bytes)
        self.abandon(buffer)
        return buffer

    def host_buffer(self, size_bytes: int) -> Tensor:
        return torch.empty(size_bytes, dtype=torch.uint8, device="cpu")  # scripts set other default devices

    def limits(self) -> Limits:
        free = host_free_bytes()
        return Limits(device_bytes=free, host_bytes=free, pinned_bytes=None)

    def enter(self, lane: str) -> AbstractContextManager[object]:
        self._random[lane] = random.Random(f"{self._seed} {lane}")  # noqa: S311 - delays, no secrets
        return nullcontext()

    def record(self) -> Any:
        return None

    def order_after(self, device_event: Any) -> None:
        """Work is done when it returns: nothing to wait for."""

    def finish(self, device_event: Any, deadline_s: float) -> bool:
        return True

    def is_done(self, device_event: Any) -> bool:
        return True

    def before_work(self, lane: str) -> None:
        if self._delay_s:
            time.sleep(self._random[lane].random() * self._delay_s)

    def abandon(self, slot: Tensor) -> None:
        if self._poison:
            slot.fill_(_POISON)

    def copy_out(self, copies: Sequence[CopyOut], largest_bytes: int) -> None:
        for copy in copies:
            if copy.adds:
                copy.home.add_(copy.source)
            else:
                copy.home.copy_(copy.source)


def host_free_bytes() -> int | None:
    """Host memory that this process can still get: what the kernel calls available, within the cgroup's limit (v2)."""
    found: list[int] = []
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found.append(int(line.split()[1]) * 1024)
    except (OSError, ValueError, IndexError):
        return None
    for group in _cgroups():
        try:
            limit = (group / "memory.max").read_text().strip()
            if limit != "max":
                used = int((group / "memory.current").read_text())
                cache = _stat(group / "memory.stat", "inactive_file")
                found.append(max(0, int(limit) - used + cache))
        except (OSError, ValueError):
            continue
    return min(found, default=None)


def _cgroups() -> list[Path]:
    """The cgroup of this process and all above it."""
    root = Path("/sys/fs/cgroup")
    try:
        inside = Path("/proc/self/cgroup").read_text().strip().rpartition("::")[2].lstrip("/")
    except OSError:
        return []
    group = root / inside
    return [group, *(parent for parent in group.parents if parent.is_relative_to(root))]


def _stat(path: Path, name: str) -> int:
    for line in path.read_text().splitlines():
        if line.startswith(f"{name} "):
            return int(line.split()[1])
    return 0
