"""Index heads: by which a worker notices that its index was emptied or restored.

Revision ID: 0005
Revises: 0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "index_heads",
        sa.Column("cluster", sa.String(64), nullable=False),
        sa.Column("token", sa.Uuid(), nullable=False),
        sa.Column("written_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
        sa.PrimaryKeyConstraint("cluster", name="pk_index_heads"),
    )


def downgrade() -> None:
    op.drop_table("index_heads")
