"""Users may be given a team."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

READABLE_FROM = "0008"


def upgrade() -> None:
    """Add the table. Runs of before keep the team that they have."""
    op.create_table(
        "user_team",
        sa.Column("user_name", sa.String(200), nullable=False),
        sa.Column("team", sa.String(200), nullable=False),
        sa.PrimaryKeyConstraint("user_name", name="pk_user_team"),
    )


def downgrade() -> None:
    """Forget it."""
    op.drop_table("user_team")
