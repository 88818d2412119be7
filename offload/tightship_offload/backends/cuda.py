"""A CUDA (or HIP) device: each lane has one stream for good, host buffers are pinned, marks are events.

[Note: unseen] This file was written without a GPU at hand. The engine above it is tested on the CPU backend; what is
here is streams, events and pinned memory only, and has not run.

[Note: pages of their own] Memory is pinned by the page, so what is pinned shares its pages with nothing else. A fork
(the workers of a DataLoader) would part parent and child at the next write to a page, and the device might go on with
the child's half. So a forked child does not get these pages: the parameters of layers that move are not there, and it
must not touch them. It may drop them: the mappings stay, as unmapping them would unmap what has come in their place.

[Note: first touch] The kernel zeroes a page when it is first touched, and to pin memory is to touch all of it, on one
thread. So huge pages are asked for, and all of torch's threads touch them before they are pinned.
"""

from __future__ import annotations

import mmap
import os
import resource
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor

from tightship_offload.backends.base import DEADLINE_S, Backend, CopyOut, Limits
from tightship_offload.backends.cpu import host_free_bytes
from tightship_offload.backends.race_detector import Ledger
from tightship_offload.backends.staging import Staging
from tightship_offload.errors import OffloadError

_POLL_S = 50e-6

_mapped: WeakSet[mmap.mmap] = WeakSet()
_kept: list[object] = []
"""What a forked child must not unmap."""

os.register_at_fork(after_in_child=lambda: _kept.extend(_mapped))


def own_pages(size_bytes: int) -> Tensor:
    """Whole pages of host memory, zeros, uint8, for at least so many bytes. See [Note: pages of their own]."""
    pages = -(-max(size_bytes, 1) // mmap.PAGESIZE)
    memory = mmap.mmap(-1, pages * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_DONTFORK"):
        memory.madvise(mmap.MADV_DONTFORK)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    _mapped.add(memory)
    buffer = torch.frombuffer(memory, dtype=torch.uint8)  # which keeps the mapping as long as it is there
    return buffer.zero_()  # see [Note: first touch]


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


class CudaBackend(Backend):
    """See the module."""

    def __init__(self, device: torch.device, *, deadline_s: float = DEADLINE_S, ledger: Ledger | None = None) -> None:
        super().__init__(deadline_s=deadline_s, ledger=ledger)
        index = device.index if device.index is not None else torch.cuda.current_device()
        self.device = torch.device("cuda", index)
        self._streams: dict[str, torch.cuda.Stream] = {}
        self._pinned: list[Tensor] = []
        self._staging = Staging(self)

    def device_buffer(self, size_bytes: int) -> Tensor:
        try:
            return torch.empty(size_bytes, dtype=torch.uint8, device=self.device)
        except torch.cuda.OutOfMemoryError as error:
            free = self.limits().device_bytes or 0
            raise OffloadError(
                f"No device memory for a slot of {size_bytes / 2**20:.0f} MiB ({free / 2**20:.0f} MiB are free); use a "
                "smaller window or fewer resident layers"
            ) from error

    def host_buffer(self, size_bytes: int) -> Tensor:
        # torch's own pinned allocator rounds up to powers of two; registered pages are as many as are needed.
        buffer = own_pages(size_bytes)
        status = int(_runtime().cudaHostRegister(buffer.data_ptr(), buffer.numel(), 0))
        if status != 0:
            soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
            with suppress(
                RuntimeError, AssertionError
            ):  # the failure would be raised again by the next kernel, whosever it is
                torch.zeros(1, device=self.device)
            lock = "unlimited" if soft == resource.RLIM_INFINITY else f"{soft / 2**20:.0f} MiB"
            raise OffloadError(
                f"Cannot pin {size_bytes / 2**20:.0f} MiB of host memory (CUDA error {status}, memlock limit: {lock}); "
                "raise it with `ulimit -l unlimited` or make more layers resident"
            )
        self._pinned.append(buffer)
        return buffer[:size_bytes]

    def close(self) -> None:
        with self._closing:
            super().close()
            torch.cuda.synchronize(self.device)  # a copy may be on its way from or to them
            while self._pinned:
                _runtime().cudaHostUnregister(self._pinned[-1].data_ptr())
                self._pinned.pop()

    def limits(self) -> Limits:
        free, _ = torch.cuda.mem_get_info(self.device)
        soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        pinned = None if soft == resource.RLIM_INFINITY else soft
        return Limits(device_bytes=free, host_bytes=host_free_bytes(), pinned_bytes=pinned)

    def enter(self, lane: str) -> AbstractContextManager[object]:
        torch.cuda.set_device(self.device)  # per thread
        stream = self._streams.setdefault(lane, torch.cuda.Stream(self.device))  # type: ignore[no-untyped-call]
        return torch.cuda.stream(stream)

    def record(self) -> Any:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event

    def order_after(self, device_event: Any) -> None:
        torch.cuda.current_stream(self.device).wait_event(device_event)

    def finish(self, device_event: Any, deadline_s: float) -> bool:
        # Event.synchronize has no deadline, so the event is asked; the first answers come without sleeping.
        until = time.monotonic() + deadline_s
        while not device_event.query():
            if time.monotonic() > until:
                return False
            time.sleep(_POLL_S)
        return True

    def is_done(self, device_event: Any) -> bool:
        return bool(device_event.query())

    def before_work(self, lane: str) -> None:
        """Nothing."""

    def abandon(self, slot: Tensor) -> None:
        """Nothing: the next copy overwrites it."""

    def copy_out(self, copies: Sequence[CopyOut], largest_bytes: int) -> None:
        self._staging.copy_out(copies, largest_bytes)

    def record_timed(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event

    def elapsed_ns(self, begun: Any, ended: Any) -> int | None:
        if not begun.query() or not ended.query():
            return None
        return round(float(begun.elapsed_time(ended)) * 1e6)  # milliseconds
