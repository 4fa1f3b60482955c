"""Translation of a message id into the place where a seek or a reader begins. Sans-IO.

The cluster puts a subscription between entries. After a seek into the middle of a batch, the consumer acknowledges the
unwanted part of the entry without showing it.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyroaring import BitMap

from replicator.client.message import ChunkMessageId, MessageId
from snapshots.position import BEFORE_ALL, Position


@dataclass(frozen=True, slots=True)
class SkippedPart:
    """Messages of the batch at ``position``, through ``last_index``, that are not wanted."""

    position: Position
    last_index: int

    def indexes(self) -> BitMap:
        return BitMap(range(self.last_index + 1))


def seek_target(message_id: MessageId, *, inclusive: bool) -> tuple[Position, SkippedPart | None]:
    """Return the entry to receive next, and its unwanted part, to continue after ``message_id`` or with it.

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
    """Return the place after a received message, like :func:`seek_target`; its batch size is certain."""
    position, index = message_id.position(), message_id.batch_index()
    if index == message_id.batch_size() - 1:
        return Position(position.ledger, position.entry + 1), None
    return seek_target(message_id, inclusive=False)


def start_position(target: Position) -> Position:
    """Return the last consumed position when the entry at ``target`` comes next."""
    return Position(target.ledger, target.entry - 1)
