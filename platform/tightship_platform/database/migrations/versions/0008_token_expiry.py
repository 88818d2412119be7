"""Tokens may expire."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the moment. Tokens from before never expire."""
    op.add_column("token", sa.Column("expires_ns", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    """Forget it: tokens that have expired are active again."""
    with op.batch_alter_table("token") as table:
        table.drop_column("expires_ns")
