"""Workflows whose opportunities have to be ranked again are known."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

READABLE_FROM = "0008"


def upgrade() -> None:
    """Add the table. A workflow without a row was never ranked."""
    op.create_table(
        "ranked_workflow",
        sa.Column("workflow_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("marked", sa.BigInteger(), nullable=False),
        sa.Column("ranked", sa.BigInteger(), nullable=False),
        sa.Column("ranked_ns", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["workflow_id"], ["workflow.id"], name="fk_ranked_workflow_workflow_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("workflow_id", name="pk_ranked_workflow"),
    )


def downgrade() -> None:
    """Without it, all are ranked each time."""
    op.drop_table("ranked_workflow")
