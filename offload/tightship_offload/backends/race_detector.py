"""Proof that no two accesses of one run raced: vector clocks over what the lanes read, write and wait for.

[Note: happens-before] Every lane, and the thread that computes, is an actor with a clock per actor. Whoever completes a
`Mark` leaves a copy of his clock in it; whoever waits for the mark takes the maximum of both. An access is ordered
after another one exactly if its actor's clock has reached that access's own tick. So a missing wait is found even when,
on this machine and this time, the accesses did happen in the right order: the check is about what was waited for, not
about when things ran. (Lamport 1978; Flanagan and Freund, "FastTrack", PLDI 2009.)
"""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TypeAlias

from tightship_offload.errors import OffloadError

Clock: TypeAlias = dict[str, int]


class RaceError(OffloadError):
    """Two accesses of the same memory were not ordered."""


@dataclass(slots=True)
class _History:
    """The accesses of one thing that a later access must be ordered after."""

    written: tuple[str, int] | None = None
    read: Clock = field(default_factory=dict)


class Ledger:
    """What was accessed by whom, after what."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clocks: defaultdict[str, Clock] = defaultdict(dict)
        self._things: defaultdict[str, _History] = defaultdict(_History)
        self.accesses = 0
        self.races: list[str] = []
        """Every race seen, also when the error it raised was swallowed by somebody."""

    def publish(self, actor: str) -> Clock:
        """The actor's clock for others to join; what he does from now on is later."""
        with self._lock:
            clock = self._clocks[actor]
            clock.setdefault(actor, 1)
            copy = dict(clock)
            clock[actor] += 1
            return copy

    def join(self, actor: str, clock: Clock | None) -> None:
        """What `clock` had seen is now before everything that the actor does."""
        with self._lock:
            mine = self._clocks[actor]
            for other, tick in (clock or {}).items():
                if mine.get(other, 0) < tick:
                    mine[other] = tick

    def read(self, actor: str, thing: str) -> None:
        """:raises RaceError: the last write of the thing is not ordered before this."""
        with self._lock:
            history = self._things[thing]
            self.accesses += 1
            self._ordered(actor, thing, "reads", history.written, "written")
            history.read[actor] = self._clocks[actor].setdefault(actor, 1)

    def write(self, actor: str, thing: str) -> None:
        """:raises RaceError: the last write of the thing, or a read since, is not ordered before this."""
        with self._lock:
            history = self._things[thing]
            self.accesses += 1
            self._ordered(actor, thing, "writes", history.written, "written")
            for reader, tick in history.read.items():
                self._ordered(actor, thing, "writes", (reader, tick), "read")
            history.written = (actor, self._clocks[actor].setdefault(actor, 1))
            history.read.clear()

    def _ordered(self, actor: str, thing: str, does: str, earlier: tuple[str, int] | None, done: str) -> None:
        if earlier is None or earlier[0] == actor or self._clocks[actor].get(earlier[0], 0) >= earlier[1]:
            return
        race = f"{actor} {does} {thing} without waiting for {earlier[0]}, by which it was {done}"
        self.races.append(race)
        raise RaceError(f"{race}; this is a defect of the offload engine, report it with the plan")
