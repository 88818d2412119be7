"""The artifact store over a folder and over another fsspec file system."""

from __future__ import annotations

import hashlib
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from full_disk import no_file_beyond

from tightship_platform.captures.artifact_store import (
    CHUNK_BYTES,
    ArtifactStore,
    StoreTrouble,
    open_artifacts,
    trace_key,
)
from tightship_platform.errors import Invalid, NotFound, TooLarge
from tightship_platform.settings import Settings
from tightship_platform.units import NS_PER_S as S
from tightship_platform.units import now_ns

CONTENT = bytes(range(256)) * 9000
SHA = hashlib.sha256(CONTENT).hexdigest()
KEY = f"traces/a1/c1/rank-0-{SHA}.json.gz"
LIMIT = 10 * len(CONTENT)


@pytest.fixture(params=["folder", "file url", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ArtifactStore:
    """An empty store, once of each kind."""
    urls = {
        "folder": str(tmp_path / "a folder"),
        "file url": f"file://{tmp_path}/files",
        "memory": f"memory://{uuid.uuid4().hex}",
    }
    return open_artifacts(Settings(home=tmp_path, artifacts_url=urls[request.param]))


def _pieces(size: int = 100_000) -> Iterator[bytes]:
    for first in range(0, len(CONTENT), size):
        yield CONTENT[first : first + size]


def _all_files(store: ArtifactStore) -> list[str]:
    return [path for path in store._files.find(store._root) if not path.endswith("/")]


def test_what_is_written_is_read(store: ArtifactStore) -> None:
    stored = store.write(KEY, _pieces(), max_bytes=LIMIT, sha256=SHA)
    assert (stored.key, stored.sha256, stored.size_bytes) == (KEY, SHA, len(CONTENT))
    assert store.size(KEY) == len(CONTENT)
    with store.open(KEY) as file:
        file.seek(1000)
        assert file.read(5) == CONTENT[1000:1005]
    chunks = list(store.chunks(KEY))
    assert b"".join(chunks) == CONTENT
    assert max(map(len, chunks)) <= CHUNK_BYTES
    assert len(_all_files(store)) == 1


def test_an_empty_file_is_a_file(store: ArtifactStore) -> None:
    assert store.write(KEY, [], max_bytes=0).size_bytes == 0
    assert store.size(KEY) == 0
    assert list(store.chunks(KEY)) == []


def test_a_wrong_hash_leaves_nothing(store: ArtifactStore) -> None:
    with pytest.raises(Invalid, match=r"SHA-256 of the file is .* as announced; send it again"):
        store.write(KEY, _pieces(), max_bytes=LIMIT, sha256="0" * 64)
    assert _all_files(store) == []
    assert store.size(KEY) is None


def test_a_file_that_is_too_large_leaves_nothing(store: ArtifactStore) -> None:
    taken: list[int] = []

    def pieces() -> Iterator[bytes]:
        for number in range(1000):
            taken.append(number)
            yield b"x" * 1000

    with pytest.raises(TooLarge, match=r"exceeds 4.9 KiB .TIGHTSHIP_UPLOAD_MAX_BYTES"):
        store.write(KEY, pieces(), max_bytes=5000)
    assert len(taken) == 6
    assert _all_files(store) == []


def test_a_file_of_exactly_the_limit_is_accepted(store: ArtifactStore) -> None:
    assert store.write(KEY, _pieces(), max_bytes=len(CONTENT)).size_bytes == len(CONTENT)


def test_a_sender_that_breaks_off_leaves_nothing(store: ArtifactStore) -> None:
    def pieces() -> Iterator[bytes]:
        yield CONTENT[:1000]
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError):
        store.write(KEY, pieces(), max_bytes=LIMIT, sha256=SHA)
    assert _all_files(store) == []


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    store = ArtifactStore(str(tmp_path / "store"))
    store.write(KEY, [b"old"], max_bytes=LIMIT)
    said = rf"^The artifact store {tmp_path}/store cannot be used now \(File too large\)$"
    with pytest.raises(StoreTrouble, match=said), no_file_beyond(1_000_000):
        store.write(KEY, _pieces(), max_bytes=LIMIT, sha256=SHA)
    assert b"".join(store.chunks(KEY)) == b"old"
    assert len(_all_files(store)) == 1


class Remote(MemoryFileSystem):  # type: ignore[misc]  # fsspec carries no types
    """A file system whose library has its own errors, as those of object stores have."""

    protocol = "remote"
    cachable = False

    def _open(self, *_: object, **__: object) -> object:
        raise RuntimeError("Could not connect to\nthe endpoint URL")

    ls = find = info = rm_file = mv = makedirs = modified = _open


@pytest.mark.parametrize(
    "ask",
    [
        lambda store: store.write(KEY, [b"x"], max_bytes=9),
        lambda store: next(store.chunks(KEY)),
        lambda store: store.read_start(KEY, 9),
        lambda store: store.size(KEY),
        lambda store: store.delete(KEY),
        lambda store: store.files("traces"),
        lambda store: store.folders("traces"),
        lambda store: store.modified_ns(KEY),
    ],
)
def test_whatever_a_file_system_raises_is_trouble_of_the_store(ask: Callable[[ArtifactStore], object]) -> None:
    fsspec.register_implementation("remote", Remote, clobber=True)
    why = "RuntimeError: Could not connect to the endpoint URL"
    with pytest.raises(StoreTrouble, match=rf"^The artifact store remote://bucket cannot be used now \({why}\)$"):
        ask(ArtifactStore("remote://bucket"))


def test_the_older_file_stays_until_the_new_one_is_whole(store: ArtifactStore) -> None:
    store.write(KEY, [b"old"], max_bytes=LIMIT)
    with store.writing(KEY, max_bytes=LIMIT) as writer:
        writer.write(b"ne")
        assert b"".join(store.chunks(KEY)) == b"old"
        writer.write(b"w")
    assert writer.stored.size_bytes == 3
    assert b"".join(store.chunks(KEY)) == b"new"
    with pytest.raises(Invalid):
        store.write(KEY, [b"bad"], max_bytes=LIMIT, sha256=SHA)
    assert b"".join(store.chunks(KEY)) == b"new"
    assert len(_all_files(store)) == 1


def test_writers_at_once_leave_one_whole_file(store: ArtifactStore) -> None:
    def write(letter: bytes) -> None:
        store.write(KEY, [letter * 1000] * 200, max_bytes=LIMIT)

    threads = [threading.Thread(target=write, args=(letter,)) for letter in (b"a", b"b", b"c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    content = b"".join(store.chunks(KEY))
    assert len(content) == 200_000
    assert len(set(content)) == 1
    assert len(_all_files(store)) == 1


def test_a_file_that_is_deleted_is_gone(store: ArtifactStore) -> None:
    store.write(KEY, [b"x"], max_bytes=LIMIT)
    assert store.delete(KEY)
    assert not store.delete(KEY)
    assert store.size(KEY) is None
    with pytest.raises(NotFound, match=r"it was deleted, or TIGHTSHIP_ARTIFACTS_URL points elsewhere"), store.open(KEY):
        pass
    with pytest.raises(NotFound):
        next(store.chunks(KEY))


def test_a_folder_is_no_file(store: ArtifactStore) -> None:
    store.write(KEY, [b"x"], max_bytes=LIMIT)
    assert store.size("traces/a1") is None
    with pytest.raises(NotFound), store.open("traces/a1"):
        pass


@pytest.mark.parametrize(
    "key",
    [
        "../outside",
        "traces/../../outside",
        "/etc/passwd",
        "traces//x",
        "traces/.hidden",
        "traces/a\nb",
        "traces/a\0b",
        "traces/a b",
        "",
        ".",
        "traces/",
        "a/" * 8 + "b",
        "x" * 151,
        "s3://bucket/x",
        "traces/*",
    ],
)
def test_keys_that_lead_elsewhere_are_refused(store: ArtifactStore, key: str) -> None:
    with pytest.raises(Invalid, match="Key of a stored file"):
        store.write(key, [b"x"], max_bytes=LIMIT)
    with pytest.raises(Invalid), store.open(key):
        pass
    with pytest.raises(Invalid):
        store.delete(key)
    assert not store._files.exists(store._root) or _all_files(store) == []


def test_a_trace_has_its_place() -> None:
    assert trace_key("a1", "c1", 0, SHA) == KEY
    assert trace_key("a1", "c1", 0, "0" * 64) != KEY
    with pytest.raises(Invalid):
        trace_key("..", "c1", 0, SHA)


def test_files_are_listed_with_the_time_of_their_writing(store: ArtifactStore) -> None:
    assert store.folders("traces") == store.files("traces") == []
    before = now_ns()
    keys = ["traces/a1/c1/x", "traces/a1/c2/x", "traces/a2/c1/x", "traces/loose"]
    for key in keys:
        store.write(key, [b"x"], max_bytes=LIMIT)
    assert store.folders("traces") == ["traces/a1", "traces/a2"]
    assert store.files("traces/a1") == keys[:2]
    assert store.files("traces") == sorted(keys)
    with store.writing(KEY, max_bytes=LIMIT) as writer:
        writer.write(b"x")
        (partial,) = set(store.files("traces/a1/c1")) - set(keys)
        assert partial.startswith(KEY)
    assert store.files("traces/a1/c1") == [KEY, keys[0]]
    for key in (*keys, KEY):
        modified_ns = store.modified_ns(key)
        assert modified_ns is not None
        assert before - S <= modified_ns <= now_ns() + S
    assert store.modified_ns("traces/a1/none") is None


def test_a_store_without_its_driver_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="TIGHTSHIP_ARTIFACTS_URL is 'nosuch://bucket'") as caught:
        open_artifacts(Settings(home=tmp_path, artifacts_url="nosuch://bucket"))
    assert "\n" not in str(caught.value)
