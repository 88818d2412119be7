"""Metrics over time: one wide row per device (host, run) and instant. Missing values are null, never zero."""

from __future__ import annotations

from sqlalchemy import BigInteger, Float, ForeignKey, Index, Integer
from sqlalchemy.orm import Mapped, mapped_column

from tightship_platform.database.models.base import Base, BigId, ns


class _DeviceMetrics:
    """Columns of a device at an instant. Ratios 0..1; rates per second."""

    util_frac: Mapped[float | None] = mapped_column(Float)
    """Coarse utilisation: share of time in which anything ran (NVML GPU_UTIL; busy share of the CPU)."""
    sm_active_frac: Mapped[float | None] = mapped_column(Float)
    sm_occupancy_frac: Mapped[float | None] = mapped_column(Float)
    tensor_active_frac: Mapped[float | None] = mapped_column(Float)
    dram_active_frac: Mapped[float | None] = mapped_column(Float)
    memory_used_bytes: Mapped[int | None] = mapped_column(BigInteger)
    power_w: Mapped[float | None] = mapped_column(Float)
    temperature_c: Mapped[float | None] = mapped_column(Float)
    clock_hz: Mapped[int | None] = mapped_column(BigInteger)
    pcie_rx_bytes_per_s: Mapped[int | None] = mapped_column(BigInteger)
    pcie_tx_bytes_per_s: Mapped[int | None] = mapped_column(BigInteger)
    nvlink_rx_bytes_per_s: Mapped[int | None] = mapped_column(BigInteger)
    nvlink_tx_bytes_per_s: Mapped[int | None] = mapped_column(BigInteger)


class Sample(_DeviceMetrics, Base):
    """One device at one instant. Partitioned by day on PostgreSQL; the key leads with time, which ingest needs."""

    __tablename__ = "sample"
    __table_args__ = (
        Index("ix_sample_device_id_time_ns", "device_id", "time_ns"),
        {"postgresql_partition_by": "RANGE (time_ns)"},
    )

    time_ns: Mapped[ns] = mapped_column(BigInteger, primary_key=True)
    device_id: Mapped[int] = mapped_column(ForeignKey("device.id", ondelete="CASCADE"), primary_key=True)


class HostSample(Base):
    """One host at one instant."""

    __tablename__ = "host_sample"
    __table_args__ = (
        Index("ix_host_sample_host_id_time_ns", "host_id", "time_ns"),
        {"postgresql_partition_by": "RANGE (time_ns)"},
    )

    time_ns: Mapped[ns] = mapped_column(BigInteger, primary_key=True)
    host_id: Mapped[int] = mapped_column(ForeignKey("host.id", ondelete="CASCADE"), primary_key=True)
    cpu_frac: Mapped[float | None] = mapped_column(Float)
    memory_used_bytes: Mapped[int | None] = mapped_column(BigInteger)
    swap_used_bytes: Mapped[int | None] = mapped_column(BigInteger)
    disk_read_bytes_per_s: Mapped[int | None] = mapped_column(BigInteger)
    disk_write_bytes_per_s: Mapped[int | None] = mapped_column(BigInteger)
    net_rx_bytes_per_s: Mapped[int | None] = mapped_column(BigInteger)
    net_tx_bytes_per_s: Mapped[int | None] = mapped_column(BigInteger)


class RunSample(Base):
    """What one run used of one device at one instant, from its processes (the attribution of shared devices)."""

    __tablename__ = "run_sample"
    __table_args__ = (
        Index("ix_run_sample_run_id_time_ns", "run_id", "time_ns"),
        {"postgresql_partition_by": "RANGE (time_ns)"},
    )

    time_ns: Mapped[ns] = mapped_column(BigInteger, primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), primary_key=True)
    device_id: Mapped[int] = mapped_column(ForeignKey("device.id", ondelete="CASCADE"), primary_key=True)
    util_frac: Mapped[float | None] = mapped_column(Float)
    """Share of the device that the run's processes used."""
    memory_used_bytes: Mapped[int | None] = mapped_column(BigInteger)
    cpu_cores: Mapped[float | None] = mapped_column(Float)
    """Host cores that the run's processes kept busy."""


class StepStat(Base):
    """Optimizer steps of one rank within one bucket of time."""

    __tablename__ = "step_stat"

    run_id: Mapped[int] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), primary_key=True)
    time_ns: Mapped[ns] = mapped_column(BigInteger, primary_key=True)
    """Start of the bucket."""
    rank: Mapped[int] = mapped_column(Integer, primary_key=True)
    width_ns: Mapped[ns]
    steps: Mapped[int] = mapped_column(BigInteger)
    """Steps completed within the bucket."""
    first_step_ns: Mapped[int | None] = mapped_column(BigInteger)
    """End of the first step that the rank ever made."""
    last_step_ns: Mapped[int | None] = mapped_column(BigInteger)
    """End of the last step completed within the bucket."""


class RemovedDay(Base):
    """A day whose samples and step counts were removed: see [Note: what may go] in `samples.retention`."""

    __tablename__ = "removed_day"

    day_ns: Mapped[ns] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    """Its start."""
    removed_ns: Mapped[int | None] = mapped_column(BigInteger)
    """When the last row was gone; null: rows may be left."""


class Rollup(_DeviceMetrics, Base):
    """Means of a run's samples on one device over one minute or one hour."""

    __tablename__ = "rollup"

    run_id: Mapped[int] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), primary_key=True)
    device_id: Mapped[int] = mapped_column(ForeignKey("device.id", ondelete="CASCADE"), primary_key=True)
    width_ns: Mapped[ns] = mapped_column(BigInteger, primary_key=True)
    time_ns: Mapped[ns] = mapped_column(BigInteger, primary_key=True)
    samples: Mapped[int] = mapped_column(Integer)


class DirtyHour(Base):
    """An hour of a device whose rollups are out of date: see `samples.dirty_hours`."""

    __tablename__ = "dirty_hour"

    device_id: Mapped[int] = mapped_column(BigId, ForeignKey("device.id", ondelete="CASCADE"), primary_key=True)
    hour_ns: Mapped[ns] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    marked: Mapped[int] = mapped_column(BigInteger)
    """How often it was marked."""


class RolledUp(Base):
    """How far the rollups reach: one row, with the id 1."""

    __tablename__ = "rolled_up"

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    minutes_ns: Mapped[ns]
    hours_ns: Mapped[ns]
    unmarked_until_ns: Mapped[int | None] = mapped_column(BigInteger)
    """Until then servers of a release that marks no hours may run; null: there never was one."""
