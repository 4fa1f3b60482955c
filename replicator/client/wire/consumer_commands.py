"""Commands of a consumer, made from its settings and its channel's calls. Sans-IO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pyroaring import BitMap

from replicator.client.settings import ConsumerSettings
from replicator.engine.log.entry import BATCH_MESSAGES_MAX
from replicator.engine.types import Ack, InitialPosition, SubscribeOptions, SubscriptionType
from replicator.metadata.metadata_pb2 import KeyValue
from replicator.protocol.commands_pb2 import (
    BaseCommand,
    CommandAck,
    CommandCloseConsumer,
    CommandSeek,
    CommandSubscribe,
    IntRange,
    KeySharedMeta,
    KeySharedMode,
    MessageIdData,
)
from replicator.protocol.values import ack_set, message_id
from snapshots.position import BEFORE_ALL, Position

T = BaseCommand.Type
_TYPES: Final = {
    SubscriptionType.EXCLUSIVE: CommandSubscribe.SubType.Exclusive,
    SubscriptionType.SHARED: CommandSubscribe.SubType.Shared,
    SubscriptionType.FAILOVER: CommandSubscribe.SubType.Failover,
    SubscriptionType.KEY_SHARED: CommandSubscribe.SubType.Key_Shared,
}
_INITIAL: Final = {
    InitialPosition.LATEST: CommandSubscribe.InitialPosition.Latest,
    InitialPosition.EARLIEST: CommandSubscribe.InitialPosition.Earliest,
}


def subscribing(
    settings: ConsumerSettings, consumer_id: int, request_id: int, start: Position | None, *, epoch: int, extended: bool
) -> BaseCommand:
    """Make SUBSCRIBE. ``start`` is where a subscription that is not durable continues; ``extended`` asks for our
    additions."""
    options = settings.options()
    command = CommandSubscribe(
        topic=settings.topic,
        subscription=settings.subscription,
        subType=_TYPES[options.type],
        consumer_id=consumer_id,
        request_id=request_id,
        consumer_name=options.consumer_name,
        priority_level=options.priority,
        durable=options.durable,
        read_compacted=options.read_compacted,
        initialPosition=_INITIAL[options.initial],
        force_topic_creation=settings.create_topic,
        metadata=_pairs(options.consumer_properties),
        subscription_properties=_pairs(options.subscription_properties),
        consumer_epoch=epoch,
    )
    if options.start is not None and start is None:
        start = Position(options.start.ledger, options.start.entry + 1)
    if start is not None and (options.start is not None or not options.durable):
        command.start_message_id.CopyFrom(_place(start))
    if options.replicated is not None:
        command.replicate_subscription_state = options.replicated
    if options.type is SubscriptionType.KEY_SHARED:
        command.keySharedMeta.CopyFrom(_key_shared(options))
    if extended:
        command.extended = True
    return BaseCommand(type=T.SUBSCRIBE, subscribe=command)


def acknowledging(consumer_id: int, acks: Sequence[Ack]) -> CommandAck:
    """Make the command of individual acknowledgements, without a request id."""
    command = CommandAck(consumer_id=consumer_id, ack_type=CommandAck.AckType.Individual)
    for ack in acks:
        one = command.message_id.add(ledgerId=ack.position.ledger, entryId=ack.position.entry)
        if ack.batch_indexes is not None:
            one.ack_set.extend(ack_set(BitMap(ack.batch_indexes), ack.batch_size or BATCH_MESSAGES_MAX))
            one.batch_size = ack.batch_size
    return command


def seeking(consumer_id: int, request_id: int, target: Position | int) -> BaseCommand:
    """Make SEEK to a position, or to a publish time in milliseconds."""
    command = CommandSeek(consumer_id=consumer_id, request_id=request_id)
    if isinstance(target, Position):
        command.message_id.CopyFrom(_place(target))
    else:
        command.message_publish_time = target
    return BaseCommand(type=T.SEEK, seek=command)


def closing(consumer_id: int, request_id: int) -> BaseCommand:
    """Make CLOSE_CONSUMER."""
    command = CommandCloseConsumer(consumer_id=consumer_id, request_id=request_id)
    return BaseCommand(type=T.CLOSE_CONSUMER, close_consumer=command)


def _place(position: Position) -> MessageIdData:
    """Return the entry at ``position`` as a place to continue from; "earliest" if it is not above entry 0:0."""
    return message_id(BEFORE_ALL if position <= Position(0, 0) else position, -1)


def _key_shared(options: SubscribeOptions) -> KeySharedMeta:
    policy = options.key_shared
    meta = KeySharedMeta(
        keySharedMode=KeySharedMode.AUTO_SPLIT if policy.sticky_ranges is None else KeySharedMode.STICKY,
        allowOutOfOrderDelivery=policy.allow_out_of_order_delivery,
    )
    meta.hashRanges.extend(IntRange(start=start, end=end) for start, end in policy.sticky_ranges or ())
    return meta


def _pairs(properties: Mapping[str, str]) -> list[KeyValue]:
    return [KeyValue(key=key, value=value) for key, value in properties.items()]
