"""Options of clients as they connect, in the engine's form. No I/O."""

from __future__ import annotations

from typing import Final

from replicator.engine.types import (
    AccessMode,
    ClientInfo,
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
)
from snapshots.position import Position

_TYPES: Final = {
    CommandSubscribe.SubType.Exclusive: SubscriptionType.EXCLUSIVE,
    CommandSubscribe.SubType.Shared: SubscriptionType.SHARED,
    CommandSubscribe.SubType.Failover: SubscriptionType.FAILOVER,
    CommandSubscribe.SubType.Key_Shared: SubscriptionType.KEY_SHARED,
}
_MODES: Final = tuple(AccessMode)


def subscribe_options(command: CommandSubscribe, start: Position | None, client: ClientInfo) -> SubscribeOptions:
    """Return the options of a SUBSCRIBE; ``start`` is the last position that is not sent to the client."""
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
        start=start,
        durable=command.durable,
        replicated=command.replicate_subscription_state if command.HasField("replicate_subscription_state") else None,
        read_compacted=command.read_compacted,
        subscription_properties={each.key: each.value for each in command.subscription_properties},
        client=client,
    )


def producer_options(command: CommandProducer, client: ClientInfo) -> ProducerOptions:
    """Return the options of a PRODUCER command."""
    return ProducerOptions(
        name=command.producer_name or None,
        access_mode=_MODES[command.producer_access_mode],
        topic_epoch=command.topic_epoch if command.HasField("topic_epoch") else None,
        properties={each.key: each.value for each in command.metadata},
        client=client,
    )
