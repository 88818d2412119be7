"""What both standards come to: named series of values."""

from __future__ import annotations

from dataclasses import dataclass, field

MAX_SERIES = 100_000
"""Series of one body, empty ones with them."""
MAX_VALUES = 200_000
"""Values of one body."""
MAX_LABELS = 64
"""Labels of one series, those of its resource with them."""
MAX_LABEL_BYTES = 4096
"""Of a label's name or value."""


class Fault(Exception):
    """What is wrong with one series, in a few words; the others are kept."""


@dataclass(kw_only=True, slots=True)
class Series:
    """One metric of one thing."""

    name: str
    labels: dict[str, str]
    values: list[tuple[int, float]] = field(default_factory=list)
    """UTC nanoseconds and value; NaN: it is missing."""
    others: int = 0
    """Histograms, summaries and changes since the last report, of which no metric is made."""
    fault: str | None = None
    """Why nothing of it can be used."""

    @property
    def size(self) -> int:
        """Values of whatever kind."""
        return len(self.values) + self.others


def text_of(raw: bytes) -> str:
    """A label's name or value.

    :raises Fault: it is no text, or too long.
    """
    if len(raw) > MAX_LABEL_BYTES:
        raise Fault(f"a label has {len(raw)} bytes; at most {MAX_LABEL_BYTES}")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise Fault("a label is not UTF-8") from error


def add_label(labels: dict[str, str], name: str, value: str) -> None:
    """:raises Fault: it is there already, has no name, or is one too many."""
    if not name or name in labels:
        raise Fault(f"the label {name[:60]!r} comes twice" if name else "a label has no name")
    if len(labels) >= MAX_LABELS:
        raise Fault(f"it has more than {MAX_LABELS} labels")
    labels[name] = value
