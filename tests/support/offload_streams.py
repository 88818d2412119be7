"""Streams of a device that computes later than it is told: queues of work that only events order.

[Note: late work] Nothing runs when it is issued. It runs when somebody on the host waits for an event: that alone which
the event needs, or else in an order that is drawn at random among all that events allow, so that another stream's work
may run far ahead or stay behind. Some streams are prompt by chance, as a device with nothing else to do is. So no clock
and no scheduler of threads decides what a test sees, and the same seed shows the same again, as far as the host's own
threads issue alike.

Time is the device's own: each piece of work says how long it takes, and an event knows when it was reached.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

_STAYS = 0.7
"""Chance that the next piece of work comes from the stream of the last one."""
_PROMPT = (0.0, 0.0, 0.02, 1.0)
"""Of these one is drawn per stream: the chance that a piece of work is waited for as soon as it is issued."""


@dataclass(slots=True, eq=False)
class Event:
    """A point in the work of a stream."""

    stream: str
    reached_ns: int | None = None
    """In the device's time; None: not yet."""


@dataclass(slots=True)
class _Piece:
    work: Callable[[], None] | None
    cost_ns: int
    issued_ns: int
    after: Event | None
    event: Event | None


@dataclass(slots=True, eq=False)
class _Stream:
    prompt: float
    pieces: deque[_Piece] = field(default_factory=deque)
    now_ns: int = 0

    @property
    def is_ready(self) -> bool:
        return bool(self.pieces) and ((after := self.pieces[0].after) is None or after.reached_ns is not None)


class Streams:
    """See the module. One thread does the work of all of them, so that whoever waits finds it done."""

    def __init__(self, seed: int, prompt: Mapping[str, float] | None = None) -> None:
        """:param prompt: by stream, the chance that work runs as soon as it is issued; nothing else runs before it is
        needed. None: drawn, all of it.
        """
        self._random = random.Random(f"{seed} streams")
        self._prompt = prompt
        self._streams: dict[str, _Stream] = {}
        self._last: _Stream | None = None
        self._changed = threading.Condition()
        self._wanted: list[Event] = []
        self._only_needed = False
        """Nothing runs beside what is waited for."""
        self._failed: BaseException | None = None
        self.is_closed = False
        self._host = threading.local()
        self.ran = 0
        """Pieces of work that were done."""
        self._thread = threading.Thread(target=self._serve, name="tightship-test-device", daemon=True)
        self._thread.start()

    @property
    def names(self) -> tuple[str, ...]:
        """Of those that were given something."""
        with self._changed:
            return tuple(self._streams)

    def issue(self, stream: str, work: Callable[[], None], cost_ns: int = 0) -> None:
        """Do it at the end of what the stream was given so far."""
        prompt = self._put(stream, work, cost_ns)
        if prompt:
            self.finish(self.record(stream), None)

    def record(self, stream: str) -> Event:
        """An event behind all that the stream was given so far."""
        event = Event(stream)
        self._put(stream, None, 0, event=event)
        return event

    def wait(self, stream: str, event: Event) -> None:
        """What the stream is given from now on comes after the event."""
        self._put(stream, None, 0, after=event)

    def finish(self, event: Event, deadline_s: float | None) -> bool:
        """The host waits until the event is reached. False: the deadline has passed.

        :raises RuntimeError: a piece of work has failed.
        """
        with self._changed:
            self._wanted.append(event)
            self._only_needed = self._prompt is not None or self._random.random() < 0.5
            self._changed.notify_all()
            self._changed.wait_for(lambda: event.reached_ns is not None or self._failed is not None, deadline_s)
            self._wanted.remove(event)
            if self._failed is not None:
                raise RuntimeError(f"Work on a stream has failed: {self._failed}") from self._failed
            if event.reached_ns is None:
                return False
            self._host.now_ns = max(getattr(self._host, "now_ns", 0), event.reached_ns)
            return True

    def close(self) -> None:
        """End the thread; what is left is not done."""
        with self._changed:
            self.is_closed = True
            self._changed.notify_all()
        self._thread.join()

    def _put(
        self,
        name: str,
        work: Callable[[], None] | None,
        cost_ns: int,
        *,
        after: Event | None = None,
        event: Event | None = None,
    ) -> bool:
        """Whether the work is to run now."""
        with self._changed:
            stream = self._streams.get(name)
            if stream is None:
                chance = self._random.choice(_PROMPT) if self._prompt is None else self._prompt.get(name, 0.0)
                stream = self._streams[name] = _Stream(chance)
            stream.pieces.append(_Piece(work, cost_ns, getattr(self._host, "now_ns", 0), after, event))
            return work is not None and stream.prompt > 0 and self._random.random() < stream.prompt

    def _serve(self) -> None:
        with torch.inference_mode():  # tensors of both kinds may be written, and nothing is recorded
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self.is_closed or self._is_wanted())
                    if self.is_closed:
                        return
                    self._do_one()

    def _is_wanted(self) -> bool:
        return self._failed is None and any(event.reached_ns is None for event in self._wanted)

    def _any(self) -> _Stream | None:
        ready = [stream for stream in self._streams.values() if stream.is_ready]
        if ready and (self._last not in ready or self._random.random() > _STAYS):
            self._last = self._random.choice(ready)
        return self._last if ready else None

    def _needed(self) -> _Stream | None:
        event: Event | None = next(event for event in self._wanted if event.reached_ns is None)
        for _ in self._streams:
            stream = self._streams.get(event.stream) if event is not None else None
            if stream is None or not stream.pieces:
                return None
            if stream.is_ready:
                return stream
            event = stream.pieces[0].after
        return None

    def _do_one(self) -> None:
        stream = self._needed() if self._only_needed else self._any()
        if stream is None:
            self._failed = RuntimeError("the streams wait for one another")
            self._changed.notify_all()
            return
        piece = stream.pieces.popleft()
        reached_ns = 0 if piece.after is None or piece.after.reached_ns is None else piece.after.reached_ns
        stream.now_ns = max(stream.now_ns, piece.issued_ns, reached_ns) + piece.cost_ns
        if piece.work is not None:
            self.ran += 1
            try:
                piece.work()
            except BaseException as error:  # raised again in whoever waits
                self._failed = error
                self._changed.notify_all()
        if piece.event is not None:
            piece.event.reached_ns = stream.now_ns
            self._changed.notify_all()
