"""Errors in the bytes or the order of a connection, and errors of single requests."""

from __future__ import annotations

from replicator.protocol.commands_pb2 import ServerError


class ProtocolError(Exception):
    """The peer broke the protocol; the message says how. This connection must be closed; others continue."""


class FrameTooLarge(ProtocolError):
    """A frame's size field is over the limit of this side."""


class BadFrame(ProtocolError):
    """The sizes of a frame contradict each other, or its command cannot be read."""


class TooManyParts(BadFrame):
    """A command has more parts, such as properties, than any client uses."""

    def __init__(self, message: str, request_id: int | None) -> None:
        super().__init__(message)
        self.request_id = request_id
        """Number of the request that the command makes; None if it makes none."""


class OutOfOrder(ProtocolError):
    """The state of the connection does not allow the command, such as one before CONNECT."""


class Unresponsive(ProtocolError):
    """The peer sent no handshake, or no answer, in time."""


class NotAuthenticated(ProtocolError):
    """The peer's credentials are missing or wrong."""


class NotAuthorized(ProtocolError):
    """The peer is authenticated, and may not connect in the way that it wants to."""


class Refused(Exception):
    """A request is answered with an error; the connection continues."""

    def __init__(self, code: ServerError, message: str, engine_error: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.engine_error = engine_error
        """Error code of the engine, from a server of this project; empty from others."""
