"""OTLP metrics in JSON: the same request, whose 64-bit numbers may be texts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct, field

from tightship_platform.errors import TooLarge
from tightship_platform.ingest.standards.otlp import DELTA, NO_VALUE
from tightship_platform.ingest.standards.protobuf import Malformed
from tightship_platform.ingest.standards.series import MAX_LABEL_BYTES, Fault, Series, add_label

MAX_OBJECTS = 1_000_000
"""Objects of one body: an empty one takes many times its two bytes in memory, and one that says anything is longer."""
_Whole = int | str
_Number = float | int | str


class _AnyValue(Struct, rename="camel"):
    string_value: str | None = None
    bool_value: bool | None = None
    int_value: _Whole | None = None
    double_value: _Number | None = None


class _Attribute(Struct):
    key: str = ""
    value: _AnyValue | None = None


class _Point(Struct, rename="camel"):
    attributes: list[_Attribute] = field(default_factory=list)
    time_unix_nano: _Whole = 0
    as_double: _Number | None = None
    as_int: _Whole | None = None
    flags: int = 0


class _Numbers(Struct, rename="camel"):
    data_points: list[_Point] = field(default_factory=list)
    aggregation_temporality: _Whole = 0


class _OtherPoint(Struct):
    """Nothing of it is read."""


class _Others(Struct, rename="camel"):
    data_points: list[_OtherPoint] = field(default_factory=list)


class _Metric(Struct, rename="camel"):
    name: str = ""
    gauge: _Numbers | None = None
    sum: _Numbers | None = None
    histogram: _Others | None = None
    exponential_histogram: _Others | None = None
    summary: _Others | None = None


class _Scope(Struct):
    metrics: list[_Metric] = field(default_factory=list)


class _Resource(Struct):
    attributes: list[_Attribute] = field(default_factory=list)


class _OfResource(Struct, rename="camel"):
    resource: _Resource | None = None
    scope_metrics: list[_Scope] = field(default_factory=list)


class _Request(Struct, rename="camel"):
    resource_metrics: list[_OfResource] = field(default_factory=list)


_DECODER = msgspec.json.Decoder(_Request)
_DELTA_NAME = "AGGREGATION_TEMPORALITY_DELTA"


def read_json(body: bytes) -> Iterator[Series]:
    """One series for each point of the request.

    :raises Malformed: it is none.
    :raises TooLarge: more than MAX_OBJECTS.
    """
    if body.count(b"{") > MAX_OBJECTS:
        raise TooLarge(f"A request of more than {MAX_OBJECTS} objects; send it in parts")
    try:
        request = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"The body is no OTLP metrics in JSON ({' '.join(str(error).split())[:200]})") from error
    for of_resource in request.resource_metrics:
        labels, fault = _labels(of_resource.resource.attributes if of_resource.resource is not None else [])
        for scope in of_resource.scope_metrics:
            for metric in scope.metrics:
                for series in _of_metric(metric, labels):
                    series.fault = series.fault or fault
                    yield series


def _of_metric(metric: _Metric, labels: dict[str, str]) -> Iterator[Series]:
    kinds = (metric.histogram, metric.exponential_histogram, metric.summary)
    others = sum(len(kind.data_points) for kind in kinds if kind is not None)
    for numbers in (metric.gauge, metric.sum):
        if numbers is None:
            continue
        if numbers.aggregation_temporality in (DELTA, str(DELTA), _DELTA_NAME):
            others += len(numbers.data_points)
            continue
        for point in numbers.data_points:
            of_point, fault = _labels(point.attributes)
            series = Series(name=metric.name, labels=labels | of_point, fault=fault)
            try:
                series.values.append((_whole(point.time_unix_nano), _value(point)))
            except (Fault, ValueError, OverflowError):
                series.values.append((0, math.nan))
                series.fault = "a number of it is none"
            yield series
    if others:
        yield Series(name=metric.name, labels={}, others=others)


def _value(point: _Point) -> float:
    if point.flags & NO_VALUE:
        return math.nan
    if point.as_double is not None:
        return float(point.as_double)
    return math.nan if point.as_int is None else _whole(point.as_int)


def _whole(number: _Whole) -> int:
    if isinstance(number, str) and len(number) > 20:
        raise Fault("a number is too long")
    return int(number)


def _labels(attributes: list[_Attribute]) -> tuple[dict[str, str], str | None]:
    labels: dict[str, str] = {}
    try:
        for attribute in attributes:
            add_label(labels, _bounded(attribute.key), _bounded(_text(attribute.value)))
    except Fault as fault:
        return labels, str(fault)
    return labels, None


def _bounded(text: str) -> str:
    if len(text) > MAX_LABEL_BYTES:
        raise Fault(f"a label has {len(text)} characters; at most {MAX_LABEL_BYTES}")
    return text


def _text(value: _AnyValue | None) -> str:
    if value is None:
        return ""
    given: list[Any] = [value.string_value, value.int_value, value.double_value]
    if value.bool_value is not None:
        given.append(int(value.bool_value))
    return next((str(one) for one in given if one is not None), "")
