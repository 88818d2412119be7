"""Workflows, their runs, the devices those runs held, and where that device time went."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, ForeignKey, Index, Integer, String, Text, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column, relationship

from tightship_platform.database.models.base import Base, BigId, JsonColumn, json_dict, json_list, name, ns, pk

# Written out, and used as they are in queries: otherwise a database cannot tell that it may use the index. Neither
# names a column that a heartbeat changes, which PostgreSQL would have to write to every index of the table then.
UNSETTLED = text("accounted_ns IS NULL OR end_ns IS NULL OR accounted_ns < end_ns + 3600000000000")
"""Runs whose account may have to be made again: it was made less than an hour after the end, which may be unknown."""
UNJUDGED = text("accounted_ns IS NOT NULL AND (judged_ns IS NULL OR judged_ns < accounted_ns)")
"""Runs whose account is newer than what the rules on samples looked at."""

IMPORTED = text("fleet_id IS NOT NULL")
"""Runs of imported fleets."""


class Workflow(Base):
    """Recurring work: all runs of one name."""

    __tablename__ = "workflow"

    id: Mapped[pk]
    name: Mapped[name] = mapped_column(String(200), unique=True)
    team: Mapped[str | None] = mapped_column(String(200))
    owner: Mapped[str | None] = mapped_column(String(200))
    labels: Mapped[json_dict]
    fleet_id: Mapped[int | None] = mapped_column(BigInteger)
    """The imported fleet that its runs are of; null: the live one."""

    runs: Mapped[list[Run]] = relationship(back_populates="workflow")


class Run(Base):
    """One execution of a workflow."""

    __tablename__ = "run"
    __table_args__ = (
        Index("ix_run_state_start_ns", "state", "start_ns"),
        Index("ix_run_host_name_start_ns", "host_name", "start_ns"),
        Index("ix_run_user_name_start_ns", "user_name", "start_ns"),
        Index(
            "ix_run_labels",
            "labels",
            postgresql_using="gin",
            postgresql_ops={"labels": "jsonb_path_ops"},
            info={"dialect": "postgresql"},
        ).ddl_if(dialect="postgresql"),
        Index("ix_run_fleet_id_start_ns", "fleet_id", "start_ns", postgresql_where=IMPORTED, sqlite_where=IMPORTED),
        Index("ix_run_unsettled", "id", postgresql_where=UNSETTLED, sqlite_where=UNSETTLED),
        Index("ix_run_unjudged", "id", postgresql_where=UNJUDGED, sqlite_where=UNJUDGED),
    )

    id: Mapped[pk]
    key: Mapped[str] = mapped_column(String(40), unique=True)
    """The public run id, made by the launcher (or an importer)."""
    name: Mapped[str | None] = mapped_column(String(200))
    """What somebody called it; null: nothing."""
    workflow_id: Mapped[int] = mapped_column(ForeignKey("workflow.id"), index=True)
    external_id: Mapped[str | None] = mapped_column(String(200), index=True)
    """Id in the scheduler, such as the Slurm job id."""
    git_commit: Mapped[str | None] = mapped_column(String(64), index=True)
    """Of the folder that it was launched in; null: it is in no repository, or nobody knows."""
    git_dirty: Mapped[bool | None] = mapped_column(Boolean)
    """Whether tracked files differed from the commit; null: not known."""
    image: Mapped[str | None] = mapped_column(String(200))
    """The container image that its environment named."""
    torch_version: Mapped[str | None] = mapped_column(String(64))
    cuda_version: Mapped[str | None] = mapped_column(String(64))
    driver_version: Mapped[str | None] = mapped_column(String(64))
    source: Mapped[str] = mapped_column(String(40), default="launch")
    """A `RunSource`, or `import:<format>`."""
    simulated: Mapped[bool] = mapped_column(Boolean, default=False)
    fleet_id: Mapped[int | None] = mapped_column(BigInteger)
    """The imported fleet that it is of; null: the live one."""
    host_name: Mapped[str | None] = mapped_column(String(200))
    """The host that first reported it, whose agent alone reports on it and takes its captures."""
    user_name: Mapped[str | None] = mapped_column(String(200))
    uid: Mapped[int | None] = mapped_column(BigInteger)
    """Number of the user on that host, as its agent saw it; null: no agent has said so."""
    team: Mapped[str | None] = mapped_column(String(200))
    """Team of the token that first reported it; null: that token has none."""
    command: Mapped[json_list]
    labels: Mapped[json_dict]
    """As launched, with `label_edits` on top."""
    label_edits: Mapped[dict[str, str | None]] = mapped_column(JsonColumn, server_default="{}")
    """What somebody wrote over the labels that it was launched with: label → value; null: taken away."""
    state: Mapped[str] = mapped_column(String(16), index=True)
    reason: Mapped[str | None] = mapped_column(Text)
    exit_code: Mapped[int | None] = mapped_column(Integer)
    error: Mapped[str | None] = mapped_column(Text)
    """`type: message` of the uncaught exception that ended it; null where none is known."""
    oom_kills: Mapped[int | None] = mapped_column(Integer)
    """Processes that the kernel killed for lack of memory in its control group, if it failed; null: not known."""
    start_ns: Mapped[ns] = mapped_column(BigInteger, index=True)
    end_ns: Mapped[int | None] = mapped_column(BigInteger)
    last_seen_ns: Mapped[ns]
    """Last record or heartbeat that named this run."""
    ranks: Mapped[json_list]
    """Live ranks as last reported: rank, pid, host, guard."""
    steps: Mapped[int | None] = mapped_column(BigInteger)
    """Optimizer steps of the furthest rank; null when no step counter reported."""
    accounted_ns: Mapped[int | None] = mapped_column(BigInteger)
    """When the account was last computed; null: never, or something arrived since that changes it."""
    judged_ns: Mapped[int | None] = mapped_column(BigInteger)
    """The `accounted_ns` that the rules on samples last looked at; null: they have not."""
    eligible_ns: Mapped[int | None] = mapped_column(BigInteger)
    """From when on its scheduler could have started it, at most `start_ns`; null: not known."""
    ideal_ns: Mapped[int | None] = mapped_column(BigInteger)
    """Device time that the FLOPs of its kept steps need at peak rates, at least, as last accounted; null: not known."""
    trouble: Mapped[str | None] = mapped_column(Text)
    """Why its account or its judgement failed the last time, one line; null: it did not."""
    trouble_ns: Mapped[int | None] = mapped_column(BigInteger)
    """When that was; it is tried again later."""

    workflow: Mapped[Workflow] = relationship(back_populates="runs")
    allocations: Mapped[list[Allocation]] = relationship(back_populates="run")
    account: Mapped[list[RunAccount]] = relationship(back_populates="run")


class RemovedRun(Base):
    """A run that was removed, or is being removed: nothing more of it is taken. See `removal`."""

    __tablename__ = "removed_run"

    key: Mapped[str] = mapped_column(String(40), primary_key=True)
    keeps_names: Mapped[bool] = mapped_column(Boolean)
    """Whether its device time stays under the names of its workflow and team."""
    begun_ns: Mapped[ns]
    removed_ns: Mapped[int | None] = mapped_column(BigInteger, index=True)
    """When its rows and files were gone; null: some may be left."""


class PastAccount(Base):
    """Device time of one day of the runs of a workflow that were removed; see [Note: what stays] in `removal`."""

    __tablename__ = "past_account"

    day_ns: Mapped[ns] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    """Start of the UTC day."""
    workflow: Mapped[str] = mapped_column(String(200), primary_key=True)
    team: Mapped[str] = mapped_column(String(200), primary_key=True)
    """The workflow's, as the fleet's account shows it; empty: none."""
    run_team: Mapped[str] = mapped_column(String(200), primary_key=True)
    """The runs', who see it; empty: none."""
    simulated: Mapped[bool] = mapped_column(Boolean)
    """Whether any of the runs was."""
    runs: Mapped[int] = mapped_column(BigInteger)
    """Runs that began on the day."""
    buckets: Mapped[json_dict]
    """Bucket → device-ns."""


