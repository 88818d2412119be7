"""Lists in pages on both databases: nothing is left out or comes twice, with equal and missing values and new rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from records import T0, S
from sqlalchemy.orm import Session

from tightship_platform.database import models
from tightship_platform.database.engine import Database
from tightship_platform.errors import NotFound
from tightship_platform.queries.captures import list_captures
from tightship_platform.queries.findings import list_findings
from tightship_platform.queries.opportunities import list_opportunities
from tightship_platform.queries.runs import list_runs
from tightship_platform.queries.workflows import list_workflows

SHARES = ((0.5, 3), (0.5, 3), (0.5, None), (0.1, 7), (None, 9), (None, 2), (None, None), (None, None))


def fill(session: Session) -> None:
    """Eight rows in each list, some of them alike in what they are sorted by first."""
    for n, (share_frac, value) in enumerate(SHARES):
        workflow = models.Workflow(name=f"w{n}", labels={})
        session.add(workflow)
        session.flush()
        if n:
            add_run(session, workflow.id, f"r{n}", T0 + n // 2 * S)
        run = session.get_one(models.Run, 1) if n else add_run(session, workflow.id, "r0", T0)
        capture = models.Capture(key=f"c{n}", run_id=run.id, requested_by="x", params={}, state="failed")
        capture.requested_ns, capture.expires_ns = T0 + n // 3, T0
        capture.stages, capture.expected = {}, []
        saving: dict[str, Any] = {"method": "", "title": "t", "fix": "f", "value": value}
        finding = models.Finding(run_id=run.id, rule="r", place=str(n), unit="ns", evidence=[], created_ns=1, **saving)
        finding.share_frac = share_frac
        opportunity = models.Opportunity(workflow_id=workflow.id, key="k", rules=[], findings=[], device_ns=1, **saving)
        opportunity.position, opportunity.state, opportunity.updated_ns = n // 2, "open", 1
        session.add_all([capture, finding, opportunity])
    session.add_all(models.Workflow(name=f"without a run {n}", labels={}) for n in range(2))
    session.flush()


def add_run(session: Session, workflow_id: int, key: str, start_ns: int) -> models.Run:
    run = models.Run(key=key, workflow_id=workflow_id, command=[], labels={}, state="finished", ranks=[])
    run.start_ns = run.last_seen_ns = run.end_ns = start_ns
    session.add(run)
    session.flush()
    return run


LISTS: dict[str, tuple[Callable[..., list[Any]], str, Any]] = {
    "runs": (list_runs, "run", "nosuch"),
    "captures": (list_captures, "capture", "nosuch"),
    "findings": (list_findings, "finding", 10**6),
    "opportunities": (list_opportunities, "opportunity", 10**6),
    "workflows": (list_workflows, "workflow", "nosuch"),
}


@pytest.mark.parametrize("name", LISTS)
def test_pages_are_the_list(database: Database, name: str) -> None:
    list_some, key, nosuch = LISTS[name]
    with database.session() as session:
        fill(session)
        whole = [getattr(one, key) for one in list_some(session)]
        assert len(set(whole)) == len(whole) == (10 if name == "workflows" else 8)
        for size in (1, 3):
            walked: list[Any] = []
            while page := list_some(session, after=walked[-1] if walked else None, limit=size):
                walked += [getattr(one, key) for one in page]
            assert walked == whole, size
        with pytest.raises(NotFound):
            list_some(session, after=nosuch)


def test_new_rows_move_no_page(database: Database) -> None:
    with database.session() as session:
        fill(session)
        first = [one.run for one in list_runs(session, limit=3)]
        rest = [one.run for one in list_runs(session, after=first[-1])]
        add_run(session, 1, "new", T0 + 100 * S)
        assert [one.run for one in list_runs(session, after=first[-1])] == rest
        assert not set(first) & set(rest) and len(first) + len(rest) == 8
