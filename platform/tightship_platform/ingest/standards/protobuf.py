"""Protocol buffers as they travel (https://protobuf.dev/programming-guides/encoding/), read without making objects of
what nobody asked for: an empty message of two bytes would become a hundred in memory.

A field is known by its tag: its number and its wire type in one integer. A field with a known number and another type
is unknown, as it is to Google's own readers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from tightship_platform.errors import TightshipError

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
_DOUBLE = struct.Struct("<d")
_MOST_BYTES = 10
"""Of a varint."""


class Malformed(TightshipError):
    """A body that is not what it says it is; sent again it would be refused again."""


def tag(number: int, kind: int) -> int:
    """Of a field."""
    return number << 3 | kind


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """A whole number below 2**64, and where it ends.

    :raises Malformed: it is cut off or too long.
    """
    value = 0
    for index, byte in enumerate(data[at : at + _MOST_BYTES]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80 and value < 1 << 64:
            return value, at + index + 1
    raise Malformed("A number in the protobuf body is cut off or too long")


def read_fields(data: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Fields of a message as tag and value: bytes, or the number of a varint.

    :raises Malformed: it is no message.
    """
    at, end = 0, len(data)
    while at < end:
        field = data[at]
        if field < 0x80:
            at += 1
        else:
            field, at = read_varint(data, at)
        kind = field & 7
        if kind == LENGTH:
            size = data[at] if at < end else 0x80
            if size < 0x80:
                at += 1
            else:
                size, at = read_varint(data, at)
        elif kind == VARINT:
            number, at = read_varint(data, at)
            yield field, number
            continue
        elif kind == FIXED64:
            size = 8
        elif kind == FIXED32:
            size = 4
        else:
            raise Malformed(f"The protobuf body has a field of the wire type {kind}, which nobody writes")
        if at + size > end or field < 8:
            raise Malformed("A field in the protobuf body is cut off, or has no number")
        yield field, data[at : at + size]
        at += size


def as_double(raw: bytes | int) -> float:
    """The number of a FIXED64 field."""
    assert isinstance(raw, bytes)
    return float(_DOUBLE.unpack(raw)[0])


def as_signed(number: bytes | int) -> int:
    """A varint, or the bytes of a fixed field, as a signed number of 64 bits."""
    if isinstance(number, bytes):
        return int.from_bytes(number, "little", signed=True)
    return number - (1 << 64) if number >= 1 << 63 else number


def write_varint(number: int) -> bytes:
    """The same on the way out."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(out) + bytes([number])


def write_bytes(number: int, value: bytes) -> bytes:
    """A field of bytes, text, or a message; an empty one is left out."""
    return write_varint(tag(number, LENGTH)) + write_varint(len(value)) + value if value else b""


def write_number(number: int, value: int) -> bytes:
    """A field of a whole number from 0; 0 is left out."""
    return write_varint(tag(number, VARINT)) + write_varint(value) if value else b""
