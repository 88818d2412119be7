"""Captures with their stages and files."""

from __future__ import annotations

from sqlalchemy import func, select
from sqlalchemy.orm import Session, joinedload, selectinload

from tightship_platform.database import ids, models
from tightship_platform.errors import NotFound
from tightship_platform.queries.filtered import among_runs, checked_state, of_fleet, within
from tightship_platform.queries.pages import following, ordered
from tightship_platform.queries.runs import checked_limit, find_run
from tightship_platform.results.capture import Capture, CapturedRank, SecondPass
from tightship_platform.results.filters import ALL, Filters
from tightship_platform.vocabulary import CaptureState
from tightship_platform.wire import CaptureParams, ExpectedRank

_WHOLE = (
    joinedload(models.Capture.run).joinedload(models.Run.workflow),
    selectinload(models.Capture.traces).selectinload(models.Trace.second_pass),
)
_NEWEST_FIRST = ((models.Capture.requested_ns, True), (models.Capture.id, True))


def list_captures(
    session: Session,
    filters: Filters = ALL,
    *,
    run: str | None = None,
    after: str | None = None,
    limit: int = 200,
) -> list[Capture]:
    """Captures, newest first; times are those of the requests, and a rule found something in their traces.

    :param run: only those of this run.
    :param after: those that come after this one: the last one of the page before.
    :raises Invalid: no such state, or a limit out of range.
    :raises NotFound: no such run, or no such capture.
    """
    state = checked_state(filters, CaptureState)
    wanted = select(models.Capture).options(*_WHOLE).order_by(*ordered(_NEWEST_FIRST))
    wanted = wanted.where(
        *among_runs(session, filters, models.Capture.run_id, models.Run.id),
        *within(filters, models.Capture.requested_ns),
    )
    if state is not None:
        wanted = wanted.where(models.Capture.state == state)
    if filters.rule is not None:
        found = select(models.Trace.capture_id).join(models.Finding, models.Finding.trace_id == models.Trace.id)
        wanted = wanted.where(models.Capture.id.in_(found.where(models.Finding.rule == filters.rule)))
    if after is not None:
        last = ids.find_one(session, ids.CAPTURE, select(models.Capture), after)
        wanted = wanted.where(following(_NEWEST_FIRST, (last.requested_ns, last.id)))
    if run is not None:
        wanted = wanted.where(models.Capture.run_id == find_run(session, run).id)
    if run is None or filters.fleet is not None:  # a run that is named is of whatever fleet it is
        wanted = wanted.where(of_fleet(session, filters, models.Capture.run_id))
    return [_capture(capture) for capture in session.scalars(wanted.limit(checked_limit(limit)))]


def newest_captures(session: Session, *, each: int) -> dict[str, list[Capture]]:
    """Workflow → its newest captures, at most `each`, newest first; empty for one that was never captured."""
    newest_first = (models.Capture.requested_ns.desc(), models.Capture.id.desc())
    place = func.row_number().over(partition_by=models.Run.workflow_id, order_by=newest_first).label("place")
    placed = select(models.Capture.id, place).join(models.Run, models.Run.id == models.Capture.run_id).subquery()
    wanted = select(placed.c.id).where(placed.c.place <= checked_limit(each))
    found: dict[str, list[Capture]] = {
        name: []
        for name in session.scalars(
            select(models.Workflow.name).where(models.Workflow.fleet_id.is_(None)).order_by(models.Workflow.name)
        )
    }
    captures = select(models.Capture).options(*_WHOLE).where(models.Capture.id.in_(wanted)).order_by(*newest_first)
    for capture in session.scalars(captures):
        found[capture.run.workflow.name].append(_capture(capture))
    return found


def get_capture(session: Session, key: str) -> Capture:
    """One capture as the database has it now.

    :param key: as a person gives it: see [Note: ids that people type] in `database.ids`.
    :raises NotFound: no such capture.
    :raises Ambiguous: several ids begin so.
    """
    session.flush()
    wanted = select(models.Capture).options(*_WHOLE).execution_options(populate_existing=True)
    return _capture(ids.find_one(session, ids.CAPTURE, wanted, key))


def any_trace_analyzed(session: Session) -> bool:
    """Whether any trace at all was read and judged."""
    return (
        session.scalar(
            select(models.Trace.id).where(models.Trace.analyzed_ns.is_not(None), models.Trace.error.is_(None)).limit(1)
        )
        is not None
    )


def find_trace(session: Session, trace_id: int) -> models.Trace:
    """The trace of that id; its `url` is the key in the artifact store.

    :raises NotFound: there is none.
    """
    trace = session.get(models.Trace, trace_id) if 0 < trace_id < 2**63 else None
    if trace is None:
        raise ids.TRACE.not_found(str(trace_id))
    return trace


def trace_url(trace: models.Trace) -> str:
    """Where the API serves the file."""
    return f"/api/v1/traces/{trace.id}/file"


def stored_url(trace: models.Trace, recording: int) -> str:
    """The key in the artifact store of a trace's first or second recording.

    :raises NotFound: it was recorded once.
    """
    if recording == 1:
        return trace.url
    if recording != 2 or trace.second_pass is None:
        hint = "`second_pass` in `tightship captures --json` says whether there is a second"
        raise NotFound(f"recording of trace {trace.id}", str(recording), hint)
    return trace.second_pass.url


def _capture(capture: models.Capture) -> Capture:
    return Capture(
        capture=capture.key,
        run=capture.run.key,
        workflow=capture.run.workflow.name,
        state=capture.state,
        reason=capture.reason,
        requested_ns=capture.requested_ns,
        requested_by=capture.requested_by,
        stages=capture.stages,
        attempts=capture.attempts,
        expected=[ExpectedRank(rank=entry["rank"], pid=entry.get("pid")) for entry in capture.expected],
        params=CaptureParams(**capture.params),
        ranks=[_rank(trace) for trace in sorted(capture.traces, key=lambda trace: trace.rank)],
        latency_s=_latency_s(capture),
        passes=capture.passes,
        passes_reason=capture.passes_reason,
    )


def _latency_s(capture: models.Capture) -> float | None:
    """Up to the last rank's first trace; a second one may take as long as it likes. None: nobody asked for it, it was
    imported, or it is not complete."""
    if CaptureState.REQUESTED.value not in capture.stages:
        return None
    arrived_ns = {trace.rank: trace.created_ns for trace in capture.traces}
    wanted = {entry["rank"] for entry in capture.expected}
    complete_ns = capture.stages.get(CaptureState.UPLOADED.value)
    if wanted and wanted <= arrived_ns.keys() and (capture.passes_reason or complete_ns is None):
        complete_ns = max(arrived_ns[rank] for rank in wanted)
    return None if complete_ns is None else (complete_ns - capture.requested_ns) / 1e9


def _rank(trace: models.Trace) -> CapturedRank:
    return CapturedRank(
        rank=trace.rank,
        pid=trace.pid,
        bytes=trace.bytes,
        sha256=trace.sha256,
        url=None if trace.removed_ns is not None else trace_url(trace),
        trace=trace.id,
        error=trace.error,
        second_pass=None if trace.second_pass is None else _second_pass(trace, trace.second_pass),
    )


def _second_pass(trace: models.Trace, second: models.SecondPass) -> SecondPass:
    return SecondPass(
        bytes=second.bytes,
        sha256=second.sha256,
        url=None if trace.removed_ns is not None else f"{trace_url(trace)}?pass=2",
    )
