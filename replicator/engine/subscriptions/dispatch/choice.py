"""Choice of the dispatcher for a subscription type."""

from __future__ import annotations

from replicator.engine.policies import TopicPolicies
from replicator.engine.subscriptions.dispatch.dispatcher import Dispatcher
from replicator.engine.subscriptions.dispatch.key_shared import KeySharedDispatcher
from replicator.engine.subscriptions.dispatch.plan import UnackedLimits
from replicator.engine.subscriptions.dispatch.shared import SharedDispatcher
from replicator.engine.subscriptions.dispatch.single_active import SingleActiveDispatcher
from replicator.engine.types import SubscriptionType
from snapshots.position import Position


def make_dispatcher(
    subscription_type: SubscriptionType,
    read_position: Position,
    *,
    policies: TopicPolicies,
    topic: str,
    partition: int,
) -> Dispatcher:
    """Return a dispatcher without consumers that reads from after ``read_position``."""
    if subscription_type.one_active:
        return SingleActiveDispatcher(subscription_type, read_position, topic=topic, partition=partition)
    limits = unacked_limits(policies)
    if subscription_type is SubscriptionType.SHARED:
        return SharedDispatcher(read_position, limits=limits)
    return KeySharedDispatcher(
        read_position,
        assignment=policies.key_assignment,
        ordering=policies.key_ordering,
        limits=limits,
    )


def unacked_limits(policies: TopicPolicies) -> UnackedLimits:
    return UnackedLimits(
        policies.max_unacked_messages_per_consumer,
        policies.max_unacked_messages_per_subscription,
    )
