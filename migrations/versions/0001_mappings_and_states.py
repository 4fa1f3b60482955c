"""Snapshot mappings and subscription states.

Revision ID: 0001
Revises:
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "snapshot_mappings",
        sa.Column("cluster", sa.String(64), nullable=False),
        sa.Column("topic", sa.String(400), nullable=False),
        sa.Column("peer", sa.String(64), nullable=False),
        sa.Column("local_ledger", sa.BigInteger(), nullable=False),
        sa.Column("local_entry", sa.BigInteger(), nullable=False),
        sa.Column("remote_ledger", sa.BigInteger(), nullable=False),
        sa.Column("remote_entry", sa.BigInteger(), nullable=False),
        sa.Column("snapshot_id", sa.String(128), nullable=False),
        sa.Column("recorded_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
        sa.PrimaryKeyConstraint("cluster", "topic", "peer", "local_ledger", "local_entry", name="pk_snapshot_mappings"),
    )
    op.create_table(
        "subscription_states",
        sa.Column("cluster", sa.String(64), nullable=False),
        sa.Column("topic", sa.String(400), nullable=False),
        sa.Column("subscription", sa.String(200), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("mark_delete_ledger", sa.BigInteger(), nullable=False),
        sa.Column("mark_delete_entry", sa.BigInteger(), nullable=False),
        sa.Column("replicated", sa.Boolean(), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
        sa.PrimaryKeyConstraint("cluster", "topic", "subscription", name="pk_subscription_states"),
    )


def downgrade() -> None:
    op.drop_table("subscription_states")
    op.drop_table("snapshot_mappings")
