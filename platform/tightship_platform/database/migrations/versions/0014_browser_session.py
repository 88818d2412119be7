"""People have sessions in browsers that began by single sign-on."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

READABLE_FROM = "0008"


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "browser_session",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("state_sha256", sa.String(64), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("subject", sa.String(255), nullable=False),
        sa.Column("scopes", sa.JSON().with_variant(JSONB(), "postgresql"), nullable=False),
        sa.Column("team", sa.String(200), nullable=True),
        sa.Column("begun_ns", sa.BigInteger(), nullable=False),
        sa.Column("expires_ns", sa.BigInteger(), nullable=False),
        sa.Column("ended_ns", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_browser_session"),
        sa.UniqueConstraint("sha256", name="uq_browser_session_sha256"),
        sa.UniqueConstraint("state_sha256", name="uq_browser_session_state_sha256"),
    )


def downgrade() -> None:
    """End all sessions."""
    op.drop_table("browser_session")
