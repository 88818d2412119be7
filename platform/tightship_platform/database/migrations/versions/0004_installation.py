"""The id of this installation, which its artifact store carries too."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table of one row; the row is made when the id is needed first."""
    op.create_table(
        "installation",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("key", sa.String(32), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_installation"),
    )


def downgrade() -> None:
    """Forget it."""
    op.drop_table("installation")
