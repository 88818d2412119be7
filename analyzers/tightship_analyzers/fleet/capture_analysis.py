"""The analysis of a capture: one piece of work at a time, from the trace files of its ranks to findings in the
database. See [Note: pieces of an analysis] in `captures.analysis`."""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.exc import DBAPIError

from tightship_analyzers.analysis.analyze_rank import EMPTY, analyze_rank, with_rank
from tightship_analyzers.analysis.join_ranks import join_ranks
from tightship_analyzers.analysis.rank_part import RankPart
from tightship_analyzers.analysis.wanted import Wanted
from tightship_analyzers.fleet.accounting import account_run
from tightship_analyzers.fleet.findings_store import save_capture
from tightship_analyzers.fleet.idle_cores import idle_cores_frac
from tightship_analyzers.fleet.sparse_captures import recorded_again, sparse_reason
from tightship_analyzers.fleet.stored_parts import pack_part, unpack_part
from tightship_analyzers.fleet.untraced_steps import untraced_step_ns
from tightship_analyzers.rules.catalogue import catalogue_version
from tightship_platform import captures
from tightship_platform.captures import Work, store_owner
from tightship_platform.captures.artifact_store import ArtifactStore
from tightship_platform.database.engine import Database
from tightship_platform.database.models import Capture, CaptureAnalysis, Run, StoredPart, Trace
from tightship_platform.database.trouble import is_away
from tightship_platform.errors import Conflict, NotFound, TightshipError
from tightship_platform.processes.scratch import scratch_folder
from tightship_platform.results.analysis.run import VERSION, RunAnalysis
from tightship_platform.results.packed import Unpackable, pack
from tightship_platform.tasks.app import SOFT_LIMIT_S
from tightship_platform.tasks.time_limit import OutOfTime, time_limit
from tightship_platform.text import shown
from tightship_platform.units import now_ns, plural

log = logging.getLogger(__name__)

MAX_REASON = 300
GAPS = 5
"""Longest gaps of each rank that pages draw."""
RENEW_S = 20.0
"""Between two renewals of the lease."""


def work_on(database: Database, artifacts: ArtifactStore, key: str) -> Work | None:
    """Claim one piece of a capture's analysis and do it: a rank's trace, or joining all of them.

    :returns: what was done; None: nothing was due.
    :raises NotFound: no such capture.
    :raises OSError, DBAPIError: artifact store, disk or database have trouble; the attempt does not count.
    """
    with database.session() as session:
        work = captures.claim_work(session, key)
    if work is None:
        return None
    try:
        with _lease(database, work), time_limit():
            if work.rank is None:
                _join(database, key)
            else:
                _analyze(database, artifacts, work)
    except (OSError, DBAPIError) as error:
        if isinstance(error, OSError) or is_away(error):
            with suppress(DBAPIError), database.session() as session:
                captures.give_work_back(session, work)
        raise
    except OutOfTime:
        _give_up(database, work)
    return work


