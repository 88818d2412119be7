"""Judges runs by their samples and keeps the findings in the database."""

from __future__ import annotations

from sqlalchemy import and_, or_, select
from sqlalchemy.orm import Session

from tightship_analyzers.catalogue import SAMPLE_RULES
from tightship_analyzers.fleet.history import read_history
from tightship_analyzers.rule import Finding, NotApplicable
from tightship_analyzers.store import save_run_findings
from tightship_platform.models import Finding as FindingRow
from tightship_platform.models import Run, RunAccount
from tightship_platform.units import now_ns
from tightship_platform.vocabulary import Bucket

RULE_IDS = tuple(rule.id for rule in SAMPLE_RULES)


def due_runs(session: Session) -> list[int]:
    """Runs whose account shows idle devices, or that have a finding on them, and whose account is newer than that."""
    row = and_(FindingRow.run_id == Run.id, FindingRow.trace_id.is_(None), FindingRow.rule.in_(RULE_IDS))
    is_idle = and_(RunAccount.run_id == Run.id, RunAccount.bucket == Bucket.HELD_IDLE.value, RunAccount.device_ns > 0)
    found = (
        select(Run.id)
        .outerjoin(FindingRow, row)
        .outerjoin(RunAccount, is_idle)
        .where(
            or_(
                and_(RunAccount.run_id.is_not(None), FindingRow.id.is_(None)),
                FindingRow.created_ns < Run.accounted_ns,
            )
        )
        .distinct()
        .order_by(Run.id)
    )
    return list(session.scalars(found))


def judge_run(session: Session, run: Run, *, now: int | None = None) -> list[Finding]:
    """Let the rules on samples judge one run."""
    now = now_ns() if now is None else now
    history = read_history(session, run)
    found: list[Finding] = []
    for rule in SAMPLE_RULES:
        outcome = rule.judge(history)
        if not isinstance(outcome, NotApplicable):
            found.extend(outcome)
    save_run_findings(session, run, found, RULE_IDS, now=now)
    return found
