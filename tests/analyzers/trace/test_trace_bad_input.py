"""Files that are wrong: one clear line or a whole read with a warning, in bounded memory, never anything else."""

from __future__ import annotations

import gzip
import json
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import trace_files
from examples import examples
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tightship_analyzers import trace
from tightship_analyzers.trace.kineto import event_room
from tightship_analyzers.trace.kineto.event_room import EVENT_BYTES, LOOK_EVENTS, EventRoom
from tightship_offload.plan.host_limits import read_host_limits

KERNEL = trace_files.EVENTS[5]
OP = trace_files.EVENTS[1]
COUNT = len(trace_files.EVENTS)


@pytest.fixture
def opened(tmp_path: Path) -> Callable[..., trace.Trace]:
    def open_text(text: bytes, **limits: int) -> trace.Trace:
        path = tmp_path / "trace.json"
        path.write_bytes(text)
        read = trace.open(path, limits=trace.Limits(**limits))
        trace_files.assert_sound(read)
        return read

    return open_text


Opened = Callable[..., trace.Trace]


def changed(event: dict[str, Any], **values: Any) -> dict[str, Any]:
    return event | values


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "it is empty"),
        (b"   \n", "it is empty"),
        (b"PK\x03\x04rest", "starts with the bytes 50 4b 03 04 at byte 0"),
        (b"hello\n", "starts with 'hello' at byte 0;"),
        (b"\x00" * 100, "starts with"),
        (b"\x1f\x8b" + b"\x00" * 50, "gzip stream is damaged"),
        (gzip.compress(gzip.compress(b'{"traceEvents": []}', mtime=0), mtime=0), "starts with"),
        (b"{}", "without `traceEvents`"),
        (b'{"a": 1, "b": [1, {"traceEvents": []}]}', "without `traceEvents`"),
        (b'{"traceEvents": 5}', "is not an array"),
        (b'{"traceEvents": {"a": 1}}', "is not an array"),
        (b"[1, 2, 3]", "holds no events"),
        (b'{"a": ', "cut off"),
        (b'{"a', "cut off"),
        (b"{1: 2}", "not JSON"),
        (b"\xff\xfe{\x00}\x00", "starts with"),
    ],
)
def test_what_is_no_trace_is_one_line(opened: Opened, text: bytes, words: str) -> None:
    with pytest.raises(trace.TraceError, match=re.escape(words)) as caught:
        opened(text)
    assert "\n" not in str(caught.value) and "trace.json" in str(caught.value) and "byte" in str(caught.value)
    assert caught.value.exit_code == 2


def test_what_cannot_be_opened_is_one_line(tmp_path: Path) -> None:
    for source in (tmp_path / "none.json", tmp_path, "memory://none.json", "nonsense://x", str(tmp_path) + "/a\0b"):
        with pytest.raises(trace.TraceError):
            trace.open(source)


def test_an_address_that_does_not_answer_is_no_missing_file() -> None:
    pytest.importorskip("aiohttp")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound and not listening: refused
        with pytest.raises(trace.TraceError, match=r"the address does not answer \(Connection refused\)"):
            trace.open(f"http://127.0.0.1:{closed.getsockname()[1]}/x.json")


@pytest.mark.parametrize(("status", "words"), [(404, "No trace at "), (500, "the server answers 500")])
def test_an_error_of_a_server_says_which(status: int, words: str) -> None:
    pytest.importorskip("aiohttp")

    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(status)

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            """Nothing is printed."""

    with HTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            with pytest.raises(trace.TraceError, match=words):
                trace.open(f"http://127.0.0.1:{server.server_port}/x.json")
        finally:
            server.shutdown()


def test_an_empty_list_of_events_is_a_trace_of_nothing(opened: Opened) -> None:
    for text in (b'{"traceEvents": []}', b"[]", b'\xef\xbb\xbf {"traceEvents" : [ ] }'):
        read = opened(text)
        assert read.events == 0 and read.warnings == ["the trace holds no events with a duration"]


def test_gzip_bomb_is_refused(opened: Opened) -> None:
    events = gzip.compress(trace_files.trace_text([KERNEL] * 20_000))
    with pytest.raises(trace.TraceError, match="decompression bomb"):
        opened(events, ratio=20, ratio_from_bytes=10**6)
    with pytest.raises(trace.TraceError, match=r"more than 1\.0 MiB of text"):
        opened(events, text_bytes=2**20)


