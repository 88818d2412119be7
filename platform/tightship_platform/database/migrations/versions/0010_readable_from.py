"""The schema says which older releases can go on working with it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from tightship_platform.database.schema import VERSION_TABLE

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

READABLE_FROM = "0008"


def upgrade() -> None:
    """Add the revision that a release must know at least. `schema.migrate` writes it."""
    op.add_column(VERSION_TABLE, sa.Column("readable_from", sa.String(32), nullable=True))


def downgrade() -> None:
    """Forget it: the releases of then work with exactly their own schema."""
    op.drop_column(VERSION_TABLE, "readable_from")
