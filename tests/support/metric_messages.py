"""Remote-write requests as Prometheus's own definitions have them, made by Google's protobuf library, and pages of
dcgm-exporter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import cramjam
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

Points = Mapping[tuple[tuple[str, str], ...], Iterable[tuple[int, float]]]
"""Labels → time in milliseconds and value."""
_KINDS = {"string": 9, "double": 1, "int64": 3, "uint32": 13}


def _definitions() -> dict[str, Any]:
    """https://github.com/prometheus/prometheus/tree/main/prompb, without what this project does not read."""
    file = descriptor_pb2.FileDescriptorProto(name="prompb.proto", package="p", syntax="proto3")
    messages: dict[str, list[tuple[str, int, str, bool]]] = {
        "Label": [("name", 1, "string", False), ("value", 2, "string", False)],
        "Sample": [("value", 1, "double", False), ("timestamp", 2, "int64", False)],
        "Histogram": [("sum", 3, "double", False)],
        "TimeSeries": [
            ("labels", 1, "Label", True),
            ("samples", 2, "Sample", True),
            ("histograms", 4, "Histogram", True),
        ],
        "MetricMetadata": [("help", 4, "string", False)],
        "WriteRequest": [("timeseries", 1, "TimeSeries", True), ("metadata", 3, "MetricMetadata", True)],
        "TimeSeries2": [
            *(("labels_refs", 1, "uint32", True), ("samples", 2, "Sample", True)),
            ("histograms", 3, "Histogram", True),
        ],
        "Request": [("symbols", 4, "string", True), ("timeseries", 5, "TimeSeries2", True)],
    }
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field, number, kind, repeated in fields:
            made = message.field.add(name=field, number=number, label=3 if repeated else 1)
            made.type = _KINDS.get(kind, 11)
            if kind not in _KINDS:
                made.type_name = f".p.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"p.{name}")) for name in messages}


_MADE = _definitions()
VERSION_1 = {"content-type": "application/x-protobuf", "content-encoding": "snappy"}
VERSION_2 = VERSION_1 | {"content-type": "application/x-protobuf;proto=io.prometheus.write.v2.Request"}


def write_request_1(points: Points, histograms: int = 0) -> bytes:
    """A `prometheus.WriteRequest`, not packed."""
    request = _MADE["WriteRequest"](metadata=[{"help": "of no interest"}])
    for labels, values in points.items():
        series = request.timeseries.add(labels=[{"name": name, "value": value} for name, value in labels])
        series.samples.extend(_MADE["Sample"](value=value, timestamp=at) for at, value in values)
        series.histograms.extend(_MADE["Histogram"](sum=1) for _ in range(histograms))
    return bytes(request.SerializeToString())


def write_request_2(points: Points) -> bytes:
    """An `io.prometheus.write.v2.Request`, not packed."""
    symbols = [""]
    request = _MADE["Request"]()
    for labels, values in points.items():
        symbols += [text for text in dict.fromkeys(text for pair in labels for text in pair) if text not in symbols]
        series = request.timeseries.add(labels_refs=[symbols.index(text) for pair in labels for text in pair])
        series.samples.extend(_MADE["Sample"](value=value, timestamp=at) for at, value in values)
    request.symbols.extend(symbols)
    return bytes(request.SerializeToString())


def snappy(body: bytes) -> bytes:
    """The body as remote-write sends it."""
    return bytes(cramjam.snappy.compress_raw(body))


def labels(name: str, **more: str) -> tuple[tuple[str, str], ...]:
    """Labels of a series of a device, as dcgm-exporter has them."""
    of_device = {"gpu": "0", "UUID": "GPU-1", "Hostname": "h1", "modelName": "Test accelerator"}
    return tuple(sorted(({"__name__": name} | of_device | more).items()))
