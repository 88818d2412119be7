"""Requests for an offload plan become rows."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table. Before, requests were forgotten when the server ended: there is nothing to take over."""
    op.create_table(
        "plan_request",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("key", sa.String(64), nullable=False),
        sa.Column("traces_key", sa.String(64), nullable=True),
        sa.Column("request", sa.Text(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("answer", sa.LargeBinary(), nullable=True),
        sa.Column("refusal", sa.Text(), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("created_ns", sa.BigInteger(), nullable=False),
        sa.Column("started_ns", sa.BigInteger(), nullable=True),
        sa.Column("renewed_ns", sa.BigInteger(), nullable=False),
        sa.Column("finished_ns", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_plan_request"),
        sa.UniqueConstraint("key", name="uq_plan_request_key"),
    )
    op.create_index("ix_plan_request_state_created_ns", "plan_request", ["state", "created_ns"])
    op.create_index("ix_plan_request_traces_key", "plan_request", ["traces_key"])


def downgrade() -> None:
    """Forget them: each can be requested again."""
    op.drop_table("plan_request")
