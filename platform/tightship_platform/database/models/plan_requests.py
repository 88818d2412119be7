"""Requests for an offload plan, and their answers."""

from __future__ import annotations

from sqlalchemy import BigInteger, Index, Integer, LargeBinary, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from tightship_platform.database.models.base import Base, ns, pk, text


class PlanRequest(Base):
    """A request for a plan. This row, not the broker, says where it stands; see `PlanState`."""

    __tablename__ = "plan_request"
    __table_args__ = (Index("ix_plan_request_state_created_ns", "state", "created_ns"),)

    id: Mapped[pk]
    key: Mapped[str] = mapped_column(String(64), unique=True)
    """A hash of all that the answer depends on: the same request is one row."""
    traces_key: Mapped[str | None] = mapped_column(String(64), index=True)
    """A hash of the traces' content, whose costs another request may use; null: a profile was given."""
    request: Mapped[text]
    """JSON; as text, for a pasted profile may hold characters that a JSON column refuses."""
    state: Mapped[str] = mapped_column(String(16))
    stage: Mapped[text]
    """What is being done, in a few words."""
    answer: Mapped[bytes | None] = mapped_column(LargeBinary)
    """JSON, compressed: see tightship_analyzers.offload_planner.requests."""
    refusal: Mapped[str | None] = mapped_column(Text)
    """One line: why there is no answer."""
    attempts: Mapped[int] = mapped_column(Integer, default=0)
    """How often a worker has begun it; the last one alone may finish it."""
    created_ns: Mapped[ns]
    started_ns: Mapped[int | None] = mapped_column(BigInteger)
    renewed_ns: Mapped[ns]
    """When it was last sent off, or its worker last gave a sign of life."""
    finished_ns: Mapped[int | None] = mapped_column(BigInteger)
