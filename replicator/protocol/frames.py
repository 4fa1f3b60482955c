"""Frames of the binary protocol: bytes in, commands out. No I/O, and no length that a peer sends is trusted.

A frame is, big-endian::

    total size u32 | command size u32 | BaseCommand | rest

``total size`` counts everything after it. Only SEND and MESSAGE have a rest: an entry in the format of
:mod:`replicator.engine.log.entry`. In MESSAGE broker metadata comes before it if the client asked for that::

    magic 0x0e02 u16 | size u32 | BrokerEntryMetadata

The decoder works in these steps:

1. Whole frames that lie in the bytes just received are cut out of them.
2. The remaining bytes begin a frame. Its pieces are gathered until it is whole, small ones together, and copied once
   then; of a SEND only the entry is copied.
3. A size over the limit is refused before anything is gathered for it.
4. Neighbouring commands that come with every entry are gathered, if the decoder has a reader for them
   (:mod:`replicator.protocol.runs`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterator
from itertools import islice
from typing import Any, Final, NamedTuple

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError

from replicator.engine.log.entry import MESSAGE_BYTES_MAX, METADATA_ROOM_BYTES
from replicator.protocol.commands_pb2 import BaseCommand, BrokerEntryMetadata
from replicator.protocol.errors import BadFrame, FrameTooLarge, ProtocolError, TooManyParts
from replicator.protocol.runs import RUN_MAX, RunReader

COMMAND_BYTES_MAX: Final = 1024 * 1024
"""Limit of a command's size: a namespace's list of topics, or a schema, is far smaller."""

PARTS_MAX: Final = 1_000
"""Limit of the parts of a client's command, such as properties. To count, parse and check so many takes 5 ms. Clients
send some ten."""
FIELDS_MAX: Final = 5 * PARTS_MAX
"""Limit of all fields of a client's command. A SEEK into a batch of 100,000 messages has an ``ack_set`` of 1,563."""
IDS_BYTES_MAX: Final = 512 * 1024
"""Limit of a list of message ids, some 40,000. To parse it takes up to 30 ms of the event loop."""
_PART_BYTES_MIN: Final = 2
"""Size of the smallest part: a tag and a length."""
_REQUEST_ID_MAX: Final = 2**64 - 1
"""Largest id that an answer can have."""
_TYPE: Final = 1
"""Number of the field ``type`` of BaseCommand."""

PIECE_BYTES_MIN: Final = 4096
"""Smallest piece of a frame that is kept alone. Smaller ones are joined, since each costs some memory of its own."""

_SIZE: Final = struct.Struct(">I")
_SIZES: Final = struct.Struct(">II")
_BROKER: Final = struct.Struct(">HI")
_BROKER_MAGIC: Final = 0x0E02
_FIELDS: Final = {field.number: field.name for field in BaseCommand.DESCRIPTOR.fields if field.name != "type"}
"""Name of the command's field in BaseCommand, by the command's type: both have the same number."""
_WITHOUT_TEXTS: Final = frozenset(
    {
        BaseCommand.SEND,
        BaseCommand.SEND_RECEIPT,
        BaseCommand.MESSAGE,
        BaseCommand.ACK,
        BaseCommand.FLOW,
        BaseCommand.PING,
        BaseCommand.PONG,
        BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES,
    }
)
"""Commands with texts that nobody reads. They come with each message, and are not checked for invalid texts."""


class Frame(NamedTuple):
    """One frame: its command, and the bytes behind it (empty for most)."""

    command: BaseCommand
    rest: memoryview


def frame_bytes_max(message_bytes_max: int = MESSAGE_BYTES_MAX) -> int:
    """Return the size of the largest frame on a connection whose messages have at most ``message_bytes_max`` bytes."""
    return message_bytes_max + METADATA_ROOM_BYTES + COMMAND_BYTES_MAX


