"""Rows that wait to be written to the index. Pure; invariant 11: by key, and no more than the limits say.

1. A change replaces the waiting one with its key, so a row that changes a thousand times a second is written once.
2. With a deleted topic, its waiting rows are dropped; later ones are of the topic made anew.
3. Past :data:`WAITING_MAX`, rows that the worker can give again are dropped, and :attr:`Waiting.overflowed` says so.
   Failover epochs and audit entries cannot be given again: the oldest of them are dropped, and counted.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from uuid import UUID

from snapshots.mapping import SnapshotMapping
from snapshots.position import Position
from snapshots.repository import AuditEntry, FailoverEpoch, LinkState, SubscriptionState

WAITING_MAX: Final = 100_000
"""Changes kept while the database is slow: tens of megabytes. Past it the index is behind and is written anew. What a
resync gives does not count: the worker has it in memory already."""
KEPT_MAX: Final = 10_000
"""Failover epochs, and audit entries, that are kept while the database is away: a day of a busy operator."""
BATCH_MAX: Final = 5_000

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(slots=True)
class Changes:
    """Rows to be written, by key. A state that is None is to be deleted."""

    mappings: dict[tuple[str, str, Position], SnapshotMapping] = field(default_factory=dict)
    states: dict[tuple[str, str], SubscriptionState | None] = field(default_factory=dict)
    links: dict[tuple[str, str], LinkState] = field(default_factory=dict)
    epochs: dict[int, FailoverEpoch] = field(default_factory=dict)
    audit: dict[UUID, AuditEntry] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(len(table) for table in self._tables())

    def _tables(self) -> tuple[dict[Any, Any], ...]:
        return self.mappings, self.states, self.links, self.epochs, self.audit

    def take(self, count: int) -> Changes:
        """Remove and return up to ``count`` rows of each table, the oldest first."""
        taken = Changes()
        for mine, theirs in zip(self._tables(), taken._tables(), strict=True):
            for key in list(mine)[:count]:
                theirs[key] = mine.pop(key)
        return taken

    def one_by_one(self) -> Iterable[tuple[str, Changes]]:
        """Yield each row by itself, with its key in words."""
        for at, table in enumerate(self._tables()):
            for key, row in table.items():
                single = Changes()
                single._tables()[at][key] = row
                yield " ".join(map(str, key)) if isinstance(key, tuple) else str(key), single

    def without(self, topics: Iterable[str]) -> Changes:
        """Return the changes without those of ``topics``."""
        gone = frozenset(topics)
        return Changes(
            {key: row for key, row in self.mappings.items() if key[0] not in gone},
            {key: row for key, row in self.states.items() if key[0] not in gone},
            {key: row for key, row in self.links.items() if key[1] not in gone},
            self.epochs,
            self.audit,
        )


class Waiting:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._changes = Changes()
        self.gone_links: dict[str, None] = {}
        """Links whose rows in the database are deleted before the waiting rows are written."""
        self.deleted_topics: dict[str, None] = {}
        """Topics whose rows in the database are deleted before the waiting rows are written."""
        self._stale: set[str] = set()
        """Deleted topics that still have waiting rows from before the deletion."""
        self.overflowed = False
        self.dropped = 0
        """Epochs and audit entries that were lost to the limit."""

    def __len__(self) -> int:
        return len(self._changes)

    def mapping(self, topic: str, mapping: SnapshotMapping) -> None:
        self._of(topic).mappings[topic, mapping.peer, mapping.local] = mapping

    def state(self, topic: str, name: str, state: SubscriptionState | None) -> None:
        self._of(topic).states[topic, name] = state

    def link(self, state: LinkState) -> None:
        self._of(state.topic).links[state.link_key, state.topic] = state

    def link_gone(self, link_key: str) -> None:
        """Drop the waiting rows of a link, and delete those in the database. Later rows are of a link that begins
        anew.
        """
        rows = self._changes.links
        for key in [key for key in rows if key[0] == link_key]:
            del rows[key]
        self.gone_links[link_key] = None

    def epoch(self, epoch: FailoverEpoch) -> None:
        self._changes.epochs[epoch.epoch] = epoch
        self._limit(self._changes.epochs)

    def audit(self, entry: AuditEntry) -> None:
        self._changes.audit[entry.id] = entry
        self._limit(self._changes.audit)

    def topic_deleted(self, topic: str) -> None:
        self.deleted_topics[topic] = None
        self._stale.add(topic)

    def check_limit(self) -> None:
        """Do step 3; not called while a resync gives rows."""
        rows = self._changes
        if len(rows.mappings) + len(rows.states) + len(rows.links) + len(self.deleted_topics) > WAITING_MAX:
            self.clear()
            self.overflowed = True

    def clear(self) -> None:
        """Drop the rows that the worker can give again."""
        self._changes = Changes(epochs=self._changes.epochs, audit=self._changes.audit)
        self.deleted_topics.clear()
        self.gone_links.clear()
        self._stale.clear()

    def take(self) -> Changes:
        """Remove and return a batch; topics that were deleted must have been dealt with."""
        self._drop_stale()
        return self._changes.take(BATCH_MAX)

    def give_back(self, taken: Changes) -> None:
        """Put back rows that could not be written. Newer rows, and later deletions of topics, take precedence."""
        self._drop_stale()
        older, newer = taken.without(self.deleted_topics), self._changes
        older.links = {key: row for key, row in older.links.items() if key[0] not in self.gone_links}
        self._changes = Changes(
            {**older.mappings, **newer.mappings},
            {**older.states, **newer.states},
            {**older.links, **newer.links},
            {**older.epochs, **newer.epochs},
            {**older.audit, **newer.audit},
        )

    def take_deleted_topics(self) -> list[str]:
        """Remove and return a batch of topics whose rows are to be deleted."""
        self._drop_stale()
        topics = list(self.deleted_topics)[:BATCH_MAX]
        for topic in topics:
            del self.deleted_topics[topic]
        return topics

    def give_back_deleted_topics(self, topics: Iterable[str]) -> None:
        self.deleted_topics = {**dict.fromkeys(topics), **self.deleted_topics}

    def _of(self, topic: str) -> Changes:
        if topic in self._stale:
            self._drop_stale()
        return self._changes

    def _drop_stale(self) -> None:
        """Drop the waiting rows of deleted topics: all at once, and only when it begins to matter."""
        if self._stale:
            self._changes = self._changes.without(self._stale)
            self._stale.clear()

    def _limit(self, rows: dict[K, V]) -> None:
        while len(rows) > KEPT_MAX:
            del rows[next(iter(rows))]
            self.dropped += 1
