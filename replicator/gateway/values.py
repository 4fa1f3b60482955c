"""Values of the protocol as the engine has them, and back: positions, acknowledgement sets, options. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyroaring import BitMap

from replicator.engine.types import (
    AccessMode,
    HashRange,
    InitialPosition,
    KeySharedPolicy,
    ProducerOptions,
    SubscribeOptions,
    SubscriptionType,
)
from replicator.protocol.commands_pb2 import (
    CommandProducer,
    CommandSubscribe,
    KeySharedMode,
    MessageIdData,
)
from snapshots.position import BEFORE_ALL, Position

NONE_U64: Final = 2**64 - 1
"""-1 as clients write it: of a message that is stored nowhere new, and of "before everything"."""
_SIGN: Final = 2**63
_WORD_BITS: Final = 64

_TYPES: Final = {
    CommandSubscribe.SubType.Exclusive: SubscriptionType.EXCLUSIVE,
    CommandSubscribe.SubType.Shared: SubscriptionType.SHARED,
    CommandSubscribe.SubType.Failover: SubscriptionType.FAILOVER,
    CommandSubscribe.SubType.Key_Shared: SubscriptionType.KEY_SHARED,
}
_MODES: Final = tuple(AccessMode)


def message_id(position: Position, partition: int, batch_index: int = -1) -> MessageIdData:
    """An entry's position as clients see it; ``BEFORE_ALL``, of what is stored nowhere, is -1:-1."""
    if position == BEFORE_ALL:
        return MessageIdData(ledgerId=NONE_U64, entryId=NONE_U64, partition=partition, batch_index=batch_index)
    return MessageIdData(ledgerId=position.ledger, entryId=position.entry, partition=partition, batch_index=batch_index)


def position_of(message: MessageIdData) -> Position:
    """A client's position; "earliest" (-1:-1) is before all."""
    if message.ledgerId >= _SIGN:
        return BEFORE_ALL
    return Position(message.ledgerId, -1 if message.entryId >= _SIGN else message.entryId)


def start_of(message: MessageIdData) -> Position:
    """The last position that is not sent to a reader which starts at ``message``.

    The entry that it names is sent: as upstream, it is the client that drops what it does not want of it, which is
    nothing of it, some of its batch, or all.
    """
    position = position_of(message)
    if position.entry >= 0:
        return Position(position.ledger, position.entry - 1)
    return position


def ack_set(acked: BitMap, batch_size: int) -> list[int]:
    """One bit a message of a batch, set while it is not acknowledged; in signed words of 64 bits."""
    bits = (1 << batch_size) - 1
    for index in acked:
        bits &= ~(1 << index)
    words = []
    for _ in range(-(-batch_size // _WORD_BITS)):
        word = bits & NONE_U64
        words.append(word - (1 << _WORD_BITS) if word >= _SIGN else word)
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


def subscribe_options(command: CommandSubscribe) -> SubscribeOptions:
    """What a client asks for as it subscribes."""
    key_shared = KeySharedPolicy()
    if command.HasField("keySharedMeta"):
        meta = command.keySharedMeta
        sticky = meta.keySharedMode == KeySharedMode.STICKY
        key_shared = KeySharedPolicy(
            tuple(HashRange(each.start, each.end) for each in meta.hashRanges) if sticky else None,
            meta.allowOutOfOrderDelivery,
        )
    return SubscribeOptions(
        type=_TYPES[command.subType],
        consumer_name=command.consumer_name,
        priority=command.priority_level,
        key_shared=key_shared,
        consumer_properties={each.key: each.value for each in command.metadata},
        initial=(
            InitialPosition.EARLIEST
            if command.initialPosition == CommandSubscribe.InitialPosition.Earliest
            else InitialPosition.LATEST
        ),
        start=start_of(command.start_message_id) if command.HasField("start_message_id") else None,
        durable=command.durable,
        replicated=command.replicate_subscription_state if command.HasField("replicate_subscription_state") else None,
        read_compacted=command.read_compacted,
        subscription_properties={each.key: each.value for each in command.subscription_properties},
    )


def producer_options(command: CommandProducer) -> ProducerOptions:
    """What a client asks for as it produces."""
    return ProducerOptions(
        name=command.producer_name or None,
        access_mode=_MODES[command.producer_access_mode],
        topic_epoch=command.topic_epoch if command.HasField("topic_epoch") else None,
        properties={each.key: each.value for each in command.metadata},
    )
