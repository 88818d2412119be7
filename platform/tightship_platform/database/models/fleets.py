"""Imported histories of other fleets, and what samples measured of runs."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, ForeignKey, String
from sqlalchemy.orm import Mapped, mapped_column

from tightship_platform.database.models.base import Base, BigId, json_dict, json_list, name, ns, pk


class Fleet(Base):
    """An imported history. Rows of runs, workflows and hosts name it; those of the live fleet name none."""

    __tablename__ = "fleet"

    id: Mapped[pk]
    name: Mapped[name] = mapped_column(String(100), unique=True)
    team: Mapped[str | None] = mapped_column(String(200))
    """Team of the token that imported it; null: that token has none."""
    format: Mapped[str] = mapped_column(String(40))
    assumptions: Mapped[json_list]
    """What its figures take for granted, a sentence each."""
    names_devices: Mapped[bool] = mapped_column(Boolean)
    """Whether the source says which devices a run held; else they are only counted."""
    interval_ns: Mapped[int | None] = mapped_column(BigInteger)
    """Time that one of its samples speaks for; null: as of the live fleet."""
    rows: Mapped[int] = mapped_column(BigInteger)
    """Rows of the source that were read."""
    refused: Mapped[json_dict]
    """What is wrong with rows that were left out → how many."""
    changed_ns: Mapped[ns]
    done_ns: Mapped[int | None] = mapped_column(BigInteger)
    """When an import reached the end of its source; null: the last one did not."""


class FleetPart(Base):
    """A part of an import that is stored: one that was ended midway goes on after it."""

    __tablename__ = "fleet_part"

    fleet_id: Mapped[int] = mapped_column(BigId, ForeignKey("fleet.id", ondelete="CASCADE"), primary_key=True)
    part: Mapped[str] = mapped_column(String(64), primary_key=True)
    """Digest of what is in it."""


class RunActivity(Base):
    """What samples measured of a run's device time; no row: nothing measured activity.

    See [Note: how samples are integrated] in `fleet.activity` of the analyzers.
    """

    __tablename__ = "run_activity"

    run_id: Mapped[int] = mapped_column(BigId, ForeignKey("run.id", ondelete="CASCADE"), primary_key=True)
    busy_ns: Mapped[ns]
    idle_ns: Mapped[ns]
    long_idle_ns: Mapped[ns]
    """Of `idle_ns` and `busy_ns`, what lies in stretches of ten minutes or more that stayed below 5 %."""
