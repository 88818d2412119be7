"""Findings, the opportunities made of them, and the loop: plan → action → verification."""

from __future__ import annotations

from sqlalchemy import BigInteger, Float, ForeignKey, Integer, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column, relationship

from tightship_platform.database.models.base import Base, BigId, json_dict, json_list, json_or_null, name, ns, pk, text
from tightship_platform.database.models.captures import Trace
from tightship_platform.database.models.runs import Run, Workflow


class _Saving:
    """A saving: value with unit, an interval, and how it was obtained."""

    value: Mapped[int | None] = mapped_column(BigInteger)
    low: Mapped[int | None] = mapped_column(BigInteger)
    high: Mapped[int | None] = mapped_column(BigInteger)
    method: Mapped[str] = mapped_column(String(16))
    """Empty where no saving is known, as of a risk."""


class Finding(_Saving, Base):
    """A rule's judgement on one run (rules on samples) or one trace of it (rules on traces)."""

    __tablename__ = "finding"
    __table_args__ = (UniqueConstraint("run_id", "rule", "trace_id", "place"),)

    id: Mapped[pk]
    rule: Mapped[str] = mapped_column(String(64), index=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), index=True)
    trace_id: Mapped[int | None] = mapped_column(ForeignKey("trace.id", ondelete="CASCADE"), index=True)
    title: Mapped[str] = mapped_column(Text)
    place: Mapped[str] = mapped_column(Text, default="")
    """Where: file:line, operator or device; empty when unknown. The public key is `where`."""
    fix: Mapped[str] = mapped_column(Text)
    unit: Mapped[str] = mapped_column(String(16))
    """A `SavingUnit`: per step or recording for findings in traces, device time for findings in samples."""
    share_frac: Mapped[float | None] = mapped_column(Float)
    """The saving as a share of the step or recording (traces) or of the run's device time (samples)."""
    evidence: Mapped[json_list]
    created_ns: Mapped[ns] = mapped_column(BigInteger, index=True)

    run: Mapped[Run] = relationship()
    trace: Mapped[Trace | None] = relationship()


class Opportunity(_Saving, Base):
    """What to do in one workflow, and how much device time that would give back."""

    __tablename__ = "opportunity"
    __table_args__ = (UniqueConstraint("workflow_id", "key"),)

    id: Mapped[pk]
    workflow_id: Mapped[int] = mapped_column(ForeignKey("workflow.id", ondelete="CASCADE"), index=True)
    key: Mapped[str] = mapped_column(String(200))
    """Its rules, sorted and joined by '+': findings that claim the same time are one opportunity."""
    title: Mapped[str] = mapped_column(Text)
    rules: Mapped[json_list]
    findings: Mapped[json_list]
    """Ids of the findings behind it."""
    fix: Mapped[str] = mapped_column(Text)
    device_ns: Mapped[int] = mapped_column(BigInteger)
    """Device time of the recent runs that the saving refers to."""
    position: Mapped[int] = mapped_column(Integer)
    state: Mapped[str] = mapped_column(String(16), default="open")
    updated_ns: Mapped[ns]

    workflow: Mapped[Workflow] = relationship()


class OpportunityAction(Base):
    """What somebody did about an opportunity: applied it, dismissed it, opened it again; and what came of it."""

    __tablename__ = "opportunity_action"

    id: Mapped[pk]
    workflow_id: Mapped[int] = mapped_column(ForeignKey("workflow.id", ondelete="CASCADE"), index=True)
    opportunity_id: Mapped[int | None] = mapped_column(ForeignKey("opportunity.id", ondelete="SET NULL"), index=True)
    """Null: it is gone."""
    title: Mapped[text]
    """The opportunity's, as of then."""
    kind: Mapped[str] = mapped_column(String(16))
    """An `ActionKind`."""
    actor: Mapped[name]
    time_ns: Mapped[ns]
    reason: Mapped[str | None] = mapped_column(Text)
    change: Mapped[json_or_null]
    """A `ToChange`, of an application."""
    predicted: Mapped[json_or_null]
    """A `Prediction`, of an application whose saving lies within the step."""
    before_run_id: Mapped[int | None] = mapped_column(ForeignKey("run.id", ondelete="SET NULL"), index=True)
    """The last run before it."""
    state: Mapped[str | None] = mapped_column(String(16))
    """Of an application: `applied`, then `verified`, `refuted` or `withdrawn`."""
    waits_for: Mapped[str | None] = mapped_column(Text)
    """Why it is still `applied`."""
    verification: Mapped[json_or_null]
    """The last `Verification`."""
    plan_outcome: Mapped[json_or_null]
    """The last `PlanOutcome`."""
    verified_ns: Mapped[int | None] = mapped_column(BigInteger)
    """The newest account among the runs that were looked at: those accounted for since are still to be."""

    workflow: Mapped[Workflow] = relationship()
    opportunity: Mapped[Opportunity | None] = relationship()
    before_run: Mapped[Run | None] = relationship()


class RankedWorkflow(Base):
    """Whether a workflow's opportunities are up to date: see `database.ranked_workflows`."""

    __tablename__ = "ranked_workflow"

    workflow_id: Mapped[int] = mapped_column(BigId, ForeignKey("workflow.id", ondelete="CASCADE"), primary_key=True)
    marked: Mapped[int] = mapped_column(BigInteger)
    """How often it was marked."""
    ranked: Mapped[int] = mapped_column(BigInteger)
    """`marked` as it was when it was last ranked."""
    ranked_ns: Mapped[ns]


class Plan(Base):
    """A configuration that can be applied to a job, such as an offload plan."""

    __tablename__ = "plan"

    id: Mapped[pk]
    workflow_id: Mapped[int] = mapped_column(ForeignKey("workflow.id", ondelete="CASCADE"), index=True)
    opportunity_id: Mapped[int | None] = mapped_column(ForeignKey("opportunity.id", ondelete="SET NULL"))
    kind: Mapped[name]
    body: Mapped[json_dict]
    created_ns: Mapped[ns]


class Action(Base):
    """A plan that a run used."""

    __tablename__ = "action"

    id: Mapped[pk]
    opportunity_id: Mapped[int | None] = mapped_column(ForeignKey("opportunity.id", ondelete="SET NULL"))
    plan_id: Mapped[int | None] = mapped_column(ForeignKey("plan.id", ondelete="SET NULL"))
    run_id: Mapped[int | None] = mapped_column(ForeignKey("run.id", ondelete="SET NULL"), index=True)
    applied_by: Mapped[name]
    applied_ns: Mapped[ns]


class Verification(Base):
    """What an action promised and what the next runs measured."""

    __tablename__ = "verification"

    id: Mapped[pk]
    action_id: Mapped[int] = mapped_column(ForeignKey("action.id", ondelete="CASCADE"), index=True)
    before: Mapped[json_dict]
    after: Mapped[json_dict]
    predicted_ns: Mapped[int | None] = mapped_column(BigInteger)
    measured_ns: Mapped[int | None] = mapped_column(BigInteger)
    verified_ns: Mapped[ns]