@pytest.mark.parametrize(
    "start", [b'{"traceEvents": [{"name": "', b'{"x": "', b'{"x": [', b'{"traceEvents": [[', b"   "]
)
def test_a_bomb_of_one_byte_ends_in_bounded_memory(tmp_path: Path, start: bytes) -> None:
    """300 MB of one byte in one token: a process that may not use more than 400 MB says so in one line."""
    path = tmp_path / "bomb.json.gz"
    filler = b" " if start.isspace() else b"[" if start.endswith(b"[") else b"a"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(start)
        block = filler * 2**20
        for _ in range(300):
            file.write(block)
    program = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_DATA, (400 << 20, 400 << 20))\n"
        "from tightship_analyzers import trace\n"
        "try: trace.open(sys.argv[1])\n"
        "except trace.TraceError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search("longer than 8.0 MiB|decompression bomb|it is empty", done.stdout) and done.stdout.count("\n") == 1


def test_too_many_events_is_refused(opened: Opened) -> None:
    with pytest.raises(trace.TraceError, match="more than 10 events"):
        opened(trace_files.trace_text(), events=10)


def test_more_events_than_there_is_memory_for_is_refused_with_the_figure(opened: Opened) -> None:
    with pytest.raises(trace.TraceError) as refused:
        opened(trace_files.trace_text(), memory_bytes=10 * EVENT_BYTES)
    assert "holds more than 10 events, and at 350 bytes each the 3.4 KiB of memory that it may take here" in str(
        refused.value
    )
    opened(trace_files.trace_text(), memory_bytes=COUNT * EVENT_BYTES)


def test_memory_that_others_take_meanwhile_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    left = [EVENT_BYTES * 3 * LOOK_EVENTS, EVENT_BYTES * LOOK_EVENTS // 2]
    monkeypatch.setattr(
        event_room, "read_host_limits", lambda: replace(read_host_limits(), available=left.pop(0), cgroup_free=None)
    )
    room = EventRoom("big.json.gz", trace.Limits())
    room.check(1)
    room.check(LOOK_EVENTS)
    with pytest.raises(trace.TraceError, match="record a shorter window, or read it where there is more memory"):
        room.check(LOOK_EVENTS + 1)


def test_names_are_bounded(opened: Opened) -> None:
    events = [changed(OP, name=f"{number}" * 3000) for number in range(10, 20)]
    read = opened(trace_files.trace_text(events), name_chars=100, name_table_bytes=500)
    texts = {read.names[number] for number in read.host_ops.name}
    assert len(read.host_ops) == 10 and len(texts) == 6 and max(map(len, texts)) == 100
    assert any("distinct names" in line for line in read.warnings)


@pytest.mark.parametrize("depth", [100, 5_000, 200_000])
def test_deep_nesting_costs_only_its_event(opened: Opened, depth: int) -> None:
    nested = json.dumps(trace_files.EVENTS[0]).replace('"Ev Idx": 0', '"deep": ' + "[" * depth + "]" * depth)
    text = trace_files.trace_text([KERNEL, OP], before={}).replace(b"[\n  {", b"[\n" + nested.encode() + b",\n  {", 1)
    read = opened(text)
    assert len(read.device_events) == 1 and len(read.host_ops) == 1
    assert read.warnings == [] or "could not be decoded" in read.warnings[0]


def test_impossible_times_are_left_out_and_counted(opened: Opened) -> None:
    wrong = [{"ts": "0.001"}, {"ts": "1e400"}, {"ts": "-1e30"}, {"ts": "99999999999999999999"}, {"dur": "1e17"}]
    wrong += [{"ts": "NaN"}, {"dur": "Infinity"}, {"dur": "-Infinity"}, {"ts": "null"}, {"dur": "[]"}]
    events = [changed(KERNEL, **values) for values in wrong] + [changed(KERNEL, dur="-0.001"), {**KERNEL, "dur": "-5"}]
    missing = {key: value for key, value in KERNEL.items() if key != "ts"}
    read = opened(trace_files.trace_text([*trace_files.EVENTS, *events, missing]))
    assert read.events == COUNT + len(events) + 1
    assert len(read.device_events) == 4
    assert read.warnings == [
        f"left out: {len(wrong) + 1} events with missing or impossible times",
        "left out: 2 events with a negative duration",
    ]
    assert read.span_ns == 900_500


@pytest.mark.parametrize("base", ["x", -5, 2**63, 10**30, None, {}, True])
def test_a_base_time_that_is_none_is_not_added(opened: Opened, base: object) -> None:
    read = opened(trace_files.trace_text(before={"baseTimeNanoseconds": base}))
    assert read.base_ns == 0 and read.start_ns == 4_313_986_415_000_000
    assert base is None or "baseTimeNanoseconds" in read.warnings[0]


def test_absolute_times_are_left_as_they_are(opened: Opened) -> None:
    text = trace_files.trace_text([changed(KERNEL, ts="1712195495519689.047"), changed(KERNEL, ts="1712195495519689")])
    read = opened(text)
    assert read.device_events.start_ns.tolist() == [1712195495519689000, 1712195495519689047]
    assert read.base_ns == 0 and "absolute already" in read.warnings[0]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *(("12", 12), ('"12"', 12), ('"0x1f"', 31), ("null", -1), ("[1]", -1), ("1.5", -1), ("7.0", 7)),
        *(("true", -1), ("1e400", -1), ("NaN", -1), (str(2**70), -1), ('"x"', -1), ("{}", -1)),
    ],
)
def test_ids_of_any_type(opened: Opened, value: str, expected: int) -> None:
    text = trace_files.trace_text().replace(b'"correlation": 41', b'"correlation": ' + value.encode())
    read = opened(text)
    assert read.device_events.correlation[0] == expected and read.launches.correlation[0] == expected
    assert read.device_events.launch[0] == (0 if expected > 0 else -1)
    assert read.events == COUNT and read.warnings == []


