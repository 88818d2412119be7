"""Whose tokens, hosts and runs are."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

READABLE_FROM = "0008"

COLUMNS = {
    "token": ("host_name", "user_name", "team"),
    "host": ("reported_by",),
    "run": ("team",),
}


def upgrade() -> None:
    """Add them. What is from before belongs to nobody yet: who reports it next is the first."""
    for table, names in COLUMNS.items():
        for name in names:
            op.add_column(table, sa.Column(name, sa.String(200), nullable=True))
    op.add_column("run", sa.Column("uid", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    """Forget it: tokens speak for everybody again."""
    op.drop_column("run", "uid")
    for table, names in COLUMNS.items():
        with op.batch_alter_table(table) as altered:
            for name in names:
                altered.drop_column(name)
