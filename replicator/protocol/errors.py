"""What can be wrong with the bytes or the order of a connection, and with one request of it."""

from __future__ import annotations

from replicator.protocol.commands_pb2 import ServerError


class ProtocolError(Exception):
    """The peer broke the protocol; the message says how. The connection is to be closed, others go on."""


class FrameTooLarge(ProtocolError):
    """A frame says that it is larger than this side takes."""


class BadFrame(ProtocolError):
    """A frame whose sizes contradict each other, or whose command cannot be read."""


class TooManyParts(BadFrame):
    """A command with more parts, such as properties, than any client has."""

    def __init__(self, message: str, request_id: int | None) -> None:
        super().__init__(message)
        self.request_id = request_id
        """Number of the request that the command makes; None if it makes none."""


class OutOfOrder(ProtocolError):
    """A command that the state of the connection does not allow, such as one before CONNECT."""


class Unresponsive(ProtocolError):
    """The peer did not introduce itself, or answer, in time."""


class NotAuthenticated(ProtocolError):
    """The peer did not show who it is."""


class NotAuthorized(ProtocolError):
    """The peer has shown who it is, and may not connect as it wants to."""


class Refused(Exception):
    """A request that is answered with an error; the connection goes on."""

    def __init__(self, code: ServerError, message: str, engine_error: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.engine_error = engine_error
        """What a server of this project calls it; empty from others."""
