"""${message}

Revision ${up_revision} after ${down_revision | comma,n}.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
${imports if imports else ""}

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = None
depends_on = None

# The oldest revision whose release can work with this schema: see database/schema.py, [Note: expand, then contract].
READABLE_FROM = ${repr(down_revision)}


def upgrade() -> None:
    """To this revision."""
    ${upgrades if upgrades else "pass"}


def downgrade() -> None:
    """Back to the one before."""
    ${downgrades if downgrades else "pass"}
