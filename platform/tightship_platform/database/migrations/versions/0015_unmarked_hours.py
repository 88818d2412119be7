"""Servers of before 0011 mark no hours: until when such may run beside those of today."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

READABLE_FROM = "0008"


def upgrade() -> None:
    """Add the column. Where a worker of today has rolled up already, the upgrade is over."""
    op.add_column("rolled_up", sa.Column("unmarked_until_ns", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    """Forget it."""
    op.drop_column("rolled_up", "unmarked_until_ns")
