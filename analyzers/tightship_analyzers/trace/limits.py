"""How much a trace file may ask of us, and the error that says it asked for too much."""

from __future__ import annotations

from dataclasses import dataclass

from tightship_platform.errors import TightshipError


class TraceError(TightshipError):
    """A file cannot be read as a trace. The message names the file and, where it can, the byte."""

    http_status = 422


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Bounds on a file from outside. The defaults are far above any real trace that we have seen."""

    text_bytes: int = 64 * 2**30
    """Text after decompression. Real ones: up to a few GB."""
    ratio: int = 250
    """Text bytes per compressed byte, judged once `ratio_from_bytes` of text have come. Real traces reach about 20,
    one event over and over 256, and gzip cannot exceed 1032, so a much higher bound would never act."""
    ratio_from_bytes: int = 256 * 2**20
    event_bytes: int = 8 * 2**20
    """The text of one event, or of one top-level entry beside the events. Real ones: below 1 MiB."""
    events: int = 200_000_000
    memory_bytes: int | None = None
    """Memory that the events may take; None: what this process can get, its control group's limit considered."""
    name_chars: int = 2**15
    """Longer names are cut. Templates of C++ kernels reach 5,123 in the reference traces."""
    name_table_bytes: int = 512 * 2**20
    """All distinct names together; what comes after shares one name."""
    threads: int = 1_000_000
    span_ns: int = 24 * 3600 * 10**9
    """An event that starts further than this from the median start has a broken clock and is dropped."""
    block_bytes: int = 2**19
    """Text that is decoded at a time; measured: with four times as much the events no longer stay in the cache."""

    second_process_bytes: int = 8 * 2**20
    """A packed file of so many bytes is worth a second process, see [Note: the second reader]."""


DEFAULT_LIMITS = Limits()
