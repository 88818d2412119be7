"""Analyses are kept whole and made rank by rank; runs say why their account failed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the stored analyses and the claims of workers on traces. Captures that were analyzed before have no stored
    analysis; one is made on demand."""
    op.add_column("trace", sa.Column("analysis_attempts", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("trace", sa.Column("analysis_lease_ns", sa.BigInteger(), nullable=True))
    op.add_column("run", sa.Column("trouble", sa.Text(), nullable=True))
    op.add_column("run", sa.Column("trouble_ns", sa.BigInteger(), nullable=True))
    big_id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "rank_part",
        sa.Column("trace_id", big_id, nullable=False),
        sa.Column("catalogue", sa.String(64), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["trace_id"], ["trace.id"], name="fk_rank_part_trace_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("trace_id", name="pk_rank_part"),
    )
    op.create_table(
        "capture_analysis",
        sa.Column("capture_id", big_id, nullable=False),
        sa.Column("catalogue", sa.String(64), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("created_ns", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["capture_id"], ["capture.id"], name="fk_capture_analysis_capture_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("capture_id", name="pk_capture_analysis"),
    )


def downgrade() -> None:
    """Forget them."""
    op.drop_table("capture_analysis")
    op.drop_table("rank_part")
    with op.batch_alter_table("run") as table:
        table.drop_column("trouble_ns")
        table.drop_column("trouble")
    with op.batch_alter_table("trace") as table:
        table.drop_column("analysis_lease_ns")
        table.drop_column("analysis_attempts")
