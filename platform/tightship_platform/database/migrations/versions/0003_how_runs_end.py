"""How runs end: the exception, what the kernel killed for lack of memory; and up to where their samples were judged."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Runs of before have been judged: their samples may be gone, and what was found in them stays."""
    op.add_column("run", sa.Column("error", sa.Text(), nullable=True))
    op.add_column("run", sa.Column("oom_kills", sa.Integer(), nullable=True))
    op.add_column("run", sa.Column("judged_ns", sa.BigInteger(), nullable=True))
    op.execute(sa.text("UPDATE run SET judged_ns = accounted_ns"))


def downgrade() -> None:
    """Forget it."""
    for name in ("judged_ns", "oom_kills", "error"):
        op.drop_column("run", name)