class FrameDecoder:
    """Decoder that cuts a stream of bytes into frames. After an error it ignores all input: the connection is over.

    Neighbouring commands that ``runs`` gathers come as its runs, never as a :class:`Frame`. If ``refuses`` is set, a
    command with too many parts is not parsed. If it is a request, a :class:`TooManyParts` comes in its place, and the
    connection stays open.
    """

    def __init__(self, *, bytes_max: int | None = None, runs: RunReader | None = None, refuses: bool = False) -> None:
        self._refuses = refuses
        self.bytes_max = frame_bytes_max() if bytes_max is None else bytes_max
        self._runs = runs
        self._reads: Callable[[bytes, int, int], bool] = (lambda *_: False) if runs is None else runs.reads
        self._add: Callable[[bytes], None] = (lambda _: None) if runs is None else runs.add
        self._begun: list[bytes | bytearray] = []
        """Pieces of a frame that is not whole yet, beginning with its size."""
        self._begun_bytes = 0
        self._wanted = 0
        """Total size in bytes of the frame that has begun; 0 while its size field is incomplete."""

    @property
    def waits(self) -> int:
        """Number of bytes of a frame that is not whole yet."""
        return self._begun_bytes

    def receive(self, data: bytes) -> Iterator[Any]:
        """Take bytes; yield frames, and runs, that are whole now. Raise :class:`ProtocolError` at the first bad one.

        Frames yielded before the error are valid.
        """
        at = 0
        if self._begun:
            at = self._go_on(data)
            if self._wanted == 0 or self._begun_bytes < self._wanted:
                return
            pieces, self._begun, self._begun_bytes, self._wanted = self._begun, [], 0, 0
            yield from self._joined(pieces)
        at = yield from self._whole(data, at)
        if self._runs is not None:
            yield from self._runs.gathered()
        if at < len(data):
            self._begin(data[at:] if at else data)

    def _whole(self, data: bytes, at: int) -> Generator[Any, None, int]:
        """Yield the frames that lie whole in ``data`` from ``at`` on; return where the rest begins."""
        end, total_max, unpack = len(data), self.bytes_max - 4, _SIZES.unpack_from
        reads, add = self._reads, self._add
        gathering = RUN_MAX
        view = memoryview(data)
        while end - at >= 8:  # the two sizes
            total, size = unpack(data, at)
            stop = at + 4 + total
            if stop > end and total <= total_max:
                break
            command_stop = at + 8 + size
            if command_stop <= stop <= end and total <= total_max and reads(data, at + 8, command_stop):
                add(data[command_stop:stop])
                gathering -= 1
                if not gathering and self._runs is not None:  # the caller may be given no more time
                    gathering = RUN_MAX
                    yield from self._runs.gathered()
            else:
                try:
                    self._check_size(total)
                    yield from self._one(view[at + 4 : stop])
                    total_max = self.bytes_max - 4  # the frame may have been the one that says it
                except ProtocolError:
                    if self._runs is not None:
                        yield from self._runs.gathered()
                    raise
            at = stop
        return at

    def _one(self, view: memoryview) -> Iterator[Any]:
        frame = _frame(view, of_client=self._refuses)
        if isinstance(frame, TooManyParts) and frame.request_id is None:
            raise frame
        if self._runs is not None:
            if isinstance(frame, Frame) and self._runs.takes(frame.command, view[4 : len(view) - len(frame.rest)]):
                self._runs.add(bytes(frame.rest))
                return
            yield from self._runs.gathered()
        yield frame

    def _joined(self, pieces: list[bytes | bytearray]) -> Iterator[Any]:
        """Yield a frame that came in several pieces. The command of a gathered one is mostly in the first piece."""
        first = bytes(pieces[0])
        if self._runs is not None and len(first) >= _SIZES.size:
            command_stop = _SIZES.size + int(_SIZE.unpack_from(first, 4)[0])
            if command_stop <= len(first) and self._runs.reads(first, _SIZES.size, command_stop):
                self._runs.add(b"".join((memoryview(first)[command_stop:], *pieces[1:])))
                return
        yield from self._one(memoryview(b"".join(pieces))[4:])

    def _begin(self, piece: bytes) -> None:
        """Keep ``piece``, the incomplete beginning of a frame. Raise :class:`ProtocolError` if its size is wrong."""
        self._begun, self._begun_bytes = [piece], len(piece)
        if len(piece) >= _SIZE.size:
            self._wanted = 4 + self._check_size(_SIZE.unpack_from(piece)[0])

    def _go_on(self, data: bytes) -> int:
        """Add to the frame that has begun; return where in ``data`` the next one begins."""
        at = 0
        if self._wanted == 0:
            at = min(4 - self._begun_bytes, len(data))
            size = b"".join((*self._begun, data[:at]))
            self._begun, self._begun_bytes = [size], len(size)
            if len(size) < 4:
                return at
            self._wanted = 4 + self._check_size(_SIZE.unpack(size)[0])
        stop = min(at + self._wanted - self._begun_bytes, len(data))
        piece = data[at:stop] if at or stop < len(data) else data
        last = self._begun[-1]
        if len(last) >= PIECE_BYTES_MIN or len(piece) >= PIECE_BYTES_MIN:
            self._begun.append(piece)
        elif isinstance(last, bytearray):
            last += piece
        else:
            self._begun[-1] = bytearray(last) + piece
        self._begun_bytes += len(piece)
        return stop

    def _check_size(self, total: int) -> int:
        """Return ``total``, a frame's size field, which does not count itself. Raise ProtocolError if it is wrong."""
        if total + 4 > self.bytes_max:
            raise FrameTooLarge(
                f"a frame of {total + 4} bytes is over the limit of {self.bytes_max}: its sender must send smaller "
                "messages, or does not speak the Pulsar protocol"
            )
        if total < 4:
            raise BadFrame(
                f"a frame of {total + 4} bytes has no room for a command: it is damaged, or not of the Pulsar protocol"
            )
        return total


