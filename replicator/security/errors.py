"""What those are told who are not let in."""

from __future__ import annotations

from replicator.engine.errors import EngineError


class SecurityError(Exception):
    """Keys, passwords or settings that cannot be used; the message names the file or the field, and no secret."""


class NotIdentified(EngineError):
    """Nobody, or not who they say they are: the credentials are missing, wrong or expired."""

    status = 401


class NotPermitted(EngineError):
    """Somebody who may not do that."""

    status = 403
