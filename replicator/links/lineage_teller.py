"""Tells a destination which stores wrote the copies that it has, and which topics were deleted on purpose.

Invariants (DESIGN §3): 11, messages and what waits are bounded; 13, the destination can tell lost data from deleted
data.

1. Connected: what the destination said of each topic is compared with what is here. If a copy's last position is here
   and the destination names another store, or none, it is told the store that wrote it. This includes copies from
   before stores had names. A copy that is not wholly known here keeps the store that it has.
2. A topic's first blocks were copied, or this cluster was told who wrote what it has: the destination is told.
3. A topic is deleted at its origin, here or elsewhere: the destination is told. It is told again on a later connection,
   as long as its copy has no mark, and once by each worker that starts.

Blocks do not wait for these messages. A destination that refuses one is told again on the next connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final, Protocol

import structlog

from replicator.engine.engine import Engine
from replicator.engine.lineage import CopyElsewhere, CopyWriter, Deletion, Judgement, StoreLine, judge
from replicator.links.errors import PeerRefused
from replicator.links.gaps import Mark
from replicator.links.link_topics import LinkTopics
from replicator.peering.lineage import ORIGINS_MAX, ROWS_MAX, LineageTold

TURN_TOPICS: Final = 500
"""Topics that are looked at before others get their turn: some milliseconds."""

log = structlog.get_logger(__name__)

_Copy = tuple[str, str]
"""Topic and origin."""


class Transport(Protocol):
    """Connection to the destination, as far as it is needed here."""

    async def tell_lineage(self, told: LineageTold) -> Mapping[str, tuple[str, str]]: ...


class LineageTeller:
    """Tells for one link, whose ``topics`` are given. All methods run on the engine's event loop."""

    def __init__(self, engine: Engine, topics: LinkTopics) -> None:
        self._engine = engine
        self._stores = engine.origin_stores
        self._topics = topics
        self._destination_store = ""
        """Store that the destination named; "" if it is of an earlier version, which is told nothing."""
        self._copies: dict[_Copy, None] = {}
        """Copies whose writer is to be told."""
        self._deletions: dict[tuple[str, str, int], None] = {}
        """Deletions that are to be told."""
        self._told: set[tuple[str, str, int]] = set()
        """Deletions that the destination's store was told."""
        self._stores_told = False
        self._there: Mapping[str, Mapping[str, Mark]] | None = None
        """Marks of the destination, by topic and origin; None after they were compared."""
        self._work = asyncio.Event()
        topics.on_copied = self.copied

    def on_connected(self, there: Mapping[str, Mapping[str, Mark]], store: str) -> None:
        """Begin a connection: ``there`` has the marks of the destination, ``store`` is the id of its store."""
        if store != self._destination_store:
            self._told.clear()
        self._destination_store = store
        self._copies.clear()
        self._deletions.clear()
        self._stores_told = False
        if not store:
            return
        self._there = there
        self._work.set()

    def copied(self, name: str) -> None:
        """Note that the destination has the first blocks of a topic, or of another origin in it."""
        if self._destination_store:
            self._copies |= dict.fromkeys((name, origin) for origin in self._topics.origins)
            self._work.set()

    def noted(self, copies: Sequence[tuple[str, str]]) -> None:
        """Note that links told this cluster who wrote copies, by topic and origin."""
        if self._destination_store:
            carried = self._topics.copier.topics
            self._copies |= {each: None for each in copies if each[0] in carried and each[1] in self._topics.origins}
            self._work.set()

    def deleted(self, deletions: Sequence[Deletion]) -> None:
        """Note that origins deleted topics on purpose."""
        if self._destination_store:
            self._deletions |= {each.key: None for each in deletions if self._is_to_be_told(each)}
            self._work.set()

    async def tell(self, transport: Transport) -> None:
        """Tell what is to be told, for as long as the link is connected. Raises what the transport raises."""
        while True:
            self._work.clear()
            try:
                await self._tell_all(transport)
            except PeerRefused as error:  # a link copies all the same
                link = self._topics.link_key
                log.warning("link: the destination does not take who wrote its copies", link=link, reason=str(error))
                self._destination_store = ""
            await self._work.wait()

    async def _tell_all(self, transport: Transport) -> None:
        await self._look_at_all()
        while self._destination_store and (self._copies or self._deletions or not self._stores_told):
            deletions = [known for key in list(islice(self._deletions, ROWS_MAX)) if (known := self._take(key))]
            copies: list[CopyWriter] = []
            for copy in list(islice(self._copies, ROWS_MAX - len(deletions))):
                del self._copies[copy]
                copies += self._writer(*copy)
            if not (copies or deletions) and self._stores_told:
                continue
            refused = await transport.tell_lineage(LineageTold(self._lines(), copies, deletions))
            self._stores_told = True
            self._told |= {each.key for each in deletions if each.topic not in refused}

    async def _look_at_all(self) -> None:
        """Compare the marks of the destination with what is here, and note what it is to be told."""
        there, self._there = self._there, None
        if there is None:
            return
        for number, deletion in enumerate(list(self._stores.deletions.values())):
            if number % TURN_TOPICS == 0:
                await asyncio.sleep(0)
            if self._lacks(there, deletion) and self._is_to_be_told(deletion):
                self._deletions[deletion.key] = None
        for number, (name, marks) in enumerate(there.items()):
            if number % TURN_TOPICS == 0:
                await asyncio.sleep(0)
            self._copies |= dict.fromkeys(
                (name, origin) for origin, mark in marks.items() if self._knows(name, origin, mark)
            )

    def _take(self, key: tuple[str, str, int]) -> Deletion | None:
        del self._deletions[key]
        return self._stores.deletions.get(key)

    def _is_to_be_told(self, deletion: Deletion) -> bool:
        return deletion.origin in self._topics.origins and self._topics.carries_name(deletion.topic)

    def _lacks(self, there: Mapping[str, Mapping[str, Mark]], deletion: Deletion) -> bool:
        """Return whether the destination may not know of a deletion."""
        if deletion.key not in self._told:
            return True
        mark = there.get(deletion.topic, {}).get(deletion.origin)
        is_of_copy = (
            mark is not None and mark.incarnation == deletion.incarnation and mark.position <= deletion.position
        )
        return mark is not None and is_of_copy and not mark.deleted

    def _knows(self, name: str, origin: str, theirs: Mark) -> bool:
        """Return whether the destination's copy is known here to its end, and it names another store than this one."""
        topic = self._engine.find(name)
        if topic is None or name not in self._topics.copier.topics:
            return False
        store = self._stores.store_of(topic, origin, theirs.incarnation)
        if store is None or store == theirs.store:
            return False
        if origin == self._engine.cluster:
            copy = CopyElsewhere(theirs.incarnation, theirs.position, theirs.store, theirs.deleted)
            return judge(copy, self._stores.own_topic(name)) is Judgement.SAME
        ours = topic.origins.high_water(origin)
        return ours is not None and ours.incarnation == theirs.incarnation and ours.position >= theirs.position

    def _writer(self, name: str, origin: str) -> list[CopyWriter]:
        """Return which store wrote the newest life of a topic that is here; nothing if that is not known."""
        topic = self._engine.find(name)
        mark = None if topic is None else topic.origins.high_water(origin)
        if topic is None or mark is None:
            return []
        store = self._stores.store_of(topic, origin, mark.incarnation)
        return [] if store is None else [CopyWriter(name, origin, mark.incarnation, store)]

    def _lines(self) -> dict[str, StoreLine]:
        """Return the newest store of each origin that the link carries, as far as it is known."""
        known = {**self._stores.lines, self._engine.cluster: self._stores.line}
        origins = islice((each for each in sorted(self._topics.origins) if each in known), ORIGINS_MAX)
        return {origin: known[origin] for origin in origins}
