"""The tables of the Postgres index, for SQLAlchemy and Alembic. Values only; queries are in the repository.

Every row names the ``cluster`` whose worker wrote it, so that several workers may share one database.
Ledger ids are milliseconds of a clock or counters above that; a BIGINT holds them for 292 million years.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, Boolean, DateTime, MetaData, String, func
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}
CLUSTER_CHARS_MAX = 64
TOPIC_CHARS_MAX = 400
SUBSCRIPTION_CHARS_MAX = 200


class Base(DeclarativeBase):
    metadata = MetaData(naming_convention=NAMING)


class SnapshotMappingRow(Base):
    """Once a mark-delete position passes ``local`` here, all up to ``remote`` in ``peer`` is consumed."""

    __tablename__ = "snapshot_mappings"

    cluster: Mapped[str] = mapped_column(String(CLUSTER_CHARS_MAX), primary_key=True)
    topic: Mapped[str] = mapped_column(String(TOPIC_CHARS_MAX), primary_key=True)
    peer: Mapped[str] = mapped_column(String(CLUSTER_CHARS_MAX), primary_key=True)
    local_ledger: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    local_entry: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    remote_ledger: Mapped[int] = mapped_column(BigInteger)
    remote_entry: Mapped[int] = mapped_column(BigInteger)
    snapshot_id: Mapped[str] = mapped_column(String(128))
    recorded_at: Mapped[datetime] = mapped_column(DateTime(timezone=True), server_default=func.now())


class SubscriptionStateRow(Base):
    """How far a subscription is in ``cluster``, as last written; the cursor in the log is the truth."""

    __tablename__ = "subscription_states"

    cluster: Mapped[str] = mapped_column(String(CLUSTER_CHARS_MAX), primary_key=True)
    topic: Mapped[str] = mapped_column(String(TOPIC_CHARS_MAX), primary_key=True)
    subscription: Mapped[str] = mapped_column(String(SUBSCRIPTION_CHARS_MAX), primary_key=True)
    generation: Mapped[int] = mapped_column(BigInteger)
    mark_delete_ledger: Mapped[int] = mapped_column(BigInteger)
    mark_delete_entry: Mapped[int] = mapped_column(BigInteger)
    replicated: Mapped[bool] = mapped_column(Boolean)
    updated_at: Mapped[datetime] = mapped_column(
        DateTime(timezone=True), server_default=func.now(), onupdate=func.now()
    )
