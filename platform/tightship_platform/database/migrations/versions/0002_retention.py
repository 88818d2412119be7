"""Old records go: which days were removed, and which trace files are no longer in the store."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add what retention keeps track of."""
    op.create_table(
        "removed_day",
        sa.Column("day_ns", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("removed_ns", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("day_ns", name="pk_removed_day"),
    )
    op.add_column("trace", sa.Column("removed_ns", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    """Forget it; what was removed stays removed."""
    op.drop_column("trace", "removed_ns")
    op.drop_table("removed_day")
