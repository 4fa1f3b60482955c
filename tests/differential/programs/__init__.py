"""Imported, its modules register their programs."""

from differential.programs import (
    acknowledging,
    administration,
    moving,
    options,
    producing,
    schemas,
    subscribing,
    topics,
)

__all__ = ["acknowledging", "administration", "moving", "options", "producing", "schemas", "subscribing", "topics"]
