"""Alembic migrations of the Postgres index."""

from pathlib import Path
from typing import Final

PLACE: Final = Path(__file__).parent
"""Alembic reads its files from here; in a wheel they lie elsewhere than in a checkout."""
