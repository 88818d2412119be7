"""Writes verdicts to the database. What an earlier analysis of the same traces found is replaced, ids are kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from tightship_analyzers.analysis.judge import Verdict
from tightship_analyzers.analysis.merged_ranks import RankVerdict, merge_ranks
from tightship_analyzers.findings import model as rules
from tightship_platform.database.models import Capture, Finding, Run, Trace


def save_capture(session: Session, capture: Capture, verdicts: dict[int, Verdict | str], *, now: int) -> None:
    """Keep the verdicts on a capture's traces.

    :param verdicts: trace id → what was said, or the line that tells why the file could not be analysed.
    """
    traces = session.scalars(select(Trace).where(Trace.capture_id == capture.id).order_by(Trace.rank)).all()
    judged: list[RankVerdict[int]] = []
    for trace in traces:
        verdict = verdicts.get(trace.id)
        if verdict is None:
            continue
        trace.analyzed_ns = now
        trace.error = verdict if isinstance(verdict, str) else None
        trace.summary = {} if isinstance(verdict, str) else verdict.summary
        if not isinstance(verdict, str):
            judged.append(RankVerdict(rank=trace.rank, source=trace.id, verdict=verdict))
    rows = session.scalars(select(Finding).where(Finding.trace_id.in_([trace.id for trace in traces]))).all()
    found = [(finding, worst.source) for finding, worst in merge_ranks(judged)]
    replace_findings(session, capture.run_id, rows, found, now=now)


def save_run_findings(
    session: Session, run: Run, found: Iterable[rules.Finding], rule_ids: Sequence[str], *, now: int
) -> None:
    """Keep what rules on samples found in a run, instead of what these rules found before."""
    rows = session.scalars(
        select(Finding).where(Finding.run_id == run.id, Finding.trace_id.is_(None), Finding.rule.in_(rule_ids))
    ).all()
    replace_findings(session, run.id, rows, [(finding, None) for finding in found], now=now)


def replace_findings(
    session: Session,
    run_id: int,
    rows: Iterable[Finding],
    found: Iterable[tuple[rules.Finding, int | None]],
    *,
    now: int,
) -> None:
    """Make these rows say what was found: same rule and place, same row and id; rows that nothing backs go away."""
    old = {(row.rule, row.place): row for row in rows}
    for finding, trace_id in found:
        row = old.pop((finding.rule, finding.place), None)
        if row is None:
            row = Finding(run_id=run_id, rule=finding.rule, place=finding.place)
            session.add(row)
        row.trace_id = trace_id
        row.title, row.fix, row.unit = finding.title, finding.fix, finding.unit.value
        # Where nothing can be told, as of a risk, the saving is missing and not zero.
        saving = finding.saving if finding.saving.high else None
        row.value = None if saving is None else saving.value
        row.low = None if saving is None else saving.low
        row.high = None if saving is None else saving.high
        row.method = "" if saving is None else saving.method.value
        row.share_frac = None if saving is None else finding.share_frac
        row.evidence = finding.evidence
        row.created_ns = now
    for row in old.values():
        session.delete(row)
    session.flush()
