"""Judges runs by their samples and by how they ended, and keeps the findings in the database."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import select
from sqlalchemy.orm import Session

from tightship_analyzers.analysis.engine import apply_rules, failures
from tightship_analyzers.findings.model import Finding
from tightship_analyzers.fleet.findings_store import save_run_findings
from tightship_analyzers.fleet.history import read_account, read_history, read_memory
from tightship_analyzers.fleet.trouble import not_troubled
from tightship_analyzers.rules.catalogue import RUN_RULES
from tightship_platform.database.models import Run
from tightship_platform.database.models.runs import UNJUDGED
from tightship_platform.units import now_ns

RULE_IDS = tuple(rule.id for rule in RUN_RULES)


def due_runs(session: Session, *, now: int | None = None) -> list[int]:
    """Runs whose account is newer than what the rules on samples last looked at."""
    now = now_ns() if now is None else now
    found = select(Run.id).where(not_troubled(now), UNJUDGED).order_by(Run.id)
    return list(session.scalars(found))


def judge_run(session: Session, run: Run, *, now: int | None = None) -> list[Finding]:
    """Let the rules on samples judge one run."""
    now = now_ns() if now is None else now
    history = read_history(session, run)
    history = replace(history, memory=read_memory(session, run, history), account=read_account(session, run))
    found, not_judged = apply_rules(RUN_RULES, lambda rule: rule.judge(history), f"run {run.key}")
    broken = failures(not_judged)
    # What a broken rule found before stands until it judges again.
    save_run_findings(session, run, found, [rule for rule in RULE_IDS if rule not in broken], now=now)
    run.judged_ns = run.accounted_ns
    if broken:
        run.trouble = f"The rules {', '.join(broken)} could not judge the run's samples; the worker's log says more"
    return found
