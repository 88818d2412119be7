"""Keeps the opportunities in the database in line with the findings of recent runs."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from typing import Any

from sqlalchemy import or_, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from tightship_analyzers.findings.track_record import expected, led_by_proven
from tightship_analyzers.fleet.account import Phases, stepping_ns
from tightship_analyzers.fleet.accounting import represents_run
from tightship_analyzers.fleet.history import read_phases
from tightship_analyzers.fleet.opportunities import (
    Claim,
    FindingText,
    Ranked,
    RunEvidence,
    SampleSaving,
    rank_workflow,
    standing_of_opportunity,
)
from tightship_platform.database import ranked_workflows
from tightship_platform.database.engine import Database
from tightship_platform.database.locks import begin_writing, locked
from tightship_platform.database.models import Finding, Opportunity, RankedWorkflow, Run, RunAccount, Trace, Workflow
from tightship_platform.database.trouble import is_away
from tightship_platform.database.upsert import add_missing
from tightship_platform.results.analysis.rank import is_stretched
from tightship_platform.units import NS_PER_S, now_ns
from tightship_platform.vocabulary import OpportunityState

log = logging.getLogger(__name__)

RECENT_NS = 7 * 86_400 * NS_PER_S
AGAIN_NS = 3600 * NS_PER_S
"""A workflow with opportunities is ranked again after this time though nothing was marked."""
RECENT_RUNS = 20
"""Per workflow, the newest ones; also none that began more than RECENT_NS ago, unless it still runs."""

_LOCK_KEY = 0x72616E6B696E67


def rank_changed(database: Database, *, now: int | None = None) -> int:
    """Bring the opportunities of workflows that have changed up to date, and number all; returns how many were ranked.

    A row keeps its id and its state as long as the same rules of the same workflow claim something. One that is no
    longer backed by findings disappears if it is open, and stays as a record if somebody acted on it.

    Each workflow is a transaction. One that fails keeps what it has, and is ranked again when something changes.
    """
    now = now_ns() if now is None else now
    with database.session() as session:
        due = due_workflows(session, now)
    for workflow_id in due:
        try:
            with database.session() as session:
                _rank(session, workflow_id, now)
        except DBAPIError as error:
            if is_away(error):
                raise
            why = " ".join(str(error.orig).split())
            log.warning("Workflow %d: its opportunities could not be ranked, and are again: %s", workflow_id, why)
        except Exception:  # one bad workflow must not block those after it
            _leave(database, workflow_id, now)
    if due:
        with database.session() as session:
            _number(session)
    return len(due)


def due_workflows(session: Session, now: int) -> list[int]:
    """Workflows that were marked since they were ranked, or that have an opportunity and were not ranked for AGAIN_NS:
    runs grow old without being changed. And those that a clock far ahead has ranked."""
    made = RankedWorkflow
    has_any = select(Opportunity.id).where(Opportunity.workflow_id == Workflow.id).exists()
    is_old = or_((made.ranked_ns <= now - AGAIN_NS) & has_any, made.ranked_ns > now + AGAIN_NS)
    wanted = select(Workflow.id).outerjoin(made, made.workflow_id == Workflow.id)
    wanted = wanted.where(or_(made.workflow_id.is_(None), made.marked != made.ranked, is_old))
    return list(session.scalars(wanted.order_by(Workflow.id)))


def _rank(session: Session, workflow_id: int, now: int) -> None:
    never = {"workflow_id": workflow_id, "marked": 0, "ranked": ranked_workflows.NEVER, "ranked_ns": 0}
    add_missing(session, RankedWorkflow, [never])
    # Two at once would insert the same opportunities.
    [made] = locked(session, select(RankedWorkflow).where(RankedWorkflow.workflow_id == workflow_id))
    existing = {
        row.key: row for row in session.scalars(select(Opportunity).where(Opportunity.workflow_id == workflow_id))
    }
    for ranked in rank_workflow(_recent(session, workflow_id, now)):
        row = existing.pop(ranked.key, None)
        if row is None:
            row = Opportunity(workflow_id=workflow_id, key=ranked.key, state=OpportunityState.OPEN.value, position=0)
            session.add(row)
        _update(row, ranked, now)
    for row in existing.values():
        if row.state == OpportunityState.OPEN:
            session.delete(row)
    made.ranked, made.ranked_ns = made.marked, now


def _leave(database: Database, workflow_id: int, now: int) -> None:
    log.exception("The opportunities of workflow %d could not be ranked", workflow_id)
    with database.session() as session:
        made = session.get(RankedWorkflow, workflow_id)
        if made is not None:
            made.ranked, made.ranked_ns = made.marked, now


def _number(session: Session) -> None:
    begin_writing(session)
    if session.get_bind().dialect.name == "postgresql":  # two at once would give the same numbers
        session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK_KEY})
    rows = session.scalars(select(Opportunity)).all()
    by_saving = sorted(rows, key=lambda row: (-expected(row.rules, row.low, row.high), row.key))
    ordered = led_by_proven(by_saving, lambda row: standing_of_opportunity(row.rules))
    ordered.sort(key=lambda row: row.state != OpportunityState.OPEN)
    fleets: dict[int, int | None] = {
        row.id: row.fleet_id for row in session.execute(select(Workflow.id, Workflow.fleet_id))
    }
    counts: dict[int | None, int] = {}
    for row in ordered:
        fleet = fleets.get(row.workflow_id)
        counts[fleet] = position = counts.get(fleet, 0) + 1
        if row.position != position:
            row.position = position


def _update(row: Opportunity, ranked: Ranked, now: int) -> None:
    """Only what changed is written, so that a quiet fleet causes no writes."""
    values: dict[str, object] = {
        "title": ranked.title,
        "rules": list(ranked.rules),
        "findings": list(ranked.findings),
        "fix": ranked.fix,
        "device_ns": ranked.device_ns,
        "value": ranked.value_ns,
        "low": ranked.low_ns,
        "high": ranked.high_ns,
        "method": ranked.method,
    }
    if any(getattr(row, name) != value for name, value in values.items()):
        for name, value in values.items():
            setattr(row, name, value)
        row.updated_ns = now


def _recent(session: Session, workflow_id: int, now: int) -> list[RunEvidence]:
    runs = session.scalars(
        select(Run)
        .where(Run.workflow_id == workflow_id, (Run.start_ns >= now - RECENT_NS) | Run.end_ns.is_(None))
        .order_by(Run.start_ns.desc(), Run.id.desc())
        .limit(RECENT_RUNS)
    ).all()
    ids = [run.id for run in runs]
    buckets: dict[int, dict[str, int]] = {run_id: {} for run_id in ids}
    for entry in session.scalars(select(RunAccount).where(RunAccount.run_id.in_(ids))):
        buckets[entry.run_id][entry.bucket] = entry.device_ns
    by_id = {run.id: run for run in runs}

    @functools.cache
    def phases(run_id: int) -> Phases:
        return read_phases(session, by_id[run_id])

    captures: dict[int, dict[int, list[list[Claim]]]] = {run_id: {} for run_id in ids}
    traces = select(Trace).where(Trace.run_id.in_(ids), Trace.analyzed_ns.is_not(None), Trace.error.is_(None))
    for trace in session.scalars(traces.order_by(Trace.id)):
        if _is_stretched(trace) and not trace.summary.get("claims"):
            continue
        if trace.summary.get("steps") or (
            trace.summary.get("saving_unit") and represents_run(trace.summary, phases(trace.run_id))
        ):
            # A trace without a capture was imported by itself.
            group = trace.capture_id if trace.capture_id is not None else -trace.id
            captures[trace.run_id].setdefault(group, []).append(_claims(trace.summary))
    findings: dict[int, list[Finding]] = {run_id: [] for run_id in ids}
    for finding in session.scalars(select(Finding).where(Finding.run_id.in_(ids)).order_by(Finding.id)):
        findings[finding.run_id].append(finding)
    return [
        RunEvidence(
            # One that counted no step and was not traced may never have worked: no saving is carried over to it.
            stepping_device_ns=stepping_ns(buckets[run_id]) if captures[run_id] or by_id[run_id].steps != 0 else 0,
            device_ns=sum(buckets[run_id].values()),
            captures=list(captures[run_id].values()),
            findings=[_text(finding) for finding in findings[run_id]],
            from_samples=[_saving(finding) for finding in findings[run_id] if finding.trace_id is None],
        )
        for run_id in ids
    ]


def _claims(summary: Mapping[str, Any]) -> list[Claim]:
    return [
        Claim(
            rules=tuple(claim["rules"]),
            share_frac=claim["share_frac"],
            low_frac=claim["low_frac"],
            high_frac=claim["high_frac"],
            method=claim["method"],
        )
        for claim in summary.get("claims", [])
    ]


def _is_stretched(trace: Trace) -> bool:
    """It names no saving, which does not mean that there is none."""
    return is_stretched((trace.summary.get("step_ns") or {}).get("mean", 0), trace.summary.get("untraced_step_ns"))


def _text(finding: Finding) -> FindingText:
    return FindingText(
        id=finding.id,
        rule=finding.rule,
        title=finding.title,
        fix=finding.fix,
        share_frac=finding.share_frac or 0.0,
    )


def _saving(finding: Finding) -> SampleSaving:
    return SampleSaving(rule=finding.rule, value_ns=finding.value, low_ns=finding.low, high_ns=finding.high)
