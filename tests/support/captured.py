"""A run and captures of it, brought into the database the way agents do: through ingest and the capture flow."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from records import MIN, T0, S, ask, batch, ended, held, lease_of, reported, started, steps
from sqlalchemy.orm import Session

from tightship_analyzers.fleet.capture_analysis import work_on
from tightship_platform import captures, ingest
from tightship_platform.captures.artifact_store import ArtifactStore, trace_key
from tightship_platform.database.engine import Database

RECORDED = Path(__file__).parents[1] / "data" / "traces"
MINUTES = 10
END = T0 + MINUTES * MIN
FIRST_STEP, LAST_STEP = T0 + S, END - MIN - S // 2


def begin(session: Session, run: str = "a1", workflow: str = "train") -> None:
    """A run that holds one device from T0 on, makes its first step after a second, then two a second for 9 minutes."""
    ingest.apply_run(session, started(run, workflow), now=T0)
    ticks = range(T0 + S, END - MIN, S)
    ingest.apply_batch(session, batch(steps=steps(ticks, run=run), allocations=[held(run)]), now=END - MIN)


def finish(session: Session, run: str = "a1", workflow: str = "train") -> None:
    """Its end, ten minutes after its start."""
    ingest.apply_batch(session, batch(allocations=[held(run, end_ns=END)]), now=END)
    ingest.apply_run(session, ended(run, workflow, end_ns=END), now=END)


def a_capture(database: Database, artifacts: ArtifactStore, run: str, files: Mapping[int, bytes], *, now: int) -> str:
    """A capture of a live run with one trace file per rank, uploaded and not yet analysed; its key."""
    with database.session() as session:
        key = captures.request(session, ask(run), now=now).key
    with database.session() as session:
        [lease] = captures.lease(session, lease_of(run), now=now)
        assert lease.capture == key
        for state in ("armed", "recording", "written"):
            captures.report(session, key, reported(state, ranks=files), now=now)
    for rank, content in files.items():
        sha256 = hashlib.sha256(content).hexdigest()
        stored = artifacts.write(trace_key(run, key, rank, sha256), [content], max_bytes=1 << 30, sha256=sha256)
        with database.session() as session:
            captures.trace_stored(
                session,
                key,
                rank=rank,
                pid=100 + rank,
                host="h1",
                sha256=sha256,
                size_bytes=stored.size_bytes,
                url=stored.key,
                now=now,
            )
    return key


def analyze_capture(database: Database, artifacts: ArtifactStore, key: str) -> bool:
    """Do all pieces of its analysis, one after the other, as workers do; whether there were any."""
    pieces = 0
    while work_on(database, artifacts, key) is not None:
        pieces += 1
    return pieces > 0


def recorded(name: str) -> bytes:
    """One of the recordings under tests/data/traces."""
    return (RECORDED / f"{name}.json.gz").read_bytes()
