"""What somebody does about an opportunity: apply it, dismiss it, open it again.

[Note: the life of an opportunity] It is `open` until somebody applies or dismisses it. `applied`, it waits for a later
run of its workflow, whose steps say `verified` or `refuted` (`actions.later_runs`). From each of these it can be opened
again, or dismissed. Each of these changes is a row of `opportunity_action`, and none is ever removed as long as the
workflow is there.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from tightship_platform import validation
from tightship_platform.database import ranked_workflows
from tightship_platform.database.locks import locked
from tightship_platform.database.models import Finding, Opportunity, OpportunityAction, Run
from tightship_platform.errors import Conflict, NotFound
from tightship_platform.results.action import Prediction, ToChange
from tightship_platform.results.codec import as_json, decode
from tightship_platform.results.evidence import Change, Evidence, PlanAdvice
from tightship_platform.units import now_ns
from tightship_platform.vocabulary import ActionKind, ActionState, OpportunityState, SavingUnit

PLACES = 10
"""Of many places where something is to be changed, so many are named."""
NO_RUN_YET = "No run of the workflow has started, ended and been accounted for since"
_STATE = {
    ActionKind.APPLY: OpportunityState.APPLIED,
    ActionKind.DISMISS: OpportunityState.DISMISSED,
    ActionKind.REOPEN: OpportunityState.OPEN,
}


def act(
    session: Session,
    opportunity_id: int,
    kind: ActionKind,
    *,
    actor: str,
    reason: str | None = None,
    now: int | None = None,
) -> OpportunityAction:
    """Change where an opportunity stands, and keep who did it and why; see [Note: the life of an opportunity].

    :raises NotFound: there is no such opportunity.
    :raises Conflict: it stands where this cannot be done.
    :raises Invalid: the reason is no line of text.
    """
    reason = validation.optional_name("Reason", reason)
    found = locked(session, select(Opportunity).where(Opportunity.id == opportunity_id))
    if not found:
        raise NotFound("opportunity", str(opportunity_id), "see `tightship opportunities --dismissed`")
    [row] = found
    _require(row, kind)
    action = OpportunityAction(
        workflow_id=row.workflow_id,
        opportunity_id=row.id,
        title=row.title,
        kind=kind.value,
        actor=actor,
        time_ns=now_ns() if now is None else now,
        reason=reason,
    )
    if kind is ActionKind.APPLY:
        _apply(session, row, action)
    else:
        still = (OpportunityAction.opportunity_id == row.id, OpportunityAction.state == OpportunityState.APPLIED.value)
        withdrawn = update(OpportunityAction).where(*still).values(state=ActionState.WITHDRAWN.value, waits_for=None)
        session.execute(withdrawn.execution_options(synchronize_session=False))
    session.add(action)
    row.state, row.updated_ns = _STATE[kind].value, action.time_ns
    session.flush()
    ranked_workflows.mark(session, [row.workflow_id])  # those that are not open come last
    return action


def _require(row: Opportunity, kind: ActionKind) -> None:
    reopen = f"`tightship opportunities reopen {row.id} --reason …`"
    if kind is ActionKind.APPLY and row.workflow.fleet_id is not None:
        raise Conflict(f"Opportunity {row.id} is of an imported history, in which nothing can be changed any more")
    if kind is ActionKind.APPLY and row.state != OpportunityState.OPEN:
        raise Conflict(f"Opportunity {row.id} is {row.state}; see `tightship actions`, or {reopen} first")
    if row.state == _STATE[kind]:
        raise Conflict(f"Opportunity {row.id} is {row.state} already; see `tightship actions`")


def _apply(session: Session, row: Opportunity, action: OpportunityAction) -> None:
    found = session.scalars(select(Finding).where(Finding.id.in_(row.findings)).order_by(Finding.id.desc())).all()
    action.state, action.waits_for = OpportunityState.APPLIED.value, NO_RUN_YET
    action.change = as_json(_change(row, found))
    predicted = _predicted(row, found)
    action.predicted = None if predicted is None else as_json(predicted)
    action.before_run_id = session.scalar(
        select(Run.id)
        .where(Run.workflow_id == row.workflow_id, Run.start_ns <= action.time_ns, Run.steps > 0)
        .order_by(Run.start_ns.desc(), Run.id.desc())
        .limit(1)
    )


def _change(row: Opportunity, findings: Sequence[Finding]) -> ToChange:
    """Of the newest findings: all their places, and the first code and the first command that they name."""
    evidence = [part for one in findings for part in decode(list[Evidence], one.evidence, f"Evidence of {one.id}")]
    code = next((part for part in evidence if isinstance(part, Change)), None)
    return ToChange(
        fix=row.fix,
        places=list(dict.fromkeys(one.place for one in findings if one.place))[:PLACES],
        before="" if code is None else code.before,
        after="" if code is None else code.after,
        command=next((part.command for part in evidence if isinstance(part, PlanAdvice)), ""),
    )


def _predicted(row: Opportunity, findings: Sequence[Finding]) -> Prediction | None:
    """As shares of the step; None: the saving lies elsewhere, as that of devices held idle, or is not known."""
    if row.value is None or row.low is None or row.high is None or row.device_ns <= 0:
        return None
    if any(one.unit == SavingUnit.DEVICE_TIME for one in findings):
        return None
    value, low, high = (min(1.0, part / row.device_ns) for part in (row.value, row.low, row.high))
    return Prediction(saving_frac=value, low_frac=low, high_frac=high, method=row.method)
