"""Alembic migrations of the Postgres index."""
