"""Histories of other fleets may be imported; what samples measured of a run is kept."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from tightship_platform.database.models.base import JsonColumn

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

READABLE_FROM = "0008"

BELONG = ("run", "workflow", "host")
INDEX = "ix_run_fleet_id_start_ns"


def upgrade() -> None:
    """Add the tables, the columns and an index of imported runs."""
    op.create_table(
        "fleet",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("team", sa.String(200), nullable=True),
        sa.Column("format", sa.String(40), nullable=False),
        sa.Column("assumptions", JsonColumn, nullable=False),
        sa.Column("names_devices", sa.Boolean(), nullable=False),
        sa.Column("interval_ns", sa.BigInteger(), nullable=True),
        sa.Column("rows", sa.BigInteger(), nullable=False),
        sa.Column("refused", JsonColumn, nullable=False),
        sa.Column("changed_ns", sa.BigInteger(), nullable=False),
        sa.Column("done_ns", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_fleet"),
        sa.UniqueConstraint("name", name="uq_fleet_name"),
    )
    big = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "fleet_part",
        sa.Column("fleet_id", big, nullable=False),
        sa.Column("part", sa.String(64), nullable=False),
        sa.ForeignKeyConstraint(["fleet_id"], ["fleet.id"], name="fk_fleet_part_fleet_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("fleet_id", "part", name="pk_fleet_part"),
    )
    op.create_table(
        "run_activity",
        sa.Column("run_id", big, nullable=False),
        sa.Column("busy_ns", sa.BigInteger(), nullable=False),
        sa.Column("idle_ns", sa.BigInteger(), nullable=False),
        sa.Column("long_idle_ns", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_run_activity_run_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", name="pk_run_activity"),
    )
    for table in BELONG:
        op.add_column(table, sa.Column("fleet_id", sa.BigInteger(), nullable=True))
    imported = sa.text("fleet_id IS NOT NULL")
    op.create_index(INDEX, "run", ["fleet_id", "start_ns"], postgresql_where=imported, sqlite_where=imported)


def downgrade() -> None:
    """Without them, imported runs are among the live ones: remove them first."""
    op.drop_index(INDEX, "run")
    for table in BELONG:
        op.drop_column(table, "fleet_id")
    op.drop_table("run_activity")
    op.drop_table("fleet_part")
    op.drop_table("fleet")
