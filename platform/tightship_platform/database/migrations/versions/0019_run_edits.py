"""Runs have names, and labels that somebody edited."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from tightship_platform.database.models.base import JsonColumn

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


def downgrade() -> None:
    """Forget the names; edited labels stay until the launcher reports once more."""
    op.drop_column("run", "label_edits")
    op.drop_column("run", "name")
