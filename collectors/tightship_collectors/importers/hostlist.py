"""Slurm's lists of nodes: `gpu[01-03,07],cpu1` is gpu01, gpu02, gpu03, gpu07 and cpu1."""

from __future__ import annotations

import re
from collections.abc import Iterator

MAX_NODES = 20_000
_PART = re.compile(r"[A-Za-z0-9_.-]+(?:\[[0-9,-]+\])?")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


def expand(text: str) -> list[str] | None:
    """Names of the nodes, each once; [] where Slurm names none, None where the list cannot be read or is too long."""
    if text in ("", "None assigned", "(null)"):
        return []
    found: list[str] = []
    at = 0
    while at < len(text):
        match = _PART.match(text, at)
        if match is None or (match.end() < len(text) and text[match.end()] != ","):
            return None
        for name in _names(match[0]):
            if name is None or len(found) >= MAX_NODES:
                return None
            found.append(name)
        at = match.end() + 1
    return list(dict.fromkeys(found))


def _names(part: str) -> Iterator[str | None]:
    """Those of one part; None: it cannot be read."""
    prefix, bracket, rest = part.partition("[")
    if not bracket:
        yield part
        return
    for one in rest.removesuffix("]").split(","):
        match = _RANGE.fullmatch(one)
        if match is None:
            yield None
            return
        first, last = match[1], match[2] or match[1]
        for number in range(int(first), int(last) + 1):
            yield f"{prefix}{number:0{len(first)}d}"
