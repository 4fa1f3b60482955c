"""Number of unconsumed messages of a subscription: counted once, then updated by acknowledgements.

Counting looks up a few rows for each run of acknowledged entries. So the messages are counted when somebody
asks, and again only after a change by an unknown number of messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from replicator.engine.errors import BlockCorrupt, InvalidAck
from snapshots.position import Position
from snapshots.position_set import PositionSet

if TYPE_CHECKING:
    from replicator.engine.subscriptions.cursor import Cursor
    from replicator.engine.subscriptions.subscribed_topic import SubscribedTopic

PositionAndIndexes = tuple[Position, tuple[int, ...] | None]
"""Acknowledged entry, and the acknowledged indexes of its batch, or None for the whole entry."""


class Backlog:
    """Unconsumed messages of one subscription. A partly acknowledged batch counts whole."""

    __slots__ = ("_consumed", "_cursor", "_topic")

    def __init__(self, topic: SubscribedTopic, cursor: Cursor) -> None:
        self._topic = topic
        self._cursor = cursor
        self._consumed: int | None = None

    @property
    def counts(self) -> bool:
        """Whether :meth:`consumed` needs the number of messages, because somebody asked for the backlog."""
        return self._consumed is not None

    def consumed(self, messages: int) -> None:
        """Note that an entry with ``messages`` messages was acknowledged."""
        if self._consumed is not None:
            self._consumed += messages

    def consumed_at(self, positions: PositionSet) -> None:
        """Note that the entries at ``positions`` were acknowledged. All of them were unconsumed messages of the log."""
        if self._consumed is None:
            return
        try:
            self._consumed += self._messages_at(positions)
        except BlockCorrupt:
            self.moved()  # whoever asks next counts them again, and hears the reason

    def checked_sizes(self, acks: Sequence[PositionAndIndexes]) -> list[int]:
        """Return the batch size of each acknowledged entry; 1 if nobody needs it.

        Raises :class:`InvalidAck`, before anything has changed.
        """
        sizes: list[int] = []
        reading, log, cursor = self._topic.reading, self._topic.log, self._cursor
        for position, batch_indexes in acks:
            if not reading.has_position(position) or position in log.markers:
                raise InvalidAck(
                    f"position {position} is not a message of {self._topic.name} (its last entry is {log.last}): see "
                    "that it is of this topic and this cluster"
                )
            if position <= cursor.mark_delete or cursor.lacks(position):
                sizes.append(1)  # late: it changes nothing, so its block need not be read
                continue
            if batch_indexes is None and not self.counts:
                sizes.append(1)
                continue
            size = reading.batch_size(position)
            wrong = [index for index in batch_indexes or () if not 0 <= index < size]
            if wrong:
                raise InvalidAck(
                    f"batch index {wrong[0]} is not in the entry at {position}, which has {size} messages from index 0 "
                    "on: acknowledge one of these"
                )
            sizes.append(size)
        return sizes

    def moved(self) -> None:
        """Forget the count, because an unknown number of messages was acknowledged or is unconsumed again. The next
        question counts anew."""
        self._consumed = None

    def messages(self) -> int:
        """Return the number of unconsumed messages. For messages of the compacted view it is an estimate: the number of
        entries times the mean number of messages in an entry.

        If the head of a block that must be counted is damaged, return the number of unconsumed entries. The block is
        reported for repair.
        """
        topic, cursor = self._topic, self._cursor
        try:
            if cursor.state.read_compacted:
                return self._messages_compacted()
            if self._consumed is None:
                through = topic.reading.messages_through(cursor.mark_delete)
                self._consumed = through + self._messages_at(cursor.state.individually_deleted)
        except BlockCorrupt:
            return cursor.backlog_entries()
        return topic.log.messages - self._consumed

    def _messages_at(self, positions: PositionSet) -> int:
        """Return the number of messages in the entries at ``positions``, which are in the log and are no markers.

        The cost grows with the number of runs. Markers have no messages, so they are added if that joins runs.
        """
        first, last = positions.first(), positions.last()
        if first is None or last is None:
            return 0
        if positions.count_runs() == 1:
            return self._topic.reading.messages_in(positions)
        joined = self._topic.log.markers.after(first)
        joined.discard_after(last)
        joined.update(positions)
        return self._topic.reading.messages_in(min(positions, joined, key=PositionSet.count_runs))

    def _messages_compacted(self) -> int:
        topic, cursor = self._topic, self._cursor
        view, entries = topic.compaction.state, cursor.backlog_entries_of_view()
        messages = -(-entries * max(view.messages, view.entries) // view.entries) if entries else 0
        start = max(cursor.mark_delete, view.horizon)
        deleted = cursor.state.individually_deleted.copy()
        deleted.discard_through(start)
        return messages + topic.log.messages - topic.reading.messages_through(start) - self._messages_at(deleted)
