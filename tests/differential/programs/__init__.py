"""Imported, its modules register their programs."""

from differential.programs import (
    acknowledging,
    administration,
    endings,
    moving,
    options,
    producing,
    schemas,
    subscribing,
    topics,
    websockets,
)

__all__ = [
    "acknowledging",
    "administration",
    "endings",
    "moving",
    "options",
    "producing",
    "schemas",
    "subscribing",
    "topics",
    "websockets",
]
