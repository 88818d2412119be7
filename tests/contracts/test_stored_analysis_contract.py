"""The stored analysis of a capture, on both databases: read whole, refused where old or damaged, made again."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from captured import a_capture, analyze_capture, begin, recorded
from sqlalchemy import select
from waiting import wait_for

from tightship_analyzers.analysis.from_files import analyze_paths
from tightship_analyzers.analysis.wanted import Wanted
from tightship_analyzers.fleet import capture_analysis
from tightship_analyzers.fleet.capture_analysis import GAPS, work_on
from tightship_platform import captures
from tightship_platform.captures.artifact_store import ArtifactStore
from tightship_platform.database.engine import Database
from tightship_platform.database.models import Capture, CaptureAnalysis, Trace
from tightship_platform.errors import NotFound
from tightship_platform.queries.analysis import get_analysis, is_by_other_rules
from tightship_platform.queries.captures import get_capture
from tightship_platform.results import packed
from tightship_platform.results.analysis.run import VERSION, RunAnalysis
from tightship_platform.results.packed import Unpackable, pack
from tightship_platform.units import now_ns


@pytest.fixture
def artifacts(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(str(tmp_path / "artifacts"))


@pytest.fixture
def uploaded(database: Database, artifacts: ArtifactStore) -> str:
    """A capture whose trace has arrived and waits for its analysis."""
    with database.session() as session:
        begin(session)
    return a_capture(database, artifacts, "a1", {0: recorded("starved")}, now=now_ns())


def read(database: Database, key: str) -> RunAnalysis:
    with database.session() as session:
        return get_analysis(session, key)


def overwrite(database: Database, body: bytes) -> None:
    with database.session() as session:
        session.scalars(select(CaptureAnalysis)).one().body = body


def test_it_says_what_the_files_say(
    database: Database, artifacts: ArtifactStore, uploaded: str, tmp_path: Path
) -> None:
    assert analyze_capture(database, artifacts, uploaded)
    stored = read(database, uploaded)
    file = tmp_path / "rank-0.json.gz"
    file.write_bytes(recorded("starved"))
    direct = analyze_paths([str(file)], wanted=Wanted(gaps=GAPS))
    assert stored.ranks[0].figures == direct.ranks[0].figures
    assert stored.ranks[0].gaps == direct.ranks[0].gaps
    assert stored.ranks[0].summary.buckets == direct.ranks[0].summary.buckets
    assert [one.rule for one in stored.findings] == [one.rule for one in direct.findings]


def test_without_one_it_says_what_to_do(database: Database, artifacts: ArtifactStore, uploaded: str) -> None:
    with pytest.raises(NotFound, match="see `tightship captures`"):
        read(database, "nosuch")
    with pytest.raises(NotFound, match="being analyzed; try again in a moment"):
        read(database, uploaded)
    assert analyze_capture(database, artifacts, uploaded)
    with database.session() as session:
        session.delete(session.scalars(select(CaptureAnalysis)).one())
    with pytest.raises(NotFound, match="have it analyzed again"):
        read(database, uploaded)


def lease_of(database: Database, row: type[Trace] | type[Capture]) -> int:
    with database.session() as session:
        one = session.scalars(select(row)).one()
        return (one.analysis_lease_ns if isinstance(one, Trace) else one.lease_expires_ns) or 0


def test_a_lease_is_renewed_whatever_the_piece_is_at(
    database: Database, artifacts: ArtifactStore, uploaded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture_analysis, "RENEW_S", 0.05)

    def silent(work: Callable[..., Any], row: type[Trace] | type[Capture]) -> Callable[..., Any]:
        """Says nothing until the lease has moved on."""

        def run(*given: Any, **more: Any) -> Any:
            begun = lease_of(database, row)
            wait_for(lambda: lease_of(database, row) > begun)
            return work(*given, **more)

        return run

    monkeypatch.setattr(capture_analysis, "analyze_rank", silent(capture_analysis.analyze_rank, Trace))
    monkeypatch.setattr(capture_analysis, "join_ranks", silent(capture_analysis.join_ranks, Capture))
    assert analyze_capture(database, artifacts, uploaded)
    assert read(database, uploaded).findings


def test_a_piece_that_takes_too_long_ends_with_that_line(
    database: Database, artifacts: ArtifactStore, uploaded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def endless(*_given: Any, **_more: Any) -> None:
        with suppress(Exception):  # as what isolates rules does
            os.kill(os.getpid(), signal.SIGUSR1)  # as Celery does at the soft limit
            signal.pause()

    before = signal.getsignal(signal.SIGUSR1)
    monkeypatch.setattr(capture_analysis, "analyze_rank", endless)
    assert analyze_capture(database, artifacts, uploaded)
    assert signal.getsignal(signal.SIGUSR1) == before
    with database.session() as session:
        capture = get_capture(session, uploaded)
    reason = "the analysis of rank 0 took more than 9 min; `tightship analyze` has no such limit"
    assert (capture.state, capture.reason) == ("failed", reason)


def test_an_analysis_by_other_rules_than_the_newest_is_known(
    database: Database, artifacts: ArtifactStore, uploaded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def by_other_rules(key: str) -> bool:
        with database.session() as session:
            return is_by_other_rules(session, key)

    with database.session() as session:
        begin(session, "a2")
    later = a_capture(database, artifacts, "a2", {0: recorded("fed")}, now=now_ns())
    assert work_on(database, artifacts, uploaded)  # the trace
    monkeypatch.setattr(capture_analysis, "catalogue_version", lambda: "newer")
    assert work_on(database, artifacts, uploaded)  # joined by a newer release: as old as its oldest part
    assert not by_other_rules(uploaded), "the only one is the newest"
    assert analyze_capture(database, artifacts, later)
    assert by_other_rules(uploaded) and not by_other_rules(later)
    with database.session() as session:
        captures.analyze_again(session, uploaded)
    assert analyze_capture(database, artifacts, uploaded)
    assert not by_other_rules(uploaded) and not by_other_rules(later)


def test_an_analysis_too_large_to_be_stored_fails_with_that_line(
    database: Database, artifacts: ArtifactStore, uploaded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "MOST_BYTES", 1000)
    assert analyze_capture(database, artifacts, uploaded)
    with database.session() as session:
        capture = get_capture(session, uploaded)
    assert capture.state == "failed" and "more than the 1000 B that are stored" in str(capture.reason)


@pytest.mark.parametrize("kind", ["another version", "cut short", "damaged", "missing keys"])
def test_an_older_or_damaged_one_is_refused_and_made_again(
    database: Database, artifacts: ArtifactStore, uploaded: str, kind: str
) -> None:
    assert analyze_capture(database, artifacts, uploaded)
    whole = read(database, uploaded)
    bodies = {
        "another version": pack(whole, version=VERSION + 1),
        "cut short": pack(whole, version=VERSION)[:-20],
        "damaged": b"not compressed",
        "missing keys": pack({"ranks": []}, version=VERSION),
    }
    overwrite(database, bodies[kind])
    with pytest.raises(Unpackable, match="analyzed again") as refusal:
        read(database, uploaded)
    assert str(refusal.value).isprintable()
    with database.session() as session:
        captures.analyze_again(session, uploaded)
    assert analyze_capture(database, artifacts, uploaded)
    again = read(database, uploaded)
    assert (again.findings, again.ranks[0].figures) == (whole.findings, whole.ranks[0].figures)
