"""What the engine needs of a machine: buffers, lanes of work beside the computation, marks to wait for, limits, clock.

[Note: lanes and marks] A lane is one host thread that does its work in order; on an accelerator it gives it to one
stream of its own, made once. A mark is a point in the work of a lane or of the computation. It is reached twice: first
the host has issued the work (`issued`), then the device has done it (`device_event`). What waits on the host for
a mark waits for both; what waits on the device (a stream) needs the host only for the first. So the same engine code
orders threads on a CPU and streams on an accelerator.
"""

from __future__ import annotations

import atexit
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor

from tightship_offload.backends.race_detector import Clock, Ledger
from tightship_offload.errors import OffloadError

DEADLINE_S = 300.0
"""For one wait, where nobody says otherwise."""
COMPUTE = "compute"
"""Name of the actor that runs the model: the user's thread, or the device's current stream."""


class DeadlineError(OffloadError):
    """Something that was waited for did not happen in time."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What this process may still take, in bytes; None where nobody says."""

    device_bytes: int | None
    host_bytes: int | None
    pinned_bytes: int | None


@dataclass(frozen=True, slots=True)
class CopyOut:
    """A tensor on its way from the device to the host."""

    source: Tensor
    home: Tensor
    adds: bool
    """To what is there."""


class Mark:
    """A point in the work of a lane or of the computation. See [Note: lanes and marks]."""

    __slots__ = ("blocked_on", "clock", "device_event", "error", "issued", "what")

    def __init__(self, what: str) -> None:
        self.what = what
        self.issued = threading.Event()
        self.device_event: Any = None
        self.error: BaseException | None = None
        self.blocked_on: str | None = None
        self.clock: Clock | None = None


@dataclass(frozen=True, slots=True)
class _Task:
    work: Callable[[], None]
    after: tuple[Mark, ...]
    mark: Mark
    submitted: Clock | None
    place: int


class Lane:
    """One thread that does work in order. Failures stay in the marks, and everything that waits for them fails too."""

    def __init__(self, backend: Backend, name: str, *, on_host: bool, by_place: bool) -> None:
        """:param on_host: the work reads and writes host memory at once, so it waits for marks until they are done.
        :param by_place: of the work that has nothing to wait for, what has the lowest place is done first.
        """
        self.name = name
        self._backend = backend
        self._on_host = on_host
        self._by_place = by_place
        self._waiting: list[_Task] = []
        """Where work is done by place: what the thread has taken from the queue, in the order of submission."""
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name=f"tightship-{name}", daemon=True)
        self._thread.start()

    def submit(self, what: str, work: Callable[[], None], after: Sequence[Mark | None] = (), *, place: int = 0) -> Mark:
        """Do `work` when the lane comes to it and all of `after` is reached."""
        mark = Mark(what)
        ledger = self._backend.ledger
        needed = tuple(m for m in after if m is not None)
        self._tasks.put(_Task(work, needed, mark, ledger.publish(COMPUTE) if ledger else None, place))
        return mark

    def close(self) -> None:
        """Finish what was submitted, then end the thread."""
        self._tasks.put(None)
        self._thread.join(self._backend.deadline_s)

    def _serve(self) -> None:
        with self._backend.enter(self.name):
            while (task := self._next_by_place() if self._by_place else self._tasks.get()) is not None:
                self._do(task)

    def _next_by_place(self) -> _Task | None:
        """Where nothing is ready, the oldest: what it waits for is not behind it."""
        waiting = self._waiting
        while not waiting or not self._tasks.empty():
            task = self._tasks.get()
            if task is None:
                if not waiting:
                    return None
                self._tasks.put(None)  # for later: nothing comes after it
                break
            waiting.append(task)
        ready = [task for task in waiting if all(map(self._backend.is_over, task.after))]
        task = min(ready, key=lambda task: task.place) if ready else waiting[0]
        waiting.remove(task)
        return task

    def _do(self, task: _Task) -> None:
        backend, mark = self._backend, task.mark
        try:
            if backend.ledger:
                backend.ledger.join(self.name, task.submitted)
            for earlier in task.after:
                mark.blocked_on = earlier.what
                backend.reach(earlier, self.name, on_host=self._on_host)
            mark.blocked_on = None
            backend.before_work(self.name)
            task.work()
            mark.device_event = backend.record()
            if backend.ledger:
                mark.clock = backend.ledger.publish(self.name)
        except BaseException as error:  # it is raised again in whoever waits
            mark.error = error
        finally:
            mark.issued.set()


