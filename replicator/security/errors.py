"""Errors for clients that are not let in."""

from __future__ import annotations

from replicator.engine.errors import EngineError


class SecurityError(Exception):
    """Keys, passwords or settings that cannot be used; the message names the file or the field, and no secret."""


class NotIdentified(EngineError):
    """The credentials are missing, wrong or expired."""

    status = 401


class NotPermitted(EngineError):
    """The client may not do that."""

    status = 403
