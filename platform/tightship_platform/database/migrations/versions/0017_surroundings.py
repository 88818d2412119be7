"""What a run was launched with: the commit of its code, its image, and the versions that it finds."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

READABLE_FROM = "0008"

TEXTS = {"git_commit": 64, "image": 200, "torch_version": 64, "cuda_version": 64, "driver_version": 64}


def upgrade() -> None:
    """Nobody knows it of runs of before."""
    for name, most in TEXTS.items():
        op.add_column("run", sa.Column(name, sa.String(most), nullable=True))
    op.add_column("run", sa.Column("git_dirty", sa.Boolean(), nullable=True))


def downgrade() -> None:
    """Forget it."""
    for name in ("git_dirty", *TEXTS):
        op.drop_column("run", name)
