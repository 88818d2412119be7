"""The analysis of a capture: one piece of work at a time, from the trace files of its ranks to findings in the
database. See [Note: pieces of an analysis] in `captures.analysis`."""

from __future__ import annotations

import logging
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from sqlalchemy import select

from tightship_analyzers.analysis.analyze_rank import analyze_rank, with_rank
from tightship_analyzers.analysis.join_ranks import join_ranks
from tightship_analyzers.analysis.rank_part import RankPart
from tightship_analyzers.analysis.wanted import Wanted
from tightship_analyzers.fleet.accounting import account_run
from tightship_analyzers.fleet.findings_store import save_capture
from tightship_analyzers.fleet.stored_parts import pack_part, unpack_part
from tightship_analyzers.fleet.untraced_steps import untraced_step_ns
from tightship_analyzers.rules.catalogue import catalogue_version
from tightship_platform import captures
from tightship_platform.captures import Work
from tightship_platform.captures.artifact_store import ArtifactStore
from tightship_platform.database.engine import Database
from tightship_platform.database.models import Capture, CaptureAnalysis, Run, Trace
from tightship_platform.database.models import RankPart as StoredPart
from tightship_platform.errors import Conflict, TightshipError
from tightship_platform.results.analysis.run import VERSION, RunAnalysis
from tightship_platform.results.packed import Unpackable, pack
from tightship_platform.text import shown
from tightship_platform.units import now_ns, plural

log = logging.getLogger(__name__)

MAX_REASON = 300
GAPS = 5
"""Longest gaps of each rank that pages draw."""
RENEW_S = 20.0
"""Between two signs of life while a trace is read."""


def work_on(database: Database, artifacts: ArtifactStore, key: str) -> Work | None:
    """Claim one piece of a capture's analysis and do it: a rank's trace, or joining all of them.

    :returns: what was done; None: nothing was due.
    :raises NotFound: no such capture.
    :raises OSError: the artifact store does not answer; the attempt does not count.
    """
    with database.session() as session:
        work = captures.claim_work(session, key)
    if work is None:
        return None
    try:
        if work.rank is None:
            _join(database, key)
        else:
            _analyze(database, artifacts, work)
    except OSError:
        with database.session() as session:
            captures.give_work_back(session, work)
        raise
    return work


def _analyze(database: Database, artifacts: ArtifactStore, work: Work) -> None:
    with database.session() as session:
        trace = session.scalars(
            select(Trace).join(Capture).where(Capture.key == work.capture, Trace.rank == work.rank)
        ).one()
        untraced_ns = untraced_step_ns(session, trace)
    outcome: RankPart | str
    try:
        with _local_copy(artifacts, trace) as path:
            outcome = _outcome(database, work, trace, path, untraced_ns)
    except TightshipError as error:
        outcome = shown(str(error), MAX_REASON)
    reason = outcome if isinstance(outcome, str) else None
    with database.session() as session:
        try:
            row = captures.trace_analyzed(
                session,
                work,
                summary=outcome.analysis.summary if isinstance(outcome, RankPart) else None,
                error=reason,
            )
        except Conflict as late:
            log.warning("Capture %s: %s", work.capture, late)
            return
        if isinstance(outcome, RankPart):
            session.merge(StoredPart(trace_id=row.id, catalogue=catalogue_version(), body=pack_part(outcome)))
    if reason:
        log.warning("Capture %s: %s", work.capture, reason)


@contextmanager
def _local_copy(artifacts: ArtifactStore, trace: Trace) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tightship-") as folder:
        path = Path(folder) / f"rank-{trace.rank}.json.gz"
        with artifacts.open(trace.url) as stored, path.open("wb") as local:
            shutil.copyfileobj(stored, local)
        yield path


def _outcome(database: Database, work: Work, trace: Trace, path: Path, untraced_ns: int | None) -> RankPart | str:
    """The rank's part, or the line that says why its file cannot be analyzed."""
    last = time.monotonic()

    def renew(_done: int, _total: int) -> None:
        nonlocal last
        if time.monotonic() - last >= RENEW_S:
            last = time.monotonic()
            with database.session() as session:
                captures.renew_work(session, work)

    label = f"rank {trace.rank}"
    wanted = Wanted(untraced_step_ns=untraced_ns, gaps=GAPS)
    try:
        part = analyze_rank(str(path), wanted, renew, label=label)
    except TightshipError as error:
        reason = str(error).replace(f"race {path}", f"race of {label}").replace(str(path), f"the trace of {label}")
        return shown(reason, MAX_REASON)
    except Exception as error:  # a trace that breaks the analysis costs itself only
        log.exception("Capture %s: the analysis of %s broke", work.capture, label)
        return f"The analysis of {label} failed with {type(error).__name__}; please report it with the trace"
    named = replace(part, analysis=replace(part.analysis, named=True))
    return with_rank(named, trace.rank)


def _join(database: Database, key: str) -> None:
    with database.session() as session:
        capture = session.scalars(select(Capture).where(Capture.key == key)).one()
        run_id = capture.run_id
        traces = session.scalars(select(Trace).where(Trace.capture_id == capture.id).order_by(Trace.rank)).all()
        bodies = {
            row.trace_id: row.body
            for row in session.scalars(select(StoredPart).where(StoredPart.trace_id.in_([one.id for one in traces])))
        }
    parts: list[RankPart] = []
    failed = [trace.error for trace in traces if trace.error is not None]
    for trace in traces:
        try:
            if trace.id in bodies:
                parts.append(unpack_part(bodies.pop(trace.id)))
        except Unpackable as error:
            failed.append(str(error))
    _store(database, key, join_ranks(parts, failed=failed) if parts else None, failed)
    with database.session() as session:
        account_run(session, session.get_one(Run, run_id))


def _store(database: Database, key: str, analysis: RunAnalysis | None, failed: list[str]) -> None:
    now = now_ns()
    with database.session() as session:
        # The state first: it locks the row, and says whether this analysis still counts.
        capture = captures.fail(session, key, failed[0]) if failed else captures.analyzed(session, key)
        save_capture(session, capture, analysis, now=now)
        if analysis is not None:
            body = pack(analysis, version=VERSION)
            session.merge(
                CaptureAnalysis(capture_id=capture.id, catalogue=catalogue_version(), body=body, created_ns=now)
            )
    if analysis is not None:
        log.info("Capture %s: %s", key, plural(len(analysis.findings), "finding"))
