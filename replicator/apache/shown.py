"""Statistics of topics as the admin API of Apache Pulsar's brokers shows them, as values. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import unquote_plus

from replicator.apache.broker_cursor import parse_position
from replicator.apache.errors import AdminFailed
from snapshots.position import BEFORE_ALL, Position


@dataclass(frozen=True, slots=True)
class TopicInternals:
    """The internal statistics of one topic."""

    last: Position
    """Position of the last durable entry."""
    pending: int
    """Number of entries that are being stored."""
    load: str
    """Text that changes each time that a broker loads the topic."""
    cursors: Mapping[str, Mapping[str, Any]]
    """Cursors by the name of their subscription, or of their reader."""
    last_entries: Mapping[int, int]
    """Number of the last entry of each ledger. The ledger of :attr:`last` is included, even if it was deleted."""
    ledgers: frozenset[int] = frozenset()
    """Ids of the ledgers that the topic has."""
    entries: int = 1
    """Number of stored entries. It is 0 if all entries were deleted, even though ``last`` still has a position."""

    added: int = 0
    """Number of entries that were added since a broker loaded the topic."""

    @property
    def gone(self) -> Position:
        """Return the place before the oldest ledger's first entry; the brokers have deleted every earlier entry.

        Return BEFORE_ALL if the topic has no ledger.
        """
        return Position(min(self.ledgers), -1) if self.ledgers else BEFORE_ALL

    @property
    def last_there(self) -> Position:
        """Return the position of the last entry that the topic has; BEFORE_ALL if it has none.

        Brokers that load a topic show a :attr:`last` in a new ledger without entries.
        """
        there = [Position(ledger, last) for ledger, last in self.last_entries.items() if ledger in self.ledgers]
        return max((each for each in there if each.entry >= 0), default=BEFORE_ALL)


@dataclass(frozen=True, slots=True)
class SubscriptionShown:
    """A subscription, in the statistics of its topic."""

    type: str
    """Type of its present or last consumers, such as ``Shared``; empty if none came since the topic was loaded."""
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ConsumersShown:
    """The consumers of one subscription, in the statistics of its topic."""

    unacknowledged: int
    """Messages that the consumers hold. Brokers count them for Shared and Key_Shared subscriptions only."""
    backlog: int


@dataclass(frozen=True, slots=True)
class EntryProperties:
    """Properties of the entry that the brokers show at a position, to tell it from others. Unknown texts are empty."""

    there: bool
    publish_time: str = ""
    sequence_id: str = ""

    @property
    def differs(self) -> str:
        """Return a sentence that says what the brokers show instead of the entry that was expected."""
        if not self.there:
            return "that entry is not there"
        return f"another entry is there, number {self.sequence_id or '?'}, published at {self.publish_time or '?'}"

    def may_be(self, publish_time_ms: int, sequence_id: int) -> bool:
        """Return whether this can be the entry with that publish time and sequence id."""
        if not self.there:
            return False
        if self.sequence_id and self.sequence_id != str(sequence_id):
            return False
        try:
            shown = datetime.fromisoformat(self.publish_time)
        except ValueError:
            return True
        return shown.tzinfo is None or abs(shown.timestamp() * 1000 - publish_time_ms) < 1000


def internals_of(topic: str, answer: Any) -> TopicInternals:
    """Read the internal statistics of ``topic`` from the brokers' ``answer``, and return them.

    Raises :class:`AdminFailed` if the answer lacks a value, or has one that cannot be read.
    """
    try:
        last = parse_position(answer["lastConfirmedEntry"])
        ledgers = answer["ledgers"]
        last_entries = {int(each["ledgerId"]): int(each["entries"]) - 1 for each in ledgers}
        last_entries[last.ledger] = max(last.entry, last_entries.get(last.ledger, -1))
        # A topic that is loaded opens a ledger of its own: so its creation tells one loading from another.
        load = f"{answer['lastLedgerCreatedTimestamp']}"
        pending, entries = int(answer["pendingAddEntriesCount"]), int(answer["numberOfEntries"])
        there = frozenset(int(each["ledgerId"]) for each in ledgers)
        cursors = _by_subscription(answer["cursors"])
        added = int(answer.get("entriesAddedCounter", 0))
        return TopicInternals(last, pending, load, cursors, last_entries, there, entries, added)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise AdminFailed(
            f"the internal statistics of {topic} at the brokers lack what the bridge needs ({error!r}): see that "
            "`admin_url` leads to a Pulsar broker, of a version that the bridge knows"
        ) from None


def _by_subscription(cursors: Mapping[str, Any]) -> dict[str, Any]:
    """Return cursors by the name of their subscription, or of their reader.

    Brokers encode the name of a subscription as in a form, and leave the name of a reader as it is. If a subscription
    and a reader have the same name, return the subscription's cursor.
    """
    named = [(unquote_plus(name), name) for name in cursors]
    return {subscription: cursors[name] for subscription, name in sorted(named, key=lambda each: each[0] != each[1])}
