"""Two processes that read one file give what one gives, whatever the file."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import trace_files

from tightship_analyzers import trace
from tightship_analyzers.trace.blocks import TextSource
from tightship_analyzers.trace.kineto.columns import EventColumns
from tightship_analyzers.trace.kineto.event_stream import EventStream
from tightship_analyzers.trace.kineto.reader import open_trace
from tightship_analyzers.trace.kineto.second_process import SecondReader
from tightship_analyzers.trace.limits import Limits

ALWAYS = Limits(second_process_bytes=0, block_bytes=2**12)
REPEATS = 60


def events(count: int = REPEATS) -> list[dict[str, object]]:
    """The small trace again and again, each time with other names, threads and links."""
    made = []
    for number in range(count):
        for event in trace_files.EVENTS:
            copy = json.loads(json.dumps(event))
            if "ts" in copy:
                copy["ts"] = f"{float(copy['ts']) + 1000 * number:.3f}"
            if copy.get("name", "").startswith(("aten::", "void")):
                copy["name"] += f" {number // 7}"
            args = copy.get("args", {})
            for key in {"correlation", "External id"} & args.keys():
                args[key] += 100 * number
            made.append(copy)
    return made


@pytest.fixture
def text() -> bytes:
    return trace_files.trace_text(events())


class Waited:
    """A second reader whose begin is known before the first one reads: on a slow machine it might come too late."""

    def __init__(self, source: Path, limits: Limits) -> None:
        started = SecondReader.start(source, limits)
        assert started is not None
        self.second = started
        started._connection.poll(60)
        self.began_at = started.begins_at()

    def read(self, source: Path, limits: Limits) -> tuple[EventColumns, EventStream]:
        event_stream = EventStream(TextSource(source, limits), limits, self.second)
        columns = EventColumns(limits)
        try:
            for block in event_stream:
                columns.add(block)
            if event_stream.rest_is_elsewhere:
                self.second.append_to(columns)
        finally:
            self.second.stop()
        return columns, event_stream


def by_one(source: Path, limits: Limits = ALWAYS) -> tuple[EventColumns, EventStream]:
    event_stream = EventStream(TextSource(source, limits), limits)
    columns = EventColumns(limits)
    for block in event_stream:
        columns.add(block)
    return columns, event_stream


def content(columns: EventColumns) -> list[object]:
    """Every cell, with its text where it is a number of one."""
    columns.add_waiting()
    names, threads, shapes = list(columns.names), list(columns.threads), list(columns.shapes)
    texts = {"name": names, "group": names, "dtype": names, "tid": threads, "shapes": shapes}
    found: list[object] = [columns.events, dict(columns.unknown), columns.process_names, columns.thread_names]
    for gathered in columns._every():
        for column in gathered.columns():
            values = gathered.column(column).tolist()
            known = texts.get(column)
            found.append((column, [known[value] if known and value >= 0 else value for value in values]))
    return found


@pytest.mark.parametrize("packed", [True, False])
def test_two_readers_see_what_one_sees(tmp_path: Path, text: bytes, packed: bool) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(gzip.compress(text) if packed else text)
    both, event_stream = Waited(path, ALWAYS).read(path, ALWAYS)
    one, alone = by_one(path)
    assert event_stream.rest_is_elsewhere and not alone.rest_is_elsewhere
    assert event_stream.members == alone.members and event_stream.warnings == []
    assert content(both) == content(one)


def cut_off(text: bytes) -> bytes:
    return text[: len(text) * 9 // 10]


def broken(text: bytes) -> bytes:
    """An event near the end is no JSON."""
    head, found, tail = text.rpartition(b'"cudaLaunchKernel"')
    assert found
    return head + found + b", :" + tail


def followed(text: bytes) -> bytes:
    return text + b" and more"


@pytest.mark.parametrize("damage", [cut_off, broken, followed])
def test_a_damaged_end_is_read_by_the_first_reader(
    tmp_path: Path, text: bytes, damage: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(damage(text))
    waited = Waited(path, ALWAYS)
    assert waited.began_at > 0
    both, event_stream = waited.read(path, ALWAYS)
    one, alone = by_one(path)
    assert not event_stream.rest_is_elsewhere
    assert (event_stream.warnings, event_stream.cut_off, event_stream.lost) == (
        alone.warnings,
        alone.cut_off,
        alone.lost,
    )
    assert event_stream.warnings
    assert content(both) == content(one)


def test_a_wrong_guess_counts_nothing(tmp_path: Path) -> None:
    """Where the second reader begins there are no events, only arguments that look like some."""
    fake = trace_files.trace_text([{"ph": "X", "cat": "fake", "name": "a"}] * 4000, before={}, after={})
    inner = fake[fake.index(b"[") : fake.rindex(b"]") + 1]
    real = trace_files.trace_text(events(2))
    place = real.index(b'"args": {') + len(b'"args": {')
    path = tmp_path / "trace.json"
    path.write_bytes(real[:place] + b'"list": ' + inner + b", " + real[place:])
    limits = replace(ALWAYS, block_bytes=2**10)
    waited = Waited(path, limits)
    both, event_stream = waited.read(path, limits)
    one, _ = by_one(path, limits)
    assert not event_stream.rest_is_elsewhere
    assert content(both) == content(one)


def test_a_reader_that_dies_costs_nothing(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(text)
    waited = Waited(path, ALWAYS)
    waited.second._process.kill()
    waited.second._process.join()
    both, _ = waited.read(path, ALWAYS)
    assert content(both) == content(by_one(path)[0])


def test_open_takes_two_processes(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(text))
    reported: list[tuple[int, int]] = []
    both = open_trace(path, limits=ALWAYS, progress=lambda *at: reported.append(at), processes=2)
    assert trace_files.tables_of(both) == trace_files.tables_of(trace.open(path))
    assert reported[-1] == (path.stat().st_size, path.stat().st_size)


def test_small_files_and_urls_are_read_by_one(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(text)
    assert SecondReader.start(path, Limits()) is None
    assert SecondReader.start(f"file://{path}", ALWAYS) is None
    assert SecondReader.start(tmp_path, ALWAYS) is None
    assert SecondReader.start(tmp_path / "absent", ALWAYS) is None
