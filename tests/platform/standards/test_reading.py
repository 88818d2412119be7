"""Bodies of remote-write and OTLP: what the libraries of Google and OpenTelemetry write is read, the rest refused."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable, Iterator

import cramjam
import pytest
from google.protobuf.json_format import MessageToJson
from hypothesis import given
from hypothesis import strategies as st
from metric_messages import labels, snappy, write_request_1, write_request_2
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from tightship_platform.errors import TooLarge
from tightship_platform.ingest.standards import compressed, otlp, otlp_json, remote_write, series
from tightship_platform.ingest.standards.otlp import read_protobuf
from tightship_platform.ingest.standards.otlp_json import read_json
from tightship_platform.ingest.standards.protobuf import Malformed, read_varint, write_varint
from tightship_platform.ingest.standards.remote_write import read_request_1, read_request_2
from tightship_platform.ingest.standards.series import MAX_LABEL_BYTES, MAX_LABELS, Series

BOTH = pytest.mark.parametrize(
    ("write", "read"), [(write_request_1, read_request_1), (write_request_2, read_request_2)], ids=["1.0", "2.0"]
)
READERS = (read_request_1, read_request_2, read_protobuf, read_json)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
VALUES = st.tuples(st.integers(-(2**40), 2**40), st.floats(allow_nan=False))
REQUESTS = st.dictionaries(
    st.dictionaries(TEXTS, TEXTS, max_size=5).map(lambda named: (("__name__", "m"), *sorted(named.items()))),
    st.lists(VALUES, max_size=4),
    max_size=6,
)


@BOTH
@given(points=REQUESTS)
def test_a_request_is_read_as_it_was_written(
    write: Callable[..., bytes], read: Callable[[bytes], Iterator[Series]], points: dict
) -> None:
    points = {labels: values for labels, values in points.items() if len({name for name, _ in labels}) == len(labels)}
    found = list(read(write(points)))
    assert [(one.name, one.labels, one.values, one.fault) for one in found] == [
        ("m", dict(named[1:]), [(at * 10**6, value) for at, value in values], None) for named, values in points.items()
    ]


@given(st.binary(max_size=60))
def test_no_bytes_bring_anything_but_a_refusal(body: bytes) -> None:
    for read in READERS:
        try:
            for one in read(body):
                assert isinstance(one.name, str)
        except (Malformed, TooLarge):
            pass
    for unpack in (compressed.from_gzip, compressed.from_snappy):
        with pytest.raises((Malformed, TooLarge)):
            unpack(b"\xff" + body)


@given(st.integers(0, 2**64 - 1))
def test_numbers_are_read_as_they_are_written(number: int) -> None:
    assert read_varint(write_varint(number) + b"\x07", 0) == (number, len(write_varint(number)))


@BOTH
def test_a_body_that_is_cut_off_is_refused_whole(write: Callable[..., bytes], read: Callable[..., object]) -> None:
    body = write({labels("DCGM_FI_DEV_FB_USED"): [(1, 2.0)]})
    for cut in (body[:-1], body[: len(body) // 2], b"\x0b" + body, b"\x2a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"):
        with pytest.raises(Malformed):
            list(read(cut))  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ((("a", "1"),), "it has no name"),
        ((("__name__", "m"), ("a", "1"), ("a", "2")), "the label 'a' comes twice"),
        ((("__name__", "m"), ("", "1")), "a label has no name"),
        ((("__name__", "m"), *((f"l{n}", "") for n in range(MAX_LABELS))), f"it has more than {MAX_LABELS} labels"),
        ((("__name__", "m"), ("a", "x" * (MAX_LABEL_BYTES + 1))), f"a label has {MAX_LABEL_BYTES + 1} bytes"),
    ],
)
@BOTH
def test_a_series_of_no_use_leaves_the_others_be(
    write: Callable[..., bytes], read: Callable[[bytes], Iterator[Series]], named: tuple, why: str
) -> None:
    wrong, right = read(write({named: [(1, 2.0)], labels("m"): [(3, 4.0)]}))
    assert why in str(wrong.fault) and wrong.size == 1
    assert (right.fault, right.values) == (None, [(3_000_000, 4.0)])


def test_symbols_that_are_not_there_are_a_fault_of_their_series() -> None:
    body = write_request_2({labels("m"): [(1, 2.0)]})
    (one,) = read_request_2(body.replace(b"\x22\x05GPU-1", b""))
    assert one.fault == "its labels refer to symbols that are not there"
    with pytest.raises(Malformed, match="first symbol"):
        list(read_request_2(b"\x22\x01x" + body))


def test_histograms_are_counted() -> None:
    (one,) = read_request_1(write_request_1({labels("m"): []}, histograms=3))
    assert (one.values, one.others, one.size) == ([], 3, 3)


def test_bombs_are_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = b"\0" * (compressed.UNPACKED_MAX + 1)
    for pack, unpack in ((gzip.compress, compressed.from_gzip), (snappy, compressed.from_snappy)):
        with pytest.raises(TooLarge, match="The unpacked body has"):
            unpack(pack(bomb))
        assert unpack(pack(b"few bytes")) == b"few bytes"
    with pytest.raises(Malformed, match="not one whole gzip member"):
        compressed.from_gzip(gzip.compress(b"few bytes")[:-1])
    with pytest.raises(Malformed, match="no snappy block"):
        compressed.from_snappy(bytes(cramjam.snappy.compress(b"few bytes"))[4:])
    monkeypatch.setattr(remote_write, "MAX_SERIES", 10)
    with pytest.raises(TooLarge, match="more than"):
        list(remote_write._messages(b"\x0a\x00" * 11, 0x0A, most=10))


# ---- OTLP ------------------------------------------------------------------------------------------------------------


def request() -> ExportMetricsServiceRequest:
    """Of each kind of metric and value."""
    made = ExportMetricsServiceRequest()
    resource = made.resource_metrics.add()
    resource.resource.attributes.add(key="host.name").value.string_value = "h1"
    resource.resource.attributes.add(key="cores").value.int_value = -8
    scope = resource.scope_metrics.add()
    gauge = scope.metrics.add(name="hw.gpu.utilization")
    point = gauge.gauge.data_points.add(time_unix_nano=10**18 + 1, as_double=0.41)
    point.attributes.add(key="hw.id").value.string_value = "GPU-1"
    point.attributes.add(key="ok").value.bool_value = True
    point.attributes.add(key="x").value.double_value = 0.5
    gauge.gauge.data_points.add(time_unix_nano=10**18 + 2, as_int=-3).attributes.add(
        key="host.name"
    ).value.string_value = "h2"
    gauge.gauge.data_points.add(time_unix_nano=10**18 + 3, flags=1)
    scope.metrics.add(name="kept").sum.data_points.add(as_int=2**53, time_unix_nano=1)
    scope.metrics[-1].sum.aggregation_temporality = 2
    scope.metrics.add(name="added").sum.data_points.add(as_int=1, time_unix_nano=1)
    scope.metrics[-1].sum.aggregation_temporality = 1
    scope.metrics.add(name="spread").histogram.data_points.add(count=1)
    scope.metrics.add(name="spread").summary.data_points.add(count=1)
    return made


def test_protobuf_and_json_are_read_alike() -> None:
    made = request()
    expected = [
        (
            "hw.gpu.utilization",
            {"host.name": "h1", "cores": "-8", "hw.id": "GPU-1", "ok": "1", "x": "0.5"},
            10**18 + 1,
            0.41,
        ),
        ("hw.gpu.utilization", {"host.name": "h2", "cores": "-8"}, 10**18 + 2, -3),
        ("kept", {"host.name": "h1", "cores": "-8"}, 1, 2**53),
    ]
    for found in (list(read_protobuf(made.SerializeToString())), list(read_json(MessageToJson(made).encode()))):
        valued = [
            (one.name, one.labels, *one.values[0]) for one in found if one.values and not math.isnan(one.values[0][1])
        ]
        assert valued == expected
        assert sum(one.others for one in found) == 3
        assert [one.values[0][0] for one in found if one.values and math.isnan(one.values[0][1])] == [10**18 + 3]
        assert [one.fault for one in found if one.fault] == []


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b"{", b'{"resourceMetrics": 1}', b"[" * 100_000, b'{"resourceMetrics": [{"scopeMetrics": null}]}'],
)
def test_json_that_is_none_is_refused(text: bytes) -> None:
    with pytest.raises(Malformed, match="no OTLP metrics in JSON"):
        list(read_json(text))


def test_a_point_with_a_number_that_is_none_leaves_the_others_be() -> None:
    points = [
        {"timeUnixNano": "x", "asInt": "1"},
        {"timeUnixNano": "9" * 5000, "asInt": 1},
        {"timeUnixNano": "7", "asInt": "1"},
    ]
    body = {"resourceMetrics": [{"scopeMetrics": [{"metrics": [{"name": "m", "gauge": {"dataPoints": points}}]}]}]}
    faults = [one.fault for one in read_json(json.dumps(body).encode())]
    assert faults == ["a number of it is none", "a number of it is none", None]


def test_what_is_small_and_many_is_refused_before_it_is_large() -> None:
    with pytest.raises(TooLarge, match="objects"):
        next(read_json(b'{"resourceMetrics": [' + b"{}," * otlp_json.MAX_OBJECTS + b"{}]}"))
    samples = b"\x12\x00" * (series.MAX_VALUES + 1)
    with pytest.raises(TooLarge, match="values"):
        next(read_request_1(b"\x0a" + write_varint(len(samples)) + samples))


def test_bounds_are_those_of_the_series() -> None:
    made = request()
    for number in range(series.MAX_LABELS + 1):
        made.resource_metrics[0].resource.attributes.add(key=f"l{number}").value.string_value = "x"
    assert all("more than" in str(one.fault) for one in read_protobuf(made.SerializeToString()))
    assert otlp.DELTA == 1
