"""The commands that come with every entry, read and written by hand: SEND, SEND_RECEIPT, MESSAGE. Sans-IO.

All others go through protobuf. What is here gives the same bytes in a fraction of its time, which was most of what a
worker did where each entry is one message:

1. A SEND of the usual form is scanned for what is needed of it. Of any other form :func:`read_send` says nothing, and
   protobuf reads it, and decides whether it is one.
2. SENDs of one producer that come together are one :class:`Sends`.
3. Receipts and heads of messages differ in a few numbers; what stays the same is encoded once.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from replicator.protocol.values import NONE_U64
from snapshots.position import BEFORE_ALL, Position

SENDS_MAX: Final = 1_000
"""Entries that are handed on at once."""

_SIZES: Final = struct.Struct(">II")
_SEND_HEAD: Final = b"\x08\x06\x32"
"""``type = SEND``, and the field that it is in."""
_RECEIPT_HEAD: Final = b"\x08\x07\x3a"
_MESSAGE_HEAD: Final = b"\x08\x09\x4a"
_LENGTH_MAX: Final = 127
"""Of one byte. A SEND without a message id is shorter, and so are the commands that are written here."""


class Sends:
    """Entries that one producer sent, in order, with the sequence ids that their receipts name."""

    __slots__ = ("entries", "highest_sequence_ids", "producer_id", "sequence_ids")

    def __init__(self, producer_id: int) -> None:
        self.producer_id = producer_id
        self.sequence_ids: list[int] = []
        self.highest_sequence_ids: list[int] = []
        self.entries: list[bytes] = []

    def add(self, sequence_id: int, highest_sequence_id: int, entry: bytes) -> None:
        self.sequence_ids.append(sequence_id)
        self.highest_sequence_ids.append(highest_sequence_id)
        self.entries.append(entry)

    def extend(self, later: Sends) -> None:
        """Add what the same producer sent after this."""
        self.sequence_ids += later.sequence_ids
        self.highest_sequence_ids += later.highest_sequence_ids
        self.entries += later.entries

    def each(self) -> Iterator[Sends]:
        """Its entries one by one."""
        for sent in zip(self.sequence_ids, self.highest_sequence_ids, self.entries, strict=True):
            one = Sends(self.producer_id)
            one.add(*sent)
            yield one

    @property
    def full(self) -> bool:
        return len(self.entries) >= SENDS_MAX


def read_send(command: bytes, at: int, stop: int) -> tuple[int, int, int] | None:
    """Producer, sequence id and highest sequence id, if ``command[at:stop]`` is a SEND of the usual form.

    That is one all of whose fields are numbers with tags of a byte.
    """
    if command[at : at + 3] != _SEND_HEAD or stop - at - 4 > _LENGTH_MAX or command[at + 3] != stop - at - 4:
        return None
    at += 4
    producer_id = sequence_id = -1
    highest = 0
    while at < stop:
        tag = command[at]
        at += 1
        if tag & 0x87 or tag < 8 or at == stop:
            return None
        value = command[at]
        at += 1
        if value > 0x7F:
            value &= 0x7F
            shift = 7
            while True:
                if at == stop or shift > 63:
                    return None
                byte = command[at]
                at += 1
                value |= (byte & 0x7F) << shift
                if byte < 0x80:
                    break
                shift += 7
            if value > NONE_U64:
                return None
        if tag == 0x10:
            sequence_id = value
        elif tag == 0x08:
            producer_id = value
        elif tag == 0x30:
            highest = value
    return None if producer_id < 0 or sequence_id < 0 else (producer_id, sequence_id, highest)


class ReceiptWriter:
    """Writes the receipts of one producer, whose topic has that partition index (-1 if it is none)."""

    __slots__ = ("_id_end", "_producer")

    def __init__(self, producer_id: int, partition: int) -> None:
        self._producer = b"\x08" + _varint(producer_id) + b"\x10"
        self._id_end = b"\x18" + _varint(partition & NONE_U64) + b"\x20" + _varint(NONE_U64)

    def write(self, sends: Sends, positions: Sequence[Position]) -> bytes:
        """Frames of the receipts of all of ``sends``, which lie at ``positions``."""
        producer, id_end = self._producer, self._id_end
        pieces: list[bytes] = []
        ledger_before, ledger_field = -1, b""
        for sequence_id, highest, position in zip(
            sends.sequence_ids, sends.highest_sequence_ids, positions, strict=True
        ):
            ledger, entry = position
            if position == BEFORE_ALL:
                ledger = entry = NONE_U64
            if ledger != ledger_before:
                ledger_before, ledger_field = ledger, b"\x08" + _varint(ledger) + b"\x10"
            message_id = ledger_field + _varint(entry) + id_end
            receipt = b"%b%b\x1a%c%b\x20%b" % (
                producer,
                _varint(sequence_id),
                len(message_id),
                message_id,
                _varint(highest),
            )
            size = len(receipt) + 4
            pieces.append(_SIZES.pack(size + 4, size) + b"%b%c%b" % (_RECEIPT_HEAD, len(receipt), receipt))
        return b"".join(pieces)


class MessageHeadWriter:
    """Writes what stands before the entries that one consumer gets."""

    __slots__ = ("_consumer", "_id_end", "_ledger", "_ledger_field")

    def __init__(self, consumer_id: int, partition: int) -> None:
        self._ledger = -1
        self._ledger_field = b""
        self._consumer = b"\x08" + _varint(consumer_id) + b"\x12"
        self._id_end = b"\x18" + _varint(partition & NONE_U64) + b"\x20" + _varint(NONE_U64)

    def head(
        self, position: Position, redelivery_count: int, entry_bytes: int, ack_set: Iterable[int], epoch: int | None
    ) -> bytes:
        """``ack_set`` is empty for an entry of which nothing is acknowledged."""
        ledger, entry = position
        if ledger != self._ledger:
            self._ledger, self._ledger_field = ledger, b"\x08" + _varint(ledger) + b"\x10"
        message_id = self._ledger_field + _varint(entry) + self._id_end
        message = b"%b%c%b\x18%b" % (self._consumer, len(message_id), message_id, _varint(redelivery_count))
        for word in ack_set:
            message += b"\x20" + _varint(word & NONE_U64)
        if epoch is not None:
            message += b"\x28" + _varint(epoch)
        command = _MESSAGE_HEAD + _varint(len(message)) + message
        return _SIZES.pack(len(command) + 4 + entry_bytes, len(command)) + command


def _varint(value: int) -> bytes:
    if value < 0x80:
        return _ONE_BYTE[value]
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if value < 0x200000:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


_ONE_BYTE: Final = tuple(bytes((value,)) for value in range(0x80))
