"""The inside of a topic under the names that Pulsar's tools read: its log's ledgers, and its subscriptions' cursors."""

from __future__ import annotations

from itertools import islice
from typing import Any, Final
from urllib.parse import quote_plus

from replicator.api.admin.topic_stats import BytesAfter, iso_time
from replicator.engine.subscriptions.subscription import Subscription
from replicator.engine.topic import Topic
from snapshots.position import BEFORE_ALL, Position

RANGES_SHOWN_MAX: Final = 100_000
"""Limit of ranges listed for one cursor: so many hold up the event loop for a tenth of a second. Brokers of Apache
Pulsar list all.
"""
NO_LEDGER: Final = -1
"""Cursors and schemas have no ledgers of their own: they are in the worker's store."""


def internal_stats(topic: Topic, *, storage_bytes: int, bytes_after: BytesAfter, started_at_ms: int) -> dict[str, Any]:
    """Return the answer of ``GET …/internalStats``. ``bytes_after`` tells how many bytes lie above a position."""
    compacted = topic.compaction.state
    ledgers = [
        {
            "ledgerId": ledger,
            "entries": entries,
            "size": bytes_after(Position(ledger, -1)) - bytes_after(Position(ledger + 1, -1)),
            "offloaded": False,
            "underReplicated": False,
        }
        for ledger, entries in topic.log.ledgers()
    ]
    return {
        "entriesAddedCounter": topic.log.entries,
        "numberOfEntries": topic.log.entries,
        "totalSize": storage_bytes,
        "currentLedgerEntries": ledgers[-1]["entries"] if ledgers else 0,
        "currentLedgerSize": ledgers[-1]["size"] if ledgers else 0,
        "lastLedgerCreatedTimestamp": iso_time(started_at_ms),
        "waitingCursorsCount": 0,
        "pendingAddEntriesCount": 0,
        "lastConfirmedEntry": str(topic.log.last),
        "state": "Terminated" if topic.log.terminated else "LedgerOpened",
        "ledgers": ledgers,
        "cursors": {
            _cursor_name(name): _cursor(topic, subscription, started_at_ms)
            for name, subscription in sorted(topic.subscriptions.items())
        },
        "schemaLedgers": [],
        "compactedLedger": {
            "ledgerId": compacted.generation or NO_LEDGER,
            "entries": compacted.entries or -1,
            "size": compacted.size_bytes or -1,
            "offloaded": False,
            "underReplicated": False,
        },
    }


def ledger_info(topic: Topic) -> dict[str, Any]:
    """Return the answer of ``GET …/internal-info``: ledgers and cursors as they are stored."""
    return {
        "version": 1,
        "ledgers": [
            {"ledgerId": ledger, "entries": entries, "isOffloaded": False} for ledger, entries in topic.log.ledgers()
        ],
        "cursors": {
            _cursor_name(name): {
                "version": subscription.cursor.generation,
                "cursorsLedgerId": NO_LEDGER,
                "markDelete": _as_object(subscription.cursor.mark_delete),
                **({"properties": {"pulsar.replicated.subscription": 1}} if subscription.replicated else {}),
                "individualDeletedMessages": [
                    {
                        "lowerEndpoint": _as_object(Position(first.ledger, first.entry - 1)),
                        "upperEndpoint": _as_object(last),
                    }
                    for first, last in islice(subscription.cursor.state.individually_deleted.runs(), RANGES_SHOWN_MAX)
                ],
            }
            for name, subscription in sorted(topic.subscriptions.items())
            if subscription.durable
        },
    }


def _cursor_name(subscription: str) -> str:
    """Return the name of a subscription's cursor as Apache Pulsar's brokers write it: form-encoded."""
    return quote_plus(subscription, safe="*").replace("~", "%7E")


def _cursor(topic: Topic, subscription: Subscription, started_at_ms: int) -> dict[str, Any]:
    cursor = subscription.cursor
    left = cursor.backlog_entries()
    return {
        "markDeletePosition": str(cursor.mark_delete),
        "readPosition": str(topic.log.next_after(cursor.mark_delete) or _after(topic.log.last)),
        "waitingReadOp": bool(subscription.consumers) and not left,
        "pendingReadOps": 0,
        "messagesConsumedCounter": topic.log.entries - left,
        "cursorLedger": NO_LEDGER,
        "cursorLedgerLastEntry": -1,
        "individuallyDeletedMessages": _ranges(subscription),
        "lastLedgerSwitchTimestamp": iso_time(started_at_ms),
        "state": "Open",
        "active": bool(subscription.consumers),
        "numberOfEntriesSinceFirstNotAckedMessage": left + len(cursor.state.individually_deleted),
        "totalNonContiguousDeletedMessagesRange": sum(1 for _ in cursor.state.individually_deleted.runs()),
        "subscriptionHavePendingRead": False,
        "subscriptionHavePendingReplayRead": False,
        "properties": {},
    }


def _ranges(subscription: Subscription) -> str:
    """Return the first runs of individually deleted entries as text. Each run is a range, open at its lower end."""
    runs = islice(subscription.cursor.state.individually_deleted.runs(), RANGES_SHOWN_MAX + 1)
    shown = [f"({first.ledger}:{first.entry - 1}..{last}]" for first, last in runs]
    if len(shown) > RANGES_SHOWN_MAX:
        shown[-1] = "…"
    return f"[{','.join(shown)}]"


def _after(position: Position) -> Position:
    return position if position == BEFORE_ALL else Position(position.ledger, position.entry + 1)


def _as_object(position: Position) -> dict[str, int]:
    return {"ledgerId": position.ledger, "entryId": position.entry}
