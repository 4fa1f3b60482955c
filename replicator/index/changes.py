"""Changes that services of a worker report to the index: noted at once, written later (:mod:`replicator.index.writer`).

Invariants (DESIGN §3): 9, whoever reports never waits for the database; 11, what is noted is bounded.

1. A change is kept by its key (:mod:`replicator.index.waiting`), and the writer is woken.
2. With more than is kept, the index is *behind*: what waits is dropped, and the writer asks for everything again.
   While it is given everything, there is no such limit, because memory has it already.
3. While the index is behind, deletions need no note: what is not written anew is removed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from replicator.index.audit_queue import AuditQueue
from replicator.index.extents import ExtentWriter
from replicator.index.waiting import Changes, Waiting
from replicator.running.asking import ASKED_BY, ASKED_FROM
from snapshots import markers
from snapshots.mapping import SnapshotMapping
from snapshots.position import Position
from snapshots.repository import AuditEntry, ExtentKey, FailoverEpoch, LinkState, SubscriptionState


class IndexChanges:
    """The side of the index that sync, links and failover see. The attributes are the writer's.

    With ``counts_mappings`` it is counted which topics and peers have new mappings, so that old ones can be thinned.
    """

    def __init__(
        self, extents: ExtentWriter | None, *, counts_mappings: bool, audit_queue: AuditQueue | None = None
    ) -> None:
        self._extents = extents
        self._counts_mappings = counts_mappings
        self.waiting = Waiting()
        self._audit_queue = audit_queue
        for entry in () if audit_queue is None else audit_queue.found:
            self.waiting.audit(entry)
        self.behind = True  # what was written before this process started may be incomplete
        """Whether everything is to be written anew."""
        self.resyncing = False
        """Whether the worker is giving everything, at this moment."""
        self.noted = asyncio.Event()
        """Set when there is something to write."""
        self.urgent = asyncio.Event()
        """Set when something is to be written soon, however many rows were written a moment ago."""
        self.unthinned: dict[tuple[str, str], int] = {}
        """Mappings of a topic and peer since those that memory dropped were deleted."""

    def mapping_recorded(self, topic: str, mapping: SnapshotMapping) -> None:
        self.waiting.mapping(topic, mapping)
        if self._counts_mappings:
            self.unthinned[topic, mapping.peer] = self.unthinned.get((topic, mapping.peer), 0) + 1
        self._note()

    def extents_recorded(
        self, topic: str, origin: str, incarnation: int, origin_first: Position, local_first: Position, entries: int
    ) -> None:
        """Note that a copied block is durable. The writer reads its positions from the store."""
        if self._extents is not None:
            self._extents.grown(ExtentKey(topic, origin, incarnation))

    def extents_trimmed(self, topic: str, local_through: Position) -> None:
        """Note that the log of ``topic`` is trimmed up to ``local_through``."""
        if self._extents is not None:
            self._extents.trimmed(topic, local_through)

    def subscription_moved(
        self,
        topic: str,
        name: str,
        generation: int,
        mark_delete: Position,
        *,
        replicated: bool,
    ) -> None:
        """Note the position of a subscription. Acknowledgements beyond it are counted when the state is written."""
        self.waiting.state(topic, name, SubscriptionState(topic, name, generation, mark_delete, replicated))
        self._note()

    def subscription_deleted(self, topic: str, name: str, generation: int | None = None) -> None:
        """Note that a subscription was deleted. With a ``generation``, its tombstone is kept."""
        buried = None if generation is None else SubscriptionState.buried(topic, name, generation)
        self.waiting.state(topic, name, buried)
        self._note()

    def topic_deleted(self, topic: str) -> None:
        """Note that a topic was deleted, with everything about it. Later changes are about a new topic of that name."""
        if self._extents is not None:
            self._extents.topic_deleted(topic)
        for key in [key for key in self.unthinned if key[0] == topic]:
            del self.unthinned[key]
        if self.behind:
            return  # everything is written anew, and what is not written then is deleted
        self.waiting.topic_deleted(topic)
        self._note()

    def link_state(
        self,
        link_key: str,
        topic: str,
        *,
        state: str,
        acknowledged: Position,
        backlog_entries: int,
        detail: str = "",
    ) -> None:
        """Note a link's state for a topic. A link must report it again in a resync, or the index forgets it."""
        self.waiting.link(LinkState(link_key, topic, state, acknowledged, backlog_entries, detail))
        self._note()

    def link_gone(self, link_key: str) -> None:
        """Note that a link was removed or replaced. A new link reports its topics again."""
        if self.behind:
            return  # everything is written anew, and what is not written then is deleted
        self.waiting.link_gone(link_key)
        self._note()

    def failover_epoch(
        self,
        record: markers.FailoverEpoch,
        *,
        completed_at: datetime | None = None,
        report: Mapping[str, Any] | None = None,
    ) -> None:
        """Note the content of an epoch's marker. ``report`` is the report of the failover."""
        said = {"writer": record.writer, "record_id": record.record_id, "serving": dict(record.serving)}
        started_at = datetime.fromtimestamp(record.at_ms / 1000, UTC)
        self.waiting.epoch(
            FailoverEpoch(
                record.epoch,
                record.source,
                record.target,
                record.kind,
                started_at,
                completed_at,
                {**said, **(report or {})},
            )
        )
        self.urgent.set()
        self._note()

    def audit(self, actor: str, action: str, subject: str, detail: Mapping[str, Any] | None = None) -> None:
        """Note an action on this cluster for the audit log.

        The actor is the role of the request if roles are told apart, and ``actor`` otherwise. While Postgres is away,
        the entry waits in the store, too.
        """
        if asked_from := ASKED_FROM.get():
            detail = {"from": asked_from, **(detail or {})}
        actor = ASKED_BY.get() or actor
        entry = AuditEntry(uuid4(), datetime.now(UTC), actor, action, subject, detail)
        self.waiting.audit(entry)
        if self._audit_queue is not None:
            self._audit_queue.keep(entry)
        self.urgent.set()
        self._note()

    def written(self, changes: Changes) -> None:
        """Note that the database has ``changes``."""
        if self._audit_queue is not None and changes.audit:
            self._audit_queue.written(changes.audit)

    @property
    def audit_waiting(self) -> int:
        """Audit entries that the database does not have yet."""
        return 0 if self._audit_queue is None else len(self._audit_queue)

    @property
    def entries_dropped(self) -> int:
        """Failover epochs and audit entries that were never written: the database was away for too long."""
        return self.waiting.dropped

    def _note(self) -> None:
        if not self.resyncing:
            self.waiting.check_limit()
            if self.waiting.overflowed:
                self.waiting.overflowed = False
                self.behind = True
        self.noted.set()
