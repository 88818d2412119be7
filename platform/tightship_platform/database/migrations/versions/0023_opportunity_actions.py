"""What was done about opportunities is kept, with what was predicted and what was measured."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from tightship_platform.database.models.base import BigId, JsonColumn

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

READABLE_FROM = "0008"

TABLE = "opportunity_action"


def upgrade() -> None:
    """Add the table; opportunities keep the states that they have."""
    op.create_table(
        TABLE,
        sa.Column("id", BigId, nullable=False),
        sa.Column("workflow_id", BigId, nullable=False),
        sa.Column("opportunity_id", BigId, nullable=True),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("actor", sa.String(200), nullable=False),
        sa.Column("time_ns", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("change", JsonColumn, nullable=True),
        sa.Column("predicted", JsonColumn, nullable=True),
        sa.Column("before_run_id", BigId, nullable=True),
        sa.Column("state", sa.String(16), nullable=True),
        sa.Column("waits_for", sa.Text(), nullable=True),
        sa.Column("verification", JsonColumn, nullable=True),
        sa.Column("verified_ns", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(
            ["workflow_id"], ["workflow.id"], name="fk_opportunity_action_workflow_id", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["opportunity_id"], ["opportunity.id"], name="fk_opportunity_action_opportunity_id", ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(
            ["before_run_id"], ["run.id"], name="fk_opportunity_action_before_run_id", ondelete="SET NULL"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_opportunity_action"),
    )
    for column in ("workflow_id", "opportunity_id", "before_run_id"):
        op.create_index(f"ix_opportunity_action_{column}", TABLE, [column])


def downgrade() -> None:
    """Forget what was done; the states of opportunities stay."""
    for column in ("workflow_id", "opportunity_id", "before_run_id"):
        op.drop_index(f"ix_opportunity_action_{column}", TABLE)
    op.drop_table(TABLE)
