"""Reading one small trace that has an event of every sort: every cell, every layout, every cut."""

from __future__ import annotations

import gzip
import io
import zlib
from pathlib import Path
from typing import Any

import pytest
import trace_files
from trace_files import Written

from tightship_analyzers import trace
from tightship_analyzers.trace.blocks import TextSource
from tightship_analyzers.trace.columns import EventKind, Evidence
from tightship_analyzers.trace.kineto.columns import MOST_BLOCKS, EventColumns
from tightship_analyzers.trace.kineto.event_stream import EventStream
from tightship_analyzers.trace.kineto.events import decode
from tightship_analyzers.trace.kineto.kinds import OVERHEADS, Event

BASE = trace_files.BASE_NS + 4_313_986_415_000_000


def test_every_cell(written: Written) -> None:
    read = trace.open(written(trace_files.trace_text()))
    trace_files.assert_sound(read)
    assert read.warnings == []
    assert (read.device_kind, read.device_name, read.rank, read.world_size) == ("gpu", "Tesla V100-SXM2-32GB", 3, 8)
    assert (read.trace_id, read.base_ns, read.events) == ("AA7F", trace_files.BASE_NS, len(trace_files.EVENTS))
    assert (read.start_ns, read.end_ns) == (BASE, BASE + 900_500)
    host = next(thread for thread in read.threads if thread.tid == 100)
    assert host == (100, 100, "thread 100 (python)")
    tables = trace_files.tables_of(read)
    assert tables["host_ops"] == [
        (BASE + 10_125, BASE + 60_125, 'aten::mm "quoted" \\ {[', host, 100, 2, 7, ("[[8,32],[]]", '["float",""]'))
    ]
    assert tables["annotations"] == [(BASE, BASE + 900_500, "ProfilerStep#1", host, 1)]
    assert tables["launches"] == [(BASE + 20_001, BASE + 30_000, "cudaLaunchKernel", host, 41, 2, "mm<Ä>")]
    copy, reduce = "Memcpy HtoD (Pageable -> Device)", "ncclDevKernel_AllReduce"
    assert tables["device_events"] == [
        (BASE + 40_007, BASE + 140_010, "void mm<Ä>(…)", 0, 7, 41, 2, EventKind.KERNEL, Evidence.NONE, -1, -1, 24, 0),
        (BASE + 200_500, BASE + 203_750, copy, 0, 7, 42, -1, EventKind.COPY, Evidence.NONE, 4096, 3251, -1, -1),
        (
            BASE + 210_000,
            BASE + 211_000,
            "Memset (Device)",
            0,
            20,
            -1,
            -1,
            EventKind.SET,
            Evidence.NONE,
            128,
            *[-1] * 3,
        ),
        (BASE + 220_000, BASE + 225_000, reduce, 0, 20, 43, -1, EventKind.COLLECTIVE, Evidence.ARGUMENTS, *[-1] * 4),
    ]
    assert tables["frames"] == [
        (BASE + 1, BASE + 900_002, "train.py(3): <module>", host, 1, -1),
        (BASE + 5_000, BASE + 85_000, "nn.Module: Linear_0", host, 2, 1),
    ]
    assert tables["memory_events"] == [(BASE + 11_000, BASE + 11_000, host, 0, 9, -64, 128, 512)]
    assert tables["syncs"] == [(BASE + 300_000, BASE + 302_000, "Stream Sync", 0, 7, 44, 20, 40)]
    assert [row[:3] for row in tables["overheads"]] == [(BASE + 400_000, BASE + 407_000, "Buffer Flush")]
    assert [row[:3] for row in tables["links"]] == [(BASE + 10_125, BASE + 500_250, "fwdbwd")]


@pytest.mark.parametrize("layout", trace_files.LAYOUTS)
def test_every_layout_gives_the_same_columns(written: Written, layout: str) -> None:
    expected = trace_files.tables_of(trace.open(written(trace_files.trace_text())))
    read = trace.open(written(trace_files.trace_text(layout=layout)))
    assert trace_files.tables_of(read) == expected
    assert read.warnings == []


@pytest.mark.sliced(2)
@pytest.mark.parametrize("layout", trace_files.LAYOUTS)
def test_a_block_may_end_at_any_byte(written: Written, layout: str) -> None:
    path = written(trace_files.trace_text(layout=layout))
    expected = trace_files.tables_of(trace.open(path))
    for size in (1, 2, 3, 7, 100):
        read = trace.open(path, limits=trace.Limits(block_bytes=size))
        assert read.warnings == [] and read.rank == 3, size
        assert trace_files.tables_of(read) == expected, size
    # From blocks smaller than an event to two that are cut at every byte.
    events, members = cut(path, trace.Limits())
    assert len(events) == len(trace_files.EVENTS)
    for size in range(1, path.stat().st_size + 1):
        assert cut(path, trace.Limits(block_bytes=size)) == (events, members), size


def cut(path: Path, limits: trace.Limits) -> tuple[list[Event], dict[str, Any]]:
    """The decoded events of a file, and what stands beside them."""
    event_stream = EventStream(TextSource(path, limits), limits)
    events = [event for piece in event_stream for event in piece]
    assert event_stream.warnings == []
    return events, event_stream.members


@pytest.mark.sliced(1)
@pytest.mark.parametrize("part", range(4))
def test_cut_off_at_any_byte_keeps_what_is_whole(written: Written, part: int) -> None:
    text = trace_files.trace_text()
    array = text.index(b'[\n  {\n    "ph"') + 1
    ends = []
    for event in trace_files.EVENTS:
        last = trace_files.trace_text([event], before={}, after={}).rsplit(b"\n  ]", 1)[0].split(b"[\n", 1)[1]
        ends.append(text.index(last, ends[-1] if ends else array) + len(last))
    sizes = (*range(array, ends[2] + 5), *range(ends[2] + 5, ends[-2], 7), *range(ends[-2], ends[-1] + 1))
    for size in sizes[part::4]:
        read = trace.open(written(text[:size]))
        assert read.events == sum(end <= size for end in ends), size
        assert len(read.warnings) == 1 and f"cut off at byte {size} " in read.warnings[0], size
    for size in range(1 + part, array - 1, 4):
        with pytest.raises(trace.TraceError):
            trace.open(written(text[:size]))


