"""How much room other cores have for what a captured run could move there, from its samples."""

from __future__ import annotations

from pathlib import Path

import pytest
from captured import END, FIRST_STEP, LAST_STEP, a_capture, analyze_capture, begin, recorded
from records import MIN, T0, S, batch, beat, run_samples
from sqlalchemy import select

from tightship_analyzers.fleet.idle_cores import MIN_SAMPLES, idle_cores_frac
from tightship_platform import ingest
from tightship_platform.captures.artifact_store import ArtifactStore
from tightship_platform.database.engine import Database
from tightship_platform.database.models import Capture, Host, Trace
from tightship_platform.queries import findings
from tightship_platform.wire import HostSampleRecord

NOW = T0 + 5 * MIN
STEPPING = range(FIRST_STEP, LAST_STEP, S)


def captured(database: Database, folder: Path, *, cores: float, busy_frac: float, instants: int) -> None:
    """A run on 4 cores that was captured; it keeps `cores` busy, its host `busy_frac` of all."""
    times = list(STEPPING)[:instants]
    with database.session() as session:
        begin(session)
        ingest.apply_heartbeat(session, beat(time_ns=T0 + S, info={"cpus": 4}), now=T0 + S)
        ingest.apply_batch(
            session,
            batch(
                host_samples=[HostSampleRecord(time_ns=t, cpu_frac=busy_frac) for t in times],
                run_samples=run_samples(times, cpu_cores=cores),
            ),
            now=END,
        )
    artifacts = ArtifactStore(str(folder))
    key = a_capture(database, artifacts, "a1", {0: recorded("starved")}, now=NOW)
    with database.session() as session:
        session.scalars(select(Capture).where(Capture.key == key)).one().lease_expires_ns = None
    analyze_capture(database, artifacts, key)


def test_what_moves_to_other_cores_is_limited_by_the_idle_ones(database: Database, tmp_path: Path) -> None:
    captured(database, tmp_path, cores=3.0, busy_frac=0.9375, instants=60)
    with database.session() as session:
        assert idle_cores_frac(session, session.scalars(select(Trace)).one()) == pytest.approx(0.25 / 3.25)
        [found] = findings.list_findings(session)
        summary = session.scalars(select(Trace.summary)).one()
    assert found.rule == "starved-input"
    most_ns = int(0.25 / 3.25 * summary["step_ns"]["mean"])
    assert (found.saving.low, found.saving.value, found.saving.high) == (0, most_ns, most_ns)
    assert any("92.3 % of the cores busy" in getattr(entry, "text", "") for entry in found.evidence)
    [claim] = summary["claims"]
    assert (claim["saving_ns"], claim["high_ns"]) == (most_ns, most_ns)
    assert claim["share_frac"] == pytest.approx(0.25 / 3.25, abs=1e-3)


def test_idle_cores_limit_nothing(database: Database, tmp_path: Path) -> None:
    captured(database, tmp_path, cores=0.25, busy_frac=0.0625, instants=60)
    with database.session() as session:
        assert idle_cores_frac(session, session.scalars(select(Trace)).one()) == pytest.approx(3.75 / 4)
        [found] = findings.list_findings(session)
    assert not any("of the cores busy" in getattr(entry, "text", "") for entry in found.evidence)


def test_few_samples_or_an_unknown_number_of_cores_say_nothing(database: Database, tmp_path: Path) -> None:
    captured(database, tmp_path, cores=3.0, busy_frac=0.9, instants=MIN_SAMPLES - 1)
    with database.session() as session:
        assert idle_cores_frac(session, session.scalars(select(Trace)).one()) is None
        ingest.apply_batch(
            session,
            batch(
                host_samples=[HostSampleRecord(time_ns=t, cpu_frac=0.9) for t in STEPPING],
                run_samples=run_samples(STEPPING, cpu_cores=3.0),
            ),
            now=END,
        )
        assert idle_cores_frac(session, session.scalars(select(Trace)).one()) is not None
        session.scalars(select(Host)).one().info = {}
        assert idle_cores_frac(session, session.scalars(select(Trace)).one()) is None
