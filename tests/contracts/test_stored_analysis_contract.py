"""The stored analysis of a capture, on both databases: read whole, refused where old or damaged, made again."""

from __future__ import annotations

from pathlib import Path

import pytest
from captured import a_capture, analyze_capture, begin, recorded
from sqlalchemy import select

from tightship_analyzers.analysis.from_files import analyze_paths
from tightship_analyzers.analysis.wanted import Wanted
from tightship_analyzers.fleet.capture_analysis import GAPS
from tightship_platform import captures
from tightship_platform.captures.artifact_store import ArtifactStore
from tightship_platform.database.engine import Database
from tightship_platform.database.models import CaptureAnalysis
from tightship_platform.errors import NotFound
from tightship_platform.queries.analysis import get_analysis
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
