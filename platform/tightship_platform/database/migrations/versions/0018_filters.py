"""Runs are found by host, user, job id, commit and label, captures and findings by time, among a fleet's."""

from __future__ import annotations

from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

READABLE_FROM = "0008"

INDEXES = {
    "ix_run_host_name_start_ns": ("run", ["host_name", "start_ns"]),
    "ix_run_user_name_start_ns": ("run", ["user_name", "start_ns"]),
    "ix_run_external_id": ("run", ["external_id"]),
    "ix_run_git_commit": ("run", ["git_commit"]),
    "ix_capture_requested_ns": ("capture", ["requested_ns"]),
    "ix_finding_created_ns": ("finding", ["created_ns"]),
}
LABELS = "ix_run_labels"
"""SQLite has no index of what is inside a JSON value: it looks into the labels of each run."""


def upgrade() -> None:
    """Add the indexes. None names a column that a heartbeat changes."""
    for name, (table, columns) in INDEXES.items():
        op.create_index(name, table, columns)
    if op.get_context().dialect.name == "postgresql":
        op.create_index(LABELS, "run", ["labels"], postgresql_using="gin", postgresql_ops={"labels": "jsonb_path_ops"})


def downgrade() -> None:
    """Without them, whole tables are read."""
    if op.get_context().dialect.name == "postgresql":
        op.drop_index(LABELS, "run")
    for name, (table, _) in INDEXES.items():
        op.drop_index(name, table)