class UnallocatedHour(Base):
    """Device time of one hour of a device that no run was allocated; see [Note: the run of nobody] in
    `samples.unallocated`."""

    __tablename__ = "unallocated_hour"

    device_id: Mapped[int] = mapped_column(BigId, ForeignKey("device.id", ondelete="CASCADE"), primary_key=True)
    hour_ns: Mapped[ns] = mapped_column(BigInteger, primary_key=True, autoincrement=False, index=True)
    device_ns: Mapped[ns]
    measured_ns: Mapped[ns]
    """Of `device_ns`, what samples of utilisation speak for."""
    busy_ns: Mapped[ns]
    """Of `measured_ns`, what the device worked: for something that is no run."""
    is_settled: Mapped[bool] = mapped_column(Boolean)
    """A run that held the device in it was removed: it is not counted again."""


class UnallocatedDay(Base):
    """The sums of all hours of a day, also of devices that are gone."""

    __tablename__ = "unallocated_day"

    day_ns: Mapped[ns] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    """Start of the UTC day."""
    since_ns: Mapped[ns]
    """Start of the first hour that is in it."""
    until_ns: Mapped[ns]
    """End of the last minute that is in it."""
    device_ns: Mapped[ns]
    measured_ns: Mapped[ns]
    busy_ns: Mapped[ns]


class Allocation(Base):
    """A run holds a device for an interval."""

    __tablename__ = "allocation"
    __table_args__ = (UniqueConstraint("run_id", "device_id", "start_ns"),)

    id: Mapped[pk]
    run_id: Mapped[int] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), index=True)
    device_id: Mapped[int] = mapped_column(ForeignKey("device.id", ondelete="CASCADE"), index=True)
    start_ns: Mapped[ns]
    end_ns: Mapped[int | None] = mapped_column(BigInteger)
    """Null while held; then the account reckons to the run's `last_seen_ns`."""

    run: Mapped[Run] = relationship(back_populates="allocations")


class RunAccount(Base):
    """Device time of one run in one bucket. The rows of a run sum to its allocated device-nanoseconds exactly."""

    __tablename__ = "run_account"

    run_id: Mapped[int] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), primary_key=True)
    bucket: Mapped[str] = mapped_column(String(24), primary_key=True)
    device_ns: Mapped[ns]

    run: Mapped[Run] = relationship(back_populates="account")
