"""From blocks of text to decoded events: walks the top level of the file and cuts the event array in pieces.

See [Note: how the text is cut] in structure.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Protocol

from tightship_analyzers.trace.blocks import TextSource
from tightship_analyzers.trace.kineto.events import (
    Undecodable,
    decode,
    decode_last,
    decode_one,
    decode_repaired,
    split_broken,
)
from tightship_analyzers.trace.kineto.kinds import Event
from tightship_analyzers.trace.kineto.structure import BETWEEN_EVENTS, SPACE, element_ends, separator
from tightship_analyzers.trace.limits import Limits, TraceError
from tightship_analyzers.trace.names import clean
from tightship_platform.units import format_bytes, plural

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
KEY = re.compile(rb'\s*"((?:[^"\\]++|\\.)*+)"\s*:\s*', re.DOTALL)
STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
SCALAR = re.compile(rb"[^\s,\]}\"\[{]+(?=[\s,\]}])")
AFTER_ARRAY = re.compile(rb'\]\s*(?:,\s*"|\}|\Z)')
BROKEN_FROM_BYTES = 2**18
"""With so much text and no whole event in it, what looks like an event boundary is taken for one."""
KEPT_MEMBER_BYTES = 2**16
"""Top-level entries above this are skipped: package lists, logs."""
KEPT_MEMBERS = 1000


class Second(Protocol):
    """Another reader of the same text, see [Note: the second reader]."""

    def begins_at(self) -> int:
        """The byte of the text at which it starts to read; -1 until it is reported."""

    def members(self) -> dict[str, object] | None:
        """Waits until it has read to the end: the top-level entries; None where it did not get there soundly."""


class EventStream:
    """Iterating yields lists of decoded events; afterwards `members`, `lost` and `warnings` tell the rest."""

    def __init__(self, text: TextSource, limits: Limits, second: Second | None = None) -> None:
        self.members: dict[str, object] = {}
        """The small top-level entries beside the events."""
        self.lost = 0
        """Events that could not be decoded."""
        self.warnings: list[str] = []
        self.cut_off = False
        """The list of events ends early."""
        self.rest_is_elsewhere = False
        """The other reader has the events that are missing here."""
        self._second = second
        self._second_at = -1
        self._text = text
        self._blocks = iter(text)
        self._limits = limits
        self._data = b""
        self.offset = 0
        """The byte of the text at which the window begins."""
        self._first_lost_at = -1
        self._separator: bytes | None = None
        self._found = False
        self._ended_early = False

    def __iter__(self) -> Iterator[list[Event]]:
        self._more()
        if self._data.startswith(BYTE_ORDER_MARK):
            self._drop(len(BYTE_ORDER_MARK))
        first = self._next()
        if first == b"[":
            self._found = True
            self._drop(1)
            yield from self._bare_array()
        elif first == b"{":
            self._drop(1)
            yield from self._members()
        else:
            raise self._not_json(first)
        if not self._found:
            cut = "the file is cut off" if self._ended_early else "it is JSON without `traceEvents`"
            raise TraceError(f"{self._text.source} is not a trace: {cut} at byte {self.offset + len(self._data)}")
        if not self._ended_early and not self.rest_is_elsewhere:
            if self._next():
                self.warnings.append(f"text after the end of the trace, from byte {self.offset}, was left out")
            if self._text.damage:
                self.warnings.append(f"{self._text.damage}, but the trace in it is whole")
        if self.lost:
            self.warnings.append(
                f"{plural(self.lost, 'event')} could not be decoded, the first near byte {self._first_lost_at}"
            )

    def _bare_array(self) -> Iterator[list[Event]]:
        """Events without an object around them, as other tools write them; also without the closing bracket."""
        some = False
        for events in self._events():
            some = True
            yield events
        if self.lost and not some:
            raise TraceError(f"{self._text.source} is not a trace: its JSON array at byte 0 holds no events")

    def _not_json(self, first: bytes) -> TraceError:
        if not first:
            why = self._text.damage or f"it is empty at byte {self.offset}"
        else:
            why = f"it starts with {_beginning(self._data[:12])} at byte {self.offset}"
        return TraceError(f"{self._text.source} is not JSON: {why}; expected a Kineto trace (.json or .json.gz)")

    # -- the window over the text ------------------------------------------------------------------------------

    def _more(self) -> bool:
        block = next(self._blocks, None)
        if block is None:
            return False
        self._data += block
        return True

    def _fill(self, size: int) -> None:
        """At least `size` bytes of text, less at its end; put together once, however small the blocks are."""
        parts, held = [self._data], len(self._data)
        while held < size and (block := next(self._blocks, None)) is not None:
            parts.append(block)
            held += len(block)
        self._data = b"".join(parts)

    def _grow(self, what: str) -> bool:
        """Twice as much text as now, so that a long element is searched a few times only; False at the end."""
        size = len(self._data)
        if size >= self._limits.event_bytes:
            raise TraceError(
                f"{self._text.source}: {what} at byte {self.offset} is longer than "
                f"{format_bytes(self._limits.event_bytes)}; no profiler writes that"
            )
        self._fill(min(2 * size + 1, self._limits.event_bytes))
        return len(self._data) > size

    def _drop(self, count: int) -> None:
        self.offset += count
        self._data = self._data[count:]

    def _next(self, skipped: bytes = SPACE) -> bytes:
        """The next byte that is none of `skipped`, still in the window; empty at the end of the text."""
        while True:
            rest = self._data.lstrip(skipped)
            self._drop(len(self._data) - len(rest))
            if rest or not self._more():
                return self._data[:1]

    def _cut_off(self, what: str) -> None:
        end = self.offset + len(self._data)
        why = self._text.damage or "the file is cut off"
        self.warnings.append(f"{why} at byte {end} of the text, {what}; everything before byte {self.offset} was read")
        self._ended_early = True

    # -- the top level -----------------------------------------------------------------------------------------

    def _members(self) -> Iterator[list[Event]]:
        while True:
            first = self._next(SPACE + b",")
            if first == b"}":
                self._drop(1)
                return
            if not first:
                self._cut_off("between top-level entries")
                return
            key = KEY.match(self._data)
            while key is None or key.end() == len(self._data):
                if first != b'"' or not self._grow("a top-level key"):
                    break
                key = KEY.match(self._data)
            if key is None:
                if self._found or first == b'"':
                    self._cut_off("where a top-level entry should begin")
                    return
                raise self._not_json(first)
            name = key[1].decode("utf-8", "replace")
            self._drop(key.end())
            if name == "traceEvents":
                if self._next() != b"[":
                    raise TraceError(
                        f"{self._text.source} is not a trace: `traceEvents` at byte {self.offset} is not an array"
                    )
                self._drop(1)
                self._found = True
                yield from self._events()
                if self._ended_early or self.rest_is_elsewhere:
                    return
            elif not self._member(name):
                self._cut_off(f"inside the top-level entry {name[:40]!r}")
                return

    def _member(self, name: str) -> bool:
        """Skips one value, keeps it when it is small; False where the text ends first."""
        end = self._value_end()
        if end < 0:
            return False
        if end <= KEPT_MEMBER_BYTES and len(name) <= 100 and len(self.members) < KEPT_MEMBERS:
            try:
                self.members[name] = json.loads(self._data[:end].decode("utf-8", "replace"))
            except (ValueError, RecursionError):
                self.warnings.append(f"the top-level entry {name[:40]!r} before byte {self.offset + end} is not JSON")
        self._drop(end)
        return True

    def _value_end(self) -> int:
        first = self._next()
        while True:
            if first in (b"{", b"["):
                ends, _ = element_ends(self._data)
                if len(ends):
                    return int(ends[0])
            else:
                match = (STRING if first == b'"' else SCALAR).match(self._data)
                if match is not None:
                    return match.end()
                if first in b",]}":
                    return 0
            if not self._grow("a top-level entry"):
                return -1

    # -- the event array ---------------------------------------------------------------------------------------

    def _events(self) -> Iterator[list[Event]]:
        """Up to and with the closing bracket, or the end of the text."""
        while not self._ask_the_second():
            first = self._next(SPACE + b",")
            if first == b"]":
                self._drop(1)
                return
            if not first:
                self._cut_off("inside the list of events")
                self.cut_off = True
                return
            self._fill(self._limits.block_bytes)
            events = self._quickly()
            if events is None:
                events = self._exactly()
            if events is None:
                if self._grow("an event"):
                    continue
                events = self._rest()
                if events is None:
                    return
            if events:
                yield events

    def _ask_the_second(self) -> bool:
        """The window begins where another reader read from, and that one came to the end."""
        if self._second is None:
            return False
        self._second_at = self._second.begins_at()
        if not 0 <= self._second_at <= self.offset:
            return False
        members = self._second.members() if self._second_at == self.offset else None
        self._second, self._second_at = None, -1
        self.rest_is_elsewhere = members is not None
        self.members |= members or {}
        return self.rest_is_elsewhere

    def skip(self, file_bytes: int) -> bool:
        """Leaves events out until so much of the file was read; False where it is not clear where one ends there."""
        while self._text.read_bytes < file_bytes:
            self._drop(len(self._data))
            if not self._more():
                return False
        self._fill(self._limits.block_bytes)
        place = self._data.find(self._separator) if self._separator is not None else -1
        if self._separator is None or place < 0:
            return False
        self._drop(place + self._separator.index(b"}") + 1)
        return True

    def _quickly(self) -> list[Event] | None:
        """All events up to the last separator in the window, or up to where another reader began, if they decode."""
        if self._separator is None:
            return None
        place = self._data.rfind(self._separator)
        if place <= 0:
            return None
        end = place + self._separator.index(b"}") + 1
        if 0 < self._second_at - self.offset < end:
            end = self._second_at - self.offset
        try:
            events = decode(memoryview(self._data)[:end])
        except Undecodable:
            return None
        self._drop(end)
        return events

    def _exactly(self) -> list[Event] | None:
        """All whole events in the window, those that need it repaired; None where there is no whole one."""
        ends, closed_at = element_ends(self._data)
        if closed_at >= 0 and not AFTER_ARRAY.match(self._data, closed_at):
            closed_at = -1
        if not len(ends):
            broken = closed_at >= 0 or len(self._data) >= BROKEN_FROM_BYTES
            return self._broken(closed_at) if broken else None
        if self._separator is None:
            self._separator = separator(self._data, int(ends[0]))
        last = int(ends[-1])
        for attempt in (decode, decode_repaired):
            try:
                events = attempt(self._data[:last])
            except Undecodable:
                continue
            self._drop(last)
            return events
        return self._each(ends.tolist(), closed_at)

    def _each(self, ends: list[int], closed_at: int) -> list[Event] | None:
        """Event by event, each with all repairs; None where more text is needed."""
        events = []
        start = 0
        for end in ends:
            text = self._data[start:end].lstrip(SPACE + b",")
            event = decode_one(text)
            if event is not None:
                events.append(event)
            elif BETWEEN_EVENTS.search(text) is None and (last := decode_last(text)) is not None:
                self._drop(end - len(text) + last[1])
                return [*events, last[0]]
            elif BETWEEN_EVENTS.search(text) is None:
                self._lose(1)
            else:
                # Strings are out of step, so the ends are not to be trusted from here.
                begin = end - len(text)
                self._drop(begin)
                more = self._broken(closed_at - begin if closed_at >= 0 else -1)
                return events + more if more is not None else events or None
            start = end
        self._drop(start)
        return events

    def _broken(self, stop: int) -> list[Event] | None:
        """Piece by piece up to `stop`, the end of the array (-1: not known); None where more text is needed."""
        text = self._data if stop < 0 else self._data[:stop]
        events, lost, used = split_broken(text, final=stop >= 0)
        self._lose(lost)
        self._drop(used)
        return events if used else None

    def _lose(self, count: int) -> None:
        if count and not self.lost:
            self._first_lost_at = self.offset
        self.lost += count

    def _rest(self) -> list[Event] | None:
        """The text is at its end and holds no whole event: it was cut off, or its last event is broken."""
        events = self._broken(-1)
        if events is not None:
            return events
        last = decode_last(self._data)
        if last is not None:
            self._drop(last[1])
            return [last[0]]
        self._cut_off("inside an event")
        self.cut_off = True
        return None


def _beginning(data: bytes) -> str:
    """The first bytes of a file for people: its text, or that it has none."""
    text = clean(data.decode("utf-8", "replace"), len(data)).strip()
    return f"the bytes {data[:4].hex(' ')}" if "\ufffd" in text else f"'{text}'"
