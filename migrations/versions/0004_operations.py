"""Link states, failover epochs, drill runs and the audit log.

Revision ID: 0004
Revises: 0003

Going back below this revision drops them. Drill runs and the audit log are kept in Postgres alone: dump them first.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "link_states",
        sa.Column("cluster", sa.String(64), nullable=False),
        sa.Column("link_key", sa.String(200), nullable=False),
        sa.Column("topic", sa.String(400), nullable=False),
        sa.Column("state", sa.String(64), nullable=False),
        sa.Column("acknowledged_ledger", sa.BigInteger(), nullable=False),
        sa.Column("acknowledged_entry", sa.BigInteger(), nullable=False),
        sa.Column("backlog_entries", sa.BigInteger(), nullable=False),
        sa.Column("detail", sa.String(1000), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
        sa.PrimaryKeyConstraint("cluster", "link_key", "topic", name="pk_link_states"),
    )
    op.create_table(
        "failover_epochs",
        sa.Column("cluster", sa.String(64), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("from_cluster", sa.String(64), nullable=False),
        sa.Column("to_cluster", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(64), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("completed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("report", JSONB(), nullable=True),
        sa.PrimaryKeyConstraint("cluster", "epoch", name="pk_failover_epochs"),
    )
    op.create_table(
        "drill_runs",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("scenario", sa.String(64), nullable=False),
        sa.Column("topology_digest", sa.String(64), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("passed", sa.Boolean(), nullable=True),
        sa.Column("report", JSONB(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_drill_runs"),
    )
    op.create_index("ix_drill_runs_started_at", "drill_runs", ["started_at"])
    op.create_table(
        "audit_log",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("cluster", sa.String(64), nullable=False),
        sa.Column("actor", sa.String(200), nullable=False),
        sa.Column("action", sa.String(64), nullable=False),
        sa.Column("subject", sa.String(500), nullable=False),
        sa.Column("detail", JSONB(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_audit_log"),
    )
    op.create_index("ix_audit_log_cluster_at", "audit_log", ["cluster", "at"])


def downgrade() -> None:
    for table in ("audit_log", "drill_runs", "failover_epochs", "link_states"):
        op.drop_table(table)
