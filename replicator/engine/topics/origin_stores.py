"""Records about copies of topics: which store of the origin wrote each life, and which lives the origin deleted on
purpose.

Invariants (DESIGN §3): 11, each row, the history of deletions and each commit are bounded; 13, a copy that an earlier
store of its origin wrote stays known as such.

1. A link announces which store of an origin wrote a life of a topic that is here. The first announcement is recorded. A
   later store replaces the recorded one in two cases: the origin's own link announces it, or the later store lists the
   recorded one as its predecessor. A store of an origin that was replaced by another one does not become the newest
   again, no matter which link announces it (:class:`~replicator.engine.lineage.NewestStore`).
2. A deletion is recorded in the transaction that deletes the topic. Links announce it to their destinations, which
   record it and announce it to their own destinations. A known deletion is not announced again, so no announcement
   goes round in a ring for ever.
3. A deletion that is recorded for a copy names the last deleted position. If the copy has a later position, its topic
   is in use again.
4. The records of a copy are deleted with the copy. The history keeps the newest :data:`DELETIONS_MAX` deletions.

:mod:`replicator.engine.lineage` has the rules that judge a copy by these records.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from replicator.engine.errors import BlockCorrupt
from replicator.engine.lineage import (
    PREDECESSORS_MAX,
    CopyWriter,
    Deletion,
    NewestStore,
    OwnTopic,
    StoreLine,
    possible_deletions,
)
from replicator.engine.log.store import Store
from replicator.engine.log.store_tables import HEAD, TOPIC_KEY
from replicator.engine.log.writer import Writer
from replicator.engine.topic import Topic
from replicator.engine.topics.loaded_topics import LoadedTopics
from snapshots.position import BEFORE_ALL, Position

DELETIONS_MAX: Final = 20_000
"""Limit of deletions that are remembered, which take about 6 MB of memory. Older ones are not announced any more. Once
the limit is reached, a store judges each topic that it does not have as deleted."""
LIVES_MAX: Final = 100
"""Limit of lives of one origin that are recorded for a topic. The oldest ones are forgotten."""
LEARNED_AT_ONCE: Final = 1_000
"""Limit of deletions that one commit records; it takes some milliseconds."""
ID_MAX: Final = 1 << 62
"""Limit of an id of a deletion that another cluster sends. Later deletions have higher ids, which must fit into 63
bits, and clocks give such ids in 140,000 years."""
STORES: Final = "origin stores"
"""Name of a row in the table ``meta``: by origin, its newest store that a link announced."""
SEEN: Final = "origin stores seen"
"""Name of a row in the table ``meta``: by origin, since when its newest store is known, and the stores before it. Older
versions ignore the row."""

_Writes = list[tuple[str, bytes, bytes | None]]


@dataclass(slots=True)
class _CopyRow:
    """Value of a row in the table ``lineage``: stores and deletions of one origin in one topic, by incarnation."""

    stores: dict[int, str] = field(default_factory=dict)
    deleted: dict[int, Position] = field(default_factory=dict)

    @classmethod
    def decode(cls, stored: bytes) -> _CopyRow:
        row = json.loads(stored)
        return cls(
            {int(incarnation): store for incarnation, store in row["stores"].items()},
            {int(incarnation): Position.parse(position) for incarnation, position in row["deleted"].items()},
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "stores": {str(incarnation): store for incarnation, store in self.stores.items()},
            "deleted": {str(incarnation): str(position) for incarnation, position in self.deleted.items()},
        }

    def encode(self) -> bytes:
        for lives in (self.stores, self.deleted):
            while len(lives) > LIVES_MAX:
                del lives[min(lives)]
        return json.dumps(self.as_json()).encode()


class OriginStores:
    """Records of one engine about stores and deletions. All methods run on the engine's event loop."""

    def __init__(
        self,
        store: Store,
        writer: Writer,
        loaded: LoadedTopics,
        wall_clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.line = StoreLine.of_head(store.head)
        """Id of this store, and of those it was restored from."""
        self._wall_clock_ms = wall_clock_ms
        self.lines: dict[str, StoreLine] = {
            origin: StoreLine.of_json(row) for origin, row in (store.meta(STORES) or {}).items()
        }
        """For each origin, its newest store that a link announced."""
        self._seen: dict[str, NewestStore] = _seen_of(store.meta(SEEN) or {}, self.lines)
        self.deletions: dict[tuple[str, str, int], Deletion] = {}
        """Deletions by topic, origin and incarnation, the oldest first."""
        self.listeners: list[Callable[[Sequence[Deletion]], None]] = []
        """Functions that are called with deletions that were not known before."""
        self.copy_listeners: list[Callable[[Sequence[tuple[str, str, int]]], None]] = []
        """Functions that are called with copies whose recorded store changed: their topics, origins and lives."""
        self._cluster = store.cluster
        self._store = store
        self._writer = writer
        self._loaded = loaded
        self._rows: dict[int, dict[str, _CopyRow]] = {}
        """Rows about copies, by topic id and origin."""
        self._deleted: dict[tuple[str, str], dict[int, Position]] = {}
        """For each topic and origin, the lives that the origin deleted."""
        self._partitioned_deleted: dict[str, dict[str, int]] = {}
        """For each partitioned topic, by cluster, the id of its newest deletion."""
        self._forgotten: _Writes = []
        """Rows that the store still has, to be deleted by :meth:`save`."""
        self._writing = asyncio.Lock()
        self._load(store)

    def _load(self, store: Store) -> None:
        with store.env.begin() as txn:
            here = {record.topic_id for record in store.topics_in(txn)}
            for key, value in txn.cursor(db=store.tables["lineage"]):
                topic_id, origin = TOPIC_KEY.unpack_from(key)[0], bytes(key[TOPIC_KEY.size :]).decode()
                if topic_id in here:  # an earlier version deletes a topic without these rows
                    self._rows.setdefault(topic_id, {})[origin] = _CopyRow.decode(bytes(value))
            rows = [(bytes(key), json.loads(bytes(value))) for key, value in txn.cursor(db=store.tables["deletions"])]
        found = {key: deletion for key, row in rows for deletion in possible_deletions([row])}
        self._forgotten += [("deletions", key, None) for key, _ in rows if key not in found]
        for each in sorted(found.values(), key=lambda each: each.at_ms):
            self._add(each)

    # What is known.

    @property
    def store(self) -> str:
        """Id of this store."""
        return self.line.store

    def newest_store(self, origin: str) -> NewestStore | None:
        """Return the newest store of another cluster that links announced; None if no link did."""
        return self._seen.get(origin)

    def newest_stores(self) -> dict[str, Any]:
        """Return, by origin, the id of its newest store, since when it is known, and the stores before it."""
        return _seen_as_json({origin: self._seen[origin] for origin in sorted(self._seen.keys() - {self._cluster})})

    def store_of(self, topic: Topic, origin: str, incarnation: int) -> str | None:
        """Return the id of the store of ``origin`` that wrote the life ``incarnation`` of ``topic``; None if it is not
        known.

        This cluster's own store wrote all lives of this cluster.
        """
        if origin == self._cluster:
            return self.store
        row = self._rows.get(topic.topic_id, {}).get(origin)
        return None if row is None else row.stores.get(incarnation)

    def is_deleted(self, topic: Topic, origin: str, incarnation: int, position: Position) -> bool:
        """Return whether ``origin`` deleted the life ``incarnation`` of ``topic`` on purpose, with all messages up to
        ``position``."""
        row = self._rows.get(topic.topic_id, {}).get(origin)
        if row is not None and position <= row.deleted.get(incarnation, BEFORE_ALL):
            return True
        known = self.deletions.get((topic.name, origin, incarnation))
        return known is not None and position <= known.position

    def deleted_lives(self, name: str, origin: str) -> Mapping[int, Position]:
        """Return the last position of each life of the topic ``name`` that ``origin`` deleted, by incarnation."""
        return self._deleted.get((name, origin), {})

    def own_deletions(self, names: Collection[str] = ()) -> list[Deletion]:
        """Return what this cluster deleted on purpose and has not made again: all topics, or those of ``names``.

        Records of partitioned topics are left out.
        """
        keys = [(name, self._cluster) for name in names] if names else list(self._deleted)
        return [
            self.deletions[name, origin, incarnation]
            for name, origin in keys
            if origin == self._cluster and name not in self._loaded.by_name
            for incarnation, position in self.deleted_lives(name, origin).items()
            if position != BEFORE_ALL
        ]

    def made_again(self, names: Collection[str] = ()) -> list[str]:
        """Return the topics that this cluster deleted and made again: all, or those of ``names``."""
        keys = [key for name in names if (key := (name, self._cluster)) in self._deleted] if names else self._deleted
        return [name for name, origin in keys if origin == self._cluster and name in self._loaded.by_name]

    def partitioned_deleted(self, name: str) -> Mapping[str, int]:
        """Return, by cluster, the id of its newest deletion of the partitioned topic ``name``."""
        return self._partitioned_deleted.get(name, {})

    def partitioned_deletions(self, cluster: str) -> list[Deletion]:
        """Return one record for each partitioned topic that ``cluster`` deleted: that of its newest deletion."""
        newest = ((name, cluster, ids[cluster]) for name, ids in self._partitioned_deleted.items() if cluster in ids)
        return [self.deletions[key] for key in newest]

    def last_deletion(self, name: str, cluster: str) -> Deletion | None:
        """Return the last deletion of the topic ``name`` by ``cluster``; None if it deleted none.

        Records of partitioned topics are left out.
        """
        lives = self.deleted_lives(name, cluster).items()
        found = [self.deletions[name, cluster, life] for life, position in lives if position != BEFORE_ALL]
        return max(found, key=lambda each: each.at_ms, default=None)

    def as_json(self, topic: Topic) -> dict[str, Any]:
        """Return the records about ``topic`` by origin: which store wrote each life, and which lives the origin
        deleted.

        If this cluster deleted the topic itself, there is a record for this cluster, too.
        """
        rows = dict(self._rows.get(topic.topic_id, {}))
        if deleted := self.deleted_lives(topic.name, self._cluster):
            rows[self._cluster] = _CopyRow({}, dict(deleted))
        return {origin: row.as_json() for origin, row in rows.items()}

    def own_topic(self, name: str) -> OwnTopic:
        """Return the state of the topic ``name`` in this cluster, with which :func:`~replicator.engine.lineage.judge`
        judges copies."""
        deleted = self.deleted_lives(name, self._cluster)
        topic = self._loaded.by_name.get(name)
        if topic is None or topic.deleted is not None:
            remembers = len(self.deletions) < DELETIONS_MAX
            return OwnTopic(self.store, None, lambda _: False, deleted=deleted, remembers=remembers)
        return OwnTopic(self.store, topic.incarnation, _has(topic, self._cluster), deleted=deleted)

    def earlier_lives(self, topic: Topic) -> dict[int, Position]:
        """Return the last position of each earlier life of this cluster that a reclaim put back into the log, by
        incarnation."""
        found: dict[int, Position] = {}
        for ledger, first, last in topic.log.runs_between(BEFORE_ALL, topic.log.last):
            if ledger > topic.incarnation:
                break
            before, end = Position(ledger, first - 1), Position(ledger, last)
            with suppress(BlockCorrupt):  # a ledger with a damaged block is left out
                for head in self._store.block_heads(topic.topic_id, before, end, blocks_max=1):
                    if head.header.origin == self._cluster and head.header.incarnation < topic.incarnation:
                        found[head.header.incarnation] = end
        return found

    # What happens.

    async def take_place(self, of: Sequence[str]) -> None:
        """Give this store a new id, by which other clusters know that it took the place of the stores ``of``.

        An operator went back to this store, and it has what those had.
        """
        head = self._store.head
        before = [head["store_id"], *head.get("predecessors", ())]
        replaced = [*of, *(each for each in head.get("replaced", ()) if each not in of)]
        changed = {
            **head,
            "store_id": uuid.uuid4().hex,
            "predecessors": before[:PREDECESSORS_MAX],
            "replaced": replaced[:PREDECESSORS_MAX],
        }
        await self._writer.put("meta", HEAD.encode(), json.dumps(changed).encode())
        self._store.head = changed
        self.line = StoreLine.of_head(changed)

    async def save(self) -> None:
        """Delete the rows of deletions that were forgotten. Raises the errors of the store if that fails."""
        async with self._writing:
            forgotten = list(self._forgotten)
            if forgotten:
                await self._writer.put_many(forgotten)
                del self._forgotten[: len(forgotten)]

    def topics_deleted(self, topic_ids: Sequence[int], noted: Sequence[Deletion]) -> None:
        """Take over that topics were deleted in this cluster. The store has stored the deletions ``noted`` already."""
        for topic_id in topic_ids:
            self._rows.pop(topic_id, None)
        self._remember(noted)

    async def take(
        self,
        source: str,
        lines: Mapping[str, StoreLine],
        writers: Sequence[CopyWriter],
        deletions: Sequence[Deletion],
    ) -> None:
        """Record what a link from ``source`` announced: the newest stores of origins, writers of copies, and deletions.

        A life that is not here is skipped. If writing fails, nothing is recorded, and the error of the store is raised.
        """
        async with self._writing:
            writes: _Writes = []
            newer = {origin: line for origin, line in lines.items() if self.is_newer(source, origin, line)}
            told = {**self.lines, **newer}
            seen = {**self._seen, **{origin: self._seen_after(origin, line) for origin, line in newer.items()}}
            if told != self.lines:
                value = json.dumps({origin: line.as_json() for origin, line in told.items()}).encode()
                writes.append(("meta", STORES.encode(), value))
                writes.append(("meta", SEEN.encode(), json.dumps(_seen_as_json(seen)).encode()))
            rows: dict[tuple[int, str], _CopyRow] = {}
            changed = [
                writer
                for writer in writers
                if self._note_writer(rows, source, writer, lines.get(writer.origin) or told.get(writer.origin))
            ]
            for deletion in deletions:
                self._note_deleted(rows, deletion)
            new = [each for each in deletions if each.origin != self._cluster and self._is_new(each)]
            for (topic_id, origin), row in rows.items():
                writes.append(("lineage", TOPIC_KEY.pack(topic_id) + origin.encode(), row.encode()))
            writes += [("deletions", *each.row()) for each in new]
            if writes:
                await self._writer.put_many(writes)
            self.lines, self._seen = told, seen
            for (topic_id, origin), row in rows.items():
                if topic_id in self._loaded.by_id:
                    self._rows.setdefault(topic_id, {})[origin] = row
            self._remember(new)
        told_on = list(dict.fromkeys((each.topic, each.origin, each.incarnation) for each in changed))
        for listener in list(self.copy_listeners) if told_on else ():
            listener(told_on)
        await self.save()

    async def learn_own(self, deletions: Sequence[Deletion]) -> None:
        """Record deletions by this cluster that other clusters remember and this store does not, as after a lost disk,
        or after a snapshot of the disk was put back.

        If writing fails, some are not recorded, and the error of the store is raised.
        """
        told = {each.key: each for each in deletions if each.origin == self._cluster and each.incarnation <= ID_MAX}
        rows = list(told.values())
        for first in range(0, len(rows), LEARNED_AT_ONCE):
            async with self._writing:
                new = [each for each in rows[first : first + LEARNED_AT_ONCE] if self._is_new(each)]
                if new:
                    await self._writer.put_many([("deletions", *each.row()) for each in new])
                    self._remember(new)
        await self.save()

    def _is_new(self, told: Deletion) -> bool:
        known = self.deletions.get(told.key)
        return known is None or known.position < told.position

    def is_newer(self, source: str, origin: str, line: StoreLine) -> bool:
        """Return whether ``line`` replaces the recorded line of ``origin``. A line from the origin itself does, unless
        it is of a store that was replaced."""
        before, seen = self.lines.get(origin), self._seen.get(origin)
        if before is None or line.is_later(line.store, before.store):
            return True
        return source == origin and before != line and (seen is None or not seen.replaces(line))

    def _seen_after(self, origin: str, line: StoreLine) -> NewestStore:
        before, now_ms = self._seen.get(origin), self._wall_clock_ms()
        return NewestStore(line, now_ms) if before is None else before.followed_by(line, now_ms)

    def _note_writer(
        self, rows: dict[tuple[int, str], _CopyRow], source: str, told: CopyWriter, line: StoreLine | None
    ) -> bool:
        """Record the store that wrote a copy. Return whether that changed the record."""
        row = self._row_of(rows, told.topic, told.origin, told.incarnation)
        if row is None:
            return False
        before = row[1].stores.get(told.incarnation)
        later = before is None or source == told.origin or (line is not None and line.is_later(told.store, before))
        if before == told.store or not later:
            return False
        row[1].stores[told.incarnation] = told.store
        rows[row[0]] = row[1]
        return True

    def _note_deleted(self, rows: dict[tuple[int, str], _CopyRow], told: Deletion) -> None:
        row = self._row_of(rows, told.topic, told.origin, told.incarnation)
        if row is not None and row[1].deleted.get(told.incarnation, BEFORE_ALL) < told.position:
            row[1].deleted[told.incarnation] = told.position
            rows[row[0]] = row[1]

    def _row_of(
        self, rows: Mapping[tuple[int, str], _CopyRow], name: str, origin: str, incarnation: int
    ) -> tuple[tuple[int, str], _CopyRow] | None:
        """Return a row to change, with its key; None if that life of the topic is not here."""
        topic = self._loaded.by_name.get(name)
        mark = None if topic is None or origin == self._cluster else topic.origins.high_water(origin)
        if topic is None or mark is None or incarnation > mark.incarnation:
            return None
        key = topic.topic_id, origin
        found = rows.get(key)
        if found is None:
            known = self._rows.get(topic.topic_id, {}).get(origin, _CopyRow())
            found = _CopyRow(dict(known.stores), dict(known.deleted))
        return key, found

    def _remember(self, new: Sequence[Deletion]) -> None:
        """Add deletions that are stored already, and inform listeners. Forget the oldest deletions beyond the limit."""
        for each in new:
            self._add(each)
        too_many = [self.deletions[key] for key in islice(self.deletions, max(0, len(self.deletions) - DELETIONS_MAX))]
        for each in too_many:
            del self.deletions[each.key]
            lives = self._deleted[each.topic, each.origin]
            del lives[each.incarnation]
            if not lives:
                del self._deleted[each.topic, each.origin]
            if self.partitioned_deleted(each.topic).get(each.origin) == each.incarnation and each.is_of_partitioned:
                del self._partitioned_deleted[each.topic][each.origin]
        self._forgotten += [("deletions", each.row_key(), None) for each in too_many]
        if new:
            for listener in list(self.listeners):
                listener(new)

    def _add(self, deletion: Deletion) -> None:
        self.deletions.pop(deletion.key, None)
        self.deletions[deletion.key] = deletion
        self._deleted.setdefault((deletion.topic, deletion.origin), {})[deletion.incarnation] = deletion.position
        if deletion.is_of_partitioned:
            newest = self._partitioned_deleted.setdefault(deletion.topic, {})
            newest[deletion.origin] = max(deletion.incarnation, newest.get(deletion.origin, 0))


def _has(topic: Topic, cluster: str) -> Callable[[Position], bool]:
    """Return a function that returns whether a position of this cluster is in the log, was trimmed, or lies in a
    hole."""
    holes = topic.origins.left_out(cluster)

    def has(position: Position) -> bool:
        lost = any(after < position <= upto for after, upto in holes)
        return lost or topic.log.had(position)

    return has


def _seen_of(rows: Mapping[str, Any], lines: Mapping[str, StoreLine]) -> dict[str, NewestStore]:
    """Return the newest stores of origins: ``lines``, with what the row :data:`SEEN` has about them.

    An older version may have changed the lines without the row.
    """
    found = {origin: NewestStore(line) for origin, line in lines.items()}
    for origin in lines.keys() & rows.keys():
        row = rows[origin]
        noted = NewestStore(StoreLine(row["store"]), row["since_ms"], tuple(row["earlier"]))
        found[origin] = noted.followed_by(lines[origin], None)
    return found


def _seen_as_json(seen: Mapping[str, NewestStore]) -> dict[str, Any]:
    return {
        origin: {"store": each.line.store, "since_ms": each.since_ms, "earlier": list(each.earlier)}
        for origin, each in seen.items()
    }
