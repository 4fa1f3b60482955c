"""Subscription states say what is acknowledged beyond the mark-delete position, and keep tombstones.

Revision ID: 0003
Revises: 0002
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "subscription_states", sa.Column("acked_beyond", sa.BigInteger(), server_default=sa.text("0"), nullable=False)
    )
    op.add_column(
        "subscription_states", sa.Column("holes", sa.BigInteger(), server_default=sa.text("0"), nullable=False)
    )
    op.add_column("subscription_states", sa.Column("ack_vector", JSONB(), nullable=True))
    op.add_column(
        "subscription_states", sa.Column("tombstone", sa.Boolean(), server_default=sa.text("false"), nullable=False)
    )


def downgrade() -> None:
    # A version that knows no tombstones would take one for a subscription.
    op.execute("DELETE FROM subscription_states WHERE tombstone")
    for column in ("tombstone", "ack_vector", "holes", "acked_beyond"):
        op.drop_column("subscription_states", column)
