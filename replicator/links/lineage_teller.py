"""Tells a destination which stores wrote the copies that it has, and which topics were deleted on purpose.

Invariants (DESIGN §3): 11, messages and what waits are bounded; 13, the destination can tell lost data from deleted
data.

1. Connected: what the destination said of each topic is compared with what is here. If a copy's last position is here
   and the destination names another store, or none, it is told the store that wrote it. This includes copies from
   before stores had names. A copy that is not wholly known here keeps the store that it has.
2. A topic's first blocks were copied, or this cluster was told who wrote what it has: the destination is told.
3. A topic is deleted at its origin, here or elsewhere: the destination is told. It is told again on a later connection,
   as long as its copy has no mark, and once by each worker that starts.

Blocks do not wait for these messages. A destination that refuses one is told again after :data:`RETRY_SECONDS`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final, Protocol, TypeVar

import structlog

from replicator.engine.engine import Engine
from replicator.engine.lineage import CopyElsewhere, CopyWriter, Deletion, Judgement, StoreLine, judge
from replicator.links.errors import PeerRefused
from replicator.links.gaps import Mark
from replicator.links.link_topics import LinkTopics
from replicator.peering.lineage import ORIGINS_MAX, ROWS_MAX, LineageTold

TURN_TOPICS: Final = 500
"""Topics that are looked at before others get their turn: some milliseconds."""

RETRY_SECONDS: Final = 5.0
"""Pause after a refusal: a destination that is full may have room then."""

log = structlog.get_logger(__name__)

_Key = TypeVar("_Key")
_Copy = tuple[str, str, int]
"""Topic, origin and incarnation."""


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
        self._refused = ""
        """Reason of the destination's last refusal, as it was logged."""
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
            topic = self._engine.find(name)
            marks = {} if topic is None else topic.origins.high_waters()
            known = ((name, origin, marks[origin].incarnation) for origin in self._topics.origins if origin in marks)
            self._copies |= dict.fromkeys(known)
            self._work.set()

    def noted(self, copies: Sequence[_Copy]) -> None:
        """Note that links told this cluster who wrote copies."""
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
            except PeerRefused as error:  # it may be full, and a link copies all the same
                self._note_refused(str(error))
                await asyncio.sleep(RETRY_SECONDS)
                continue
            self._refused = ""
            await self._work.wait()

    def _note_refused(self, reason: str) -> None:
        if reason != self._refused:
            link = self._topics.link_key
            log.warning("link: the destination does not take who wrote its copies", link=link, reason=reason)
        self._refused = reason

    async def _tell_all(self, transport: Transport) -> None:
        await self._look_at_all()
        while self._destination_store and (self._copies or self._deletions or not self._stores_told):
            keys = _take(self._deletions, ROWS_MAX)
            deletions = [known for key in keys if (known := self._stores.deletions.get(key)) is not None]
            taken = _take(self._copies, ROWS_MAX - len(keys))
            copies = [writer for copy in taken for writer in self._writer(*copy)]
            if not (copies or deletions) and self._stores_told:
                continue
            try:
                refused = await transport.tell_lineage(LineageTold(self._lines(), copies, deletions))
            except PeerRefused:
                self._deletions |= dict.fromkeys(keys)
                self._copies |= dict.fromkeys(taken)
                raise
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
                (name, origin, mark.incarnation) for origin, mark in marks.items() if self._knows(name, origin, mark)
            )

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
            if theirs.incarnation < topic.incarnation:  # a reclaim may have put that life back
                return topic.origins.had(origin, theirs.position)
            return judge(copy, self._stores.own_topic(name)) is Judgement.SAME
        ours = topic.origins.high_water(origin)
        return ours is not None and ours.incarnation == theirs.incarnation and ours.position >= theirs.position

    def _writer(self, name: str, origin: str, incarnation: int) -> list[CopyWriter]:
        """Return which store wrote a life of a topic that is here; nothing if that is not known."""
        topic = self._engine.find(name)
        store = None if topic is None else self._stores.store_of(topic, origin, incarnation)
        return [] if store is None else [CopyWriter(name, origin, incarnation, store)]

    def _lines(self) -> dict[str, StoreLine]:
        """Return the newest store of each origin that the link carries, as far as it is known."""
        known = {**self._stores.lines, self._engine.cluster: self._stores.line}
        origins = islice((each for each in sorted(self._topics.origins) if each in known), ORIGINS_MAX)
        return {origin: known[origin] for origin in origins}


def _take(waiting: dict[_Key, None], count: int) -> list[_Key]:
    """Remove the first ``count`` keys, and return them."""
    taken = list(islice(waiting, count))
    for key in taken:
        del waiting[key]
    return taken
