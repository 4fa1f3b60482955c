"""Translation of values between the protocol and the engine: positions and acknowledgement sets. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from pyroaring import BitMap

from replicator.engine.log.entry import BATCH_MESSAGES_MAX
from replicator.protocol.commands_pb2 import MessageIdData
from snapshots.position import BEFORE_ALL, Position

NONE_U64: Final = 2**64 - 1
"""-1 as clients write it: in the id of a message that is not stored, and for "before everything"."""
SIGN: Final = 2**63
_WORD_BITS: Final = 64
_SMALL_BATCH: Final = 256
"""Number of messages up to which plain numbers are faster than arrays."""
_WORDS_MAX: Final = BATCH_MESSAGES_MAX // _WORD_BITS + 1


def message_id(position: Position, partition: int, batch_index: int = -1) -> MessageIdData:
    """Return the message id of an entry for clients. ``BEFORE_ALL``, for a message that is not stored, is -1:-1.

    ``partition`` is the topic's partition index, -1 if it is none.
    """
    if position == BEFORE_ALL:
        return MessageIdData(ledgerId=NONE_U64, entryId=NONE_U64, partition=partition, batch_index=batch_index)
    entry = NONE_U64 if position.entry < 0 else position.entry
    return MessageIdData(ledgerId=position.ledger, entryId=entry, partition=partition, batch_index=batch_index)


def position_of(message: MessageIdData) -> Position:
    """Return the position that an id names; "earliest" (-1:-1) is before all."""
    if message.ledgerId >= SIGN:
        return BEFORE_ALL
    return Position(message.ledgerId, -1 if message.entryId >= SIGN else message.entryId)


def ack_set(acked: BitMap, batch_size: int) -> list[int]:
    """Return the acknowledgement set of a batch, in signed words of 64 bits. Leave out zero words at the end.

    The set has one bit for each message. The bit is set while the message is not acknowledged.
    """
    count = -(-batch_size // _WORD_BITS)
    if batch_size <= _SMALL_BATCH:
        bits = (1 << batch_size) - 1
        for index in acked:
            bits &= ~(1 << index)
        words = [(bits >> shift) & NONE_U64 for shift in range(0, count * _WORD_BITS, _WORD_BITS)]
        words = [word - (1 << _WORD_BITS) if word >= SIGN else word for word in words]
        return _without_zeros(words)
    left = np.zeros(count * _WORD_BITS, np.bool_)
    left[:batch_size] = True
    left[np.array(acked & BitMap(range(batch_size)), np.int64)] = False
    return _without_zeros(np.packbits(left, bitorder="little").view("<i8").tolist())


def _without_zeros(words: list[int]) -> list[int]:
    while words and words[-1] == 0:
        words.pop()
    return words


def acked_indexes(words: Sequence[int], batch_size: int) -> tuple[int, ...]:
    """Return the indexes of a batch's acknowledged messages: their bits in the set ``words`` (see ack_set) are 0."""
    if batch_size <= _WORD_BITS:
        word = words[0] if words else 0
        return tuple([index for index in range(batch_size) if not word >> index & 1])
    given = np.array(words[: -(-batch_size // _WORD_BITS)], "<i8")
    left = np.zeros(batch_size, np.bool_)
    bits = np.unpackbits(given.view(np.uint8), bitorder="little")[:batch_size]
    left[: len(bits)] = bits
    return tuple(np.flatnonzero(~left).tolist())


def first_unacked(words: Sequence[int]) -> int | None:
    """Return the index of the first message of a batch that is not acknowledged by the acknowledgement set ``words``.

    Return None if all messages are acknowledged.
    """
    for number, word in enumerate(words[:_WORDS_MAX]):
        if word:
            return number * _WORD_BITS + (word & -word).bit_length() - 1
    return None
