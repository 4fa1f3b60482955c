"""Reports to a link's destination which stores wrote its copies, and which topics were deleted on purpose.

Each store of a cluster has an id. A life is a topic from when it is made until it is deleted. Invariants (DESIGN §3):
11, messages and waiting reports are limited; 13, the destination can tell lost data from deleted data.

1. On a new connection, the marks that the destination reported are compared with this cluster's. If a copy's last
   position is in the log here, and the destination names another store as its writer, or none, the right store is
   reported. This includes copies from before stores had ids. A copy whose end is not known here keeps its store.
2. A store is also reported once a topic's first blocks were copied, or when a link tells this cluster who wrote a copy.
3. A deletion at a topic's origin, this cluster or another, is reported. It is reported again on a later connection
   while the destination's copy is not marked as deleted. Each worker also reports it once after its start.

Blocks do not wait for these reports. After a refusal, and after a doubt about a store, the link reports again after
:data:`RETRY_SECONDS`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Final, Protocol, TypeVar

import structlog

from replicator.engine.engine import Engine
from replicator.engine.errors import EngineError
from replicator.engine.lineage import (
    CopyWriter,
    Deletion,
    Judgement,
    RemoteCopy,
    StoreLine,
    judge,
    possible_deletions,
)
from replicator.links.errors import PeerRefused
from replicator.links.gaps import Mark
from replicator.links.link_topics import LinkTopics
from replicator.peering.lineage import ORIGINS_MAX, ROWS_MAX, LineageReply, LineageReport

TURN_TOPICS: Final = 500
"""Topics that are compared before other tasks of the event loop run; this takes some milliseconds."""

RETRY_SECONDS: Final = 5.0
"""Pause after the destination refused a report; a full destination may have room then."""

log = structlog.get_logger(__name__)

_Key = TypeVar("_Key")
_Copy = tuple[str, str, int]
"""Topic, origin and incarnation."""


class Transport(Protocol):
    """Interface of the connection to the destination, as :class:`LineageReporter` uses it."""

    deleted_there: list[dict[str, Any]]
    made_again: list[str]

    async def high_water(
        self, origins: Collection[str], topics: Sequence[str] = ()
    ) -> Mapping[str, Mapping[str, Mark]]: ...

    async def report_lineage(self, told: LineageReport) -> LineageReply: ...


class LineageReporter:
    """Reports the writers of copies, and deletions, for the link that carries ``topics``.

    All methods run on the engine's event loop.
    """

    def __init__(self, engine: Engine, topics: LinkTopics) -> None:
        self._engine = engine
        self._stores = engine.origin_stores
        self._topics = topics
        self._destination_store = ""
        """Id of the destination's store; "" if its version is earlier, and then nothing is reported to it."""
        self._copies: dict[_Copy, None] = {}
        """Copies whose writer must be reported."""
        self._deletions: dict[tuple[str, str, int], None] = {}
        """Deletions that must be reported."""
        self._told: set[tuple[str, str, int]] = set()
        """Deletions that were reported to the destination's present store."""
        self._stores_told = False
        self._refused = ""
        """Reason of the destination's last refusal; it is logged once."""
        self._there: Mapping[str, Mapping[str, Mark]] | None = None
        """Marks of the destination, by topic and origin, that were not compared yet; None once they were."""
        self._work = asyncio.Event()
        topics.on_copied = self.copied

    def on_connected(self, there: Mapping[str, Mapping[str, Mark]], store: str) -> None:
        """Begin a connection. ``there`` has the destination's marks; ``store`` is the id of its store."""
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

    async def ask_marks(self, transport: Transport, names: Sequence[str] = ()) -> Mapping[str, Mapping[str, Mark]]:
        """Return the destination's marks, by topic and origin: of all topics, or of ``names``.

        Topics that the destination deleted are recorded first, so that the link does not make them again with markers.
        The destination's own link may not have reported them yet. Raises the errors of the transport.
        """
        there = await transport.high_water(self._topics.origins, names)
        self._topics.note_made_again(transport.made_again, names)
        here, destination = self._engine.loaded.by_name, self._topics.destination
        rows = [each for each in transport.deleted_there if each["topic"] in here and each["origin"] == destination]
        if rows:
            with suppress(EngineError):  # a store that is full; the destination's link reports them again
                await self._stores.take(destination, {}, [], possible_deletions(rows))
        return there

    def copied(self, name: str) -> None:
        """Record that the destination has the first blocks of topic ``name``, or the first blocks of another origin in
        it."""
        if self._destination_store:
            topic = self._engine.find(name)
            marks = {} if topic is None else topic.origins.high_waters()
            known = ((name, origin, marks[origin].incarnation) for origin in self._topics.origins if origin in marks)
            self._copies |= dict.fromkeys(known)
            self._work.set()

    def noted(self, copies: Sequence[_Copy]) -> None:
        """Record that other clusters' links told this cluster which stores wrote ``copies``."""
        if self._destination_store:
            carried = self._topics.copier.topics
            self._copies |= {each: None for each in copies if each[0] in carried and each[1] in self._topics.origins}
            self._work.set()

    def deleted(self, deletions: Sequence[Deletion]) -> None:
        """Record that origins deleted topics on purpose."""
        if self._destination_store:
            self._deletions |= {each.key: None for each in deletions if self._needs_report(each)}
            self._work.set()

    async def tell(self, transport: Transport) -> None:
        """Report everything that is waiting, for as long as the link is connected.

        Raises the errors of the transport, except a refusal: that is repeated later.
        """
        while True:
            self._work.clear()
            try:
                await self._tell_all(transport)
            except PeerRefused as error:  # the destination may be full; the link copies all the same
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
        doubted: Mapping[str, tuple[str, str]] = {}
        while self._destination_store and (self._copies or self._deletions or not self._stores_told):
            keys = _take(self._deletions, ROWS_MAX)
            deletions = [known for key in keys if (known := self._stores.deletions.get(key)) is not None]
            taken = _take(self._copies, ROWS_MAX - len(keys))
            copies = [writer for copy in taken for writer in self._writer(*copy)]
            if not (copies or deletions) and self._stores_told:
                continue
            try:
                reply = await transport.report_lineage(LineageReport(self._lines(), copies, deletions))
            except PeerRefused:
                self._deletions |= dict.fromkeys(keys)
                self._copies |= dict.fromkeys(taken)
                raise
            self._stores_told, doubted = True, reply.doubted
            self._told |= {each.key for each in deletions if each.topic not in reply.refused}
        for code, message in doubted.values():  # everything else was taken
            self._stores_told = False
            raise PeerRefused(code, message)

    async def _look_at_all(self) -> None:
        """Compare the destination's marks with this cluster's state, and record what must be reported."""
        there, self._there = self._there, None
        if there is None:
            return
        for number, deletion in enumerate(list(self._stores.deletions.values())):
            if number % TURN_TOPICS == 0:
                await asyncio.sleep(0)
            if self._lacks(there, deletion) and self._needs_report(deletion):
                self._deletions[deletion.key] = None
        for number, (name, marks) in enumerate(there.items()):
            if number % TURN_TOPICS == 0:
                await asyncio.sleep(0)
            self._copies |= dict.fromkeys(
                (name, origin, mark.incarnation) for origin, mark in marks.items() if self._knows(name, origin, mark)
            )

    def _needs_report(self, deletion: Deletion) -> bool:
        return deletion.origin in self._topics.origins and self._topics.carried.covers(deletion.topic)

    def _lacks(self, there: Mapping[str, Mapping[str, Mark]], deletion: Deletion) -> bool:
        """Return whether the destination may not know a deletion: it was not reported yet, or the copy has no mark of
        it."""
        if deletion.key not in self._told:
            return True
        mark = there.get(deletion.topic, {}).get(deletion.origin)
        is_of_copy = (
            mark is not None and mark.incarnation == deletion.incarnation and mark.position <= deletion.position
        )
        return mark is not None and is_of_copy and not mark.deleted

    def _knows(self, name: str, origin: str, theirs: Mark) -> bool:
        """Return whether the end of the destination's copy is known here, and the destination names another store as
        its writer."""
        topic = self._engine.find(name)
        if topic is None or name not in self._topics.copier.topics:
            return False
        store = self._stores.store_of(topic, origin, theirs.incarnation)
        if store is None or store == theirs.store:
            return False
        if origin == self._engine.cluster:
            copy = RemoteCopy(theirs.incarnation, theirs.position, theirs.store, theirs.deleted)
            if theirs.incarnation < topic.incarnation:  # a reclaim may have brought that life back
                return topic.origins.had(origin, theirs.position)
            return judge(copy, self._stores.own_topic(name)) is Judgement.SAME
        ours = topic.origins.high_water(origin)
        return ours is not None and ours.incarnation == theirs.incarnation and ours.position >= theirs.position

    def _writer(self, name: str, origin: str, incarnation: int) -> list[CopyWriter]:
        """Return which store wrote a life of a topic that is here; empty if this cluster does not know it."""
        topic = self._engine.find(name)
        store = None if topic is None else self._stores.store_of(topic, origin, incarnation)
        return [] if store is None else [CopyWriter(name, origin, incarnation, store)]

    def _lines(self) -> dict[str, StoreLine]:
        """Return the newest store of each origin that the link carries, if it is known, with the stores before it."""
        known = {**self._stores.lines, self._engine.cluster: self._stores.line}
        origins = islice((each for each in sorted(self._topics.origins) if each in known), ORIGINS_MAX)
        return {origin: known[origin] for origin in origins}


def _take(waiting: dict[_Key, None], count: int) -> list[_Key]:
    """Remove the first ``count`` keys from the dictionary, and return them."""
    taken = list(islice(waiting, count))
    for key in taken:
        del waiting[key]
    return taken
