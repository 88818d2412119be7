"""One event of Kineto's JSON as a struct that names only the fields we need, and how broken text becomes one.

The decoder skips what is not named; that and keeping numbers of time as text is what makes it fast and exact.
"""

from __future__ import annotations

import json
import re
from itertools import islice
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

from tightship_analyzers.trace.structure import AFTER_LAST_EVENT, BETWEEN_EVENTS

Number = int | str | None
NO_TIME = Raw(b"")


class Args(Struct, gc=False, frozen=True):
    """The `args` of an event."""

    external_id: Number = field(name="External id", default=-1)
    correlation: Number = -1
    sequence: Number = field(name="Sequence number", default=-1)
    stream: Number = -1
    device: Number = -1
    bytes: Number = -1
    bandwidth: Raw | UnsetType = field(name="memory bandwidth (GB/s)", default=UNSET)
    grid: Raw | UnsetType = UNSET
    python_id: Number = field(name="Python id", default=-1)
    python_parent_id: Number = field(name="Python parent id", default=-1)
    size: Number = -1
    wait_stream: Number = field(name="wait_on_stream", default=-1)
    wait_record: Number = field(name="wait_on_cuda_event_record_corr_id", default=-1)
    dims: Raw | UnsetType = field(name="Input Dims", default=UNSET)
    types: Raw | UnsetType = field(name="Input type", default=UNSET)
    collective: Number = field(name="Collective name", default=None)
    group: Number = field(name="Process Group Name", default=None)
    group_size: Number = field(name="Group size", default=-1)
    collective_seq: Number = field(name="Seq", default=-1)
    dtype: Number = None
    in_elements: Number = field(name="In msg nelems", default=-1)
    out_elements: Number = field(name="Out msg nelems", default=-1)
    old_external_id: Number = field(name="external id", default=-1)
    old_dims: Raw | UnsetType = field(name="Input dims", default=UNSET)


class InstantArgs(Struct, gc=False, frozen=True):
    """The `args` of a memory event."""

    address: Number = field(name="Addr", default=-1)
    bytes: Number = field(name="Bytes", default=None)
    device_type: Number = field(name="Device Type", default=0)
    device_id: Number = field(name="Device Id", default=-1)
    allocated: Number = field(name="Total Allocated", default=-1)
    reserved: Number = field(name="Total Reserved", default=-1)


class LabelArgs(Struct, gc=False, frozen=True):
    """The `args` of an event that names a process or a thread."""

    name: str | int | float | None = None
    labels: str | int | float | None = None


NO_ARGS = Args()
NO_INSTANT_ARGS = InstantArgs()
NO_LABEL_ARGS = LabelArgs()


class Complete(Struct, gc=False, tag_field="ph", tag="X"):
    """Something with a start and a duration."""

    cat: str = ""
    name: str = ""
    pid: int | str = -1
    tid: int | str = -1
    ts: Raw = NO_TIME
    dur: Raw = NO_TIME
    args: Args = NO_ARGS


class Instant(Struct, gc=False, tag_field="ph", tag="i"):
    """A moment: allocations, and marks of the profiler."""

    cat: str = ""
    name: str = ""
    pid: int | str = -1
    tid: int | str = -1
    ts: Raw = NO_TIME
    args: InstantArgs = NO_INSTANT_ARGS


class FlowStart(Struct, gc=False, tag_field="ph", tag="s"):
    """The tail of an arrow."""

    cat: str = ""
    pid: int | str = -1
    tid: int | str = -1
    ts: Raw = NO_TIME
    id: Number = -1


class FlowEnd(Struct, gc=False, tag_field="ph", tag="f"):
    """The head of an arrow."""

    cat: str = ""
    pid: int | str = -1
    tid: int | str = -1
    ts: Raw = NO_TIME
    id: Number = -1


class Label(Struct, gc=False, tag_field="ph", tag="M"):
    """Names a process or a thread."""

    cat: str = ""
    name: str = ""
    pid: int | str = -1
    tid: int | str = -1
    args: LabelArgs = NO_LABEL_ARGS


class Unplaced(Struct, gc=False, tag_field="ph", tag="?"):
    """An event of a phase that no table holds, or none at all."""

    cat: str = ""


# The other phases of the format that Kineto's JSON borrows; they only have to be counted.
OTHER_PHASES = tuple(
    msgspec.defstruct(f"Phase_{ord(phase)}", [], tag_field="ph", tag=phase, gc=False, bases=(Unplaced,))
    for phase in "BEIbenSTpFtCNODPRcvV(),="
)

Event = Complete | Instant | FlowStart | FlowEnd | Label | Unplaced


def _decoder() -> msgspec.json.Decoder[list[Event]]:
    kinds: Any = Event
    for phase in OTHER_PHASES:
        kinds |= phase
    return msgspec.json.Decoder(list[kinds])


DECODER = _decoder()
NOT_JSON_NUMBER = re.compile(rb'(?<!\\)(":\s*)[-+]?(?:nan|inf|infinity)(?=\s*[,}\]])', re.IGNORECASE)
Undecodable = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)


def decode(text: bytes | memoryview) -> list[Event]:
    """`text` is events with commas between them.

    :raises msgspec.MsgspecError: it is not, or a field has another type than any that we know.
    """
    return DECODER.decode(b"".join((b"[", text, b"]")))


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
    plain: dict[str, Any] = {key: _plain(item) for key, item in value.items() if key not in ("ts", "dur", "args")}
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
    if len(phase) != 1 or phase not in "XisfMBEIbenSTpFtCNODPRcvV(),=":
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
