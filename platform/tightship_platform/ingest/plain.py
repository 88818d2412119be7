"""Bodies that need no second look: heartbeats and batches read straight into records, checked by their types.

The types are made of the wire's records, so that each has the same fields in the same order, and of `bounds`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass
from types import GenericAlias
from typing import Annotated, Any, TypeVar, cast, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Struct, structs

from tightship_platform.ingest.bounds import bounds_of
from tightship_platform.wire import Batch, DeviceRecord, Heartbeat, LeaseRequest, LiveRun

T = TypeVar("T")
_MUST_BE_NULL = ("end_ns",)
"""An allocation that ends needs a second look."""
_COMPARED = ("start_ns", "since_ns", "memory_bytes")
"""What has to be as it was the last time, when it was looked at."""

values_of = cast("Callable[[object], tuple[Any, ...]]", structs.astuple)
"""Values of a record that was read here, in the order of its fields."""


class _Record(Struct, forbid_unknown_fields=True, gc=False):
    """Reads one record of the wire."""


def _reader_of(record: type[Any]) -> type[Struct]:
    """A type that reads a record of the wire whose values need no second look."""
    hints = get_type_hints(record)
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    for field in dataclasses.fields(record):
        kind = _plain(field.name, hints[field.name])
        if field.default_factory is not dataclasses.MISSING:
            fields.append((field.name, kind, msgspec.field(default_factory=field.default_factory)))
        elif field.default is not dataclasses.MISSING:
            fields.append((field.name, kind, field.default))
        else:
            fields.append((field.name, kind))
    return msgspec.defstruct(record.__name__, fields, bases=(_Record,), module=__name__)


def _plain(name: str, kind: Any) -> Any:
    """What a field of the wire may be that needs no second look."""
    if get_origin(kind) is list:
        (item,) = get_args(kind)
        return GenericAlias(list, (_reader_of(item),)) if isinstance(item, type) and is_dataclass(item) else kind
    if name in _MUST_BE_NULL:
        return None
    numbers = [one for one in get_args(kind) or (kind,) if one in (int, float)]
    if name in _COMPARED or len(numbers) != 1:
        return kind
    bounds = bounds_of(name)
    if bounds.is_whole != (numbers[0] is int):
        raise TypeError(f"{name} is {kind}, and ingest.bounds says otherwise")
    checked: Any = Annotated[numbers[0], Meta(ge=bounds.least, le=bounds.most)]
    return checked if kind is numbers[0] else checked | None


def _reads(record: type[T]) -> Callable[[bytes], T | None]:
    """Reads a body into a record with the attributes of the wire's; None: it has to go the long way."""
    decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(cast("type[T]", _reader_of(record)))

    def read(body: bytes) -> T | None:
        try:
            return decoder.decode(body)
        except (msgspec.DecodeError, RecursionError):
            return None

    return read


read_batch = _reads(Batch)
read_heartbeat = _reads(Heartbeat)
read_lease = _reads(LeaseRequest)


def described(devices: Sequence[DeviceRecord]) -> tuple[tuple[str, str, str, int | None], ...]:
    """Devices as a host describes them, fit to be compared."""
    return tuple((one.uuid, one.kind, one.name, one.memory_bytes) for one in devices)


def stated_of_host(beat: Heartbeat) -> tuple[Any, ...]:
    """What a heartbeat says of its host in words, fit to be compared; its figures change."""
    words = {name: value if isinstance(value, str) else None for name, value in beat.info.items()}
    return beat.agent_version, words, [(one.name, one.state, one.detail) for one in beat.sources]


def stated_of_run(live: LiveRun) -> tuple[Any, ...]:
    """What a heartbeat says of a run, fit to be compared; its steps change."""
    return live.since_ns, list(live.devices), [(one.rank, one.pid, one.guard) for one in live.ranks]
