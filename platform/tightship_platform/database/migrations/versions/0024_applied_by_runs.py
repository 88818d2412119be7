"""A run says which application it was launched with, and an application what its offload plan brought."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from tightship_platform.database.models.base import JsonColumn

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

READABLE_FROM = "0008"

INDEX = "ix_run_applied_action_id"


def upgrade() -> None:
    """Runs of before say nothing."""
    op.add_column("run", sa.Column("applied_action_id", sa.BigInteger(), nullable=True))
    op.add_column("opportunity_action", sa.Column("plan_outcome", JsonColumn, nullable=True))
    which = sa.text("applied_action_id IS NOT NULL")
    op.create_index(INDEX, "run", ["applied_action_id"], postgresql_where=which, sqlite_where=which)


def downgrade() -> None:
    """Forget it."""
    op.drop_index(INDEX, "run")
    op.drop_column("opportunity_action", "plan_outcome")
    op.drop_column("run", "applied_action_id")
