"""Prometheus remote-write, https://prometheus.io/docs/specs/prw/: 1.0 (`prometheus.WriteRequest`) and 2.0
(`io.prometheus.write.v2.Request`), whose labels are numbers of texts that stand once."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tightship_platform.errors import TooLarge
from tightship_platform.ingest.standards.protobuf import (
    FIXED64,
    LENGTH,
    VARINT,
    Malformed,
    as_double,
    as_signed,
    read_fields,
    read_varint,
    tag,
)
from tightship_platform.ingest.standards.series import (
    MAX_LABELS,
    MAX_SERIES,
    MAX_VALUES,
    Fault,
    Series,
    add_label,
    text_of,
)
from tightship_platform.units import NS_PER_MS

_SERIES_1 = tag(1, LENGTH)
_SYMBOL, _SERIES_2 = tag(4, LENGTH), tag(5, LENGTH)
_LABELS, _SAMPLE = tag(1, LENGTH), tag(2, LENGTH)
_HISTOGRAM_1, _HISTOGRAM_2 = tag(4, LENGTH), tag(3, LENGTH)
_REFERENCE = tag(1, VARINT)
_NAME, _VALUE = tag(1, LENGTH), tag(2, LENGTH)
_SAMPLE_VALUE, _SAMPLE_MS = tag(1, FIXED64), tag(2, VARINT)
NAME = "__name__"
_LARGEST_MS = 1 << 43
"""Milliseconds beyond this fit into no time that is stored; they are refused as a time all the same."""


def read_request_1(body: bytes) -> Iterator[Series]:
    """Series of a `prometheus.WriteRequest`, unpacked.

    :raises Malformed: it is none.
    :raises TooLarge: more than MAX_SERIES, or values of one.
    """
    for message in _messages(body, _SERIES_1):
        yield _series(message, _HISTOGRAM_1, _label_of)


def read_request_2(body: bytes) -> Iterator[Series]:
    """Series of an `io.prometheus.write.v2.Request`, unpacked.

    :raises Malformed: it is none.
    :raises TooLarge: more than MAX_SERIES, or values of one, or too many texts.
    """
    symbols = list(_messages(body, _SYMBOL, most=4 * MAX_SERIES))
    if symbols and symbols[0]:
        raise Malformed("The first symbol of a remote-write 2.0 request is not empty")

    def label_of(labels: dict[str, str], references: bytes) -> None:
        numbers: list[int] = []
        at = 0
        while at < len(references):
            if len(numbers) > 2 * MAX_LABELS:
                raise Fault(f"it has more than {MAX_LABELS} labels")
            number, at = read_varint(references, at)
            numbers.append(number)
        if len(numbers) % 2 or any(number >= len(symbols) for number in numbers):
            raise Fault("its labels refer to symbols that are not there")
        for name, value in zip(numbers[::2], numbers[1::2], strict=True):
            add_label(labels, text_of(symbols[name]), text_of(symbols[value]))

    for message in _messages(body, _SERIES_2):
        yield _series(message, _HISTOGRAM_2, label_of)


def _messages(body: bytes, wanted: int, most: int = MAX_SERIES) -> Iterator[bytes]:
    count = 0
    for field, value in read_fields(body):
        if field == wanted and isinstance(value, bytes):
            count += 1
            if count > most:
                raise TooLarge(f"A request of more than {most} series or symbols; send it in parts")
            yield value


def _series(message: bytes, histogram: int, label_of: Callable[[dict[str, str], bytes], None]) -> Series:
    series = Series(name="", labels={})
    for field, value in read_fields(message):
        if field == _SAMPLE and isinstance(value, bytes):
            if len(series.values) == MAX_VALUES:
                raise TooLarge(f"A series of more than {MAX_VALUES} values; send it in parts")
            series.values.append(_sample(value))
        elif field == histogram:
            series.others += 1
        elif field == _REFERENCE:
            series.fault = "its labels are not packed"
        elif field == _LABELS and isinstance(value, bytes) and series.fault is None:
            try:
                label_of(series.labels, value)
            except Fault as fault:
                series.fault = str(fault)
    series.name = series.labels.pop(NAME, "")
    if not series.name and series.fault is None:
        series.fault = "it has no name"
    return series


def _label_of(labels: dict[str, str], message: bytes) -> None:
    name = value = b""
    for field, raw in read_fields(message):
        if field == _NAME and isinstance(raw, bytes):
            name = raw
        elif field == _VALUE and isinstance(raw, bytes):
            value = raw
    add_label(labels, text_of(name), text_of(value))


def _sample(message: bytes) -> tuple[int, float]:
    value, time_ms = 0.0, 0
    for field, raw in read_fields(message):
        if field == _SAMPLE_VALUE:
            value = as_double(raw)
        elif field == _SAMPLE_MS:
            time_ms = as_signed(raw)
    return max(-_LARGEST_MS, min(time_ms, _LARGEST_MS)) * NS_PER_MS, value
