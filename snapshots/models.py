"""Tables of the Postgres index, for SQLAlchemy and Alembic. Values only; queries are in the repository.

Every row but those of drills names the ``cluster`` whose worker wrote it, so that several workers may share one
database. Lengths of texts are in :mod:`snapshots.limits`; a column that is narrower is made wider when a worker starts
(:mod:`replicator.index.database`). Ledger ids are milliseconds of a clock or counters above that; a BIGINT holds them
for 292 million years.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import BigInteger, Boolean, DateTime, Index, Integer, LargeBinary, MetaData, String, Uuid, func, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from snapshots.limits import (
    CLUSTER_CHARS_MAX,
    DETAIL_CHARS_MAX,
    LINK_CHARS_MAX,
    ROLE_CHARS_MAX,
    SNAPSHOT_ID_CHARS_MAX,
    SUBJECT_CHARS_MAX,
    SUBSCRIPTION_NAME_BYTES_MAX,
    TOPIC_NAME_BYTES_MAX,
    WORD_CHARS_MAX,
)

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}


class Base(DeclarativeBase):
    metadata = MetaData(naming_convention=NAMING)


class SnapshotMappingRow(Base):
    """Snapshot mapping: once a mark-delete position passes ``local`` here, all up to ``remote`` in ``peer`` is
    consumed."""

    __tablename__ = "snapshot_mappings"

    cluster: Mapped[str] = mapped_column(String(CLUSTER_CHARS_MAX), primary_key=True)
    topic: Mapped[str] = mapped_column(String(TOPIC_NAME_BYTES_MAX), primary_key=True)
    peer: Mapped[str] = mapped_column(String(CLUSTER_CHARS_MAX), primary_key=True)
    local_ledger: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    local_entry: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    remote_ledger: Mapped[int] = mapped_column(BigInteger)
    remote_entry: Mapped[int] = mapped_column(BigInteger)
    snapshot_id: Mapped[str] = mapped_column(String(SNAPSHOT_ID_CHARS_MAX))
    recorded_at: Mapped[datetime] = mapped_column(DateTime(timezone=True), server_default=func.now())


class SubscriptionStateRow(Base):
    """Progress of a subscription in ``cluster``, as last written; the cursor in the log is the truth."""

    __tablename__ = "subscription_states"

    cluster: Mapped[str] = mapped_column(String(CLUSTER_CHARS_MAX), primary_key=True)
    topic: Mapped[str] = mapped_column(String(TOPIC_NAME_BYTES_MAX), primary_key=True)
    subscription: Mapped[str] = mapped_column(String(SUBSCRIPTION_NAME_BYTES_MAX), primary_key=True)
    generation: Mapped[int] = mapped_column(BigInteger)
    mark_delete_ledger: Mapped[int] = mapped_column(BigInteger)
    mark_delete_entry: Mapped[int] = mapped_column(BigInteger)
    replicated: Mapped[bool] = mapped_column(Boolean)
    updated_at: Mapped[datetime] = mapped_column(
        DateTime(timezone=True), server_default=func.now(), onupdate=func.now()
    )
    acked_beyond: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    """Number of acknowledged entries beyond the mark-delete position."""
    holes: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    """Number of runs of these entries, and so of the gaps between the mark-delete position and the last of them."""
    ack_vector: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    """Summary for people, by origin: ``{"through": "ledger:entry", "ranges": n, "beyond": entries, "batches": n}``."""
    tombstone: Mapped[bool] = mapped_column(Boolean, server_default=text("false"))
    """Whether the subscription was deleted in every cluster. A new one must have a generation above ``generation``."""


class ExtentSegmentRow(Base):
    """A thousand runs of the exact mapping of one topic, origin and incarnation, packed (docs/adr/0022).

    Bounds of the packed runs stand beside them, so that one row answers a look-up in either direction.
    """

    __tablename__ = "extent_segments"

    cluster: Mapped[str] = mapped_column(String(CLUSTER_CHARS_MAX), primary_key=True)
    topic: Mapped[str] = mapped_column(String(TOPIC_NAME_BYTES_MAX), primary_key=True)
    origin: Mapped[str] = mapped_column(String(CLUSTER_CHARS_MAX), primary_key=True)
    incarnation: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    origin_ledger: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    origin_entry: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    origin_last_ledger: Mapped[int] = mapped_column(BigInteger)
    origin_last_entry: Mapped[int] = mapped_column(BigInteger)
    local_ledger: Mapped[int] = mapped_column(BigInteger)
    local_entry: Mapped[int] = mapped_column(BigInteger)
    local_last_ledger: Mapped[int] = mapped_column(BigInteger)
    local_last_entry: Mapped[int] = mapped_column(BigInteger)
    entries: Mapped[int] = mapped_column(BigInteger)
    runs: Mapped[int] = mapped_column(Integer)
    packed: Mapped[bytes] = mapped_column(LargeBinary)
    written_at: Mapped[datetime] = mapped_column(DateTime(timezone=True), server_default=func.now())

    __table_args__ = (
        Index(
            "ix_extent_segments_local",
            "cluster",
            "topic",
            "origin",
            "incarnation",
            "local_last_ledger",
            "local_last_entry",
        ),
    )


class LinkStateRow(Base):
    """Last report of a link of ``cluster`` on one topic; the link and the logs are the truth."""

    __tablename__ = "link_states"

    cluster: Mapped[str] = mapped_column(String(CLUSTER_CHARS_MAX), primary_key=True)
    link_key: Mapped[str] = mapped_column(String(LINK_CHARS_MAX), primary_key=True)
    topic: Mapped[str] = mapped_column(String(TOPIC_NAME_BYTES_MAX), primary_key=True)
    state: Mapped[str] = mapped_column(String(WORD_CHARS_MAX))
    acknowledged_ledger: Mapped[int] = mapped_column(BigInteger)
    acknowledged_entry: Mapped[int] = mapped_column(BigInteger)
    backlog_entries: Mapped[int] = mapped_column(BigInteger)
    detail: Mapped[str] = mapped_column(String(DETAIL_CHARS_MAX))
    updated_at: Mapped[datetime] = mapped_column(DateTime(timezone=True), server_default=func.now())


class FailoverEpochRow(Base):
    """Failover as ``cluster`` knows it; the markers in the logs are the truth."""

    __tablename__ = "failover_epochs"

    cluster: Mapped[str] = mapped_column(String(CLUSTER_CHARS_MAX), primary_key=True)
    epoch: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    from_cluster: Mapped[str] = mapped_column(String(CLUSTER_CHARS_MAX))
    to_cluster: Mapped[str] = mapped_column(String(CLUSTER_CHARS_MAX))
    kind: Mapped[str] = mapped_column(String(WORD_CHARS_MAX))
    started_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))
    completed_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))
    report: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))


class DrillRunRow(Base):
    """Drill and its outcome. It concerns all clusters, so the row names none.

    It is stored only here: no log has it, so it cannot be rebuilt (docs/adr/0023).
    """

    __tablename__ = "drill_runs"

    id: Mapped[str] = mapped_column(String(WORD_CHARS_MAX), primary_key=True)
    scenario: Mapped[str] = mapped_column(String(WORD_CHARS_MAX))
    topology_digest: Mapped[str] = mapped_column(String(WORD_CHARS_MAX))
    started_at: Mapped[datetime] = mapped_column(DateTime(timezone=True), index=True)
    ended_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))
    passed: Mapped[bool | None] = mapped_column(Boolean)
    report: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))


class AuditRow(Base):
    """Audit entry: an action on a cluster and its actor.

    It is stored only here: no log has it, so it cannot be rebuilt (docs/adr/0023).
    """

    __tablename__ = "audit_log"

    id: Mapped[UUID] = mapped_column(Uuid, primary_key=True)
    """Id that the writer chose, so that a batch that is sent again is not stored twice."""
    at: Mapped[datetime] = mapped_column(DateTime(timezone=True))
    cluster: Mapped[str] = mapped_column(String(CLUSTER_CHARS_MAX))
    actor: Mapped[str] = mapped_column(String(ROLE_CHARS_MAX))
    action: Mapped[str] = mapped_column(String(WORD_CHARS_MAX))
    subject: Mapped[str] = mapped_column(String(SUBJECT_CHARS_MAX))
    detail: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))

    __table_args__ = (Index("ix_audit_log_cluster_at", "cluster", "at"),)


class IndexHeadRow(Base):
    """Token that the worker of ``cluster`` left when it last wrote everything.

    If the worker finds another token or none, the index was emptied or restored.
    """

    __tablename__ = "index_heads"

    cluster: Mapped[str] = mapped_column(String(CLUSTER_CHARS_MAX), primary_key=True)
    token: Mapped[UUID] = mapped_column(Uuid)
    written_at: Mapped[datetime] = mapped_column(DateTime(timezone=True), server_default=func.now())
