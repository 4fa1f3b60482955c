"""Extent segments: the exact mapping of copied entries.

Revision ID: 0002
Revises: 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

POSITIONS = (
    "origin_last_ledger",
    "origin_last_entry",
    "local_ledger",
    "local_entry",
    "local_last_ledger",
    "local_last_entry",
)
KEY = ("cluster", "topic", "origin", "incarnation")


def upgrade() -> None:
    op.create_table(
        "extent_segments",
        sa.Column("cluster", sa.String(64), nullable=False),
        sa.Column("topic", sa.String(400), nullable=False),
        sa.Column("origin", sa.String(64), nullable=False),
        sa.Column("incarnation", sa.BigInteger(), nullable=False),
        sa.Column("origin_ledger", sa.BigInteger(), nullable=False),
        sa.Column("origin_entry", sa.BigInteger(), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in POSITIONS),
        sa.Column("entries", sa.BigInteger(), nullable=False),
        sa.Column("runs", sa.Integer(), nullable=False),
        sa.Column("packed", sa.LargeBinary(), nullable=False),
        sa.Column("written_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
        sa.PrimaryKeyConstraint(*KEY, "origin_ledger", "origin_entry", name="pk_extent_segments"),
    )
    # Packed by us: Postgres need not try again. The last segment of a topic is rewritten as it grows, so what is dead
    # is cleaned away sooner than by the default, which waits for a fifth of the table.
    op.execute("ALTER TABLE extent_segments ALTER COLUMN packed SET STORAGE EXTERNAL")
    for option in ("autovacuum_vacuum_scale_factor", "toast.autovacuum_vacuum_scale_factor"):
        op.execute(f"ALTER TABLE extent_segments SET ({option} = 0.05)")
    op.create_index("ix_extent_segments_local", "extent_segments", [*KEY, "local_last_ledger", "local_last_entry"])


def downgrade() -> None:
    op.drop_table("extent_segments")  # it comes back from the logs
