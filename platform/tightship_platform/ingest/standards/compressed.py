"""Compressed bodies, unpacked up to a bound."""

from __future__ import annotations

import zlib

import cramjam

from tightship_platform.errors import TooLarge
from tightship_platform.ingest.standards.protobuf import Malformed, read_varint

UNPACKED_MAX = 16 * 1024**2
"""Bytes of an unpacked body: some 100,000 series."""


def from_snappy(body: bytes) -> bytes:
    """Unpack a block of snappy (not its framed format), which begins with its length.

    :raises Malformed: it is none.
    :raises TooLarge: it would have more than UNPACKED_MAX bytes.
    """
    length, _ = read_varint(body, 0)
    if length > UNPACKED_MAX:
        raise _too_large(f"{length}")
    try:
        return bytes(cramjam.snappy.decompress_raw(body))
    except cramjam.DecompressionError as error:
        raise Malformed(f"The body is no snappy block ({error})") from error


def from_gzip(body: bytes) -> bytes:
    """Unpack gzip.

    :raises Malformed: it is none, or is cut off.
    :raises TooLarge: it has more than UNPACKED_MAX bytes.
    """
    unpacker = zlib.decompressobj(wbits=31)
    try:
        unpacked = unpacker.decompress(body, UNPACKED_MAX + 1)
    except zlib.error as error:
        raise Malformed(f"The body is no gzip ({error})") from error
    if len(unpacked) > UNPACKED_MAX:
        raise _too_large(f"more than {UNPACKED_MAX}")
    if not unpacker.eof or unpacker.unused_data:
        raise Malformed("The body is not one whole gzip member")
    return unpacked


def _too_large(size: str) -> TooLarge:
    return TooLarge(f"The unpacked body has {size} bytes; send at most {UNPACKED_MAX}, in several requests")
