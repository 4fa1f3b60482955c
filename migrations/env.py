"""Alembic's environment. :mod:`replicator.index.database` runs it with a connection; there is no other way in."""

from __future__ import annotations

from alembic import context

from snapshots.models import Base

connection = context.config.attributes.get("connection")
if connection is None:
    raise RuntimeError("migrations are run by `replicator db upgrade` or by a worker that starts")
context.configure(connection=connection, target_metadata=Base.metadata, compare_type=True)
with context.begin_transaction():
    context.run_migrations()