@pytest.mark.parametrize("field", ["name", "cat", "pid", "tid", "ph", "args"])
@pytest.mark.parametrize("value", [None, 5, 1.5, True, [1], {"a": 1}, "", 2**70, "x"])
def test_fields_of_any_type_lose_nothing_else(opened: Opened, field: str, value: Any) -> None:
    odd = changed(trace_files.EVENTS[0], **{field: value})
    read = opened(trace_files.trace_text([*trace_files.EVENTS[1:], odd]))
    assert read.events == COUNT
    assert len(read.device_events) >= 4 and len(read.host_ops) == 1 and len(read.frames) == 2


def test_numbers_that_are_no_json(opened: Opened) -> None:
    text = trace_files.trace_text().replace(b'"grid": [24, 1, 1]', b'"occupancy": -nan, "bandwidth": inf')
    read = opened(text)
    assert read.events == COUNT and read.warnings == [] and len(read.device_events) == 4


@pytest.mark.parametrize("name", ['operator "" _x', 'a "b", "c": 1', 'one " only', '"', 'x", "y', "new\nline\ttab"])
@pytest.mark.parametrize("where", [0, 7, 14])
def test_names_with_unescaped_quotes(opened: Opened, name: str, where: int) -> None:
    text = trace_files.trace_text([OP] * where + [changed(OP, name="@@@")] + [KERNEL] * (14 - where))
    read = opened(text.replace(b"@@@", name.encode()))
    assert read.warnings == [] and read.rank == 3 and read.events == 15
    assert (len(read.host_ops), len(read.device_events)) == (where + 1, 14 - where)
    assert name.translate({9: " ", 10: " "}) in {read.names[number] for number in read.host_ops.name}


def test_names_cannot_control_a_terminal(opened: Opened) -> None:
    text = trace_files.trace_text([changed(OP, name="a\x1b[31mb\u202ec\nd"), changed(OP, name="Ä × 木 ok")])
    read = opened(text)
    assert {read.names[number] for number in read.host_ops.name} == {"a\ufffd[31mb\ufffdc d", "Ä × 木 ok"}


def test_a_newline_in_the_path_stays_out_of_the_message(tmp_path: Path) -> None:
    with pytest.raises(trace.TraceError) as caught:
        trace.open(tmp_path / "a\nb.json")
    assert "\n" not in str(caught.value)


def test_bad_utf8_and_lone_surrogates_are_replaced(opened: Opened) -> None:
    text = trace_files.trace_text([changed(OP, name="@@@"), changed(OP, name="###")])
    read = opened(text.replace(b"@@@", b"a\xff\xc3b").replace(b"###", b"c\\ud800d"))
    assert {read.names[number] for number in read.host_ops.name} == {"a��b", "c?d"} and read.warnings == []
    "".join(read.names).encode()


