"""Trace files in a folder where the job's user can put anything."""

from __future__ import annotations

import gzip
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tightship_collectors.kineto import disk_room
from tightship_collectors.kineto.trace_file import (
    EDGE_BYTES,
    TURN_BYTES,
    BadTrace,
    open_trace,
    pack,
    remove_traces,
    trace_size,
)
from tightship_platform.errors import TooLarge

UID = os.getuid()
HEAD = b'{\n "schemaVersion": 1,\n "trace_id": "c1-1-1",\n "traceEvents": ['


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    traces = tmp_path / "run" / "traces"
    traces.mkdir(parents=True)
    return traces


def opened(folder: Path, name: str = "t.json", trace_id: str = "c1-1-1", uid: int = UID) -> bytes:
    fd = open_trace(folder, name, uid, trace_id)
    with os.fdopen(fd, "rb") as file:
        return file.read()


def pack_whole(
    fd: int, target: Path, *, max_bytes: int = 2**40, at_each_step: Callable[[], object] = int
) -> tuple[int, str]:
    packing = pack(fd, target, max_bytes=max_bytes)
    while True:
        try:
            next(packing)
        except StopIteration as done:
            result: tuple[int, str] = done.value
            return result
        at_each_step()


def test_the_trace_that_was_asked_for(folder: Path) -> None:
    (folder / "t.json").write_bytes(HEAD + b"]}")
    assert opened(folder) == HEAD + b"]}"
    assert trace_size(folder, "t.json", UID) == len(HEAD) + 2


def test_the_id_may_stand_behind_the_events(folder: Path) -> None:
    (folder / "t.json").write_bytes(b'{"traceEvents": [' + b" " * 3 * EDGE_BYTES + b'], "trace_id": "c1-1-1"}')
    assert len(opened(folder)) > 3 * EDGE_BYTES


@pytest.mark.parametrize(
    "content", [b"", b"{}", HEAD.replace(b"c1-1-1", b"c1-1-2"), HEAD.replace(b"c1-1-1", b"c1-1-11")]
)
def test_another_trace_is_not_taken_for_it(folder: Path, content: bytes) -> None:
    (folder / "t.json").write_bytes(content)
    with pytest.raises(BadTrace, match="trace id"):
        opened(folder)


