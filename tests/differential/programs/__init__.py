"""Imported, its modules register their programs."""

from differential.programs import acknowledging, moving, options, producing, schemas, subscribing, topics

__all__ = ["acknowledging", "moving", "options", "producing", "schemas", "subscribing", "topics"]