def test_gzip_is_known_by_its_content(written: Written) -> None:
    text = trace_files.trace_text()
    expected = trace_files.tables_of(trace.open(written(text)))
    whole = gzip.compress(text)
    parts = gzip.compress(text[:500]) + gzip.compress(text[500:]) + b"\0" * 512
    for packed in (whole, parts):
        read = trace.open(written(packed))
        assert trace_files.tables_of(read) == expected and read.warnings == []


def test_gzip_cut_off_at_any_byte(written: Written) -> None:
    text = trace_files.trace_text()
    packed = gzip.compress(text)
    total = len(trace_files.EVENTS)
    seen = set()
    for size in range(2, len(packed), 3):
        try:
            read = trace.open(written(packed[:size]))
        except trace.TraceError as error:
            assert "not JSON" in str(error) or "not a trace" in str(error)
            continue
        assert len(read.warnings) == 1 and "cut off" in read.warnings[0], size
        trace_files.assert_sound(read)
        seen.add(read.events)
    assert {total, total // 2} <= seen


def test_damaged_gzip_keeps_what_came_before(written: Written) -> None:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    text = trace_files.trace_text()
    packed = packer.compress(text[:3000]) + packer.flush(zlib.Z_FULL_FLUSH)
    # Stored blocks that add no text, so that the damage lies beyond what is decompressed at a time.
    packed += b"\x00\x00\x00\xff\xff" * 1000
    read = trace.open(written(packed + b"\xff" * 200))
    assert 0 < read.events < len(trace_files.EVENTS)
    assert len(read.warnings) == 1 and "gzip stream is damaged" in read.warnings[0]


def test_url_gives_what_the_path_gives(written: Written) -> None:
    import fsspec

    text = gzip.compress(trace_files.trace_text())
    with fsspec.open("memory://rank3.trace", "wb") as file:
        file.write(text)
    expected = trace_files.tables_of(trace.open(written(text)))
    assert trace_files.tables_of(trace.open("memory://rank3.trace")) == expected
    assert trace_files.tables_of(trace.open(written(text).as_uri())) == expected


def test_progress_ends_at_the_size_of_the_file(written: Written) -> None:
    for text in (trace_files.trace_text(), gzip.compress(trace_files.trace_text())):
        calls: list[tuple[int, int]] = []
        path = written(text)

        def note(done: int, whole: int, calls: list[tuple[int, int]] = calls) -> None:
            calls.append((done, whole))

        trace.open(path, limits=trace.Limits(block_bytes=512), progress=note)
        assert calls == sorted(calls) and calls[-1] == (path.stat().st_size, path.stat().st_size)


@pytest.mark.parametrize("layout", trace_files.LAYOUTS)
def test_events_without_an_object_around_them(written: Written, layout: str) -> None:
    text = trace_files.trace_text(layout=layout)
    array = text[
        text.index(b"[", text.index(b"traceEvents")) : text.rindex(b"]", 0, text.index(b"distributedInfo")) + 1
    ]
    read = trace.open(written(array))
    assert read.events == len(trace_files.EVENTS) and read.warnings == []
    assert read.base_ns == 0 and read.rank is None and read.start_ns == BASE - trace_files.BASE_NS


def test_file_order_does_not_matter(written: Written) -> None:
    events: list[dict[str, Any]] = list(reversed(trace_files.EVENTS))
    expected = trace_files.tables_of(trace.open(written(trace_files.trace_text())))
    assert trace_files.tables_of(trace.open(written(trace_files.trace_text(events)))) == expected


def test_reads_at_most_one_block_ahead() -> None:
    """The text is never held as a whole: of a stream without end only a window is in memory."""
    from tightship_analyzers.trace.blocks import TextSource

    class Counting(io.BytesIO):
        largest = 0

        def read(self, size: int | None = -1) -> bytes:
            assert size is not None and size >= 0
            Counting.largest = max(Counting.largest, size)
            return super().read(size)

    source = TextSource("x", trace.Limits(block_bytes=1000))
    packed = gzip.compress(b"\0" * 10**6)
    for blocks in (source._plain(Counting(b"a" * 10**5), b""), source._gunzip(Counting(packed[100:]), packed[:100])):
        assert all(len(block) <= 1000 for block in blocks)
    assert Counting.largest <= 2**16


def test_events_do_not_keep_the_text_of_many_blocks() -> None:
    columns = EventColumns(trace.Limits())
    rare = decode(b'{"ph": "X", "cat": "overhead", "name": "x", "pid": 1, "tid": 1, "ts": 1.5, "dur": 2}')
    for _ in range(MOST_BLOCKS):
        assert not columns.tables[OVERHEADS].rows
        columns.add(rare)
    assert columns.tables[OVERHEADS].rows == MOST_BLOCKS


def test_threads_beyond_the_limit_are_not_remembered() -> None:
    columns = EventColumns(trace.Limits(threads=10))
    text = b'{"ph": "X", "cat": "cpu_op", "name": "x", "pid": 1, "tid": %d, "ts": 1, "dur": 2}'
    columns.add(decode(b",".join(text % tid for tid in range(1000))))
    columns.add_waiting()
    assert columns.full and len(columns.threads) == 11 and len(columns._threads_of) <= 11
