"""Search for the last message of a topic that clients can receive. The worker returns its position to clients.

Invariant: a client that reads on receives the message whose position it got as the last one. Readers and table views
read until they have that message. They would wait for ever for a message that never comes.

1. :func:`last_position` skips whole entries: markers, and hidden duplicates. For consumers of the compacted view it
   uses the view as far as the view reaches, even where the log is trimmed.
2. :func:`last_delivered` looks into the entry. It skips the chunks of a message whose last chunk has not come. Of a
   batch it takes the last message that is present: compaction, or the SQL of a link, may have removed later ones.
3. The mark-delete position is lowered to a message in the same way. A position above the last message would look as if
   another message followed.
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
from snapshots.position_set import PositionSet

NO_BATCH: Final = -1
CHUNKS_PASSED_MAX: Final = 1_000
"""Chunks at the end of a log that one search reads, which takes some milliseconds. The search takes the next chunk for
a message."""


class LastMessage(NamedTuple):
    """The last message that a client can receive, and the mark-delete position of its subscription."""

    position: Position
    """BEFORE_ALL if there is no message."""
    batch_index: int = NO_BATCH
    """Index of the message in its batch; NO_BATCH if it is not part of a batch."""
    mark_delete: Position | None = None
    """The last message that is consumed together with all messages before it. A position before every message if there
    is none. None if the caller did not ask for it, or if a broker does not return it."""


class CompactedEntries(Protocol):
    """Interface of a topic's compacted view that finds single entries."""

    def find(self, position: Position) -> LoggedEntry | None:
        """Return the entry of the compacted view at ``position``, or None if the view has none there."""


class ReadTopic(Protocol):
    """Interface of a topic whose log and compacted view can be read."""

    log: LogIndex
    reading: TopicReading

    @property
    def compaction(self) -> CompactedEntries: ...


def last_position(log: LogIndex, *, compacted: bool, upto: Position | None = None) -> Position:
    """Return the position of the last entry at or below ``upto`` that consumers receive, or BEFORE_ALL if there is
    none.

    Without ``upto`` the whole log counts. ``compacted`` is True for consumers of the compacted view. The search uses
    the index in memory, and reads no entry.
    """
    last = last_message(log, upto)
    horizon = log.view.horizon
    if not compacted or last > horizon:
        return last
    last = log.view.clamp(horizon if upto is None else min(upto, horizon))
    hidden = PositionSet() if log.duplicates is None else log.duplicates.hidden
    for _ in range(len(hidden)):  # each step passes one of them
        if last not in hidden:
            break
        last = log.view.clamp(_place_before(last))
    return last


def last_delivered(topic: ReadTopic, *, compacted: bool = False, consumed: Position | None = None) -> LastMessage:
    """Return the last message that consumers receive. Its position is BEFORE_ALL if there is no message.

    ``consumed`` is the mark-delete position of a subscription, and :attr:`LastMessage.mark_delete` is the last message
    at or below it. With None, ``mark_delete`` is None. Raises :class:`BlockCorrupt` if the block of the message cannot
    be read.
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
    """Return the batch index of the last message that consumers receive from the entry at ``position``.

    Return NO_BATCH if the entry is no batch. Return None if the entry is a chunk, but not the last one of its
    message.
    """
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
    except (EntryCorrupt, MessageTooLarge):  # the entry is delivered, and the client reports the error
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
    """Return a position before the first message: entry -1 of its ledger, or BEFORE_ALL if there is no message.

    Clients take the position -1:-1 for the end of the topic, so BEFORE_ALL cannot stand for its beginning.
    """
    firsts = (log.first, log.view.positions.first() if compacted else None)
    first = min((each for each in firsts if each is not None), default=None)
    return BEFORE_ALL if first is None else Position(first.ledger, -1)


def _place_before(position: Position) -> Position:
    return Position(position.ledger, position.entry - 1)
