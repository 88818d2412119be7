"""Writes findings to the database. What an earlier analysis of the same traces found is replaced, ids are kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from tightship_analyzers.analysis.analyze_rank import public_finding
from tightship_analyzers.findings import model as rules
from tightship_platform.database import ranked_workflows
from tightship_platform.database.models import Capture, Finding, Run, StoredPart, Trace
from tightship_platform.results.analysis.finding import TraceFinding
from tightship_platform.results.analysis.run import RunAnalysis
from tightship_platform.results.codec import as_json


def save_capture(session: Session, capture: Capture, analysis: RunAnalysis | None, *, now: int) -> None:
    """Keep the findings of a capture, instead of those of an earlier analysis; the parts of the ranks go."""
    traces = session.scalars(select(Trace).where(Trace.capture_id == capture.id).order_by(Trace.rank)).all()
    ids = {trace.rank: trace.id for trace in traces}
    rows = session.scalars(select(Finding).where(Finding.trace_id.in_(ids.values()))).all()
    found = analysis.findings if analysis is not None else []
    replace_findings(session, capture.run_id, rows, [(finding, ids.get(finding.rank)) for finding in found], now=now)
    session.execute(delete(StoredPart).where(StoredPart.trace_id.in_(ids.values())))


def save_run_findings(
    session: Session, run: Run, found: Iterable[rules.Finding], rule_ids: Sequence[str], *, now: int
) -> None:
    """Keep what rules on samples found in a run, instead of what these rules found before."""
    rows = session.scalars(
        select(Finding).where(Finding.run_id == run.id, Finding.trace_id.is_(None), Finding.rule.in_(rule_ids))
    ).all()
    # What was measured needs no track record.
    measured = [(public_finding(one, "", 0, assume_proven=True), None) for one in found]
    replace_findings(session, run.id, rows, measured, now=now)


def replace_findings(
    session: Session,
    run_id: int,
    rows: Iterable[Finding],
    found: Iterable[tuple[TraceFinding, int | None]],
    *,
    now: int,
) -> None:
    """Make these rows say what was found: same rule and place, same row and id; rows that nothing backs go away."""
    old = {(row.rule, row.place): row for row in rows}
    for finding, trace_id in found:
        row = old.pop((finding.rule, finding.where), None)
        if row is None:
            row = Finding(run_id=run_id, rule=finding.rule, place=finding.where)
            session.add(row)
        row.trace_id = trace_id
        row.title, row.fix, row.unit = finding.title, finding.fix, finding.saving.unit
        # Where nothing is known, as with a risk, the saving is missing and not zero.
        saving = finding.saving if finding.saving.high else None
        row.value = None if saving is None else saving.value
        row.low = None if saving is None else saving.low
        row.high = None if saving is None else saving.high
        row.method = "" if saving is None else saving.method or ""
        row.share_frac = None if saving is None else saving.share_frac
        row.evidence = [as_json(entry) for entry in finding.evidence]
        row.created_ns = now
    for row in old.values():
        session.delete(row)
    session.flush()
    ranked_workflows.mark(session, session.scalars(select(Run.workflow_id).where(Run.id == run_id)))