def test_a_link_is_not_followed(folder: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(HEAD)
    (folder / "t.json").symlink_to(secret)
    assert trace_size(folder, "t.json", UID) is None
    with pytest.raises(BadTrace):
        opened(folder)


def test_a_folder_that_was_swapped_for_a_link_is_not_followed(folder: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "t.json").write_bytes(HEAD)
    folder.rmdir()
    folder.symlink_to(elsewhere)
    assert trace_size(folder, "t.json", UID) is None
    with pytest.raises(BadTrace):
        opened(folder)
    remove_traces(folder, UID, "t")
    assert (elsewhere / "t.json").exists()


def test_a_fifo_does_not_block(folder: Path) -> None:
    os.mkfifo(folder / "t.json")
    assert trace_size(folder, "t.json", UID) is None
    with pytest.raises(BadTrace, match="regular"):
        opened(folder)


def test_a_file_of_another_user_is_not_taken(folder: Path) -> None:
    (folder / "t.json").write_bytes(HEAD)
    assert trace_size(folder, "t.json", UID + 1) is None
    with pytest.raises(BadTrace):
        opened(folder, uid=UID + 1)


def test_a_missing_file_or_folder(folder: Path) -> None:
    assert trace_size(folder, "t.json", UID) is None
    assert trace_size(folder / "gone", "t.json", UID) is None
    with pytest.raises(BadTrace, match="No such file"):
        opened(folder)
    remove_traces(folder / "gone", UID, "t")


def test_packing_keeps_every_byte_and_tells_the_hash(folder: Path, tmp_path: Path) -> None:
    content = HEAD + os.urandom(100_000) + b'{"a": 1}' * 400_000
    (folder / "t.json").write_bytes(content)
    fd = open_trace(folder, "t.json", UID, "c1-1-1")
    target = tmp_path / "rank-0.json.gz"
    try:
        size, sha256 = pack_whole(fd, target)
    finally:
        os.close(fd)
    packed = target.read_bytes()
    assert gzip.decompress(packed) == content
    assert (size, sha256) == (len(packed), hashlib.sha256(packed).hexdigest())
    assert list(tmp_path.glob("*.new")) == []


def test_a_full_disk_leaves_nothing_behind(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "t.json").write_bytes(HEAD)

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    fd = open_trace(folder, "t.json", UID, "c1-1-1")
    with pytest.raises(OSError, match="No space"):
        pack_whole(fd, tmp_path / "rank-0.json.gz")
    os.close(fd)
    assert not list(tmp_path.glob("rank-0*"))


def test_a_file_that_grows_is_packed_as_it_was_at_the_beginning(folder: Path, tmp_path: Path) -> None:
    source = folder / "t.json"
    source.write_bytes(HEAD)
    os.truncate(source, 2 * TURN_BYTES)
    fd = open_trace(folder, "t.json", UID, "c1-1-1")
    steps = []

    def grow() -> None:
        steps.append(source.stat().st_size)
        os.truncate(source, steps[-1] + 2 * TURN_BYTES)  # faster than it is read

    pack_whole(fd, tmp_path / "rank-0.json.gz", at_each_step=grow)
    os.close(fd)
    assert len(steps) == 2
    with gzip.open(tmp_path / "rank-0.json.gz") as file:
        assert sum(len(chunk) for chunk in iter(lambda: file.read(2**20), b"")) == 2 * TURN_BYTES


def test_a_file_above_the_limit_is_refused_unread_holes_included(folder: Path, tmp_path: Path) -> None:
    (folder / "t.json").write_bytes(HEAD)
    os.truncate(folder / "t.json", 2**40)
    fd = open_trace(folder, "t.json", UID, "c1-1-1")
    with pytest.raises(
        TooLarge, match=r"^it has 1.0 TiB and at most 8.0 GiB \(TIGHTSHIP_TRACE_MAX_BYTES\) are delivered"
    ):
        pack_whole(fd, tmp_path / "rank-0.json.gz", max_bytes=8 * 2**30)
    os.close(fd)
    assert list(tmp_path.glob("rank-0*")) == []


def test_packing_stops_before_the_disk_is_full(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "t.json").write_bytes(HEAD)
    os.truncate(folder / "t.json", 2 * TURN_BYTES)
    fd = open_trace(folder, "t.json", UID, "c1-1-1")

    def fill_up() -> None:
        monkeypatch.setattr(disk_room, "MIN_FREE_BYTES", 10**18)

    with pytest.raises(OSError, match=r"only \d+ MB are free in .*, 1000000000000 are needed"):
        pack_whole(fd, tmp_path / "rank-0.json.gz", at_each_step=fill_up)
    os.close(fd)
    assert list(tmp_path.glob("rank-0*")) == []


def test_packing_that_is_given_up_leaves_nothing_behind(folder: Path, tmp_path: Path) -> None:
    (folder / "t.json").write_bytes(HEAD)
    os.truncate(folder / "t.json", 2 * TURN_BYTES)
    fd = open_trace(folder, "t.json", UID, "c1-1-1")
    packing = pack(fd, tmp_path / "rank-0.json.gz", max_bytes=2**40)
    next(packing)
    assert list(tmp_path.glob("rank-0*"))
    packing.close()
    os.close(fd)
    assert list(tmp_path.glob("rank-0*")) == []


def test_only_the_files_of_the_capture_are_removed(folder: Path) -> None:
    for name in ("c1-1-1_7.json", "c1-1-2_7.json.tmp", "c10-1-1_7.json", "mine.json"):
        (folder / name).touch()
    remove_traces(folder, UID, "c1-")
    assert sorted(path.name for path in folder.iterdir()) == ["c10-1-1_7.json", "mine.json"]
