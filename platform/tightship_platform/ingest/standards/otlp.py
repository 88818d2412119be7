"""OTLP metrics, https://opentelemetry.io/docs/specs/otlp/: an `ExportMetricsServiceRequest` in protobuf."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tightship_platform.ingest.standards.protobuf import FIXED64, LENGTH, VARINT, as_double, as_signed, read_fields, tag
from tightship_platform.ingest.standards.series import Fault, Series, add_label, text_of

DELTA = 1
"""The temporality of a sum that says what was added since the last report."""
NO_VALUE = 1
"""The flag of a point that says that nothing was measured."""

_RESOURCE_METRICS = tag(1, LENGTH)
_RESOURCE, _SCOPE_METRICS = tag(1, LENGTH), tag(2, LENGTH)
_RESOURCE_ATTRIBUTE = tag(1, LENGTH)
_METRIC = tag(2, LENGTH)
_NAME, _GAUGE, _SUM = tag(1, LENGTH), tag(5, LENGTH), tag(7, LENGTH)
_OTHER_KINDS = (tag(9, LENGTH), tag(10, LENGTH), tag(11, LENGTH))
_POINT, _TEMPORALITY = tag(1, LENGTH), tag(2, VARINT)
_POINT_ATTRIBUTE, _TIME, _DOUBLE, _INTEGER = tag(7, LENGTH), tag(3, FIXED64), tag(4, FIXED64), tag(6, FIXED64)
_FLAGS = tag(8, VARINT)
_KEY, _VALUE = tag(1, LENGTH), tag(2, LENGTH)
_TEXT, _BOOL, _INT, _FLOAT = tag(1, LENGTH), tag(2, VARINT), tag(3, VARINT), tag(4, FIXED64)


def read_protobuf(body: bytes) -> Iterator[Series]:
    """One series for each point of the request.

    :raises Malformed: it is none.
    """
    for field, of_resource in read_fields(body):
        if field == _RESOURCE_METRICS and isinstance(of_resource, bytes):
            yield from _of_resource(of_resource)


def _of_resource(message: bytes) -> Iterator[Series]:
    labels: dict[str, str] = {}
    fault = None
    try:
        for resource in _within(message, _RESOURCE):
            for attribute in _within(resource, _RESOURCE_ATTRIBUTE):
                _add_attribute(labels, attribute)
    except Fault as found:
        fault = str(found)
    for scope in _within(message, _SCOPE_METRICS):
        for metric in _within(scope, _METRIC):
            for series in _of_metric(metric, labels):
                series.fault = series.fault or fault
                yield series


def _of_metric(message: bytes, labels: dict[str, str]) -> Iterator[Series]:
    raw_name, temporality = b"", 0
    points: list[bytes] = []
    others = 0
    for field, value in read_fields(message):
        if field == _NAME and isinstance(value, bytes):
            raw_name = value
        elif field in (_GAUGE, _SUM) and isinstance(value, bytes):
            points += _within(value, _POINT)
            temporality = next((n for f, n in read_fields(value) if f == _TEMPORALITY and isinstance(n, int)), 0)
        elif field in _OTHER_KINDS and isinstance(value, bytes):
            others += sum(1 for _ in _within(value, _POINT))
    try:
        name, fault = text_of(raw_name), None
    except Fault as found:
        name, fault = "", str(found)
    if temporality == DELTA:
        points, others = [], others + len(points)
    if others:
        yield Series(name=name, labels={}, others=others, fault=fault)
    for point in points:
        yield _of_point(name, point, labels, fault)


def _of_point(name: str, message: bytes, of_resource: dict[str, str], fault: str | None) -> Series:
    series = Series(name=name, labels={}, fault=fault)
    time_ns, value, is_missing = 0, math.nan, False
    for field, raw in read_fields(message):
        if field == _TIME:
            time_ns = int.from_bytes(raw, "little") if isinstance(raw, bytes) else raw
        elif field == _DOUBLE:
            value = as_double(raw)
        elif field == _INTEGER:
            value = as_signed(raw)
        elif field == _FLAGS and isinstance(raw, int) and raw & NO_VALUE:
            is_missing = True
        elif field == _POINT_ATTRIBUTE and isinstance(raw, bytes) and series.fault is None:
            try:
                _add_attribute(series.labels, raw)
            except Fault as found:
                series.fault = str(found)
    series.labels = of_resource | series.labels
    series.values.append((time_ns, math.nan if is_missing else value))
    return series


def _add_attribute(labels: dict[str, str], message: bytes) -> None:
    """One attribute as a label; what is no text, number or truth, such as a list, is none.

    :raises Fault: no key, or one that is there already.
    """
    key = text = b""
    number = None
    for field, raw in read_fields(message):
        if field == _KEY and isinstance(raw, bytes):
            key = raw
        elif field == _VALUE and isinstance(raw, bytes):
            for kind, value in read_fields(raw):
                if kind == _TEXT and isinstance(value, bytes):
                    text = value
                elif kind in (_BOOL, _INT) and isinstance(value, int):
                    number = str(as_signed(value))
                elif kind == _FLOAT:
                    number = f"{as_double(value):g}"
    add_label(labels, text_of(key), number if number is not None else text_of(text))


def _within(message: bytes, wanted: int) -> Iterator[bytes]:
    return (value for field, value in read_fields(message) if field == wanted and isinstance(value, bytes))
