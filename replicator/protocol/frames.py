"""Frames of the binary protocol: bytes in, commands out. No I/O, and no length that a peer sends is trusted.

A frame is, big-endian::

    total size u32 | command size u32 | BaseCommand | rest

``total size`` counts all that follows it. The rest is there in SEND and MESSAGE only: an entry as
:mod:`replicator.engine.log.entry` has it, in MESSAGE with broker metadata before it where the client asked for that::

    magic 0x0e02 u16 | size u32 | BrokerEntryMetadata

The decoder works in these steps:

1. Whole frames that lie in the bytes just received are cut out of them.
2. What is left is the beginning of a frame. It is gathered in a buffer of the frame's size, once that is known and
   allowed, so that a frame that comes in a thousand pieces is copied once.
3. A size over the limit is refused before anything is allocated for it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from replicator.protocol.commands_pb2 import BaseCommand, BrokerEntryMetadata
from replicator.protocol.errors import BadFrame, FrameTooLarge

MESSAGE_BYTES_MAX: Final = 5 * 1024 * 1024
"""The largest payload of an entry, as upstream has it by default; what servers tell clients."""
METADATA_BYTES_MAX: Final = 64 * 1024
"""Room for an entry's metadata beside its payload."""
COMMAND_BYTES_MAX: Final = 1024 * 1024
"""The largest command: a namespace's list of topics, or a schema, is far smaller."""

_SIZE: Final = struct.Struct(">I")
_SIZES: Final = struct.Struct(">II")
_BROKER: Final = struct.Struct(">HI")
_BROKER_MAGIC: Final = 0x0E02
_FIELDS: Final = {field.number: field.name for field in BaseCommand.DESCRIPTOR.fields if field.name != "type"}
"""By the type of a command, the field that it is in: both have the same number."""


class Frame(NamedTuple):
    """One frame: its command, and the bytes behind it (empty for most)."""

    command: BaseCommand
    rest: memoryview


def frame_bytes_max(message_bytes_max: int = MESSAGE_BYTES_MAX) -> int:
    """The largest frame of a connection whose messages have at most ``message_bytes_max`` bytes."""
    return message_bytes_max + METADATA_BYTES_MAX + COMMAND_BYTES_MAX


class FrameDecoder:
    """Cuts a stream of bytes into frames. After an error it takes nothing more: the connection is over."""

    def __init__(self, *, bytes_max: int | None = None) -> None:
        self._bytes_max = frame_bytes_max() if bytes_max is None else bytes_max
        self._begun = bytearray()
        """A frame that has not come whole: from its size on."""
        self._wanted = 0
        """How many bytes it has in all; 0 while not even its size is there."""

    @property
    def waits(self) -> int:
        """Bytes of a frame that has not come whole."""
        return len(self._begun)

    def receive(self, data: bytes) -> Iterator[Frame]:
        """The frames that are whole now; raises :class:`ProtocolError` at the first that is not one.

        The frames that were yielded before the error are good ones.
        """
        view = memoryview(data)
        at, end = 0, len(view)
        if self._begun:
            at = self._go_on(view)
            if self._wanted == 0 or len(self._begun) < self._wanted:
                return
            whole = memoryview(bytes(self._begun))
            self._begun, self._wanted = bytearray(), 0
            yield _frame(whole[4:])
        while end - at >= 4:
            stop = at + self._size(view, at)
            if stop > end:
                break
            yield _frame(view[at + 4 : stop])
            at = stop
        if at < end:
            self._begun += view[at:]
            if len(self._begun) >= 4:
                self._wanted = self._size(memoryview(bytes(self._begun[:4])), 0)

    def _go_on(self, view: memoryview) -> int:
        """Add to the frame that has begun; returns where in ``view`` the next one begins."""
        at = 0
        if self._wanted == 0:
            at = min(4 - len(self._begun), len(view))
            self._begun += view[:at]
            if len(self._begun) < 4:
                return at
            self._wanted = self._size(memoryview(bytes(self._begun)), 0)
        stop = min(at + self._wanted - len(self._begun), len(view))
        self._begun += view[at:stop]
        return stop

    def _size(self, view: memoryview, at: int) -> int:
        """The bytes of the frame at ``at``, with its size."""
        total = int(_SIZE.unpack_from(view, at)[0]) + 4
        if total > self._bytes_max:
            raise FrameTooLarge(f"a frame of {total} bytes is over the limit of {self._bytes_max}")
        if total < 8:
            raise BadFrame(f"a frame of {total} bytes has no room for a command")
        return total


def _frame(view: memoryview) -> Frame:
    (size,) = _SIZE.unpack_from(view)
    if size > len(view) - 4:
        raise BadFrame(f"a command of {size} bytes in a frame of {len(view)}")
    if size > COMMAND_BYTES_MAX:
        raise FrameTooLarge(f"a command of {size} bytes is over the limit of {COMMAND_BYTES_MAX}")
    try:
        command = BaseCommand.FromString(bytes(view[4 : 4 + size]))
    except DecodeError:
        raise BadFrame("a command that cannot be read") from None
    if not (command.IsInitialized() and command.HasField(_FIELDS[command.type])):
        raise BadFrame("a command of an unknown type, or one that lacks what it must have")
    return Frame(command, view[4 + size :])


def encode(command: BaseCommand) -> bytes:
    """The frame of a command that has nothing behind it."""
    encoded = command.SerializeToString()
    return _SIZES.pack(len(encoded) + 4, len(encoded)) + encoded


def encode_head(command: BaseCommand, rest_bytes: int) -> bytes:
    """What stands before ``rest_bytes`` bytes of a SEND or MESSAGE, so that an entry is sent without being copied."""
    encoded = command.SerializeToString()
    return _SIZES.pack(len(encoded) + 4 + rest_bytes, len(encoded)) + encoded


def encode_broker_metadata(metadata: BrokerEntryMetadata) -> bytes:
    """What stands before an entry for a client that asked for broker metadata."""
    encoded = metadata.SerializeToString()
    return _BROKER.pack(_BROKER_MAGIC, len(encoded)) + encoded


def split_broker_metadata(rest: memoryview) -> tuple[BrokerEntryMetadata | None, memoryview]:
    """The broker metadata of a MESSAGE, if it has any, and its entry; raises :class:`BadFrame`."""
    if len(rest) < _BROKER.size or _BROKER.unpack_from(rest)[0] != _BROKER_MAGIC:
        return None, rest
    stop = _BROKER.size + int(_BROKER.unpack_from(rest)[1])
    if stop > len(rest):
        raise BadFrame(f"broker metadata of {stop} bytes in a frame that has {len(rest)}")
    try:
        return BrokerEntryMetadata.FromString(bytes(rest[_BROKER.size : stop])), rest[stop:]
    except DecodeError:
        raise BadFrame("broker metadata that cannot be read") from None
