"""Seeks: the entry at which each begins, and the messages of its batch that it skips."""

from __future__ import annotations

import pytest

from replicator.client.consuming.seeking import SkippedPart, following, seek_target, start_position
from replicator.client.message import ChunkMessageId, MessageId
from snapshots.position import BEFORE_ALL, Position


def _id(entry: int, index: int = -1, size: int = 1) -> MessageId:
    return MessageId.at(Position(3, entry), -1, index, size)


@pytest.mark.parametrize(
    ("message_id", "after", "with_it"),
    [
        (_id(5), (Position(3, 6), None), (Position(3, 5), None)),
        (_id(5, 0, 3), (Position(3, 5), SkippedPart(Position(3, 5), 0)), (Position(3, 5), None)),
        (
            _id(5, 1, 3),
            (Position(3, 5), SkippedPart(Position(3, 5), 1)),
            (Position(3, 5), SkippedPart(Position(3, 5), 0)),
        ),
        (_id(5, 2, 3), (Position(3, 6), None), (Position(3, 5), SkippedPart(Position(3, 5), 1))),
        (MessageId.earliest, (Position(0, 0), None), (Position(0, 0), None)),
        (MessageId.latest, (MessageId.latest.position(), None), (MessageId.latest.position(), None)),
        (
            ChunkMessageId((Position(3, 4), Position(3, 7)), -1),
            (Position(3, 8), None),
            (Position(3, 4), None),
        ),
    ],
)
def test_a_seek_goes_on_after_the_message_or_with_it(message_id: MessageId, after: object, with_it: object) -> None:
    assert seek_target(message_id, inclusive=False) == after
    assert seek_target(message_id, inclusive=True) == with_it


def test_an_id_without_its_batch_size_skips_no_message_that_follows_it() -> None:
    assert seek_target(MessageId(-1, 3, 5, 0), inclusive=False) == (Position(3, 5), SkippedPart(Position(3, 5), 0))
    assert seek_target(MessageId(-1, 3, 5, 2), inclusive=False) == (Position(3, 5), SkippedPart(Position(3, 5), 2))


def test_after_a_received_message_of_a_batch_of_one_the_next_entry_follows() -> None:
    assert following(_id(5, 0, 1)) == (Position(3, 6), None)
    assert following(_id(5, 0, 2)) == (Position(3, 5), SkippedPart(Position(3, 5), 0))
    assert following(_id(5)) == (Position(3, 6), None)


def test_a_reader_from_the_earliest_message_has_consumed_nothing() -> None:
    assert start_position(seek_target(MessageId.earliest, inclusive=False)[0]) == BEFORE_ALL