def test_a_damaged_event_is_counted_and_the_rest_is_read(opened: Opened) -> None:
    text = trace_files.trace_text([KERNEL] * 50)
    place = text.index(b"grid", len(text) // 2)
    for damage in (b"\x00\x00\x00\x00", b'"""}', b"}}}}", b"]]]]", b"{{{{", b'",""'):
        read = opened(text[:place] + damage + text[place + 4 :])
        assert 48 <= len(read.device_events) <= 50 and read.rank == 3, damage
        assert len(read.device_events) == 50 or re.match(r"(1 event|2 events) could not be decoded", read.warnings[0])


def test_oldest_names_and_keys(opened: Opened) -> None:
    old = {"External id": "external id"}
    rename = {"cpu_op": "Operator", "cuda_runtime": "Runtime", "kernel": "Kernel", "gpu_memcpy": "Memcpy"}
    events = [
        changed(event, cat=rename.get(event["cat"], event["cat"]))
        | {"args": {old.get(key, key): value for key, value in event.get("args", {}).items()}}
        for event in trace_files.EVENTS
        if "cat" in event
    ]
    read = opened(trace_files.trace_text(events))
    assert len(read.host_ops) == 1 and len(read.device_events) == 4 and len(read.launches) == 1
    assert read.device_events.launch.tolist() == [0, -1, -1, -1]
    assert read.host_ops.external_id.tolist() == [2] and read.launches.external_id.tolist() == [2]


def test_several_calls_with_one_correlation(opened: Opened) -> None:
    launch = trace_files.EVENTS[3]
    calls = [changed(launch, ts=f"43139864150{second}.000") for second in (10, 30, 90)]
    read = opened(trace_files.trace_text([KERNEL, *calls]))
    assert read.device_events.launch.tolist() == [1]
    read = opened(trace_files.trace_text([changed(KERNEL, ts="4313986415000.000"), *calls]))
    assert read.device_events.launch.tolist() == [0]


def test_unknown_categories_are_said(opened: Opened) -> None:
    read = opened(trace_files.trace_text([*trace_files.EVENTS, changed(KERNEL, cat="quantum_op")]))
    assert read.warnings == ["left out: 1 event of unknown category 'quantum_op'"]


def test_text_after_the_end_is_said(opened: Opened) -> None:
    text = trace_files.trace_text()
    assert opened(text + text).warnings == [f"text after the end of the trace, from byte {len(text) + 1}, was left out"]


PIECES = st.sampled_from(
    [
        *(b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"-", b"\n  },\n  {\n", b"},{", b"\x00", b"\xff", b"1e999"),
        *(b"nan", b'"ph":', b'"args": {', b"}\n  ]", b"[[[[", b"null", b'{"ph": "X"}'),
    ]
)
EDIT = st.tuples(st.integers(0, 10**6), st.integers(0, 60), st.one_of(PIECES, st.binary(max_size=5)))


@examples(400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    layout=st.sampled_from(trace_files.LAYOUTS),
    edits=st.lists(EDIT, min_size=1, max_size=4),
    block=st.integers(1, 9000),
)
def test_mutated_traces(tmp_path: Path, layout: str, edits: list[tuple[int, int, bytes]], block: int) -> None:
    text = trace_files.trace_text(layout=layout)
    for place, cut, put in edits:
        at = place % (len(text) + 1)
        text = text[:at] + put + text[at + cut :]
    path = tmp_path / "mutated.json"
    path.write_bytes(text)
    try:
        whole: dict[str, Any] | None = json.loads(text.decode("utf-8", "replace"))
    except ValueError:
        whole = None
    try:
        read = trace.open(path, limits=trace.Limits(block_bytes=block))
    except trace.TraceError as error:
        assert "\n" not in str(error)
        assert not isinstance(whole, dict) or not isinstance(whole.get("traceEvents"), list)
        return
    trace_files.assert_sound(read)
    if isinstance(whole, dict) and text.count(b"traceEvents") == 1:
        lost = sum(int(line.split()[0]) for line in read.warnings if "could not be decoded" in line)
        elements = whole["traceEvents"]
        assert read.events + lost == len(elements) or not all(isinstance(item, dict) for item in elements)
