"""Hosts and their devices."""

from __future__ import annotations

from sqlalchemy import BigInteger, ForeignKey, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column, relationship

from tightship_platform.database.models.base import Base, json_dict, json_list, name, ns, pk


class Host(Base):
    """One machine that an agent reports from."""

    __tablename__ = "host"

    id: Mapped[pk]
    name: Mapped[name] = mapped_column(String(200), unique=True)
    first_seen_ns: Mapped[ns]
    last_seen_ns: Mapped[ns]
    agent_version: Mapped[str | None] = mapped_column(String(40))
    info: Mapped[json_dict]
    """System facts: cpus, memory_bytes, kernel, boot_id."""
    sources: Mapped[json_list]
    """State of each source as the agent last reported it: name, state, detail."""
    reported_by: Mapped[str | None] = mapped_column(String(200))
    """The token that it belongs to; null: none but an administrator's has reported it."""
    forgotten_ns: Mapped[int | None] = mapped_column(BigInteger)
    """Its `last_seen_ns` when it was forgotten because of its age; it is there again once it is heard of."""
    fleet_id: Mapped[int | None] = mapped_column(BigInteger)
    """The imported fleet that it is of; null: the live one."""

    devices: Mapped[list[Device]] = relationship(back_populates="host", cascade="all, delete-orphan")


class Device(Base):
    """One accelerator, a MIG slice, or `cpu` on a host that has none."""

    __tablename__ = "device"
    __table_args__ = (UniqueConstraint("host_id", "uuid"),)

    id: Mapped[pk]
    host_id: Mapped[int] = mapped_column(ForeignKey("host.id", ondelete="CASCADE"))
    uuid: Mapped[name]
    """The vendor's UUID, or `cpu`."""
    kind: Mapped[str] = mapped_column(String(8))
    name: Mapped[name]
    memory_bytes: Mapped[int | None] = mapped_column(BigInteger)

    host: Mapped[Host] = relationship(back_populates="devices")
