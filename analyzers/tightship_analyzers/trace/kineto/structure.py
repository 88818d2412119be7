"""Where the values of a JSON array end, found without decoding them.

[Note: how the text is cut]
A trace is cut at event boundaries so that only a block of it is in memory. Two splitters work together:

- The fast one knows how this file separates events (`\\n  },\\n  {` in Kineto's layout) and takes the last such
  place in the block. It may be fooled, by an argument that looks like an event. But the text starts at an event, and
  JSON is read in one way only: if all of the piece decodes as a list of events, the cut was right.
- The exact one follows strings and brackets through the block. It is used where the fast one failed, where there is
  no common separator, and at the end of the array.

A file that is not JSON (unescaped quotes in old traces, damaged bytes) fools the exact cut too; then pieces are
taken between places that look like the start of an event, each is decoded by itself, and what does not decode is
counted and left out.
"""

from __future__ import annotations

import re

import numpy as np

from tightship_analyzers.trace.columns import Int64s

QUOTE, OPEN, CLOSE = 1, 2, 3
_CODES = bytearray(256)
_CODES[ord('"')] = QUOTE
_CODES[ord("{")] = _CODES[ord("[")] = OPEN
_CODES[ord("}")] = _CODES[ord("]")] = CLOSE
CODES = bytes(_CODES)

SPACE = b" \t\r\n"
EVENT_KEYS = rb'"(?:ph|cat|name|pid|tid|ts|dur|id|args|s|bp)"\s*:'
BETWEEN_EVENTS = re.compile(rb"\}\s*,\s*(?=\{\s*" + EVENT_KEYS + rb")")
AFTER_LAST_EVENT = re.compile(rb'\}(?=\s*\]\s*(?:,\s*"|\}|\Z))')


def element_ends(text: bytes) -> tuple[Int64s, int]:
    """The ends of the whole objects and lists in `text`, which starts inside an array, between two elements.

    Also the place of the bracket that closes the array; -1 where it is not in `text`.
    """
    if b"\\" in text:
        text = text.replace(b"\\\\", b"__").replace(b'\\"', b"__")
    codes = np.frombuffer(text.translate(CODES), dtype=np.uint8)
    places = np.flatnonzero(codes)
    kinds = codes[places]
    outside = (np.cumsum(kinds == QUOTE, dtype=np.int32) & 1) == 0
    brackets = outside & (kinds != QUOTE)
    places = places[brackets]
    opens = kinds[brackets] == OPEN
    depth = np.cumsum(np.where(opens, np.int8(1), np.int8(-1)), dtype=np.int32)
    closing = np.flatnonzero(depth < 0)
    closed_at = -1
    if len(closing):
        closed_at = int(places[closing[0]])
        places, opens, depth = places[: closing[0]], opens[: closing[0]], depth[: closing[0]]
    return places[(depth == 0) & ~opens] + 1, closed_at


def separator(text: bytes, first_end: int) -> bytes | None:
    """What stands between the first two events: from the white space before `}` up to and with the next `{`."""
    start = first_end - 1
    while start > 0 and text[start - 1] in SPACE:
        start -= 1
    after = first_end
    while after < len(text) and text[after] in b" \t\r\n,":
        after += 1
    if after >= len(text) or text[after] != ord("{") or text.count(b",", first_end, after) != 1:
        return None
    return text[start : after + 1]
