"""What is due is found without looking at everything: hours to roll up again, runs to account for and to judge."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

READABLE_FROM = "0008"

UNSETTLED = sa.text("accounted_ns IS NULL OR end_ns IS NULL OR accounted_ns < end_ns + 3600000000000")
UNJUDGED = sa.text("accounted_ns IS NOT NULL AND (judged_ns IS NULL OR judged_ns < accounted_ns)")


def upgrade() -> None:
    """Add the tables and indexes."""
    op.create_table(
        "dirty_hour",
        sa.Column("device_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("hour_ns", sa.BigInteger(), nullable=False),
        sa.Column("marked", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["device_id"], ["device.id"], name="fk_dirty_hour_device_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("device_id", "hour_ns", name="pk_dirty_hour"),
    )
    op.create_table(
        "rolled_up",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("minutes_ns", sa.BigInteger(), nullable=False),
        sa.Column("hours_ns", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_rolled_up"),
    )
    for name, where in (("ix_run_unsettled", UNSETTLED), ("ix_run_unjudged", UNJUDGED)):
        op.create_index(name, "run", ["id"], postgresql_where=where, sqlite_where=where)
    op.create_index("ix_trace_analyzed_ns", "trace", ["analyzed_ns"])


def downgrade() -> None:
    """Without them, everything is looked at again."""
    op.drop_index("ix_trace_analyzed_ns", "trace")
    for name in ("ix_run_unsettled", "ix_run_unjudged"):
        op.drop_index(name, "run")
    op.drop_table("rolled_up")
    op.drop_table("dirty_hour")