class Backend(ABC):
    """One kind of machine."""

    device: torch.device

    def __init__(self, *, deadline_s: float, ledger: Ledger | None = None) -> None:
        self.deadline_s = deadline_s
        self.ledger = ledger
        self._lanes: list[Lane] = []
        self._closing = threading.RLock()
        _open.add(self)

    @abstractmethod
    def device_buffer(self, size_bytes: int) -> Tensor:
        """Uninitialised device memory with a storage of its own, uint8 (size,)."""

    @abstractmethod
    def host_buffer(self, size_bytes: int) -> Tensor:
        """Uninitialised host memory from which the device copies at full speed, uint8 (size,)."""

    @abstractmethod
    def limits(self) -> Limits:
        """What is free now."""

    @abstractmethod
    def enter(self, lane: str) -> AbstractContextManager[object]:
        """The surroundings of a lane's thread: its stream."""

    @abstractmethod
    def record(self) -> Any:
        """A device event behind all that the current stream was given, or None where work is done when it returns."""

    @abstractmethod
    def order_after(self, device_event: Any) -> None:
        """The current stream goes on only after the event; the host does not wait."""

    @abstractmethod
    def finish(self, device_event: Any, deadline_s: float) -> bool:
        """The host waits for the event. False: the deadline has passed."""

    @abstractmethod
    def is_done(self, device_event: Any) -> bool:
        """Whether the event is reached; nobody waits."""

    @abstractmethod
    def before_work(self, lane: str) -> None:
        """Called in a lane before each piece of work (delays of tests)."""

    @abstractmethod
    def abandon(self, slot: Tensor) -> None:
        """The content of this device buffer must not be used any more (poison of tests)."""

    @abstractmethod
    def copy_out(self, copies: Sequence[CopyOut], largest_bytes: int) -> None:
        """In a lane: tensors of the device to the host, or added to what is there.

        :param largest_bytes: of any tensor that will ever be copied.
        """

    def record_timed(self) -> Any:
        """As `record`, with the time at which the stream comes to it; None where the device's time is the host's."""
        return None

    def elapsed_ns(self, begun: Any, ended: Any) -> int | None:
        """The device's time between two timed events; None: it has not come to both yet."""
        return None

    def clock_ns(self) -> int:
        """Monotonic."""
        return time.perf_counter_ns()

    def lane(self, name: str, *, on_host: bool = False, by_place: bool = False) -> Lane:
        """A new lane; it lives until `close`."""
        lane = Lane(self, name, on_host=on_host, by_place=by_place)
        self._lanes.append(lane)
        return lane

    def mark(self, what: str) -> Mark:
        """Reached when the device has done all that the computation was given so far."""
        mark = Mark(what)
        mark.device_event = self.record()
        if self.ledger:
            mark.clock = self.ledger.publish(COMPUTE)
        mark.issued.set()
        return mark

    def is_over(self, mark: Mark) -> bool:
        """Whether to wait for the mark on the host would be no wait."""
        if not mark.issued.is_set():
            return False
        return mark.error is not None or mark.device_event is None or self.is_done(mark.device_event)

    def reach(self, mark: Mark, actor: str, *, on_host: bool) -> int:
        """Go on only after the mark. Nanoseconds for which the host waited.

        :raises DeadlineError: it was not reached in time.
        :raises OffloadError: the work that leads to it has failed.
        """
        begun = self.clock_ns()
        if not mark.issued.is_set() and not mark.issued.wait(self.deadline_s):
            raise DeadlineError(self._late(mark))
        if mark.error is not None:
            if isinstance(mark.error, OffloadError):
                raise mark.error
            kind = type(mark.error).__name__
            raise OffloadError(f"{mark.what} has failed with {kind}: {_one_line(mark.error)}") from mark.error
        if mark.device_event is not None:
            if not on_host:
                self.order_after(mark.device_event)
            elif not self.finish(mark.device_event, self.deadline_s):
                raise DeadlineError(self._late(mark))
        if self.ledger:
            self.ledger.join(actor, mark.clock)
        return self.clock_ns() - begun

    def close(self) -> None:
        """Finish all lanes' work, end their threads and give memory back. A second time does nothing."""
        with self._closing:
            while self._lanes:
                self._lanes.pop().close()

    def _late(self, mark: Mark) -> str:
        cause = f", which waits for: {mark.blocked_on}" if mark.blocked_on else ""
        return (
            f"Waited {self.deadline_s:g} s for: {mark.what}{cause}; look whether the process was stopped or swaps; if "
            "the machine is that slow, raise deadline_s (in the plan or the call of apply; `tightship run "
            "--offload-deadline`)"
        )


_open: WeakSet[Backend] = WeakSet()


@atexit.register
def _close_all() -> None:
    """A script may end with updates on their way; a thread inside of torch when Python ends aborts the process."""
    for backend in list(_open):
        backend.close()


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
