"""The figures of a topic under the names that Pulsar's tools read. Pure but for what it asks of the topic.

What the engine does not count is left out, not made up: throughput, rates of what goes out, times of the last flow and
acknowledgement. Readers of Pulsar's figures take what is missing as 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Final

from replicator.engine.subscriptions.subscription import Subscription
from replicator.engine.topic import Topic
from snapshots.position import Position

NO_TYPE: Final = "None"
"""Of a subscription without consumers."""
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
YEAR_10000_MS: Final = 253_402_300_800_000
"""From here on there are no dates; a publish time is whatever a producer says."""
RANGES_SHOWN_MAX: Final = 1_000
"""Of one cursor: it may have a hundred thousand, and listing them holds up the event loop."""
BytesAfter = Callable[[Position], int]

_SUMMED: Final = ("msgInCounter", "msgRateIn", "storageSize", "backlogSize")
_SUBSCRIPTION_SUMMED: Final = ("msgBacklog", "backlogSize", "unackedMessages", "msgDelayed")


def topic_stats(topic: Topic, *, rate_in: float, storage_bytes: int, bytes_after: BytesAfter) -> dict[str, Any]:
    """As ``GET …/stats`` gives them; ``bytes_after`` says how many bytes lie above a position."""
    subscriptions = {name: subscription_stats(each, bytes_after) for name, each in sorted(topic.subscriptions.items())}
    return {
        "msgRateIn": round(rate_in, 3),
        "msgInCounter": topic.log.messages,
        "storageSize": storage_bytes,
        "backlogSize": max((each["backlogSize"] for each in subscriptions.values()), default=0),
        "publishers": _publishers(topic),
        "subscriptions": subscriptions,
        "replication": {},
        "deduplicationStatus": "Enabled" if topic.policies.effective.deduplication else "Disabled",
        "topicEpoch": topic.producers.registry.epoch,
    }


def subscription_stats(subscription: Subscription, bytes_after: BytesAfter) -> dict[str, Any]:
    """The figures of one subscription."""
    status = subscription.status()
    consumers = [_consumer(each) for each in status["consumers"]]
    unacked = status.get("unacked_messages", sum(each["unackedMessages"] for each in consumers))
    return {
        "msgBacklog": status["backlog_messages"],
        "backlogSize": bytes_after(subscription.cursor.mark_delete),
        "type": status["type"] or NO_TYPE,
        "isReplicated": status["replicated"],
        "isDurable": status["durable"],
        "unackedMessages": unacked,
        "blockedSubscriptionOnUnackedMsgs": bool(status.get("blocked_on_unacked", False)),
        "msgDelayed": status.get("delayed_entries", 0),
        "activeConsumerName": status["active_consumer"] or "",
        "subscriptionProperties": dict(subscription.cursor.state.properties),
        "consumers": consumers,
    }


def internal_stats(topic: Topic, *, storage_bytes: int) -> dict[str, Any]:
    """As ``GET …/internalStats`` gives them: the log's ledgers and the subscriptions' cursors."""
    compacted = topic.compaction.state
    return {
        "entriesAddedCounter": topic.log.entries,
        "numberOfEntries": topic.log.entries,
        "totalSize": storage_bytes,
        "lastConfirmedEntry": str(topic.log.last),
        "state": "LedgerOpened",
        "ledgers": [{"ledgerId": ledger, "entries": entries} for ledger, entries in topic.log.ledgers()],
        "cursors": {
            name: {
                "markDeletePosition": str(subscription.cursor.mark_delete),
                "individuallyDeletedMessages": _ranges(subscription),
                "numberOfEntriesSinceFirstNotAckedMessage": subscription.cursor.backlog_entries()
                + len(subscription.cursor.state.individually_deleted),
                "state": "Open",
                "active": bool(subscription.consumers),
                "properties": {},
            }
            for name, subscription in sorted(topic.subscriptions.items())
        },
        "compactedLedger": {
            "ledgerId": compacted.generation or -1,
            "entries": compacted.entries or -1,
            "size": compacted.size_bytes or -1,
            "offloaded": False,
            "underReplicated": False,
        },
    }


def partitioned_stats(found: Mapping[str, Mapping[str, Any]], *, partitions: int, each: bool) -> dict[str, Any]:
    """The figures of all partitions that were ``found`` together, and with ``each`` those of each beside them."""
    stats: dict[str, Any] = {field: sum(one[field] for one in found.values()) for field in _SUMMED}
    stats["publishers"] = [publisher for one in found.values() for publisher in one["publishers"]]
    stats["subscriptions"] = _merged(one["subscriptions"] for one in found.values())
    stats["replication"] = {}
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


def _publishers(topic: Topic) -> list[dict[str, Any]]:
    mode = "Exclusive" if topic.producers.registry.exclusive else "Shared"
    return [
        {"producerId": producer.id, "producerName": producer.name, "accessMode": mode, "metadata": {}}
        for producer in topic.producers.publishers()
    ]


def _consumer(status: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "consumerName": status["name"],
        "availablePermits": status["permits"],
        "unackedMessages": status["unacked_messages"],
        "blockedConsumerOnUnackedMsgs": status["blocked_on_unacked"],
    }


def _ranges(subscription: Subscription) -> str:
    """The first runs of what is individually deleted, each from the position before it, as an open range."""
    runs = islice(subscription.cursor.state.individually_deleted.runs(), RANGES_SHOWN_MAX + 1)
    shown = [f"({first.ledger}:{first.entry - 1}..{last}]" for first, last in runs]
    if len(shown) > RANGES_SHOWN_MAX:
        shown[-1] = "…"
    return f"[{','.join(shown)}]"


def iso_time(time_ms: int) -> str:
    """A time as Pulsar's headers have it: ISO 8601 with milliseconds, in UTC. A time that is none is shown as it is."""
    if not 0 <= time_ms < YEAR_10000_MS:
        return str(time_ms)
    time = EPOCH + timedelta(milliseconds=time_ms)  # not by a division: seconds with a fraction lose the millisecond
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
