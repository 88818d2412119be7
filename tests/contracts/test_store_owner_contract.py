"""Whose the artifact store is, on both databases: claimed by the first upload, adopted by a person, else left alone."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from api_calls import Capture, Served, ok, refused, serving, sha256, trace_file
from capture_steps import NOW, armed
from click.testing import CliRunner
from conftest import POSTGRES, PlatformEnv
from processes import at_once
from records import batch, host_samples, started
from sqlalchemy import select

from tightship_platform import ingest
from tightship_platform.captures import files as trace_files
from tightship_platform.captures import store_owner
from tightship_platform.captures.artifact_store import ArtifactStore, open_artifacts, trace_key
from tightship_platform.cli import root
from tightship_platform.database.engine import Database, open_database, upgrade
from tightship_platform.database.models import Installation
from tightship_platform.errors import Conflict
from tightship_platform.samples.retention import DAY_NS
from tightship_platform.settings import Settings
from tightship_platform.tasks import periodic
from tightship_platform.units import now_ns

LATER = now_ns() + 2 * DAY_NS


@pytest.fixture(params=["folder", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ArtifactStore:
    """An empty store, once of each kind."""
    urls = {"folder": str(tmp_path / "store"), "memory": f"memory://{os.urandom(8).hex()}"}
    return ArtifactStore(urls[request.param])


@pytest.fixture(params=["sqlite", POSTGRES])
def served(request: pytest.FixtureRequest, make_platform_env: Callable[..., PlatformEnv]) -> Iterator[Served]:
    with serving(make_platform_env(database=request.param).settings) as running:
        yield running


def _fill(database: Database, store: ArtifactStore) -> list[str]:
    """A file that a sweep would remove: of a capture of this database, and named by no row."""
    with database.session() as session:
        ingest.apply_run(session, started(), now=NOW)
        key = armed(session)
    return [store.write(trace_key("a1", key, 0, sha256(b"x")), [b"x"], max_bytes=9).key]


def _traces(store: ArtifactStore) -> list[str]:
    return [file for file in store.files("traces") if file != store_owner.MARKER]


def _fault(database: Database, store: ArtifactStore) -> str | None:
    with database.session() as session:
        return store_owner.find_fault(session, store)


def _sweep(database: Database, store: ArtifactStore) -> int:
    return trace_files.sweep(database, store, keep_days=1, now=LATER).files


def test_an_empty_store_is_claimed_once(database: Database, store: ArtifactStore) -> None:
    assert (_fault(database, store), store_owner.read_owner(store)) == (None, None)
    for _ in range(2):
        store_owner.claim(database, store)
        with database.session() as session:
            assert store_owner.read_owner(store) == store_owner.installation_id(session)
            assert len(session.scalars(select(Installation)).all()) == 1
    files = _fill(database, store)
    assert _fault(database, store) is None
    assert _traces(store) == files
    assert _sweep(database, store) == 1


def test_an_empty_place_is_not_taken_for_the_store_that_traces_are_in(served: Served) -> None:
    """A volume that is not mounted: what is uploaded there would be hidden by it later."""
    folder = Path(served.settings.artifacts_url)
    with served.http() as http:
        first, second = Capture(http), Capture(http, run="11aa11bb22cc33dd")
        first.write()
        ok(first.put(trace_file()))
        second.write()
        folder.rename(folder.with_name("elsewhere"))
        refused(second.put(trace_file()), 503, "is empty, and the database names traces; mount its volume or correct")
        assert not list(folder.rglob("*")), "nothing was put there"
        folder.with_name("elsewhere").rename(folder)
        ok(second.put(trace_file()))
        assert second.now()["state"] == "uploaded"


def test_a_person_may_begin_with_an_empty_store(served: Served) -> None:
    folder = Path(served.settings.artifacts_url)
    with served.http() as http:
        first, second = Capture(http), Capture(http, run="11aa11bb22cc33dd")
        for capture in (first, second):
            capture.write()
        ok(first.put(trace_file()))
        shutil.rmtree(folder)
        refused(second.put(trace_file()), 503, "or run `tightship db adopt-store` to begin with an empty one")
        store_owner.adopt(served.database, open_artifacts(served.settings))
        ok(second.put(trace_file()))


def test_a_store_with_traces_and_no_id_is_left_alone_until_it_is_adopted(
    database: Database, store: ArtifactStore
) -> None:
    files = _fill(database, store)
    store_owner.claim(database, store)
    assert store_owner.read_owner(store) is None
    assert str(_fault(database, store)).endswith("holds traces and carries no installation id")
    with pytest.raises(Conflict, match=r"run `tightship db adopt-store`, otherwise correct TIGHTSHIP_ARTIFACTS_URL$"):
        _sweep(database, store)
    assert _traces(store) == files
    store_owner.adopt(database, store)
    assert _sweep(database, store) == 1


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("content", [b"f" * 32 + b"\n", b"", b"\xff\n\x1b[31m" * 99])
def test_a_store_of_somebody_else_is_left_alone(
    database: Database, store: ArtifactStore, content: bytes, known: bool
) -> None:
    files = _fill(database, store)
    store.write(store_owner.MARKER, [content], max_bytes=9999)
    if known:
        with database.session() as session:
            store_owner.installation_id(session)
    store_owner.claim(database, store)
    with pytest.raises(Conflict) as caught:
        _sweep(database, store)
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)
    assert _traces(store) == files


def test_what_was_found_before_the_store_changed_hands_stays(database: Database, store: ArtifactStore) -> None:
    store_owner.claim(database, store)
    files = _fill(database, store)
    found = trace_files.find_removable(database, store, keep_days=1, now=LATER)
    assert found.files == files
    store.write(store_owner.MARKER, [b"f" * 32], max_bytes=99)
    with pytest.raises(Conflict, match="belongs to installation ffff"):
        trace_files.remove(database, store, found, keep_days=1, now=LATER)
    assert _traces(store) == files


def test_a_copy_of_the_database_loses_the_store_that_the_other_adopts(
    database: Database, store: ArtifactStore, make_database_url: Callable[..., str], tmp_path: Path
) -> None:
    settings = Settings(home=tmp_path, database_url=make_database_url("sqlite", migrated=True))
    store_owner.claim(database, store)
    files = _fill(database, store)
    with open_database(settings) as restored:
        with database.session() as session, restored.session() as copy:
            copy.add(Installation(id=1, key=store_owner.installation_id(session)))
        assert _fault(restored, store) is None
        store_owner.adopt(restored, store)
        assert _fault(restored, store) is None
        with pytest.raises(Conflict, match=r"belongs to installation .*, and this database is of installation"):
            _sweep(database, store)
        assert _traces(store) == files
        assert _sweep(restored, store) == 0


def test_processes_that_ask_at_once_get_the_same_id(database_url: str, tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, database_url=database_url)
    upgrade(settings)
    done = at_once(
        "from pathlib import Path; from tightship_platform.captures import store_owner; "
        "from tightship_platform.captures.artifact_store import open_artifacts; "
        "from tightship_platform.database.engine import open_database; "
        "from tightship_platform.settings import Settings",
        "settings = Settings(home=Path(sys.argv[1]), database_url=sys.argv[2]); database = open_database(settings); "
        "store_owner.claim(database, open_artifacts(settings)); database.close()",
        str(tmp_path),
        database_url,
    )
    assert done.returncode == 0, done.stderr
    with open_database(settings) as opened, opened.session() as session:
        (key,) = session.scalars(select(Installation.key)).all()
    assert store_owner.read_owner(open_artifacts(settings)) == key


@pytest.mark.parametrize("kind", ["sqlite", POSTGRES])
def test_the_first_upload_claims_the_store(kind: str, make_platform_env: Callable[..., PlatformEnv]) -> None:
    with serving(make_platform_env(database=kind).settings) as served, served.http() as http:
        store = open_artifacts(served.settings)
        assert http.get("/store").json() == {"fault": None}
        capture = Capture(http)
        capture.write()
        ok(capture.put(trace_file()))
        with served.database.session() as session:
            assert store_owner.read_owner(store) == session.scalar(select(Installation.key))
        assert http.get("/store").json() == {"fault": None}
        store.delete(store_owner.MARKER)
        assert http.get("/store").json()["fault"].endswith("carries no installation id")
        other = Capture(http, run="11aa11bb22cc33dd")
        other.write()
        ok(other.put(trace_file(7)))
        assert store_owner.read_owner(store) is None


def _cli(*arguments: str, **kwargs: Any) -> Any:
    return CliRunner().invoke(root, ["db", *arguments], **kwargs)


def test_another_installation_removes_nothing_until_a_person_says_so(
    platform_env: PlatformEnv, caplog: pytest.LogCaptureFixture
) -> None:
    """The hourly task against a store that others filled; then both commands."""
    folder = Path(platform_env.settings.artifacts_url)
    store = ArtifactStore(str(folder))
    with open_database(platform_env.settings) as database:
        ours = _fill(database, store)
        with database.session() as session:  # without one, nothing is known to be old
            ingest.apply_batch(session, batch(host_samples=host_samples([now_ns()])))
    capture = ours[0].split("/")[2]
    hashes = [f"{number:064x}" for number in range(20)]
    theirs = [store.write(trace_key("b1", "c1", 0, hashed), [b"x"], max_bytes=9).key for hashed in hashes]
    ours += [store.write(trace_key("a1", capture, 0, hashed), [b"x"], max_bytes=9).key for hashed in hashes]
    long_ago = (now_ns() - 2 * platform_env.settings.keep_trace_days * DAY_NS) / 1e9
    for file in (*ours, *theirs):
        os.utime(folder / file, (long_ago, long_ago))
    everything = sorted(ours + theirs)
    with caplog.at_level(logging.INFO):
        periodic.remove_old_files()
    assert [r.levelname for r in caplog.records if "carries no installation id" in r.getMessage()] == ["WARNING"]
    assert isinstance(_cli("sweep-traces", "--yes").exception, Conflict)
    asked = _cli("adopt-store", input="n\n")
    assert (asked.exit_code, "carries no installation id" in asked.stdout) == (1, True)
    assert _traces(store) == everything
    assert "belongs to this installation now" in _cli("adopt-store", "--yes").stdout

    caplog.clear()
    with caplog.at_level(logging.INFO):
        periodic.remove_old_files()
    assert [r.levelname for r in caplog.records if "21 of the 41 trace files" in r.getMessage()] == ["WARNING"]
    asked = _cli("sweep-traces", input="n\n")
    shown = " ".join(asked.stdout.split())
    assert "21 of 41 trace files and 0 half-written files can go; 20 of captures that the database does not" in shown
    assert asked.exit_code == 1
    assert _traces(store) == everything
    assert "Removed 21 files" in _cli("sweep-traces", input="y\n").stdout
    assert _traces(store) == theirs


def test_a_store_that_cannot_be_written_is_one_line(platform_env: PlatformEnv) -> None:
    Path(platform_env.settings.artifacts_url).write_text("")
    for command in ("adopt-store", "sweep-traces"):
        error = _cli(command, "--yes").exception
        assert "TIGHTSHIP_ARTIFACTS_URL" in str(error), error
        assert "\n" not in str(error)


def test_a_password_is_never_shown() -> None:
    store = ArtifactStore("memory://user:hunter2@host/store")
    assert store.shown_url == "memory://host/store"
