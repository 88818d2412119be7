"""Files of the trace store on both databases: late uploads, and what a sweep removes and what it may not touch."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from api_calls import HOST, RUN, Capture, Served, authorization, ok, serving, sha256, trace_file
from capture_steps import NOW, armed
from conftest import POSTGRES, PlatformEnv
from records import S, reported, started
from sqlalchemy import delete, select, update
from waiting import wait_for

from tightship_platform import captures, ingest
from tightship_platform.captures import files as trace_files
from tightship_platform.captures import store_owner
from tightship_platform.captures.artifact_store import ArtifactStore, Stored, trace_key
from tightship_platform.captures.files import Removed
from tightship_platform.database.engine import Database
from tightship_platform.database.models import Run, Trace
from tightship_platform.errors import Conflict
from tightship_platform.queries.captures import get_capture
from tightship_platform.samples.retention import DAY_NS
from tightship_platform.units import now_ns
from tightship_platform.wire import LeaseRequest

LATER = now_ns() + 2 * trace_files.SETTLED_NS
"""By then everything that the tests write now is old."""
FOREVER = 0
"""Days for which traces are kept."""


@pytest.fixture(params=["sqlite", POSTGRES])
def served(request: pytest.FixtureRequest, make_platform_env: Callable[..., PlatformEnv]) -> Iterator[Served]:
    with serving(make_platform_env(database=request.param).settings) as running:
        yield running


@pytest.fixture(params=["folder", "memory"])
def store(request: pytest.FixtureRequest, database: Database, tmp_path: Path) -> ArtifactStore:
    """A store of the database's installation, once of each kind."""
    urls = {"folder": str(tmp_path / "store"), "memory": f"memory://{os.urandom(8).hex()}"}
    made = ArtifactStore(urls[request.param])
    store_owner.claim(database, made)
    return made


def _put(store: ArtifactStore, key: str, content: bytes, rank: int = 0, run: str = "a1") -> Stored:
    hashed = sha256(content)
    return store.write(trace_key(run, key, rank, hashed), [content], max_bytes=1 << 20, sha256=hashed)


def _sweep(database: Database, store: ArtifactStore, now: int | None = LATER, days: int = FOREVER) -> Removed:
    return trace_files.sweep(database, store, keep_days=days, now=now)


def _order(database: Database, store: ArtifactStore, now: int | None = LATER) -> Removed:
    """What a person removes by `tightship db sweep-traces`."""
    found = trace_files.find_removable(database, store, keep_days=FOREVER, now=now)
    return trace_files.remove(database, store, found, keep_days=FOREVER, now=now)


def _traces(store: ArtifactStore) -> list[str]:
    return [file for file in store.files("traces") if file != store_owner.MARKER]


class SlowUpload:
    """An upload whose last byte is held back."""

    def __init__(self, served: Served, key: str, data: bytes, **query: object) -> None:
        host, port = served.url.removeprefix("http://").split(":")
        given = "&".join(f"{name}={value}" for name, value in {"pid": 100, "host": HOST, **query}.items())
        head = (
            f"PUT /api/v1/captures/{key}/traces/0?{given} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n"
            f"{authorization(served.settings.home)}"
            f"Content-Length: {len(data)}\r\nX-SHA256: {sha256(data)}\r\n\r\n"
        )
        self._connection = socket.create_connection((host, int(port)))
        self._connection.sendall(head.encode() + data[:-1])
        self._rest = data[-1:]

    def finish(self) -> str:
        """The server's answer."""
        with self._connection:
            self._connection.sendall(self._rest)
            return b"".join(iter(lambda: self._connection.recv(4096), b"")).decode()


def _partials(served: Served) -> list[Path]:
    return list(Path(served.settings.artifacts_url).rglob("*.partial-*"))


@pytest.mark.parametrize("with_attempt", [True, False])
def test_a_late_upload_of_an_earlier_attempt_replaces_nothing(served: Served, with_attempt: bool) -> None:
    """The file of attempt 1 arrives when that of attempt 2 is stored: on the same host, of the same process."""
    old, new = trace_file(3000), trace_file(2000)
    with served.http() as http:
        capture = Capture(http)
        capture.write()
        late = SlowUpload(served, capture.key, old, **({"attempt": 1} if with_attempt else {}))
        wait_for(lambda: bool(_partials(served)), "the upload to be accepted")
        capture.report("requested", reason="the agent was stopped")
        with served.database.session() as session:
            asked = LeaseRequest(host=HOST, runs=[RUN])
            assert [lease.attempt for lease in captures.lease(session, asked, now=now_ns() + 60 * S)] == [2]
        for state in ("armed", "recording", "written"):
            capture.report(state, expected=[{"rank": 0, "pid": 100}])
        trace = ok(capture.put(new, attempt=2))["trace"]
        answer = late.finish()
        assert " 409 " in answer.splitlines()[0], answer
        assert http.get(f"/traces/{trace}/file").content == new
        assert [(row["sha256"], row["bytes"]) for row in capture.now()["ranks"]] == [(sha256(new), len(new))]
        store = ArtifactStore(served.settings.artifacts_url)
        removed = _order(served.database, store)
        assert (removed.files, removed.size_bytes) == (1, len(old))
        assert http.get(f"/traces/{trace}/file").content == new


