"""The figures of a topic under the names that Pulsar's tools read. Pure but for what it asks of the topic.

Every name that Pulsar 4.0 answers is there, because tools in dynamic languages take it that it is. What the engine does
not count is 0 (:data:`UNCOUNTED`, :data:`UNCOUNTED_OF_SUBSCRIPTION` and so on): readers of Pulsar's figures take what
is missing as 0 too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from replicator.engine.client_figures import Counts, total
from replicator.engine.producing.producers import EngineProducer
from replicator.engine.subscriptions.consumer import EngineConsumer
from replicator.engine.subscriptions.subscription import Subscription
from replicator.engine.topic import Topic
from replicator.engine.types import ClientInfo, SubscriptionType
from snapshots.position import Position

NO_TYPE: Final = "None"
"""Type shown for a subscription without consumers."""
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
YEAR_10000_MS: Final = 253_402_300_800_000
"""First time that has no date: publish times are whatever producers say."""
NO_LIMIT: Final = -1
BytesAfter = Callable[[Position], int]

UNCOUNTED: Final[Mapping[str, Any]] = {
    "systemTopicBytesInCounter": 0,
    "bytesOutInternalCounter": 0,
    "msgChunkPublished": False,
    "oldestBacklogMessageAgeSeconds": -1,
    "publishRateLimitedTimes": 0,
    "earliestMsgPublishTimeInBacklogs": 0,
    "offloadedStorageSize": 0,
    "lastOffloadLedgerId": 0,
    "lastOffloadSuccessTimeStamp": 0,
    "lastOffloadFailureTimeStamp": 0,
    "ongoingTxnCount": 0,
    "abortedTxnCount": 0,
    "committedTxnCount": 0,
    "delayedMessageIndexSizeInBytes": 0,
    "nonContiguousDeletedMessagesRangesSerializedSize": 0,
}
"""Figures of a topic that are not counted here, with the value to show."""
UNCOUNTED_OF_SUBSCRIPTION: Final[Mapping[str, Any]] = {
    "chunkedMessageRate": 0.0,
    "earliestMsgPublishTimeInBacklog": 0,
    "msgRateExpired": 0.0,
    "totalMsgExpired": 0,
    "lastExpireTimestamp": 0,
    "lastConsumedFlowTimestamp": 0,
    "lastConsumedTimestamp": 0,
    "lastAckedTimestamp": 0,
    "lastMarkDeleteAdvancedTimestamp": 0,
    "consumersAfterMarkDeletePosition": {},
    "drainingHashesClearedTotal": 0,
    "drainingHashesUnackedMessages": 0,
    "nonContiguousDeletedMessagesRangesSerializedSize": 0,
    "delayedMessageIndexSizeInBytes": 0,
    "filterProcessedMsgCount": 0,
    "filterAcceptedMsgCount": 0,
    "filterRejectedMsgCount": 0,
    "filterRescheduledMsgCount": 0,
}
UNCOUNTED_OF_CONSUMER: Final[Mapping[str, Any]] = {
    "chunkedMessageRate": 0.0,
    "avgMessagesPerEntry": 0,
    "drainingHashesCount": 0,
    "drainingHashesClearedTotal": 0,
    "drainingHashesUnackedMessages": 0,
    "lastAckedTimestamp": 0,
    "lastConsumedTimestamp": 0,
    "lastConsumedFlowTimestamp": 0,
    "lastAckedTime": "1970-01-01T00:00:00Z",
    "lastConsumedTime": "1970-01-01T00:00:00Z",
}
UNCOUNTED_OF_PUBLISHER: Final[Mapping[str, Any]] = {
    "chunkedMessageRate": 0.0,
    "supportsPartialProducer": False,
}
NO_COMPACTION_FIGURES: Final[Mapping[str, int]] = {
    "lastCompactionRemovedEventCount": 0,
    "lastCompactionSucceedTimestamp": 0,
    "lastCompactionFailedTimestamp": 0,
    "lastCompactionDurationTimeInMills": 0,
}

_OUT: Final = ("msgRateOut", "msgThroughputOut", "bytesOutCounter", "msgOutCounter")
_SUMMED: Final = (
    *_OUT,
    "msgInCounter",
    "msgRateIn",
    "msgThroughputIn",
    "bytesInCounter",
    "storageSize",
    "backlogSize",
    "waitingPublishers",
    "nonContiguousDeletedMessagesRanges",
)
_SUBSCRIPTION_SUMMED: Final = (
    *_OUT,
    "msgRateRedeliver",
    "messageAckRate",
    "msgBacklog",
    "msgBacklogNoDelayed",
    "backlogSize",
    "unackedMessages",
    "msgDelayed",
    "msgInReplay",
    "drainingHashesCount",
    "nonContiguousDeletedMessagesRanges",
)


def topic_stats(
    topic: Topic, *, rate_in: float, storage_bytes: int, bytes_after: BytesAfter, broker: str
) -> dict[str, Any]:
    """Return the answer of ``GET …/stats``. ``bytes_after`` tells how many bytes lie above a position."""
    subscriptions = {name: subscription_stats(each, bytes_after) for name, each in sorted(topic.subscriptions.items())}
    entries_bytes = storage_bytes / topic.log.messages if topic.log.messages else 0.0
    quota = topic.policies.effective.backlog_quota
    now = time.monotonic()
    publishers = [_publisher(topic, each, now) for each in topic.producers.publishers()]
    epoch = topic.producers.registry.epoch
    return {
        **UNCOUNTED,
        **{field: sum(each[field] for each in subscriptions.values()) for field in _OUT},
        "msgRateIn": round(rate_in, 3),
        "msgThroughputIn": round(rate_in * entries_bytes, 3),
        "bytesInCounter": storage_bytes,
        "msgInCounter": topic.log.messages,
        "averageMsgSize": round(entries_bytes, 3),
        "storageSize": storage_bytes,
        "backlogSize": max((each["backlogSize"] for each in subscriptions.values()), default=0),
        "backlogQuotaLimitSize": NO_LIMIT if quota.bytes_max is None else quota.bytes_max,
        "backlogQuotaLimitTime": NO_LIMIT if quota.age_seconds_max is None else quota.age_seconds_max,
        "publishers": publishers,
        "waitingPublishers": topic.producers.connected - len(publishers),
        "subscriptions": subscriptions,
        "replication": {},
        "deduplicationStatus": "Enabled" if topic.policies.effective.deduplication else "Disabled",
        "nonContiguousDeletedMessagesRanges": sum(
            each["nonContiguousDeletedMessagesRanges"] for each in subscriptions.values()
        ),
        "compaction": dict(NO_COMPACTION_FIGURES),
        "ownerBroker": broker,
        **({} if epoch is None else {"topicEpoch": epoch}),
    }


def subscription_stats(subscription: Subscription, bytes_after: BytesAfter) -> dict[str, Any]:
    """Return the figures of one subscription."""
    status = subscription.status()
    connected = list(subscription.consumers.values())
    now = time.monotonic()
    rates = [each.figures.rates(now) for each in connected]
    counts = total((subscription.dispatching.gone, *(each.figures.counts for each in connected)))
    consumers = [_consumer(*each) for each in zip(status["consumers"], connected, rates, strict=False)]
    unacked = status.get("unacked_messages", sum(each["unackedMessages"] for each in consumers))
    delayed = status.get("delayed_entries", 0)
    replicated, durable = status["replicated"], status["durable"]
    return {
        **UNCOUNTED_OF_SUBSCRIPTION,
        **_taken(total(rates), counts),
        "msgBacklog": status["backlog_messages"],
        "msgBacklogNoDelayed": max(0, status["backlog_messages"] - delayed),
        "backlogSize": bytes_after(subscription.cursor.mark_delete),
        "type": status["type"] or NO_TYPE,
        "isReplicated": replicated,
        "replicated": replicated,
        "isDurable": durable,
        "durable": durable,
        "unackedMessages": unacked,
        "blockedSubscriptionOnUnackedMsgs": bool(status.get("blocked_on_unacked", False)),
        "msgDelayed": delayed,
        "msgInReplay": status.get("replay_entries", 0),
        **({"activeConsumerName": status["active_consumer"]} if status["active_consumer"] else {}),
        "drainingHashesCount": status.get("draining_hashes", 0),
        "nonContiguousDeletedMessagesRanges": _ranges_count(subscription),
        "subscriptionProperties": dict(subscription.cursor.state.properties),
        "consumers": consumers,
        **_key_shared(status["type"], connected),
    }


def partitioned_stats(found: Mapping[str, Mapping[str, Any]], *, partitions: int, each: bool) -> dict[str, Any]:
    """Return the sums of the figures in ``found``, by partition. With ``each``, also those of each partition."""
    stats: dict[str, Any] = {**UNCOUNTED, **{field: sum(one[field] for one in found.values()) for field in _SUMMED}}
    stats["averageMsgSize"] = stats["storageSize"] / stats["msgInCounter"] if stats["msgInCounter"] else 0.0
    for field in ("backlogQuotaLimitSize", "backlogQuotaLimitTime"):
        stats[field] = max((one[field] for one in found.values()), default=NO_LIMIT)
    stats["publishers"] = [publisher for one in found.values() for publisher in one["publishers"]]
    stats["subscriptions"] = _merged(one["subscriptions"] for one in found.values())
    stats["replication"] = {}
    stats["compaction"] = dict(NO_COMPACTION_FIGURES)
    stats["metadata"] = {"partitions": partitions, "deleted": False}
    stats["partitions"] = dict(found) if each else {}
    return stats


def _merged(all_subscriptions: Iterable[Mapping[str, Mapping[str, Any]]]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for subscriptions in all_subscriptions:
        for name, one in subscriptions.items():
            total = merged.get(name)
            if total is None:
                merged[name] = {**one, "consumers": list(one["consumers"])}
                continue
            for field in _SUBSCRIPTION_SUMMED:
                total[field] += one[field]
            total["consumers"] += one["consumers"]
            total["blockedSubscriptionOnUnackedMsgs"] |= one["blockedSubscriptionOnUnackedMsgs"]
            if total["type"] == NO_TYPE:
                total["type"] = one["type"]
    return merged


def _key_shared(kind: str | None, consumers: Iterable[EngineConsumer]) -> dict[str, Any]:
    policy = next((each.options.key_shared for each in consumers), None)
    if kind != SubscriptionType.KEY_SHARED.value or policy is None:
        return {"allowOutOfOrderDelivery": False}
    return {
        "allowOutOfOrderDelivery": policy.allow_out_of_order_delivery,
        "keySharedMode": "AUTO_SPLIT" if policy.sticky_ranges is None else "STICKY",
    }


def _publisher(topic: Topic, producer: EngineProducer, now: float) -> dict[str, Any]:
    rates = producer.figures.rates(now)
    return {
        **UNCOUNTED_OF_PUBLISHER,
        "msgRateIn": round(rates.messages, 3),
        "msgThroughputIn": round(rates.bytes, 3),
        "averageMsgSize": round(rates.bytes / rates.messages, 3) if rates.messages else 0.0,
        "producerId": producer.id,
        "producerName": producer.name,
        "accessMode": "Exclusive" if topic.producers.registry.exclusive else "Shared",
        "metadata": dict(producer.options.properties),
        **_client(producer.options.client),
    }


def _taken(rates: Counts, counts: Counts) -> dict[str, Any]:
    """Return rates and counts of messages that consumers received and acknowledged."""
    return {
        "msgRateOut": round(rates.messages, 3),
        "msgThroughputOut": round(rates.bytes, 3),
        "bytesOutCounter": int(counts.bytes),
        "msgOutCounter": int(counts.messages),
        "msgRateRedeliver": round(rates.redelivered, 3),
        "messageAckRate": round(rates.acknowledged, 3),
    }


def _consumer(status: Mapping[str, Any], consumer: EngineConsumer, rates: Counts) -> dict[str, Any]:
    return {
        **UNCOUNTED_OF_CONSUMER,
        **_taken(rates, consumer.figures.counts),
        "consumerName": status["name"],
        "availablePermits": status["permits"],
        "unackedMessages": status["unacked_messages"],
        "blockedConsumerOnUnackedMsgs": status["blocked_on_unacked"],
        "metadata": dict(consumer.options.consumer_properties),
        **_client(consumer.options.client),
    }


def _client(client: ClientInfo | None) -> dict[str, str]:
    """Return address and version of a producer's or consumer's client; nothing for a client in the worker's own
    process.
    """
    if client is None:
        return {}
    connected = iso_time(client.connected_at_ms)
    return {"address": client.address, "clientVersion": client.software, "connectedSince": connected}


def _ranges_count(subscription: Subscription) -> int:
    return sum(1 for _ in subscription.cursor.state.individually_deleted.runs())


def iso_time(time_ms: int) -> str:
    """Return a time as in Pulsar's headers: ISO 8601 with milliseconds, in UTC. A number that is not a valid time is
    shown as it is.
    """
    if not 0 <= time_ms < YEAR_10000_MS:
        return str(time_ms)
    time = EPOCH + timedelta(milliseconds=time_ms)  # not by a division: seconds with a fraction lose the millisecond
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
