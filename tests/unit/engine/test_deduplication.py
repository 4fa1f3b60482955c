"""Deduplication: the table of sequence ids by itself, then publishing to a topic that has it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import lmdb
import pytest
from engine_support import TOPIC, entries_of, make_block, marker, opened

from replicator.engine.engine import EngineSettings
from replicator.engine.errors import EntryCorrupt, NotAllowedError, StoreFull
from replicator.engine.log.commit import deduplicating
from replicator.engine.log.entry import append_to_batch, encode_entry
from replicator.engine.log.writer import CopiedBlock
from replicator.engine.policies import TopicPolicies
from replicator.engine.producing.deduplication import (
    INACTIVE_MS_MAX,
    SEQUENCE_ID_MAX,
    SequencedEntry,
    SequenceTable,
    decode_row,
    encode_row,
)
from replicator.engine.types import DUPLICATE, ProducerOptions
from replicator.metadata.metadata_pb2 import MessageMetadata, SingleMessageMetadata
from snapshots.position import BEFORE_ALL, Position

ON = EngineSettings(policies=TopicPolicies(deduplication=True))


def ids(*numbers: int, producer: str = "p") -> list[SequencedEntry]:
    return [SequencedEntry(producer, number, number) for number in numbers]


def chunk(number: int, at: int, of: int, uuid: str = "u") -> SequencedEntry:
    return SequencedEntry("p", number, number, at, of, uuid)


# The table.


def test_what_is_at_or_below_the_highest_is_a_duplicate() -> None:
    table = SequenceTable()
    assert table.admit(ids(0, 1, 1, 5, 3), 1) == [True, True, False, True, False]
    assert table.highest("p") == 5
    assert table.highest("other") == -1


def test_producers_are_told_apart() -> None:
    table = SequenceTable()
    assert table.admit([*ids(7), *ids(7, producer="q")], 1) == [True, True]


def test_a_batch_counts_up_to_its_highest_id() -> None:
    table = SequenceTable()
    assert table.admit([SequencedEntry("p", 3, 9)], 1) == [True]
    assert (
        table.admit([SequencedEntry("p", 3, 9), SequencedEntry("p", 9, 9), SequencedEntry("p", 4, 6)], 1) == [False] * 3
    )
    assert table.admit([SequencedEntry("p", 10, 12)], 1) == [True]


def test_a_batch_of_which_a_part_is_here_is_refused_and_the_whole_call_changes_nothing() -> None:
    table = SequenceTable()
    table.begin()
    table.admit(ids(5), 1)
    with pytest.raises(NotAllowedError, match="up to 7"):
        table.admit([*ids(7), SequencedEntry("p", 7, 9), *ids(20, producer="q")], 2)
    assert table.highest("p") == 5
    assert table.highest("q") == -1
    assert [(producer, row and row.highest) for producer, row in table.take_changes()] == [("p", 5)]


def test_chunks_of_one_message_are_no_duplicates_of_each_other() -> None:
    table = SequenceTable()
    assert table.admit([chunk(4, at, 3) for at in range(3)], 1) == [True] * 3
    assert table.highest("p") == 4
    assert table.admit([chunk(4, at, 3) for at in range(3)], 1) == [False] * 3


def test_a_chunked_message_counts_only_when_its_last_chunk_is_here() -> None:
    table = SequenceTable()
    table.admit([*ids(3), chunk(4, 0, 3), chunk(4, 1, 3)], 1)
    assert table.highest("p") == 3
    assert table.admit([chunk(4, 0, 3), chunk(4, 1, 3), chunk(4, 2, 3)], 1) == [False, False, True]
    assert table.highest("p") == 4


def test_a_chunk_that_skips_one_is_refused() -> None:
    """Otherwise the message would be complete for the table, but not for any consumer."""
    table = SequenceTable()
    table.admit([*ids(3), chunk(4, 0, 3)], 1)
    with pytest.raises(NotAllowedError, match="chunk 1 is not here"):
        table.admit([chunk(4, 2, 3)], 1)
    with pytest.raises(NotAllowedError, match="chunk 0 is not here"):
        table.admit([chunk(5, 1, 3)], 1)
    assert table.admit([chunk(4, 1, 3), chunk(4, 2, 3)], 1) == [True, True]


def test_a_message_that_is_sent_again_under_another_uuid_starts_again() -> None:
    table = SequenceTable()
    table.admit([*ids(3), chunk(4, 0, 3, "first try"), chunk(4, 1, 3, "first try")], 1)
    assert table.admit([chunk(4, at, 3, "second try") for at in range(3)], 1) == [True] * 3


def test_a_producer_that_moves_on_leaves_its_open_message_behind() -> None:
    table = SequenceTable()
    table.admit([*ids(3), chunk(4, 0, 3), *ids(5)], 1)
    assert table.admit([chunk(4, 1, 3)], 1) == [False]


def test_chunks_of_a_producer_that_is_not_known_may_have_begun_before() -> None:
    table = SequenceTable()
    assert table.admit([chunk(4, 1, 3), chunk(4, 2, 3)], 1) == [True, True]


def test_a_transaction_that_fails_leaves_the_rows_as_they_were() -> None:
    table = SequenceTable()
    table.begin()
    table.admit([*ids(5), chunk(6, 0, 2)], 1)
    table.take_changes()
    table.begin()
    table.admit([chunk(6, 1, 2), *ids(9), *ids(1, producer="q")], 2)
    table.take_changes()
    table.roll_back()
    assert table.highest("p") == 5
    assert table.highest("q") == -1
    assert table.take_changes() == []
    assert table.admit([chunk(6, 0, 2), chunk(6, 1, 2)], 3) == [False, True]


def test_rows_come_back_from_the_store_as_they_were() -> None:
    table = SequenceTable()
    table.admit([*ids(SEQUENCE_ID_MAX - 1), chunk(SEQUENCE_ID_MAX, 0, 3)], 77)
    ((producer, row),) = table.take_changes()
    assert row is not None
    assert decode_row(encode_row(row)) == row
    again = SequenceTable([(producer, row)])
    assert again.admit([chunk(SEQUENCE_ID_MAX, 0, 3), chunk(SEQUENCE_ID_MAX, 1, 3)], 78) == [False, True]


def test_the_longest_unused_row_goes_when_there_are_too_many() -> None:
    connected = {"a"}
    table = SequenceTable(connected=connected, rows_max=3)
    for at, producer in enumerate("abcb"):
        table.admit(ids(at, producer=producer), at)
    table.take_changes()
    table.admit(ids(0, producer="d"), 9)
    assert [table.highest(producer) for producer in "abcd"] == [0, 3, -1, 0]
    assert ("c", None) in table.take_changes()


def test_a_refused_call_brings_back_what_it_pushed_out() -> None:
    table = SequenceTable(rows_max=1)
    table.admit(ids(4, producer="a"), 1)
    with pytest.raises(NotAllowedError):
        table.admit([*ids(1, producer="b"), SequencedEntry("b", 0, 2)], 2)
    assert table.highest("a") == 4
    assert len(table) == 1


def test_rows_of_producers_that_were_not_seen_for_long_are_dropped() -> None:
    connected = {"idle"}
    table = SequenceTable(connected=connected)
    table.admit([*ids(1, producer="idle"), *ids(1, producer="gone")], 0)
    table.drop_inactive(INACTIVE_MS_MAX)
    assert len(table) == 2
    table.drop_inactive(INACTIVE_MS_MAX + 1)
    assert (table.highest("idle"), table.highest("gone")) == (1, -1)
    connected.clear()  # from now on its time runs
    table.drop_inactive(2 * INACTIVE_MS_MAX)
    assert table.highest("idle") == 1
    table.drop_inactive(2 * INACTIVE_MS_MAX + 2)
    assert table.highest("idle") == -1


# A topic.


def numbered(
    number: int, payload: bytes = b"", *, producer: str = "p", highest: int | None = None, at: int = 0, of: int = 0
) -> bytes:
    metadata = MessageMetadata(producer_name=producer, sequence_id=number, publish_time=1)
    if highest is not None:
        metadata.highest_sequence_id = highest
        metadata.num_messages_in_batch = highest - number + 1
        body = bytearray()
        for _ in range(metadata.num_messages_in_batch):
            append_to_batch(body, SingleMessageMetadata(payload_size=0), payload)
        return encode_entry(metadata, body)
    if of:
        metadata.chunk_id, metadata.num_chunks_from_msg, metadata.total_chunk_msg_size = at, of, 99
        metadata.uuid = f"{producer}-{number}"
    return encode_entry(metadata, payload)


def test_what_is_sent_again_is_stored_once_and_gets_its_receipt(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, settings=ON) as engine:
            topic = await engine.topic(TOPIC)
            first = await topic.publish([numbered(0), numbered(1)])
            again = await topic.publish([numbered(1), numbered(2), numbered(0)])
            assert first == [topic.log.first, again[1]._replace(entry=1)]
            assert again == [DUPLICATE, topic.log.last, DUPLICATE]
            assert await topic.publish([numbered(2)]) == [DUPLICATE]
            assert entries_of(topic, "us-east") == [numbered(0), numbered(1), numbered(2)]

    asyncio.run(main())


def test_a_copy_of_a_message_that_is_on_its_way_is_answered_after_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, settings=ON) as engine:
            topic = await engine.topic(TOPIC)
            results = await asyncio.gather(*(topic.publish([numbered(0)]) for _ in range(5)))
            assert [result for result in results if result != [DUPLICATE]] == [[topic.log.last]]
            assert topic.log.messages == 1

    asyncio.run(main())


def test_without_deduplication_everything_is_stored(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            await topic.publish([numbered(0), numbered(0)])
            producer = await topic.producers.create(ProducerOptions(name="p"))
            assert producer.last_sequence_id == -1
            assert topic.log.messages == 2

    asyncio.run(main())


def test_a_producer_that_connects_is_told_where_it_stopped(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, settings=ON) as engine:
            topic = await engine.topic(TOPIC)
            producer = await topic.producers.create(ProducerOptions(name="p"))
            assert producer.last_sequence_id == -1
            on_its_way = asyncio.ensure_future(producer.publish([numbered(4, highest=8)]))
            await asyncio.sleep(0)
            producer.close()
            assert (await topic.producers.create(ProducerOptions(name="p"))).last_sequence_id == 8
            await on_its_way
        async with opened(tmp_path, settings=ON) as engine:
            topic = await engine.topic(TOPIC)
            again = await topic.producers.create(ProducerOptions(name="p"))
            assert again.last_sequence_id == 8
            assert await again.publish([numbered(4, highest=8), numbered(9)]) == [DUPLICATE, topic.log.last]

    asyncio.run(main())


def test_the_name_of_the_connected_producer_counts_not_the_one_in_the_entry(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, settings=ON) as engine:
            topic = await engine.topic(TOPIC)
            producer = await topic.producers.create(ProducerOptions(name="real"))
            await producer.publish([numbered(3, producer="claimed")])
            assert (await topic.producers.create(ProducerOptions(name="claimed"))).last_sequence_id == -1

    asyncio.run(main())


def test_chunks_are_stored_once_each(tmp_path: Path) -> None:
    async def main() -> None:
        chunks = [numbered(0, b"%d" % at, at=at, of=3) for at in range(3)]
        async with opened(tmp_path, settings=ON) as engine:
            topic = await engine.topic(TOPIC)
            await topic.publish(chunks[:2])
        async with opened(tmp_path, settings=ON) as engine:
            topic = await engine.topic(TOPIC)
            assert (await topic.publish(chunks))[:2] == [DUPLICATE, DUPLICATE]
            assert await topic.publish(chunks) == [DUPLICATE] * 3
            assert entries_of(topic, "us-east") == chunks

    asyncio.run(main())


def test_a_publish_that_is_refused_is_not_taken_for_stored(tmp_path: Path) -> None:
    async def main() -> None:
        settings = EngineSettings(store_bytes_max=1024 * 1024, policies=TopicPolicies(deduplication=True))
        async with opened(tmp_path, settings=settings) as engine:
            topic = await engine.topic(TOPIC)
            await topic.publish([numbered(0)])
            large, small = topic.publish([numbered(1, bytes(2_000_000))]), topic.publish([numbered(2)])
            refused, taken = await asyncio.gather(large, small, return_exceptions=True)
            assert isinstance(refused, StoreFull)
            assert taken == [topic.log.last]
            assert (await topic.producers.create(ProducerOptions(name="p"))).last_sequence_id == 2
            with pytest.raises(StoreFull):
                await topic.publish([numbered(3, bytes(2_000_000))])
            assert await topic.publish([numbered(3)]) == [topic.log.last]

    asyncio.run(main())


def test_what_a_failed_transaction_held_is_not_taken_for_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise lmdb.MapFullError

    async def main() -> None:
        async with opened(tmp_path, settings=ON) as engine:
            topic = await engine.topic(TOPIC)
            await topic.publish([numbered(0)])
            with monkeypatch.context() as patched:
                patched.setattr(deduplicating, "write_sequences", fail)
                with pytest.raises(StoreFull):
                    await topic.publish([numbered(1), numbered(0, producer="q")])
            both = await topic.publish([numbered(1), numbered(0, producer="q")])
            assert both[1] == topic.log.last
            assert DUPLICATE not in both

    asyncio.run(main())


def test_a_batch_of_which_a_part_is_stored_is_refused_and_others_are_not(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, settings=ON) as engine:
            topic = await engine.topic(TOPIC)
            await topic.publish([numbered(0, highest=4)])
            straddling = topic.publish([numbered(3, highest=7)])
            other = topic.publish([numbered(0, producer="q")])
            refused, taken = await asyncio.gather(straddling, other, return_exceptions=True)
            assert isinstance(refused, NotAllowedError)
            assert taken == [topic.log.last]
            assert topic.log.messages == 6

    asyncio.run(main())


@pytest.mark.parametrize("where", ["first", "highest"])
def test_a_sequence_id_that_not_every_client_can_hold_is_refused(tmp_path: Path, where: str) -> None:
    async def main() -> None:
        metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
        if where == "first":
            metadata.sequence_id = SEQUENCE_ID_MAX + 1
        else:
            metadata.highest_sequence_id = SEQUENCE_ID_MAX + 1
        async with opened(tmp_path, settings=ON) as engine:
            topic = await engine.topic(TOPIC)
            with pytest.raises(EntryCorrupt, match="sequence id"):
                await topic.publish([encode_entry(metadata, b"")])
            with pytest.raises(NotAllowedError, match="producer name"):
                await topic.publish([numbered(0, producer="x" * 500)])

    asyncio.run(main())


def test_it_can_be_switched_on_and_off_while_producers_publish(tmp_path: Path) -> None:
    """Publishes in between are not in the old table, so deduplication begins anew."""

    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            await topic.publish([numbered(9)])
            await topic.policies.set(TopicPolicies(deduplication=True))
            assert await topic.publish([numbered(5), numbered(5)]) == [topic.log.last, DUPLICATE]
            await topic.policies.set(TopicPolicies(deduplication=False))
            assert DUPLICATE not in await topic.publish([numbered(5)])
            await topic.policies.set(TopicPolicies(deduplication=True))
            assert await topic.publish([numbered(3), numbered(3)]) == [topic.log.last, DUPLICATE]

    asyncio.run(main())


def test_rows_from_before_a_time_without_deduplication_are_not_used_after_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, settings=ON) as engine:
            await (await engine.topic(TOPIC)).publish([numbered(1000)])
        async with opened(tmp_path) as engine:
            await (await engine.topic(TOPIC)).publish([numbered(0)])
        async with opened(tmp_path, settings=ON) as engine:
            topic = await engine.topic(TOPIC)
            assert (await topic.producers.create(ProducerOptions(name="p"))).last_sequence_id == -1
            assert DUPLICATE not in await topic.publish([numbered(1)])

    asyncio.run(main())


def test_markers_and_copied_blocks_leave_the_rows_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, settings=ON) as engine:
            topic = await engine.topic(TOPIC)
            await topic.publish([numbered(7)])
            await topic.writing.marker(marker())
            copied = CopiedBlock(BEFORE_ALL, make_block(Position(3, 0), [numbered(50)], origin="eu-west"))
            await topic.writing.copy([copied])
            assert await topic.publish([numbered(7), numbered(8)]) == [DUPLICATE, topic.log.last]

    asyncio.run(main())


def test_inactive_producers_are_forgotten_durably(tmp_path: Path) -> None:
    now_ms = [1_000_000]
    settings = EngineSettings(wall_clock_ms=lambda: now_ms[0], policies=TopicPolicies(deduplication=True))

    async def main() -> None:
        async with opened(tmp_path, settings=settings) as engine:
            topic = await engine.topic(TOPIC)
            producer = await topic.producers.create(ProducerOptions(name="p"))
            await producer.publish([numbered(7)])
            await topic.publish([numbered(7, producer="gone")])
            now_ms[0] += INACTIVE_MS_MAX + 1
            await engine.maintenance.run_once()
            producer.close()
        async with opened(tmp_path, settings=settings) as engine:
            topic = await engine.topic(TOPIC)
            assert (await topic.producers.create(ProducerOptions(name="p"))).last_sequence_id == 7
            assert (await topic.producers.create(ProducerOptions(name="gone"))).last_sequence_id == -1

    asyncio.run(main())