def test_a_file_of_another_attempt_is_not_what_completes_the_capture(database: Database, store: ArtifactStore) -> None:
    with database.session() as session:
        ingest.apply_run(session, started(), now=NOW)
        key = armed(session)
        captures.report(session, key, reported("requested", reason="stopped"), now=NOW)
        asked = LeaseRequest(host="h1", runs=["a1"])
        (lease,) = captures.lease(session, asked, now=NOW + 60 * S)
        captures.report(session, key, reported("armed", ranks=[0]), now=NOW + 60 * S)
    first = {"rank": 0, "pid": 100, "host": "h1", "now": NOW + 61 * S}
    with database.session() as session, pytest.raises(Conflict, match="is in attempt 2; this is a file of attempt 1"):
        trace_files.record(session, store, key, _put(store, key, b"old"), attempt=1, **first)
    with database.session() as session:
        done = trace_files.record(session, store, key, _put(store, key, b"new"), attempt=lease.attempt, **first)
        assert done.completed


def test_only_old_files_of_our_captures_that_no_row_names_are_removed(database: Database, tmp_path: Path) -> None:
    store = ArtifactStore(str(tmp_path / "store"))
    store_owner.claim(database, store)
    with database.session() as session:
        ingest.apply_run(session, started(), now=NOW)
        key = armed(session, (0, 1))
    kept = _put(store, key, b"rank 0")
    with database.session() as session:
        trace_files.record(session, store, key, kept, rank=0, pid=100, host="h1", now=NOW)
    foreign = store.write("traces/readme.txt", [b"mine"], max_bytes=99), store.write("other/x", [b"y"], max_bytes=99)
    named_alike = store.write(f"traces/a1/{key}/rank-0-notes.json.gz", [b"z"], max_bytes=99)
    _put(store, key, b"refused")
    unknown = _put(store, "elsewhere", b"capture"), _put(store, key, b"another run", run="a2")
    dead = tmp_path / "store" / f"{unknown[0].key}.partial-{'0' * 32}"
    dead.write_bytes(b"half")
    everything = store.files("traces")
    assert _order(database, store, now=None).files == 0
    assert store.files("traces") == everything
    an_hour_ago = now_ns() / S - trace_files.SETTLED_NS / S - 1
    for file in (*(tmp_path / "store" / file for file in everything), dead):
        os.utime(file, (an_hour_ago, an_hour_ago))
    young = _put(store, key, b"on its way")
    assert _sweep(database, store, now=None) == Removed(files=1, size_bytes=len("half"))
    assert _order(database, store, now=None) == Removed(files=1, size_bytes=len("refused"))
    left = {file.key for file in (kept, young, foreign[0], named_alike, *unknown)}
    assert set(store.files("traces")) == left | {store_owner.MARKER}
    assert store.size(foreign[1].key) == 1


def test_other_stores_are_tidied_alike(database: Database, store: ArtifactStore) -> None:
    """A store tells the age of its files, whatever its kind."""
    with database.session() as session:
        ingest.apply_run(session, started(), now=NOW)
        key = armed(session)
    stored = _put(store, key, b"x")
    assert _order(database, store, now=None).files == 0
    assert _traces(store) == [stored.key]
    assert _order(database, store).files == 1
    assert _traces(store) == []


def test_a_file_that_a_restored_database_does_not_know_any_more_stays(database: Database, store: ArtifactStore) -> None:
    """It was recorded after the backup, and its capture was under way then."""
    with database.session() as session:
        ingest.apply_run(session, started(), now=NOW)
        key = armed(session)
    lost = _put(store, key, b"lost")
    for later, days in ((LATER, 90), (LATER, FOREVER), (now_ns() + 1000 * DAY_NS, FOREVER)):
        assert _sweep(database, store, now=later, days=days) == Removed()
        assert _traces(store) == [lost.key]
    assert _sweep(database, store, now=now_ns() + 91 * DAY_NS, days=90).files == 1


def test_a_file_that_was_removed_before_its_row_was_written_is_asked_for_again(
    database: Database, store: ArtifactStore
) -> None:
    with database.session() as session:
        ingest.apply_run(session, started(), now=NOW)
        key = armed(session)
    stored = _put(store, key, b"slow")
    assert _order(database, store).files == 1
    recorded: dict[str, Any] = {"rank": 0, "pid": 100, "host": "h1", "now": NOW}
    with database.session() as session, pytest.raises(Conflict, match="removed before it was recorded; send it again"):
        trace_files.record(session, store, key, stored, **recorded)
    with database.session() as session:
        assert session.scalars(select(Trace)).all() == []
        assert trace_files.record(session, store, key, _put(store, key, b"slow"), **recorded).completed


