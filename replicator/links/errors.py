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


class RunAwaited(PeerUnavailable):
    """Error of a destination that is asking another run of this store whether it is alive. The link announces its run
    again later."""


class RunRefused(LinkError):
    """Error of a destination that serves another run of this store: that run is a live twin, or an operator decided for
    it."""


class LinkPaused(LinkError):
    """An operator paused the link."""


class CarrierChanged(LinkError):
    """Others carry the link's blocks from now on, so the link must connect again for them."""


class NotResolved(LinkError, EngineError):
    """The topic has no gap, or the gap cannot be ended in that way, or not now."""

    status = 409


class PeerRefused(LinkError):
    """The destination answered with an error. ``code`` is its name for it."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class PlanGone(LinkError, EngineError):
    """The plan is not open any more, or never was: the carrier must ask for another."""

    status = 404


class LinkTaken(LinkError, EngineError):
    """Another backfill has the link."""

    status = 409


class BadReport(LinkError, EngineError):
    """A carrier's report cannot be read; the message names the field."""


class TooManyPolls(LinkError, EngineError):
    """More requests wait for segments of one link than its lanes can have."""

    status = 503
