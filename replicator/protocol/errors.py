"""What can be wrong with the bytes or the order of a connection. Each of these ends that one connection."""

from __future__ import annotations


class ProtocolError(Exception):
    """The peer broke the protocol; the message says how. The connection is to be closed, others go on."""


class FrameTooLarge(ProtocolError):
    """A frame says that it is larger than this side takes."""


class BadFrame(ProtocolError):
    """A frame whose sizes contradict each other, or whose command cannot be read."""


class OutOfOrder(ProtocolError):
    """A command that the state of the connection does not allow, such as one before CONNECT."""
