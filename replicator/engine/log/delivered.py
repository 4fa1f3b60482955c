"""The last message of a topic that clients can receive, as clients are told of it.

Invariant: a position that is told to clients is one of a message that they get if they read on. Readers and table views
read until they have the last message; a message that never comes makes them wait for ever.

1. :func:`last_position` passes over whole entries: markers, and hidden duplicates. For those who read compacted it
   takes the compacted view as far as the view reaches, also where the log is trimmed.
2. :func:`last_delivered` looks into that entry. A message in chunks whose last chunk has not come is passed over. In a
   batch the last message that is here counts: compaction, or the SQL of a link, may have left out those after it.
3. The mark-delete position goes down to a message, too. Above the last message it would look as if there were another.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from pyroaring import BitMap

from replicator.engine.errors import EntryCorrupt, MessageTooLarge
from replicator.engine.log.entry import decode_entry
from replicator.engine.log.last_message import last_message
from replicator.engine.log.log_index import LogIndex
from replicator.engine.log.topic_reading import TopicReading
from replicator.engine.types import LoggedEntry
from snapshots.position import BEFORE_ALL, Position

NO_BATCH: Final = -1
CHUNKS_PASSED_MAX: Final = 1_000
"""Chunks at the end of a log that one question looks at: some milliseconds. Past it a chunk counts as a message."""


class LastMessage(NamedTuple):
    """The last message that a client can receive, and how far its subscription has come."""

    position: Position
    """BEFORE_ALL if there is no message."""
    batch_index: int = NO_BATCH
    """-1 for a message that is an entry of its own."""
    mark_delete: Position | None = None
    """The last message that is consumed with all before it. If there is none, a place before every message. None where
    nobody asked for it, or a broker does not say it."""


class CompactedEntries(Protocol):
    """The compacted view of a topic."""

    def find(self, position: Position) -> LoggedEntry | None:
        """Return the view's entry at ``position``, or None."""


class ReadTopic(Protocol):
    """A topic whose entries can be read."""

    log: LogIndex
    reading: TopicReading

    @property
    def compaction(self) -> CompactedEntries: ...


def last_position(log: LogIndex, *, compacted: bool, upto: Position | None = None) -> Position:
    """Return the last entry at or below ``upto`` that is delivered, or BEFORE_ALL if there is none.

    ``compacted`` is for those who read the compacted view. No entry is read.
    """
    last = last_message(log, upto)
    horizon = log.view.horizon
    if not compacted or last > horizon:
        return last
    last = log.view.clamp(horizon if upto is None else min(upto, horizon))
    while log.twins is not None and last in log.twins.hidden:
        last = log.view.clamp(_place_before(last))
    return last


def last_delivered(topic: ReadTopic, *, compacted: bool = False, consumed: Position | None = None) -> LastMessage:
    """Return the last message that is delivered. ``consumed`` is the mark-delete position, which is then told too.

    Raises :class:`BlockCorrupt` if its block cannot be read.
    """
    log = topic.log
    position, index = last_position(log, compacted=compacted), NO_BATCH
    for _ in range(CHUNKS_PASSED_MAX):
        if position == BEFORE_ALL:
            break
        found = _last_index(topic, position, compacted=compacted)
        if found is not None:
            index = found
            break
        position = last_position(log, compacted=compacted, upto=_place_before(position))
    if consumed is None:
        return LastMessage(position, index)
    passed = min(last_position(log, compacted=compacted, upto=consumed), position)
    if passed == BEFORE_ALL:
        passed = _before_first(log, compacted=compacted)
    return LastMessage(position, index, passed)


def _last_index(topic: ReadTopic, position: Position, *, compacted: bool) -> int | None:
    """Return the index of the last message of an entry that is delivered; None for a chunk that completes nothing."""
    log = topic.log
    entry: LoggedEntry | None = None
    missing: BitMap | None = None
    if compacted and position <= log.view.horizon:
        entry = topic.compaction.find(position)
        if entry is not None and entry.compacted_out is not None:
            missing = BitMap.deserialize(entry.compacted_out)
    elif entries := topic.reading.entries(_place_before(position), position, 1, 1):
        entry = entries[0]
        missing = None if log.parts is None else log.parts.absent(position)
    if entry is None:
        return NO_BATCH
    try:
        metadata, _ = decode_entry(entry.entry, check=False)
    except (EntryCorrupt, MessageTooLarge):  # it is delivered, and its client says so
        return entry.batch_size - 1 if entry.batch_size > 1 else NO_BATCH
    if metadata.num_chunks_from_msg > 1:
        return NO_BATCH if metadata.chunk_id == metadata.num_chunks_from_msg - 1 else None
    if not metadata.HasField("num_messages_in_batch"):
        return NO_BATCH
    index = entry.batch_size - 1
    while missing is not None and index in missing:
        index -= 1
    return index


def _before_first(log: LogIndex, *, compacted: bool) -> Position:
    """Return a place before every message, in the ledger of the first entry: clients take -1:-1 for the end."""
    firsts = (log.first, log.view.positions.first() if compacted else None)
    first = min((each for each in firsts if each is not None), default=None)
    return BEFORE_ALL if first is None else Position(first.ledger, -1)


def _place_before(position: Position) -> Position:
    return Position(position.ledger, position.entry - 1)
