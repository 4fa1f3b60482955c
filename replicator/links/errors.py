"""Errors of links."""

from __future__ import annotations

from replicator.engine.errors import EngineError


class LinkError(Exception):
    """Base of every error of a link. A link that meets one reconnects, with growing pauses."""


class PeerUnavailable(LinkError):
    """The destination cannot be reached, or the connection broke."""


class WrongPeer(LinkError):
    """The address belongs to another cluster than the topology says."""


class WrongVersion(LinkError):
    """The two ends speak different versions of the links' protocol."""


class LinkPaused(LinkError):
    """An operator paused the link."""


class NotResolved(LinkError, EngineError):
    """There is no gap in that topic, or it cannot be ended in that way, or not now."""

    status = 409


class PeerRefused(LinkError):
    """The destination answered with an error. ``code`` is its name for it."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
