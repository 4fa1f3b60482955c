"""The parts of a topic, each by itself: reading, origins, trimming and the policies in their layers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from engine_support import message, opened

from replicator.engine.errors import InvalidAck, InvalidSeek, TopicNotFound
from replicator.engine.policies import TopicPolicies
from replicator.engine.topic import Topic
from replicator.engine.types import END_LEDGER
from snapshots.position import BEFORE_ALL, Position

TOPIC = "persistent://public/default/parts"


def public_methods(kind: type) -> set[str]:
    return {name for name, each in vars(kind).items() if callable(each) and not name.startswith("_")}


def test_a_topic_has_parts_and_not_their_methods() -> None:
    """A caller uses the parts directly; the topic itself has two short ways, and its own life."""
    life = {"check_there", "leave", "stay", "gone", "terminate", "stop", "committed", "passed_over", "compacted"}
    life |= {"status"}
    assert public_methods(Topic) == {"publish", "subscribe"} | life


def test_reading_finds_entries_by_position_and_refuses_what_is_not_there(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            positions = [(await topic.publish([message()]))[0] for _ in range(3)]
            reading, last = topic.reading, positions[-1]
            assert [entry.position for entry in reading.entries(BEFORE_ALL, positions[1], 10, 10**6)] == positions[:2]
            assert [entry.position for entry in reading.entries(positions[0], None, 1, 10**6)] == [positions[1]]
            assert (reading.messages_through(positions[1]), reading.has_position(last)) == (2, True)
            beyond = Position(last.ledger, last.entry + 2)
            assert not reading.has_position(beyond)
            with pytest.raises(InvalidAck, match="does not exist"):
                reading.batch_size(beyond)
            with pytest.raises(InvalidSeek, match="there is nothing at"):
                reading.position_before(beyond)
            assert reading.position_before(Position(END_LEDGER, 0)) == last

    asyncio.run(main())


def test_origins_know_how_far_messages_and_markers_are_and_trimming_where_ledgers_ended(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            positions = [(await topic.publish([message()]))[0] for _ in range(3)]
            here = topic.cluster
            assert topic.origins.vector() == topic.origins.message_vector() == {here: positions[-1]}
            assert topic.trimming.ends() == {}
            await topic.trimming.trim(positions[1])
            assert topic.trimming.in_store == topic.log.trimmed == positions[1]
            assert topic.trimming.ends()[here] == [positions[1]]
            assert topic.log.messages == 3, "what is trimmed counts"
            assert topic.reading.messages_stored() == 1

    asyncio.run(main())


def test_policies_of_a_topic_that_is_being_deleted_are_not_changed(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            topic.leave()
            with pytest.raises(TopicNotFound):
                await topic.policies.set(TopicPolicies(max_consumers=1))
            assert topic.policies.own is None
            topic.stay()
            await topic.policies.set(TopicPolicies(max_consumers=1))
            assert (topic.policies.effective.max_consumers, topic.policies.inherited.max_consumers) == (1, None)

    asyncio.run(main())
