"""Captures may record each rank twice."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the second traces. Captures from before have recorded each rank once."""
    op.add_column("capture", sa.Column("passes", sa.Integer(), nullable=False, server_default="1"))
    op.add_column("capture", sa.Column("passes_reason", sa.Text(), nullable=True))
    op.create_table(
        "second_pass",
        sa.Column("trace_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_ns", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["trace_id"], ["trace.id"], name="fk_second_pass_trace_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("trace_id", name="pk_second_pass"),
    )


def downgrade() -> None:
    """Forget them; their files are swept."""
    op.drop_table("second_pass")
    with op.batch_alter_table("capture") as table:
        table.drop_column("passes_reason")
        table.drop_column("passes")
