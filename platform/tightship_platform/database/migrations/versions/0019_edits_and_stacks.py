"""Runs have names, labels that somebody edited, and the stacks that their agents were last asked for."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from tightship_platform.database.models.base import BigId, JsonColumn

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

READABLE_FROM = "0008"


def upgrade() -> None:
    """Nothing is edited yet. A server of before that takes a run's end puts its launcher's labels back for a while:
    `label_edits` keeps what was edited."""
    op.add_column("run", sa.Column("name", sa.String(200), nullable=True))
    op.add_column("run", sa.Column("label_edits", JsonColumn, nullable=False, server_default="{}"))
    op.create_table(
        "stack_dump",
        sa.Column("run_id", BigId, nullable=False),
        sa.Column("requested_by", sa.String(200), nullable=False),
        sa.Column("requested_ns", sa.BigInteger(), nullable=False),
        sa.Column("native", sa.Boolean(), nullable=False),
        sa.Column("leased_ns", sa.BigInteger(), nullable=True),
        sa.Column("taken_ns", sa.BigInteger(), nullable=True),
        sa.Column("processes", JsonColumn, nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_stack_dump_run_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", name="pk_stack_dump"),
    )
    op.create_index("ix_stack_dump_requested_ns", "stack_dump", ["requested_ns"])


def downgrade() -> None:
    """Forget names and stacks; edited labels stay until the launcher reports once more."""
    op.drop_index("ix_stack_dump_requested_ns", "stack_dump")
    op.drop_table("stack_dump")
    op.drop_column("run", "label_edits")
    op.drop_column("run", "name")
