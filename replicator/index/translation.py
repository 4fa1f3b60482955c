"""Answers where an entry of one cluster lies in another, a half at a time (docs/mapping.md).

The first half, asked of the cluster that has the position: which entry is it, by (origin, incarnation, position)?
The second, asked of the other: where does that entry lie? Both look in Postgres, and in the store while it is away or
behind (invariant 9); the answer says in which. What a position cannot be, the log itself says: it is in memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from replicator.engine.engine import Engine
from replicator.engine.errors import EngineError
from replicator.engine.log.extent_rows import read_extents
from replicator.engine.topic import Topic
from replicator.index.writer import IndexWriter
from snapshots.position import Position
from snapshots.repository import ExtentKey, RepositoryUnavailable

POSTGRES, STORE, LOG = "postgres", "store", "log"


class PositionBeyondEnd(EngineError):
    """The topic has no entry there yet."""

    status = 404


class PositionUnknown(EngineError):
    """There never was an entry at that position, such as beyond the end of a ledger."""

    status = 404


class PositionTrimmed(EngineError):
    """The entry was there, and retention removed it."""

    status = 410


class PositionIsMarker(EngineError):
    """The entry is a marker, meant for workers; it is no message."""

    status = 422


class NotCopied(EngineError):
    """The entry is not in this cluster: not yet, or it was left out."""

    status = 404


class OtherIncarnation(EngineError):
    """The entry is of another life of the topic: it was deleted and made anew."""

    status = 409


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity of an entry, the same everywhere. ``source`` tells where it was looked up: ``postgres``, ``store``, or
    ``log`` for an entry that was published here.
    """

    origin: str
    incarnation: int
    position: Position
    source: str


@dataclass(frozen=True, slots=True)
class Place:
    """Position of an entry in this cluster."""

    position: Position
    source: str


class Translator:
    """The two halves, for the topics of one worker."""

    def __init__(self, engine: Engine, writer: IndexWriter) -> None:
        self._engine = engine
        self._writer = writer

    async def identity(self, topic_name: str, position: Position) -> Identity:
        """Return the identity of the entry at ``position`` here.

        Raises :class:`TopicNotFound`, :class:`PositionBeyondEnd`, :class:`PositionUnknown`, :class:`PositionTrimmed`,
        :class:`PositionIsMarker`, :class:`BlockCorrupt`.
        """
        topic = await self._engine.topic(topic_name, create=False)
        self._check(topic, position)
        if position in topic.log.markers:
            raise PositionIsMarker(
                f"{position} of {topic.name} in {self._engine.cluster} is a marker: it is delivered to nobody; ask for "
                "the position before or after it"
            )
        source = POSTGRES
        try:
            found = await self._writer.to_origin(topic.name, position)
        except RepositoryUnavailable:
            found, source = None, STORE
        if found is not None:
            key, at_origin = found
            return Identity(key.origin, key.incarnation, at_origin, source)
        stored = self._engine.store.block_of(topic.topic_id, position)
        if stored is None:
            raise self._trimmed(topic, position)
        header = stored.header
        at_origin = Position(
            header.origin_first.ledger, header.origin_first.entry + position.entry - stored.position.entry
        )
        own = header.origin == self._engine.cluster
        return Identity(header.origin, header.incarnation, at_origin, LOG if own else STORE)

    async def place(self, topic_name: str, origin: str, incarnation: int, position: Position) -> Place:
        """Return the place here of the entry of ``origin`` at ``position``. A marker has one too: workers ask for it to
        mend a damaged block.

        Raises :class:`TopicNotFound`, :class:`NotCopied`, :class:`PositionTrimmed`, :class:`OtherIncarnation`, and for
        an entry that should have been published here :class:`PositionBeyondEnd` and :class:`PositionUnknown`.
        """
        topic = await self._engine.topic(topic_name, create=False)
        if origin == self._engine.cluster:
            put_back = position.ledger < topic.incarnation and position in topic.log  # an earlier life, reclaimed
            if incarnation != topic.incarnation and not put_back:
                raise self._other_life(topic, origin)
            self._check(topic, position)
            return Place(position, LOG)
        source = POSTGRES
        try:
            local = await self._writer.to_local(ExtentKey(topic.name, origin, incarnation), position)
        except RepositoryUnavailable:
            local = None
        if local is None:
            source = STORE
            local = self._engine.store.translate(topic.topic_id, origin, incarnation, position)
        if local is None:
            raise self._missing(topic, origin, incarnation, position)
        if local <= topic.log.trimmed:
            raise self._trimmed(topic, local)
        return Place(local, source)

    def _check(self, topic: Topic, position: Position) -> None:
        """Raise an error unless an entry lies at ``position``."""
        log, where = topic.log, self._engine.cluster
        if position > log.last:
            raise PositionBeyondEnd(
                f"{topic.name} ends at {log.last} in {where}; there is nothing at {position} yet: ask for a position "
                "up to the end"
            )
        if position not in log:
            if position <= log.trimmed:
                raise self._trimmed(topic, position)
            raise PositionUnknown(
                f"{topic.name} has no entry {position} in {where}; the entry before is {log.clamp(position)}: ask for "
                "the position of an entry"
            )

    def _missing(self, topic: Topic, origin: str, incarnation: int, position: Position) -> EngineError:
        """Return the error that tells why an entry of another cluster is not here."""
        where, name = self._engine.cluster, f"{position} of {topic.name} at {origin}"
        high_water = topic.origins.high_water(origin)
        if high_water is None:
            return NotCopied(f"{name} is not in {where}: nothing of {origin} was copied there yet")
        first = read_extents(self._engine.store, topic.topic_id, origin, incarnation, runs_max=1)
        if high_water.incarnation != incarnation and not first:
            return self._other_life(topic, origin)
        if position > high_water.position:
            return NotCopied(f"{name} is not in {where} yet: it has {origin} up to {high_water.position}")
        if topic.log.trimmed.ledger and (not first or position < first[0].origin_first):
            return PositionTrimmed(f"{name} is not in {where} any more, or never was: its log begins above it")
        return NotCopied(f"{name} was left out on the way to {where}, such as by a filter or a gap")

    def _trimmed(self, topic: Topic, position: Position) -> PositionTrimmed:
        where, trimmed = self._engine.cluster, topic.log.trimmed
        return PositionTrimmed(f"{position} of {topic.name} is not in {where} any more: it is trimmed up to {trimmed}")

    def _other_life(self, topic: Topic, origin: str) -> OtherIncarnation:
        where = self._engine.cluster
        return OtherIncarnation(
            f"{where} has {topic.name} of {origin} from before it was deleted and made anew, or after"
        )
