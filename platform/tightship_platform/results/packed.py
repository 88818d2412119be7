"""Records as they are stored whole: compressed JSON with the version of its form."""

from __future__ import annotations

import json
import zlib
from typing import TypeVar

from tightship_platform.errors import TightshipError
from tightship_platform.results.codec import decode, fields_of
from tightship_platform.units import format_bytes

T = TypeVar("T")

MOST_BYTES = 256 * 2**20
"""Of a record when unpacked; a stored one that claims more is damaged."""


class Unpackable(TightshipError):
    """A stored record is damaged, or of another version than this release writes."""

    http_status = 409


def pack(record: object, *, version: int) -> bytes:
    """The record as bytes.

    :raises TightshipError: it is larger than `unpack` reads.
    """
    text = json.dumps({"version": version, "record": record}, default=fields_of, separators=(",", ":")).encode()
    if len(text) > MOST_BYTES:
        raise TightshipError(
            f"The analysis takes {format_bytes(len(text))}, more than the {format_bytes(MOST_BYTES)} that are stored; "
            "capture fewer steps or ranks"
        )
    return zlib.compress(text, 6)


def unpack(kind: type[T], body: bytes, *, version: int, what: str) -> T:
    """The record again.

    :raises Unpackable: the bytes are cut short or damaged, or were written by a release with another form.
    """
    unpacker = zlib.decompressobj()
    try:
        text = unpacker.decompress(body, MOST_BYTES)
        if not unpacker.eof:
            raise Unpackable(f"The stored {what} is cut short; have it analyzed again")
        stored = json.loads(text)
        found = stored["version"]
        if found == version:
            return decode(kind, stored["record"], what)
    except Unpackable:
        raise
    except (zlib.error, ValueError, KeyError, TypeError, TightshipError) as error:
        raise Unpackable(f"The stored {what} is damaged ({type(error).__name__}); have it analyzed again") from error
    raise Unpackable(f"The stored {what} has form {found} and this release reads {version}; have it analyzed again")