@contextmanager
def _lease(database: Database, work: Work) -> Iterator[None]:
    """Renew the lease of a piece from another thread, whatever the piece is at: download, reading, rules, joining.

    What hangs is ended by the task's time limit."""
    done = threading.Event()

    def renew() -> None:
        while not done.wait(RENEW_S):
            try:
                with database.session() as session:
                    captures.renew_work(session, work)
            except (TightshipError, DBAPIError) as error:
                log.warning("Capture %s: the lease could not be renewed: %s", work.capture, error)

    thread = threading.Thread(target=renew, name="lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _give_up(database: Database, work: Work) -> None:
    """End a piece that took too long: another attempt would take as long."""
    what = "joining the ranks" if work.rank is None else f"the analysis of rank {work.rank}"
    reason = f"{what} took more than {SOFT_LIMIT_S // 60} min; `tightship analyze` has no such limit"
    log.warning("Capture %s: %s", work.capture, reason)
    with database.session() as session:
        if work.rank is None:
            captures.fail(session, work.capture, reason)
        else:
            captures.trace_analyzed(session, work, error=reason)


def _analyze(database: Database, artifacts: ArtifactStore, work: Work) -> None:
    with database.session() as session:
        trace = session.scalars(
            select(Trace).join(Capture).where(Capture.key == work.capture, Trace.rank == work.rank)
        ).one()
        wanted = Wanted(
            untraced_step_ns=untraced_step_ns(session, trace),
            idle_cores_frac=idle_cores_frac(session, trace),
            gaps=GAPS,
        )
        second = trace.second_pass
    outcome: RankPart | str
    body = b""
    try:
        with scratch_folder() as folder:
            path = _local_copy(database, artifacts, trace.url, folder / f"rank-{trace.rank}.json.gz")
            light: Path | None = None
            if second is not None:
                light = path.with_name("second-pass.json.gz")
                with suppress(NotFound):  # the first one is judged then, and says so
                    _local_copy(database, artifacts, second.url, light)
            outcome = _outcome(work, trace, path, light, wanted)
        if isinstance(outcome, RankPart):
            body = pack_part(outcome)
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
            session.merge(StoredPart(trace_id=row.id, catalogue=catalogue_version(), body=body))
    if reason:
        log.warning("Capture %s: %s", work.capture, reason)


def _local_copy(database: Database, artifacts: ArtifactStore, url: str, path: Path) -> Path:
    try:
        with artifacts.open(url) as stored, path.open("wb") as local:
            shutil.copyfileobj(stored, local)
    except NotFound:
        with database.session() as session:
            store_owner.require_present(session, artifacts)
        raise
    return path


def _outcome(work: Work, trace: Trace, path: Path, light: Path | None, wanted: Wanted) -> RankPart | str:
    """The rank's part, or the line that says why its file cannot be analyzed."""
    label = f"rank {trace.rank}"
    try:
        part = analyze_rank(str(path), wanted, label=label, second_pass=str(light) if light else None)
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
        ids = [trace.id for trace in traces]
        stored = session.execute(
            select(StoredPart.trace_id, StoredPart.body, StoredPart.catalogue).where(StoredPart.trace_id.in_(ids))
        ).all()
        bodies = {row.trace_id: row.body for row in stored}
        # During an upgrade parts may be of two catalogues: the whole then counts as made by the other one.
        catalogue = next((row.catalogue for row in stored if row.catalogue != catalogue_version()), catalogue_version())
    parts: list[RankPart] = []
    failed = [trace.error for trace in traces if trace.error is not None]
    for trace in traces:
        try:
            if trace.id in bodies:
                parts.append(unpack_part(bodies.pop(trace.id)))
        except Unpackable as error:
            failed.append(str(error))
    _store(database, key, join_ranks(parts, failed=failed) if parts else None, failed, catalogue)
    with database.session() as session:
        run = session.get(Run, run_id)
        if run is not None:  # it was not deleted meanwhile
            account_run(session, run)


def _store(database: Database, key: str, analysis: RunAnalysis | None, failed: list[str], catalogue: str) -> None:
    now = now_ns()
    body = b""
    try:
        body = b"" if analysis is None else pack(analysis, version=VERSION)
    except TightshipError as error:
        analysis, failed = None, [*failed, str(error)]
    with database.session() as session:
        # The row first: two workers may come to this, and the capture is ended, and recorded again, by one of them.
        capture = captures.lock(session, key)
        if failed:
            is_empty = analysis is None and all(EMPTY in why for why in failed)
            captures.fail(session, key, recorded_again(session, capture, failed[0]) if is_empty else failed[0])
        else:
            captures.analyzed(session, key, reason=sparse_reason(session, capture, analysis))
        save_capture(session, capture, analysis, now=now)
        if analysis is not None:
            session.merge(CaptureAnalysis(capture_id=capture.id, catalogue=catalogue, body=body, created_ns=now))
    if analysis is not None:
        log.info("Capture %s: %s", key, plural(len(analysis.findings), "finding"))
