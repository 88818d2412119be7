"""Text of Kineto's JSON → events, and how broken text becomes some."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Container
from itertools import islice
from typing import Any

import msgspec
from msgspec import Raw

from tightship_analyzers.trace.kineto.kinds import (
    ALLOCATIONS,
    FORWARD_BACKWARD,
    OTHER_PHASES,
    PASSED_OVER,
    PHASES,
    TABLE_OF,
    WITH_INTEGERS,
    WITH_TEXT,
    ArrowHead,
    ArrowTail,
    Event,
    Label,
    Moment,
    Uncategorised,
    Unplaced,
)
from tightship_analyzers.trace.kineto.structure import AFTER_LAST_EVENT, BETWEEN_EVENTS


def _any_of(*kinds: Any) -> Any:
    union: Any = kinds[0]
    for kind in kinds[1:]:
        union |= kind
    return union


_CATEGORISED: Any = _any_of(*WITH_TEXT, *PASSED_OVER)
_OTHER: Any = _any_of(ArrowTail, ArrowHead, Moment, Label, Uncategorised, Unplaced, *OTHER_PHASES)
_WHOLE: Any = _any_of(*WITH_INTEGERS, *PASSED_OVER)
DECODERS: tuple[msgspec.json.Decoder[list[Event]], ...] = (
    msgspec.json.Decoder(list[_WHOLE]),
    msgspec.json.Decoder(list[_CATEGORISED]),
)
"""Tried in turn: the first gives up at the first time that is no integer."""
TEXTS = msgspec.json.Decoder(list[Raw])
CATEGORISED: msgspec.json.Decoder[Event] = msgspec.json.Decoder(_CATEGORISED)
CATEGORIES_OF: dict[type, Container[str]] = {
    Uncategorised: TABLE_OF,
    ArrowTail: (FORWARD_BACKWARD,),
    ArrowHead: (FORWARD_BACKWARD,),
    Moment: (ALLOCATIONS,),
}
"""What has its own struct and yet was read as one of these has a field of a wrong type."""
OTHER: msgspec.json.Decoder[Event] = msgspec.json.Decoder(_OTHER)
NOT_JSON_NUMBER = re.compile(rb'(?<!\\)(":\s*)[-+]?(?:nan|inf|infinity)(?=\s*[,}\]])', re.IGNORECASE)
Undecodable = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)


def decode(text: bytes | memoryview) -> list[Event]:
    """`text` is events with commas between them.

    :raises msgspec.MsgspecError: it is not, or a field has another type than any that we know.
    """
    array = b"".join((b"[", text, b"]"))
    for decoder in DECODERS:
        with contextlib.suppress(msgspec.ValidationError):
            return decoder.decode(array)
    return [_decode_any(event) for event in TEXTS.decode(array)]


def _decode_any(text: Raw) -> Event:
    """One event, of a known category or not."""
    try:
        return CATEGORISED.decode(text)
    except msgspec.ValidationError:
        event = OTHER.decode(text)
        if getattr(event, "cat", None) in CATEGORIES_OF.get(type(event), ()):
            raise
        return event


def decode_repaired(text: bytes) -> list[Event]:
    """Like `decode`, after the repairs that do not depend on where events end: bad UTF-8, `nan` and `inf`."""
    return decode(NOT_JSON_NUMBER.sub(rb"\1null", text.decode("utf-8", "replace").encode()))


def decode_one(text: bytes) -> Event | None:
    """One event, whatever types its fields have and with quotes in its name; None where nothing helps."""
    for repair in (decode, decode_repaired, _decode_loosely, _decode_quoted_name):
        try:
            events = repair(text)
        except (*Undecodable, ValueError):
            continue
        return events[0] if len(events) == 1 else None
    return None


NAME_KEY = re.compile(rb'"name"\s*:\s*"')
NAME_END = re.compile(rb'"\s*(?:,\s*"(?:ph|cat|pid|tid|ts|dur|id|args|s|bp)"\s*:|\}\s*\Z)')
REPAIRED_BYTES = 2**16
LAST_EVENT_TRIES = 20


def _decode_quoted_name(text: bytes) -> list[Event]:
    """Quotes and line ends inside the name were not escaped; the name ends where the next known key begins."""
    key = NAME_KEY.search(text)
    end = NAME_END.search(text, key.end()) if key is not None and len(text) <= REPAIRED_BYTES else None
    if key is None or end is None:
        return []
    name = json.dumps(text[key.end() : end.start()].decode("utf-8", "replace"))
    return decode_repaired(text[: key.end()] + name[1:-1].encode() + text[end.start() :])


def _decode_loosely(text: bytes) -> list[Event]:
    """Any JSON object; each field is brought to the type that we need, times stay text."""
    value = json.loads(text.decode("utf-8", "replace"), parse_float=_Float, parse_constant=lambda _: None)
    if not isinstance(value, dict):
        return []
    args = value.get("args")
    wide = {key: _plain(item) for key, item in (args if isinstance(args, dict) else {}).items()}
    plain: dict[str, object] = {key: _plain(item) for key, item in value.items() if key not in ("ts", "dur", "args")}
    plain["args"] = {key: item for key, item in wide.items() if not isinstance(item, float)}
    for key in ("ts", "dur"):
        if key in value:
            plain[key] = Raw(json.dumps(str(value[key])).encode())
    for key in ("pid", "tid"):
        if not isinstance(plain.get(key, -1), int | str):
            plain[key] = str(plain[key])
    for key in ("cat", "name", "ph"):
        if key in plain and not isinstance(plain[key], str):
            plain[key] = "" if plain[key] is None else str(plain[key])
    phase = plain.get("ph", "")
    if phase not in PHASES:
        return [Unplaced()]
    return decode(msgspec.json.encode(plain))


class _Float(str):
    """The text of a number with a point or an exponent."""

    __slots__ = ()


def _plain(item: Any) -> int | str | None:
    """A value of any type → one that the structs take; what cannot be an id or a name becomes None."""
    if isinstance(item, bool) or item is None:
        return None
    if isinstance(item, _Float):
        try:
            number = float(item)
        except ValueError:
            return None
        return int(number) if number.is_integer() and abs(number) < 2**63 else None
    if isinstance(item, int):
        return item
    if isinstance(item, str):
        return item.encode("utf-8", "replace").decode()
    return None


def decode_last(text: bytes) -> tuple[Event, int] | None:
    """An event that broken text starts with and that the end of the array follows, and where it ends."""
    for place in islice(AFTER_LAST_EVENT.finditer(text), LAST_EVENT_TRIES):
        event = decode_one(text[: place.end()])
        if event is not None:
            return event, place.end()
    return None


def split_broken(text: bytes, *, final: bool) -> tuple[list[Event], int, int]:
    """Events out of text that is not JSON → (events, how many were lost, bytes used).

    `text` starts at an event. Without `final` the last piece is left for later, for it may go on.
    """
    events: list[Event] = []
    lost = 0
    start = 0
    for boundary in BETWEEN_EVENTS.finditer(text):
        event = decode_one(text[start : boundary.start() + 1])
        if event is None:
            lost += 1
        else:
            events.append(event)
        start = boundary.end()
    if final and start < len(text):
        event = decode_one(text[start:].rstrip())
        if event is None:
            lost += 1
        else:
            events.append(event)
        start = len(text)
    return events, lost, start
