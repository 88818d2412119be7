"""Captures (requests for a trace), their schedules, the trace files that came of them, and whose store holds these."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, ForeignKey, Index, Integer, LargeBinary, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column, relationship

from tightship_platform.database.models.base import Base, json_dict, json_list, name, ns, pk
from tightship_platform.database.models.runs import Run, Workflow


class CaptureSchedule(Base):
    """Ask for a capture of every live run of a workflow, again and again."""

    __tablename__ = "capture_schedule"

    id: Mapped[pk]
    workflow_id: Mapped[int] = mapped_column(ForeignKey("workflow.id", ondelete="CASCADE"), unique=True)
    every_ns: Mapped[ns]
    params: Mapped[json_dict]
    enabled: Mapped[bool] = mapped_column(Boolean, default=True)

    workflow: Mapped[Workflow] = relationship()


class Capture(Base):
    """A request for one trace per rank of a run. This row, not the broker, says where it stands."""

    __tablename__ = "capture"
    __table_args__ = (Index("ix_capture_state_requested_ns", "state", "requested_ns"),)

    id: Mapped[pk]
    key: Mapped[str] = mapped_column(String(40), unique=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), index=True)
    requested_by: Mapped[name]
    """`cli`, `dashboard`, `schedule`, or the token's name."""
    requested_ns: Mapped[ns] = mapped_column(BigInteger, index=True)
    expires_ns: Mapped[ns]
    """When a request that nobody leased becomes `expired`."""
    params: Mapped[json_dict]
    """duration_ns or iterations; stacks, shapes, memory, insist, passes."""
    state: Mapped[str] = mapped_column(String(16))
    reason: Mapped[str | None] = mapped_column(Text)
    """Why it failed or expired, what it waits for, or that its traces hold almost nothing."""
    stages: Mapped[json_dict]
    """When each state was first entered: state → ns."""
    expected: Mapped[json_list]
    """The manifest: one entry per expected rank: rank, pid, host."""
    passes: Mapped[int] = mapped_column(Integer, server_default="1")
    """Traces of each rank that make the capture complete."""
    passes_reason: Mapped[str | None] = mapped_column(Text)
    """Why there are two, or why there is one though two were wanted."""
    attempts: Mapped[int] = mapped_column(Integer, default=0)
    lease_host: Mapped[str | None] = mapped_column(String(200))
    lease_expires_ns: Mapped[int | None] = mapped_column(BigInteger)
    analysis_attempts: Mapped[int] = mapped_column(Integer, default=0)
    analysis_started_ns: Mapped[int | None] = mapped_column(BigInteger)

    run: Mapped[Run] = relationship()
    traces: Mapped[list[Trace]] = relationship(back_populates="capture")


class Trace(Base):
    """One rank's trace file in the artifact store."""

    __tablename__ = "trace"
    __table_args__ = (UniqueConstraint("capture_id", "rank"),)

    id: Mapped[pk]
    run_id: Mapped[int] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), index=True)
    capture_id: Mapped[int | None] = mapped_column(ForeignKey("capture.id", ondelete="CASCADE"), index=True)
    rank: Mapped[int] = mapped_column(Integer)
    pid: Mapped[int | None] = mapped_column(Integer)
    host_name: Mapped[str | None] = mapped_column(String(200))
    url: Mapped[str] = mapped_column(Text)
    """Path within the artifact store."""
    sha256: Mapped[str] = mapped_column(String(64))
    bytes: Mapped[int] = mapped_column(BigInteger)
    created_ns: Mapped[ns]
    analyzed_ns: Mapped[int | None] = mapped_column(BigInteger, index=True)
    removed_ns: Mapped[int | None] = mapped_column(BigInteger)
    """When the file was given up because of its age; null: the store has it."""
    error: Mapped[str | None] = mapped_column(Text)
    """Why the analysis of this file failed."""
    summary: Mapped[json_dict]
    """What the analysis found: `results.analysis.rank.TraceSummary`."""
    analysis_attempts: Mapped[int] = mapped_column(Integer, server_default="0")
    """How often its analysis was begun."""
    analysis_lease_ns: Mapped[int | None] = mapped_column(BigInteger)
    """Until when a worker is expected to give a sign of life; null: none has begun."""

    run: Mapped[Run] = relationship()
    capture: Mapped[Capture | None] = relationship(back_populates="traces")
    second_pass: Mapped[SecondPass | None] = relationship(passive_deletes=True)


class SecondPass(Base):
    """The second trace of a rank, recorded without stacks and shapes; kept and given up together with the first."""

    __tablename__ = "second_pass"

    trace_id: Mapped[int] = mapped_column(ForeignKey("trace.id", ondelete="CASCADE"), primary_key=True)
    url: Mapped[str] = mapped_column(Text)
    """Path within the artifact store."""
    sha256: Mapped[str] = mapped_column(String(64))
    bytes: Mapped[int] = mapped_column(BigInteger)
    created_ns: Mapped[ns]


class StoredPart(Base):
    """What a rank's trace adds to the analysis of its capture, kept until the ranks are joined."""

    __tablename__ = "rank_part"

    trace_id: Mapped[int] = mapped_column(ForeignKey("trace.id", ondelete="CASCADE"), primary_key=True)
    catalogue: Mapped[str] = mapped_column(String(64))
    """Version of the analyzers and their rules."""
    body: Mapped[bytes] = mapped_column(LargeBinary)
    """See `results.packed`."""


class CaptureAnalysis(Base):
    """The analysis of a capture, whole."""

    __tablename__ = "capture_analysis"

    capture_id: Mapped[int] = mapped_column(ForeignKey("capture.id", ondelete="CASCADE"), primary_key=True)
    catalogue: Mapped[str] = mapped_column(String(64))
    """Version of the analyzers and their rules."""
    body: Mapped[bytes] = mapped_column(LargeBinary)
    """A `results.analysis.run.RunAnalysis`, see `results.packed`."""
    created_ns: Mapped[ns]


class StackDump(Base):
    """What the processes of a run were at when its agent was last asked; one row per run that was ever asked about."""

    __tablename__ = "stack_dump"

    run_id: Mapped[int] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), primary_key=True)
    requested_by: Mapped[name]
    requested_ns: Mapped[ns] = mapped_column(BigInteger, index=True)
    native: Mapped[bool] = mapped_column(Boolean)
    """Also frames of C and C++ are wanted."""
    leased_ns: Mapped[int | None] = mapped_column(BigInteger)
    """When its agent took the request; null: it has not."""
    taken_ns: Mapped[int | None] = mapped_column(BigInteger)
    """When the last answer came; before `requested_ns` where another is awaited. Null: none ever came."""
    processes: Mapped[json_list]
    """`wire.ProcessFrames`, as `captures.stacks` bounds them."""

    run: Mapped[Run] = relationship()


class Installation(Base):
    """The one row that names this installation: see [Note: one store, one installation] in `store_owner`."""

    __tablename__ = "installation"

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    key: Mapped[str] = mapped_column(String(32))
