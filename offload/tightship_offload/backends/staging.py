"""Gradients from the device that are added to what is on the host: through two buffers in turn.

While the host adds one tensor, the next one is on its way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from tightship_offload.backends.base import Backend, CopyOut, DeadlineError
from tightship_offload.plan.capabilities import RUNTIME

BUFFERS = RUNTIME.staging_buffers


class Staging:
    """Of one lane of a backend whose copies are over later than they are issued."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._buffers: list[Tensor] = []
        self._on_their_way: deque[tuple[Any, Tensor, Tensor]] = deque()

    def copy_out(self, copies: Sequence[CopyOut], largest_bytes: int) -> None:
        """See `Backend.copy_out`. What is added is there on return, the rest when the stream comes to it.

        :raises DeadlineError: a copy was not over in time.
        """
        try:
            for copy in copies:
                if copy.adds:
                    self._send(copy, largest_bytes)
                    continue
                self._add_all()  # what comes later replaces it, where the two have one home
                copy.home.copy_(copy.source, non_blocking=True)
            self._add_all()
        finally:
            self._on_their_way.clear()

    def _send(self, copy: CopyOut, largest_bytes: int) -> None:
        if not self._buffers:
            self._buffers = [self._backend.host_buffer(largest_bytes) for _ in range(BUFFERS)]
        if len(self._on_their_way) == BUFFERS:
            self._add()
        source, home = copy.source, copy.home
        buffer = self._buffers[0]
        self._buffers.reverse()
        staged = buffer[: source.numel() * source.element_size()].view(source.dtype)
        staged = staged.as_strided(home.shape, home.stride())
        staged.copy_(source, non_blocking=True)
        self._on_their_way.append((self._backend.record(), staged, home))

    def _add_all(self) -> None:
        while self._on_their_way:
            self._add()

    def _add(self) -> None:
        arrived, staged, home = self._on_their_way.popleft()
        if not self._backend.finish(arrived, self._backend.deadline_s):
            raise DeadlineError(f"Waited {self._backend.deadline_s:g} s for a gradient to arrive on the host")
        home.add_(staged)
