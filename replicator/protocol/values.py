"""Values of the protocol as the engine has them, and back: positions and acknowledgement sets. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyroaring import BitMap

from replicator.protocol.commands_pb2 import MessageIdData
from snapshots.position import BEFORE_ALL, Position

NONE_U64: Final = 2**64 - 1
"""-1 as clients write it: of a message that is stored nowhere new, and of "before everything"."""
SIGN: Final = 2**63
_WORD_BITS: Final = 64


def message_id(position: Position, partition: int, batch_index: int = -1) -> MessageIdData:
    """An entry's position as clients see it; ``BEFORE_ALL``, of what is stored nowhere, is -1:-1."""
    if position == BEFORE_ALL:
        return MessageIdData(ledgerId=NONE_U64, entryId=NONE_U64, partition=partition, batch_index=batch_index)
    entry = NONE_U64 if position.entry < 0 else position.entry
    return MessageIdData(ledgerId=position.ledger, entryId=entry, partition=partition, batch_index=batch_index)


def position_of(message: MessageIdData) -> Position:
    """The position that an id names; "earliest" (-1:-1) is before all."""
    if message.ledgerId >= SIGN:
        return BEFORE_ALL
    return Position(message.ledgerId, -1 if message.entryId >= SIGN else message.entryId)


def ack_set(acked: BitMap, batch_size: int) -> list[int]:
    """One bit a message of a batch, set while it is not acknowledged; in signed words of 64 bits."""
    bits = (1 << batch_size) - 1
    for index in acked:
        bits &= ~(1 << index)
    words = []
    for _ in range(-(-batch_size // _WORD_BITS)):
        word = bits & NONE_U64
        words.append(word - (1 << _WORD_BITS) if word >= SIGN else word)
        bits >>= _WORD_BITS
    while words and words[-1] == 0:
        words.pop()
    return words


def acked_indexes(words: Sequence[int], batch_size: int) -> tuple[int, ...]:
    """The messages of a batch that an acknowledgement set says are done: its bits that are not set."""
    return tuple(
        index
        for index in range(batch_size)
        if index // _WORD_BITS >= len(words) or not words[index // _WORD_BITS] >> (index % _WORD_BITS) & 1
    )


def first_unacked(words: Sequence[int]) -> int | None:
    """The first message of a batch that an acknowledgement set leaves; None if it leaves none."""
    for number, word in enumerate(words):
        if word:
            return number * _WORD_BITS + (word & -word).bit_length() - 1
    return None
