"""Runs may be removed: what stays of them are their keys and their device time per day. Hosts may be forgotten."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from tightship_platform.database.models.base import JsonColumn

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

READABLE_FROM = "0008"


def upgrade() -> None:
    """Add the tables and the column."""
    op.create_table(
        "removed_run",
        sa.Column("key", sa.String(40), nullable=False),
        sa.Column("keeps_names", sa.Boolean(), nullable=False),
        sa.Column("begun_ns", sa.BigInteger(), nullable=False),
        sa.Column("removed_ns", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("key", name="pk_removed_run"),
    )
    op.create_index("ix_removed_run_removed_ns", "removed_run", ["removed_ns"])
    op.create_table(
        "past_account",
        sa.Column("day_ns", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("workflow", sa.String(200), nullable=False),
        sa.Column("team", sa.String(200), nullable=False),
        sa.Column("run_team", sa.String(200), nullable=False),
        sa.Column("simulated", sa.Boolean(), nullable=False),
        sa.Column("runs", sa.BigInteger(), nullable=False),
        sa.Column("buckets", JsonColumn, nullable=False),
        sa.PrimaryKeyConstraint("day_ns", "workflow", "team", "run_team", name="pk_past_account"),
    )
    op.add_column("host", sa.Column("forgotten_ns", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    """Without them, removed runs are missing in the accounts of their days, and could come back."""
    op.drop_column("host", "forgotten_ns")
    op.drop_table("past_account")
    op.drop_index("ix_removed_run_removed_ns", "removed_run")
    op.drop_table("removed_run")