def _frame(view: memoryview, *, of_client: bool) -> Frame | TooManyParts:
    """Return the frame whose command size, command and rest are in ``view``. ``of_client`` says that a client sent it.

    A client's command of too many parts is not parsed: parsing could hold the event loop for a tenth of a second.
    """
    (size,) = _SIZE.unpack_from(view)
    if size > len(view) - 4:
        raise BadFrame(
            f"a command of {size} bytes in a frame of {len(view)}: the frame is damaged, or not of the Pulsar protocol"
        )
    if size > COMMAND_BYTES_MAX:
        raise FrameTooLarge(
            f"a command of {size} bytes is over the limit of {COMMAND_BYTES_MAX}: its sender must give it fewer or "
            "shorter properties"
        )
    encoded = bytes(view[4 : 4 + size])
    if of_client and size > PARTS_MAX * _PART_BYTES_MIN and (refused := _too_many_parts(encoded)) is not None:
        return refused
    try:
        command = BaseCommand.FromString(encoded)
    except DecodeError:
        raise BadFrame("a command that cannot be read: the frame is damaged, or not of the Pulsar protocol") from None
    if not (command.IsInitialized() and command.HasField(_FIELDS[command.type])):
        raise BadFrame(
            "a command of an unknown type, or one that lacks what it must have: the frame is damaged, or of another "
            "version of the Pulsar protocol"
        )
    if command.type not in _WITHOUT_TEXTS:
        _check_texts(getattr(command, _FIELDS[command.type]))
    return Frame(command, view[4 + size :])


def _too_many_parts(encoded: bytes) -> TooManyParts | None:
    """Return an error if an encoded BaseCommand has more parts or fields than any client sends; None otherwise.

    A part is a message that lies in another one. Ids to acknowledge or to send again are not counted: a list of them
    may take :data:`IDS_BYTES_MAX` bytes.
    """
    parts, fields = PARTS_MAX + 1, FIELDS_MAX
    base, command_type = BaseCommand.DESCRIPTOR, -1
    left = [(0, len(encoded), base)]
    while left:
        at, end, kind = left.pop()
        for number, _, start, stop in _fields(encoded, at, end):
            if kind is base and number == _TYPE:
                command_type = _varint(encoded, start)[0]
            field = kind.fields_by_number.get(number)
            inside = None if field is None else field.message_type
            fields -= 1
            parts -= inside is not None
            if fields < 0 or parts < 0:
                return _refusal(encoded)
            if kind is base and number == command_type and number in _WITHOUT_TEXTS:
                if stop - start > IDS_BYTES_MAX:
                    return _refusal(encoded)
            elif inside is not None:
                left.append((start, stop, inside))
    return None