def test_the_files_of_a_run_that_the_database_no_longer_has_stay(database: Database, store: ArtifactStore) -> None:
    """As after a database was restored: they may be all that is left."""
    with database.session() as session:
        ingest.apply_run(session, started(), now=NOW)
        key = armed(session)
    with database.session() as session:
        trace_files.record(session, store, key, _put(store, key, b"x"), rank=0, pid=100, host="h1", now=NOW)
    before = _traces(store)
    found = trace_files.find_removable(database, store, keep_days=FOREVER, now=LATER)
    assert (found.files, found.kept, found.unknown) == ([], 1, 0)
    with database.session() as session:
        session.execute(delete(Run))
    found = trace_files.find_removable(database, store, keep_days=FOREVER, now=LATER)
    assert (found.files, found.kept, found.unknown) == ([], 1, 1)
    assert _sweep(database, store).files == 0
    assert _traces(store) == before


def test_a_file_that_got_its_row_since_it_was_found_stays(database: Database, store: ArtifactStore) -> None:
    with database.session() as session:
        ingest.apply_run(session, started(), now=NOW)
        key = armed(session, (0, 1))
    late, dead = _put(store, key, b"late"), _put(store, key, b"dead", rank=1)
    found = trace_files.find_removable(database, store, keep_days=FOREVER, now=LATER)
    assert found.files == [late.key, dead.key]
    with database.session() as session:
        trace_files.record(session, store, key, late, rank=0, pid=100, host="h1", now=NOW)
    assert trace_files.remove(database, store, found, keep_days=FOREVER, now=LATER).files == 1
    assert _traces(store) == [late.key]


def _captured(database: Database, store: ArtifactStore, ranks: int) -> str:
    """An analyzed capture with a file of each rank; returns its key."""
    with database.session() as session:
        ingest.apply_run(session, started(), now=NOW)
        key = armed(session, range(ranks))
    for rank in range(ranks):
        stored = _put(store, key, b"%d" % rank, rank)
        with database.session() as session:
            trace_files.record(session, store, key, stored, rank=rank, pid=100 + rank, host="h1", now=NOW)
    with database.session() as session:
        captures.analyzed(session, key, now=NOW)
    return key


def test_old_traces_lose_their_files(database: Database, store: ArtifactStore) -> None:
    _captured(database, store, 3)
    due = NOW + 90 * DAY_NS
    assert _sweep(database, store, now=due, days=90) == Removed()
    assert _sweep(database, store, now=max(LATER, due + 1), days=FOREVER) == Removed()
    assert _sweep(database, store, now=max(LATER, due + 1), days=90) == Removed(files=3, size_bytes=3, traces=3)
    assert _traces(store) == []
    with database.session() as session:
        assert all(session.scalars(select(Trace.removed_ns)))


def test_the_second_trace_of_a_rank_is_kept_and_goes_with_the_first(database: Database, store: ArtifactStore) -> None:
    with database.session() as session:
        ingest.apply_run(session, started(), now=NOW)
        key = armed(session)
        captures.report(session, key, reported("written", ranks=(0,), passes=2, passes_reason="stretched"), now=NOW)
    for recording in (1, 2):
        stored = _put(store, key, b"%d" % recording)
        with database.session() as session:
            given = {"rank": 0, "pid": 100, "host": "h1", "recording": recording, "now": NOW}
            done = trace_files.record(session, store, key, stored, **given).completed
        assert done == (recording == 2)
    with database.session() as session:
        captures.analyzed(session, key, now=NOW)
    assert _sweep(database, store) == Removed()
    assert len(_traces(store)) == 2
    late = max(LATER, NOW + 91 * DAY_NS)
    assert _sweep(database, store, now=late, days=90) == Removed(files=2, size_bytes=2, traces=1)
    with database.session() as session:
        (rank,) = get_capture(session, key).ranks
    assert rank.url is None
    assert rank.second_pass is not None
    assert rank.second_pass.url is None


@pytest.mark.parametrize(("unnamed", "refused"), [(10, False), (11, False), (12, True)])
def test_no_sweep_takes_most_of_the_store_by_itself(
    database: Database, store: ArtifactStore, unnamed: int, refused: bool
) -> None:
    """Eleven files are named; up to ten may always go."""
    key = _captured(database, store, 11)
    later = now_ns() + 2 * DAY_NS
    with database.session() as session:
        session.execute(update(Trace).values(created_ns=later))
    files = [_put(store, key, b"unnamed %d" % number).key for number in range(unnamed)]
    before = _traces(store)
    if not refused:
        assert _sweep(database, store, now=later, days=1).files == unnamed
        assert set(_traces(store)) == set(before) - set(files)
        return
    with pytest.raises(Conflict, match=r"^12 of the 23 trace files in .* run `tightship db sweep-traces`$"):
        _sweep(database, store, now=later, days=1)
    assert _traces(store) == before
    assert _order(database, store).files == 12


def test_a_clock_that_jumps_gives_up_nothing(database: Database, store: ArtifactStore) -> None:
    _captured(database, store, 11)
    before = _traces(store)
    with pytest.raises(Conflict, match=r"^11 of the 11 trace files .* check the clock and TIGHTSHIP_KEEP_TRACE_DAYS"):
        _sweep(database, store, now=NOW + 4000 * DAY_NS, days=90)
    assert _traces(store) == before
    with database.session() as session:
        assert not any(session.scalars(select(Trace.removed_ns)))
