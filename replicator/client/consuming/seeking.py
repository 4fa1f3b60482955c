"""Where a seek or a reader begins: from a message id to a place in the log. Sans-IO.

The cluster puts a subscription between entries. An id in the middle of a batch therefore leaves a part of its entry
that is delivered and not wanted: the consumer acknowledges it without showing it.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyroaring import BitMap

from replicator.client.message import ChunkMessageId, MessageId
from snapshots.position import BEFORE_ALL, Position


@dataclass(frozen=True, slots=True)
class SkippedPart:
    """The messages of the batch at ``position`` up to and with ``last_index``."""

    position: Position
    last_index: int

    def indexes(self) -> BitMap:
        return BitMap(range(self.last_index + 1))


def seek_target(message_id: MessageId, *, inclusive: bool) -> tuple[Position, SkippedPart | None]:
    """The entry that is to come next, and what of it is not wanted, to go on after ``message_id`` or with it.

    :attr:`MessageId.earliest` and :attr:`MessageId.latest` mean the same either way.
    """
    position, index = message_id.position(), message_id.batch_index()
    if message_id == MessageId.latest:
        return position, None
    if position <= BEFORE_ALL:
        return Position(0, 0), None
    if inclusive:
        if isinstance(message_id, ChunkMessageId):
            return message_id.first_chunk_position(), None
        return position, SkippedPart(position, index - 1) if index > 0 else None
    if index < 0 or index == message_id.batch_size() - 1 > 0:
        return Position(position.ledger, position.entry + 1), None
    return position, SkippedPart(position, index)  # perhaps all of a batch of one: an id may lack its batch size


def following(message_id: MessageId) -> tuple[Position, SkippedPart | None]:
    """As :func:`seek_target`, after a message that was received: its batch size is certain."""
    position, index = message_id.position(), message_id.batch_index()
    if index == message_id.batch_size() - 1:
        return Position(position.ledger, position.entry + 1), None
    return seek_target(message_id, inclusive=False)


def start_position(target: Position) -> Position:
    """All up to here is consumed when the entry at ``target`` comes next."""
    return Position(target.ledger, target.entry - 1)