def _refusal(encoded: bytes) -> TooManyParts:
    """Return the error for an encoded command of too many parts. It has the request id if one of the command's first
    fields is that."""
    for number, _, start, stop in islice(_fields(encoded, 0, len(encoded)), 2):  # the type, and the command itself
        inside = BaseCommand.DESCRIPTOR.fields_by_number[number].message_type if number in _FIELDS else None
        if inside is not None:
            asked = inside.fields_by_name.get("request_id")
            first = islice(_fields(encoded, start, stop), len(inside.fields))
            ids = (at for each, wire, at, _ in first if asked is not None and (each, wire) == (asked.number, 0))
            request_id = next((_varint(encoded, at)[0] & _REQUEST_ID_MAX for at in ids), None)
            name = BaseCommand.Type.Name(number)
            return TooManyParts(
                f"{name} has more than {PARTS_MAX} parts, such as properties, or too many fields", request_id
            )
    return TooManyParts(f"a command has more than {PARTS_MAX} parts, or too many fields", None)


def _fields(encoded: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield number, wire type, start and end of each field of an encoded message. Stop at bytes that are no field.

    The beginning and the end of a group are fields without a value, and the group's fields count as the message's own.
    The parser skips a group, but has to read it.
    """
    while at < end:
        tag, at = _varint(encoded, at)
        start = at
        wire = tag & 7
        if wire == 0:
            at = _varint(encoded, at)[1]
        elif wire == 2:
            size, start = _varint(encoded, at)
            at = start + size
        elif wire in (1, 5):
            at += 8 if wire == 1 else 4
        elif wire > 5:
            return
        if at > end:
            return
        yield tag >> 3, wire, start, at


def _varint(encoded: bytes, at: int) -> tuple[int, int]:
    """Return the number that is encoded at ``at``, and the position behind it. Bytes that are missing count as 0."""
    value = shift = 0
    while at < len(encoded) and shift < 70:
        byte = encoded[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    return value, at


def encode(command: BaseCommand) -> bytes:
    """Return the frame of a command that has nothing behind it."""
    encoded = command.SerializeToString()
    return _SIZES.pack(len(encoded) + 4, len(encoded)) + encoded


def encode_head(command: BaseCommand, rest_bytes: int) -> bytes:
    """Return the bytes before the ``rest_bytes`` bytes of a SEND or MESSAGE, so that its entry need not be copied."""
    encoded = command.SerializeToString()
    return _SIZES.pack(len(encoded) + 4 + rest_bytes, len(encoded)) + encoded


def encode_broker_metadata(metadata: BrokerEntryMetadata) -> bytes:
    """Return the encoded ``metadata``, which comes before an entry for a client that asked for broker metadata."""
    encoded = metadata.SerializeToString()
    return _BROKER.pack(_BROKER_MAGIC, len(encoded)) + encoded


def split_broker_metadata(rest: memoryview) -> tuple[BrokerEntryMetadata | None, memoryview]:
    """Return the broker metadata of a MESSAGE, or None, and its entry. Raises :class:`BadFrame`."""
    if len(rest) < _BROKER.size or _BROKER.unpack_from(rest)[0] != _BROKER_MAGIC:
        return None, rest
    stop = _BROKER.size + int(_BROKER.unpack_from(rest)[1])
    if stop > len(rest):
        raise BadFrame(f"broker metadata of {stop} bytes in a frame that has {len(rest)}: the frame is damaged")
    try:
        return BrokerEntryMetadata.FromString(bytes(rest[_BROKER.size : stop])), rest[stop:]
    except DecodeError:
        raise BadFrame(
            "broker metadata that cannot be read: the frame is damaged, or of another version of the Pulsar protocol"
        ) from None


def _check_texts(message: Any) -> None:
    """Raise :class:`BadFrame` for a text that is not UTF-8. The parser leaves it as bytes, and others would fail."""
    for field, value in message.ListFields():
        several = value if field.is_repeated else (value,)
        if field.message_type is not None:
            for each in several:
                _check_texts(each)
        elif field.type == FieldDescriptor.TYPE_STRING and any(isinstance(each, bytes) for each in several):
            raise BadFrame(
                f"{message.DESCRIPTOR.name}.{field.name} of a command is not UTF-8: its sender must send text in UTF-8"
            )
