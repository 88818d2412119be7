"""Waits in a scheduler's queue, and device time that no run was allocated."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0020"
branch_labels = None
depends_on = None

READABLE_FROM = "0008"

SUMS = ("device_ns", "measured_ns", "busy_ns")


def upgrade() -> None:
    """Add columns of runs, and the sums of hours and days."""
    for name in ("eligible_ns", "ideal_ns"):
        op.add_column("run", sa.Column(name, sa.BigInteger(), nullable=True))
    big = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "unallocated_hour",
        sa.Column("device_id", big, nullable=False),
        sa.Column("hour_ns", sa.BigInteger(), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in SUMS),
        sa.Column("is_settled", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["device_id"], ["device.id"], name="fk_unallocated_hour_device_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("device_id", "hour_ns", name="pk_unallocated_hour"),
    )
    op.create_index("ix_unallocated_hour_hour_ns", "unallocated_hour", ["hour_ns"])
    op.create_table(
        "unallocated_day",
        sa.Column("day_ns", sa.BigInteger(), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in ("since_ns", "until_ns", *SUMS)),
        sa.PrimaryKeyConstraint("day_ns", name="pk_unallocated_day"),
    )


def downgrade() -> None:
    """Device time that no run was allocated is forgotten."""
    op.drop_table("unallocated_day")
    op.drop_index("ix_unallocated_hour_hour_ns", "unallocated_hour")
    op.drop_table("unallocated_hour")
    for name in ("ideal_ns", "eligible_ns"):
        op.drop_column("run", name)
