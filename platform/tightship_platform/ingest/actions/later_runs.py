"""Whether what was applied worked: later runs of the workflow are compared with those from before.

[Note: which runs] A run that was launched with an application says so. As soon as one does, these runs alone have the
change; until then every run is taken to have it that started after the application. When such a run has ended and been
accounted for, it is compared with the last run from before that is like it and did not show that a change was refuted.
The first later run that decides settles the application. The rows say all of this: whoever does it twice, or late,
changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import InstrumentedAttribute, Session, aliased

from tightship_platform.database.locks import locked
from tightship_platform.database.models import Opportunity, OpportunityAction, Run
from tightship_platform.errors import Conflict
from tightship_platform.ingest.actions.by_plan import judge_by_plan
from tightship_platform.ingest.actions.verify import verify
from tightship_platform.results.action import Prediction, ToChange, Verification
from tightship_platform.results.codec import as_json, decode
from tightship_platform.vocabulary import OpportunityState, RunState, Verdict

TRIED_BEFORE = 10
"""Runs from before the application that are tried, the newest first, until one is like the later run."""
TRIED_AFTER = 20
"""Runs since then, at a time, the oldest first."""
Value = InstrumentedAttribute[int] | int

OUTSIDE = "Its saving lies outside of the steps, which is all that is compared; dismiss it or open it again by hand"


def due_applications(session: Session) -> list[int]:
    """Ids of applications with a later run that has ended and been accounted for since they were last looked at."""
    action = OpportunityAction
    seen_ns = func.coalesce(action.verified_ns, 0)
    whose = _later(action.id, action.workflow_id, action.time_ns)
    later = select(Run.id).where(*whose, Run.accounted_ns > seen_ns).correlate(action).exists()
    wanted = select(action.id).where(action.state == OpportunityState.APPLIED.value, later)
    return list(session.scalars(wanted.order_by(action.id)))


def settle(session: Session, action_id: int) -> OpportunityAction | None:
    """Compare the runs since an application with those before it, and write down what came of it; None: it is settled
    or gone. See [Note: which runs]."""
    # The opportunity first, as whoever acts on it locks it first.
    of_action = select(OpportunityAction.opportunity_id).where(OpportunityAction.id == action_id)
    opportunities = locked(session, select(Opportunity).where(Opportunity.id.in_(of_action)))
    found = locked(session, select(OpportunityAction).where(OpportunityAction.id == action_id))
    if not found or found[0].state != OpportunityState.APPLIED:
        return None
    [action] = found
    later = session.scalars(
        select(Run)
        .where(*_later(action.id, action.workflow_id, action.time_ns), Run.accounted_ns > (action.verified_ns or 0))
        .order_by(Run.start_ns, Run.id)
        .limit(TRIED_AFTER)
    ).all()
    before = _before(session, action)
    asks_for_plan = action.change is not None and decode(ToChange, action.change, "Change").command
    for run in later:
        verdict, why = _by_plan(session, run, action) if asks_for_plan else _by_steps(session, before, run, action)
        action.waits_for = why
        if verdict in (Verdict.VERIFIED, Verdict.REFUTED):
            action.state, action.waits_for = verdict.value, None
            for row in opportunities:
                if row.state == OpportunityState.APPLIED:
                    row.state, row.updated_ns = verdict.value, run.accounted_ns or row.updated_ns
            break
    action.verified_ns = max([action.verified_ns or 0, *(run.accounted_ns or 0 for run in later)])
    session.flush()
    return action


def _later(action_id: Value, workflow_id: Value, time_ns: Value) -> Sequence[ColumnElement[bool]]:
    """See [Note: which runs]. A run that says so has the change whatever the clocks of two machines say."""
    other = aliased(Run)
    does_any_say = select(other.id).where(other.applied_action_id == action_id).correlate(OpportunityAction).exists()
    has_change = (Run.applied_action_id == action_id) | ((Run.start_ns > time_ns) & ~does_any_say)
    ended = (Run.state != RunState.RUNNING.value, Run.end_ns.is_not(None), Run.accounted_ns >= Run.end_ns)
    return (Run.workflow_id == workflow_id, has_change, *ended)


def _before(session: Session, action: OpportunityAction) -> Sequence[Run]:
    """Runs from before, the newest first: without those of a change that was refuted, which predictions know nothing
    of."""
    wanted = select(Run).where(Run.workflow_id == action.workflow_id, Run.start_ns <= action.time_ns, Run.steps > 0)
    wanted = wanted.where(Run.applied_action_id.is_distinct_from(action.id))
    refuted = select(OpportunityAction.verification).where(
        OpportunityAction.workflow_id == action.workflow_id, OpportunityAction.state == OpportunityState.REFUTED.value
    )
    misled = {decode(Verification, one, "Verification").after.run for one in session.scalars(refuted) if one}
    if misled:
        wanted = wanted.where(Run.key.not_in(misled))
    return session.scalars(wanted.order_by(Run.start_ns.desc(), Run.id.desc()).limit(TRIED_BEFORE)).all()


def _by_plan(session: Session, run: Run, action: OpportunityAction) -> tuple[Verdict | None, str]:
    outcome, verdict, why = judge_by_plan(session, run)
    if outcome is not None:
        action.plan_outcome = as_json(outcome)
    return verdict, why


def _by_steps(
    session: Session, before: Sequence[Run], run: Run, action: OpportunityAction
) -> tuple[Verdict | None, str]:
    """With the newest run from before that is like it: more than one look at the data would find what is not there.
    None, and why: there is none."""
    if action.predicted is None:
        return None, OUTSIDE
    predicted = decode(Prediction, action.predicted, "Prediction")
    why = ""
    for one in before:
        try:
            found = verify(session, one, run, predicted)
        except Conflict as unlike:
            why = why or str(unlike)
        else:
            action.verification = as_json(found)
            return Verdict(found.verdict), found.reason
    return None, why or "No run from before it counted steps"
