"""Findings of the rules."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload

from tightship_platform.database import ids, models
from tightship_platform.queries.filtered import among_runs, checked_state, of_fleet, within
from tightship_platform.queries.pages import following, ordered
from tightship_platform.queries.runs import checked_limit, find_run
from tightship_platform.results.codec import decode
from tightship_platform.results.evidence import Evidence
from tightship_platform.results.filters import ALL, Filters
from tightship_platform.results.finding import Finding, FindingSaving
from tightship_platform.vocabulary import RunState

_WHOLE = (joinedload(models.Finding.run).joinedload(models.Run.workflow), joinedload(models.Finding.trace))
_LARGEST_FIRST = ((models.Finding.share_frac, True), (models.Finding.value, True), (models.Finding.id, False))


def list_findings(
    session: Session,
    filters: Filters = ALL,
    *,
    run: str | None = None,
    after: int | None = None,
    limit: int = 1000,
) -> list[Finding]:
    """Findings, those with the largest share first; times are when they were found, and the state is their run's.

    :param run: only those of this run.
    :param after: those that come after this one: the last one of the page before.
    :raises Invalid: no such state, or a limit out of range.
    :raises NotFound: no such run or finding.
    """
    state = checked_state(filters, RunState)
    in_state = [] if state is None else [models.Run.state == state]
    wanted = select(models.Finding).options(*_WHOLE)
    wanted = wanted.where(
        *among_runs(session, filters, models.Finding.run_id, models.Run.id, *in_state),
        *within(filters, models.Finding.created_ns),
    )
    if filters.rule is not None:
        wanted = wanted.where(models.Finding.rule == filters.rule)
    if run is not None:
        wanted = wanted.where(models.Finding.run_id == find_run(session, run).id)
    if run is None or filters.fleet is not None:  # a run that is named is of whatever fleet it is
        wanted = wanted.where(of_fleet(session, filters, models.Finding.run_id))
    if after is not None:
        last = _find(session, after)
        wanted = wanted.where(following(_LARGEST_FIRST, (last.share_frac, last.value, last.id)))
    wanted = wanted.order_by(*ordered(_LARGEST_FIRST))
    return [_finding(finding) for finding in session.scalars(wanted.limit(checked_limit(limit)))]


def get_finding(session: Session, finding_id: int) -> Finding:
    """One finding.

    :raises NotFound: there is none of that id.
    """
    return _finding(_find(session, finding_id))


def _find(session: Session, finding_id: int) -> models.Finding:
    finding = ids.row_of(session, select(models.Finding).options(*_WHOLE), finding_id)
    if finding is None:
        raise ids.FINDING.not_found(str(finding_id))
    return finding


def _finding(finding: models.Finding) -> Finding:
    return Finding(
        finding=finding.id,
        rule=finding.rule,
        title=finding.title,
        run=finding.run.key,
        workflow=finding.run.workflow.name,
        trace=finding.trace_id,
        rank=None if finding.trace is None else finding.trace.rank,
        where=finding.place,
        fix=finding.fix,
        saving=FindingSaving(
            value=finding.value,
            unit=finding.unit,
            low=finding.low,
            high=finding.high,
            method=finding.method or None,
            share_frac=finding.share_frac,
        ),
        evidence=decode(list[Evidence], finding.evidence, f"Evidence of finding {finding.id}"),
        created_ns=finding.created_ns,
        simulated=finding.run.simulated,
    )
