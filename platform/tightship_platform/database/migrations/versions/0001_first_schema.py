"""The first schema: all tables of tightship 0.1.

On PostgreSQL the three sample tables are partitioned by day (see tightship_platform.database.partitions); the default
partition made here takes every row for which no day exists yet.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# SQLite only auto-increments a column declared exactly INTEGER.
ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
DOCUMENT = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
PARTITIONED = ("sample", "host_sample", "run_sample")


TABLES = (
    "audit",
    "token",
    "host",
    "device",
    "workflow",
    "run",
    "allocation",
    "run_account",
    "sample",
    "host_sample",
    "run_sample",
    "step_stat",
    "rollup",
    "capture_schedule",
    "capture",
    "trace",
    "finding",
    "opportunity",
    "plan",
    "action",
    "verification",
)


def upgrade() -> None:
    """From nothing to the first schema."""
    _access()
    _inventory()
    _work()
    _metrics()
    _captures()
    _judgement()
    if op.get_bind().dialect.name == "postgresql":
        for table in PARTITIONED:
            op.execute(f"CREATE TABLE {table}_default PARTITION OF {table} DEFAULT")


def downgrade() -> None:
    """Back to nothing; indexes go with their tables, partitions with their parents."""
    for table in reversed(TABLES):
        op.drop_table(table)


def _column(name: str, kind: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False)


def _maybe(name: str, kind: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=True)


def _access() -> None:
    op.create_table(
        "audit",
        _column("id", ID),
        _column("time_ns", sa.BigInteger()),
        _column("actor", sa.String(length=200)),
        _column("action", sa.String(length=200)),
        _column("target", sa.Text()),
        _column("detail", DOCUMENT),
        sa.PrimaryKeyConstraint("id", name="pk_audit"),
    )
    op.create_index("ix_audit_time_ns", "audit", ["time_ns"])
    op.create_table(
        "token",
        _column("id", ID),
        _column("name", sa.String(length=200)),
        _column("sha256", sa.String(length=64)),
        _column("scopes", DOCUMENT),
        _column("created_ns", sa.BigInteger()),
        _maybe("last_used_ns", sa.BigInteger()),
        _maybe("revoked_ns", sa.BigInteger()),
        sa.PrimaryKeyConstraint("id", name="pk_token"),
        sa.UniqueConstraint("name", name="uq_token_name"),
        sa.UniqueConstraint("sha256", name="uq_token_sha256"),
    )


def _inventory() -> None:
    op.create_table(
        "host",
        _column("id", ID),
        _column("name", sa.String(length=200)),
        _column("first_seen_ns", sa.BigInteger()),
        _column("last_seen_ns", sa.BigInteger()),
        _maybe("agent_version", sa.String(length=40)),
        _column("info", DOCUMENT),
        _column("sources", DOCUMENT),
        sa.PrimaryKeyConstraint("id", name="pk_host"),
        sa.UniqueConstraint("name", name="uq_host_name"),
    )
    op.create_table(
        "device",
        _column("id", ID),
        _column("host_id", ID),
        _column("uuid", sa.String(length=200)),
        _column("kind", sa.String(length=8)),
        _column("name", sa.String(length=200)),
        _maybe("memory_bytes", sa.BigInteger()),
        sa.ForeignKeyConstraint(["host_id"], ["host.id"], name="fk_device_host_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_device"),
        sa.UniqueConstraint("host_id", "uuid", name="uq_device_host_id_uuid"),
    )


def _work() -> None:
    op.create_table(
        "workflow",
        _column("id", ID),
        _column("name", sa.String(length=200)),
        _maybe("team", sa.String(length=200)),
        _maybe("owner", sa.String(length=200)),
        _column("labels", DOCUMENT),
        sa.PrimaryKeyConstraint("id", name="pk_workflow"),
        sa.UniqueConstraint("name", name="uq_workflow_name"),
    )
    op.create_table(
        "run",
        _column("id", ID),
        _column("key", sa.String(length=40)),
        _column("workflow_id", ID),
        _maybe("external_id", sa.String(length=200)),
        _column("source", sa.String(length=40)),
        _column("simulated", sa.Boolean()),
        _maybe("host_name", sa.String(length=200)),
        _maybe("user_name", sa.String(length=200)),
        _column("command", DOCUMENT),
        _column("labels", DOCUMENT),
        _column("state", sa.String(length=16)),
        _maybe("reason", sa.Text()),
        _maybe("exit_code", sa.Integer()),
        _column("start_ns", sa.BigInteger()),
        _maybe("end_ns", sa.BigInteger()),
        _column("last_seen_ns", sa.BigInteger()),
        _column("ranks", DOCUMENT),
        _maybe("steps", sa.BigInteger()),
        _maybe("accounted_ns", sa.BigInteger()),
        sa.ForeignKeyConstraint(["workflow_id"], ["workflow.id"], name="fk_run_workflow_id"),
        sa.PrimaryKeyConstraint("id", name="pk_run"),
        sa.UniqueConstraint("key", name="uq_run_key"),
    )
    op.create_index("ix_run_start_ns", "run", ["start_ns"])
    op.create_index("ix_run_state", "run", ["state"])
    op.create_index("ix_run_state_start_ns", "run", ["state", "start_ns"])
    op.create_index("ix_run_workflow_id", "run", ["workflow_id"])
    op.create_table(
        "allocation",
        _column("id", ID),
        _column("run_id", ID),
        _column("device_id", ID),
        _column("start_ns", sa.BigInteger()),
        _maybe("end_ns", sa.BigInteger()),
        sa.ForeignKeyConstraint(["device_id"], ["device.id"], name="fk_allocation_device_id", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_allocation_run_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_allocation"),
        sa.UniqueConstraint("run_id", "device_id", "start_ns", name="uq_allocation_run_id_device_id_start_ns"),
    )
    op.create_index("ix_allocation_device_id", "allocation", ["device_id"])
    op.create_index("ix_allocation_run_id", "allocation", ["run_id"])
    op.create_table(
        "run_account",
        _column("run_id", ID),
        _column("bucket", sa.String(length=24)),
        _column("device_ns", sa.BigInteger()),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_run_account_run_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "bucket", name="pk_run_account"),
    )


def _metrics() -> None:
    op.create_table(
        "sample",
        _column("time_ns", sa.BigInteger()),
        _column("device_id", ID),
        _maybe("util_frac", sa.Float()),
        _maybe("sm_active_frac", sa.Float()),
        _maybe("sm_occupancy_frac", sa.Float()),
        _maybe("tensor_active_frac", sa.Float()),
        _maybe("dram_active_frac", sa.Float()),
        _maybe("memory_used_bytes", sa.BigInteger()),
        _maybe("power_w", sa.Float()),
        _maybe("temperature_c", sa.Float()),
        _maybe("clock_hz", sa.BigInteger()),
        _maybe("pcie_rx_bytes_per_s", sa.BigInteger()),
        _maybe("pcie_tx_bytes_per_s", sa.BigInteger()),
        _maybe("nvlink_rx_bytes_per_s", sa.BigInteger()),
        _maybe("nvlink_tx_bytes_per_s", sa.BigInteger()),
        sa.ForeignKeyConstraint(["device_id"], ["device.id"], name="fk_sample_device_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("time_ns", "device_id", name="pk_sample"),
        postgresql_partition_by="RANGE (time_ns)",
    )
    op.create_index("ix_sample_device_id_time_ns", "sample", ["device_id", "time_ns"])
    op.create_table(
        "host_sample",
        _column("time_ns", sa.BigInteger()),
        _column("host_id", ID),
        _maybe("cpu_frac", sa.Float()),
        _maybe("memory_used_bytes", sa.BigInteger()),
        _maybe("swap_used_bytes", sa.BigInteger()),
        _maybe("disk_read_bytes_per_s", sa.BigInteger()),
        _maybe("disk_write_bytes_per_s", sa.BigInteger()),
        _maybe("net_rx_bytes_per_s", sa.BigInteger()),
        _maybe("net_tx_bytes_per_s", sa.BigInteger()),
        sa.ForeignKeyConstraint(["host_id"], ["host.id"], name="fk_host_sample_host_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("time_ns", "host_id", name="pk_host_sample"),
        postgresql_partition_by="RANGE (time_ns)",
    )
    op.create_index("ix_host_sample_host_id_time_ns", "host_sample", ["host_id", "time_ns"])
    op.create_table(
        "run_sample",
        _column("time_ns", sa.BigInteger()),
        _column("run_id", ID),
        _column("device_id", ID),
        _maybe("util_frac", sa.Float()),
        _maybe("memory_used_bytes", sa.BigInteger()),
        _maybe("cpu_cores", sa.Float()),
        sa.ForeignKeyConstraint(["device_id"], ["device.id"], name="fk_run_sample_device_id", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_run_sample_run_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("time_ns", "run_id", "device_id", name="pk_run_sample"),
        postgresql_partition_by="RANGE (time_ns)",
    )
    op.create_index("ix_run_sample_run_id_time_ns", "run_sample", ["run_id", "time_ns"])
    op.create_table(
        "step_stat",
        _column("run_id", ID),
        _column("time_ns", sa.BigInteger()),
        _column("rank", sa.Integer()),
        _column("width_ns", sa.BigInteger()),
        _column("steps", sa.BigInteger()),
        _maybe("first_step_ns", sa.BigInteger()),
        _maybe("last_step_ns", sa.BigInteger()),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_step_stat_run_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "time_ns", "rank", name="pk_step_stat"),
    )
    op.create_table(
        "rollup",
        _column("run_id", ID),
        _column("device_id", ID),
        _column("width_ns", sa.BigInteger()),
        _column("time_ns", sa.BigInteger()),
        _column("samples", sa.Integer()),
        _maybe("util_frac", sa.Float()),
        _maybe("sm_active_frac", sa.Float()),
        _maybe("sm_occupancy_frac", sa.Float()),
        _maybe("tensor_active_frac", sa.Float()),
        _maybe("dram_active_frac", sa.Float()),
        _maybe("memory_used_bytes", sa.BigInteger()),
        _maybe("power_w", sa.Float()),
        _maybe("temperature_c", sa.Float()),
        _maybe("clock_hz", sa.BigInteger()),
        _maybe("pcie_rx_bytes_per_s", sa.BigInteger()),
        _maybe("pcie_tx_bytes_per_s", sa.BigInteger()),
        _maybe("nvlink_rx_bytes_per_s", sa.BigInteger()),
        _maybe("nvlink_tx_bytes_per_s", sa.BigInteger()),
        sa.ForeignKeyConstraint(["device_id"], ["device.id"], name="fk_rollup_device_id", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_rollup_run_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "device_id", "width_ns", "time_ns", name="pk_rollup"),
    )


def _captures() -> None:
    op.create_table(
        "capture_schedule",
        _column("id", ID),
        _column("workflow_id", ID),
        _column("every_ns", sa.BigInteger()),
        _column("params", DOCUMENT),
        _column("enabled", sa.Boolean()),
        sa.ForeignKeyConstraint(
            ["workflow_id"], ["workflow.id"], name="fk_capture_schedule_workflow_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_capture_schedule"),
        sa.UniqueConstraint("workflow_id", name="uq_capture_schedule_workflow_id"),
    )
    op.create_table(
        "capture",
        _column("id", ID),
        _column("key", sa.String(length=40)),
        _column("run_id", ID),
        _column("requested_by", sa.String(length=200)),
        _column("requested_ns", sa.BigInteger()),
        _column("expires_ns", sa.BigInteger()),
        _column("params", DOCUMENT),
        _column("state", sa.String(length=16)),
        _maybe("reason", sa.Text()),
        _column("stages", DOCUMENT),
        _column("expected", DOCUMENT),
        _column("attempts", sa.Integer()),
        _maybe("lease_host", sa.String(length=200)),
        _maybe("lease_expires_ns", sa.BigInteger()),
        _column("analysis_attempts", sa.Integer()),
        _maybe("analysis_started_ns", sa.BigInteger()),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_capture_run_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_capture"),
        sa.UniqueConstraint("key", name="uq_capture_key"),
    )
    op.create_index("ix_capture_run_id", "capture", ["run_id"])
    op.create_index("ix_capture_state_requested_ns", "capture", ["state", "requested_ns"])
    op.create_table(
        "trace",
        _column("id", ID),
        _column("run_id", ID),
        _maybe("capture_id", ID),
        _column("rank", sa.Integer()),
        _maybe("pid", sa.Integer()),
        _maybe("host_name", sa.String(length=200)),
        _column("url", sa.Text()),
        _column("sha256", sa.String(length=64)),
        _column("bytes", sa.BigInteger()),
        _column("created_ns", sa.BigInteger()),
        _maybe("analyzed_ns", sa.BigInteger()),
        _maybe("error", sa.Text()),
        _column("summary", DOCUMENT),
        sa.ForeignKeyConstraint(["capture_id"], ["capture.id"], name="fk_trace_capture_id", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_trace_run_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_trace"),
        sa.UniqueConstraint("capture_id", "rank", name="uq_trace_capture_id_rank"),
    )
    op.create_index("ix_trace_capture_id", "trace", ["capture_id"])
    op.create_index("ix_trace_run_id", "trace", ["run_id"])


def _judgement() -> None:
    op.create_table(
        "finding",
        _column("id", ID),
        _column("rule", sa.String(length=64)),
        _column("run_id", ID),
        _maybe("trace_id", ID),
        _column("title", sa.Text()),
        _column("place", sa.Text()),
        _column("fix", sa.Text()),
        _column("unit", sa.String(length=16)),
        _maybe("share_frac", sa.Float()),
        _column("evidence", DOCUMENT),
        _column("created_ns", sa.BigInteger()),
        _maybe("value", sa.BigInteger()),
        _maybe("low", sa.BigInteger()),
        _maybe("high", sa.BigInteger()),
        _column("method", sa.String(length=16)),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_finding_run_id", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["trace_id"], ["trace.id"], name="fk_finding_trace_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_finding"),
        sa.UniqueConstraint("run_id", "rule", "trace_id", "place", name="uq_finding_run_id_rule_trace_id_place"),
    )
    op.create_index("ix_finding_rule", "finding", ["rule"])
    op.create_index("ix_finding_run_id", "finding", ["run_id"])
    op.create_index("ix_finding_trace_id", "finding", ["trace_id"])
    op.create_table(
        "opportunity",
        _column("id", ID),
        _column("workflow_id", ID),
        _column("key", sa.String(length=200)),
        _column("title", sa.Text()),
        _column("rules", DOCUMENT),
        _column("findings", DOCUMENT),
        _column("fix", sa.Text()),
        _column("device_ns", sa.BigInteger()),
        _column("position", sa.Integer()),
        _column("state", sa.String(length=16)),
        _column("updated_ns", sa.BigInteger()),
        _maybe("value", sa.BigInteger()),
        _maybe("low", sa.BigInteger()),
        _maybe("high", sa.BigInteger()),
        _column("method", sa.String(length=16)),
        sa.ForeignKeyConstraint(
            ["workflow_id"], ["workflow.id"], name="fk_opportunity_workflow_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_opportunity"),
        sa.UniqueConstraint("workflow_id", "key", name="uq_opportunity_workflow_id_key"),
    )
    op.create_index("ix_opportunity_workflow_id", "opportunity", ["workflow_id"])
    op.create_table(
        "plan",
        _column("id", ID),
        _column("workflow_id", ID),
        _maybe("opportunity_id", ID),
        _column("kind", sa.String(length=200)),
        _column("body", DOCUMENT),
        _column("created_ns", sa.BigInteger()),
        sa.ForeignKeyConstraint(
            ["opportunity_id"], ["opportunity.id"], name="fk_plan_opportunity_id", ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(["workflow_id"], ["workflow.id"], name="fk_plan_workflow_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_plan"),
    )
    op.create_index("ix_plan_workflow_id", "plan", ["workflow_id"])
    op.create_table(
        "action",
        _column("id", ID),
        _maybe("opportunity_id", ID),
        _maybe("plan_id", ID),
        _maybe("run_id", ID),
        _column("applied_by", sa.String(length=200)),
        _column("applied_ns", sa.BigInteger()),
        sa.ForeignKeyConstraint(
            ["opportunity_id"], ["opportunity.id"], name="fk_action_opportunity_id", ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(["plan_id"], ["plan.id"], name="fk_action_plan_id", ondelete="SET NULL"),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_action_run_id", ondelete="SET NULL"),
        sa.PrimaryKeyConstraint("id", name="pk_action"),
    )
    op.create_index("ix_action_run_id", "action", ["run_id"])
    op.create_table(
        "verification",
        _column("id", ID),
        _column("action_id", ID),
        _column("before", DOCUMENT),
        _column("after", DOCUMENT),
        _maybe("predicted_ns", sa.BigInteger()),
        _maybe("measured_ns", sa.BigInteger()),
        _column("verified_ns", sa.BigInteger()),
        sa.ForeignKeyConstraint(["action_id"], ["action.id"], name="fk_verification_action_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_verification"),
    )
    op.create_index("ix_verification_action_id", "verification", ["action_id"])
