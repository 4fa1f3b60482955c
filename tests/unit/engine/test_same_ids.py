"""Messages of one producer under the same sequence ids, from two clusters: one message only if they hold the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from duplicates_support import ON, batch_of, chunks_of, copy, numbered, numbered_batch
from engine_support import HeldClock, logged, one_group, opened, subscribed

from replicator.engine.errors import NotAllowedError
from replicator.engine.log import compression
from replicator.engine.log.entry import append_to_batch, encode_entry
from replicator.engine.producing import contents
from replicator.engine.producing.contents import Contents, alike, compare_stored, open_entry
from replicator.engine.topic import Topic
from replicator.engine.types import DUPLICATE, ProducerOptions
from replicator.metadata.metadata_pb2 import (
    LZ4,
    NONE,
    SNAPPY,
    ZLIB,
    ZSTD,
    EncryptionKeys,
    KeyValue,
    MessageMetadata,
    SingleMessageMetadata,
)

TOPIC = "orders"
BOTH = ("us-east", "eu-west")


def run(tmp_path: Path, main: Callable[[Topic, Topic], Any]) -> None:
    async def both() -> None:
        async with opened(tmp_path / "a", "us-east", ON) as a, opened(tmp_path / "b", "eu-west", ON) as b:
            await main(await a.topic(TOPIC), await b.topic(TOPIC))

    asyncio.run(both())


async def delivered_by_both(a: Topic, b: Topic, count: int) -> None:
    """Copy each cluster's messages to the other one, where they are already stored under their ids; count the rest."""
    await copy(a, b)
    await copy(b, a)
    for topic in (a, b):
        _, inbox = await subscribed(topic, f"all {count}")
        await inbox.holds(count)
        assert topic.log.duplicates is not None
        assert len(topic.log.duplicates.hidden) == topic.log.messages - count


def entry(payload: bytes = b"same", **more: Any) -> bytes:
    metadata = MessageMetadata(producer_name="p", sequence_id=5, publish_time=1)
    for name, value in more.items():
        if isinstance(value, list):
            getattr(metadata, name).extend(value)
        else:
            setattr(metadata, name, value)
    return encode_entry(metadata, payload)


OTHER_CONTENT = {
    "payload": entry(b"other"),
    "key": entry(partition_key="k"),
    "ordering key": entry(ordering_key=b"k"),
    "properties": entry(properties=[KeyValue(key="a", value="1")]),
    "event time": entry(event_time=7),
    "null value": entry(null_value=True),
    "clusters": entry(replicate_to=list(BOTH)),
}
SAME_CONTENT = {
    "publish time": entry(publish_time=99),
    "schema version": entry(schema_version=b"\1"),
    "delivery time": entry(deliver_at_time=99),
    "stated size": entry(uncompressed_size=4),
    "where it came from": entry(replicated_from="eu-west"),
}
for _codec in (LZ4, ZLIB, ZSTD, SNAPPY):
    SAME_CONTENT[f"codec {_codec}"] = entry(
        compression.compress(b"same", _codec), compression=_codec, uncompressed_size=4, publish_time=3
    )


@pytest.mark.parametrize("differs", OTHER_CONTENT)
def test_what_a_moved_producer_sends_under_copied_ids_is_stored_if_it_differs(tmp_path: Path, differs: str) -> None:
    async def main(a: Topic, b: Topic) -> None:
        await a.publish([entry()])
        await copy(a, b)
        assert (await b.producers.create(ProducerOptions(name="p"))).last_sequence_id == 5
        (receipt,) = await b.publish([OTHER_CONTENT[differs]])
        assert receipt != DUPLICATE
        assert await b.publish([OTHER_CONTENT[differs]]) == [DUPLICATE], "within one origin ids alone decide"
        assert await b.publish([entry(b"a third one")]) == [DUPLICATE], "within one origin ids alone decide"
        await copy(b, a)
        for topic in (a, b):
            assert not topic.log.has_duplicates
            _, inbox = await subscribed(topic)
            await inbox.holds(2)

    run(tmp_path, main)


@pytest.mark.parametrize("differs", OTHER_CONTENT)
def test_entries_of_two_clusters_under_the_same_ids_are_both_delivered_if_they_differ(
    tmp_path: Path, differs: str
) -> None:
    async def main(a: Topic, b: Topic) -> None:
        await a.publish([entry()])
        await b.publish([OTHER_CONTENT[differs]])
        await copy(a, b)
        await copy(b, a)
        for topic in (a, b):
            assert not topic.log.has_duplicates
            _, inbox = await subscribed(topic)
            await inbox.holds(2)

    run(tmp_path, main)


@pytest.mark.parametrize("differs", SAME_CONTENT)
def test_what_differs_in_how_it_was_sent_alone_is_one_message(tmp_path: Path, differs: str) -> None:
    async def main(a: Topic, b: Topic) -> None:
        await a.publish([entry()])
        await copy(a, b)
        assert await b.publish([SAME_CONTENT[differs]]) == [DUPLICATE]

    run(tmp_path / "copied before", main)

    async def to_both(a: Topic, b: Topic) -> None:
        await a.publish([entry()])
        await b.publish([SAME_CONTENT[differs]])
        await copy(a, b)
        await copy(b, a)
        for topic in (a, b):
            assert topic.log.has_duplicates
            _, inbox = await subscribed(topic)
            await inbox.holds(1)

    run(tmp_path / "copied after", to_both)


@pytest.mark.parametrize("codec", [NONE, LZ4, ZSTD])
def test_a_publish_is_a_duplicate_if_each_of_its_messages_is_here_however_batches_are_cut(
    tmp_path: Path, codec: Any
) -> None:
    async def main(a: Topic, b: Topic) -> None:
        await a.publish([numbered(3), numbered_batch(4, 6, codec=LZ4), numbered(7, codec=ZLIB)])
        await copy(a, b)
        whole = numbered_batch(3, 7, codec=codec, publish_time=2)
        assert await b.publish([whole]) == [DUPLICATE]
        parts = [numbered_batch(3, 4, codec=codec), numbered(5, codec=codec), numbered_batch(6, 7, codec=codec)]
        assert await b.publish(parts) == [DUPLICATE] * 3
        assert await b.publish([batch_of({3: ""}, codec=codec)]) == [DUPLICATE], "a batch of one"
        assert len(logged(b)) == 3

    run(tmp_path, main)


def test_a_publish_is_stored_if_none_of_its_messages_is_here_though_its_ids_are(tmp_path: Path) -> None:
    async def main(a: Topic, b: Topic) -> None:
        await a.publish([numbered(3), numbered_batch(4, 6, codec=LZ4), numbered(7, codec=ZLIB)])
        await copy(a, b)
        sent = [numbered_batch(3, 4, content="b"), numbered(5, content="b"), numbered_batch(6, 9, content="b")]
        assert DUPLICATE not in await b.publish(sent)
        await copy(b, a)
        for topic in (a, b):
            _, inbox = await subscribed(topic)
            await inbox.holds(6)

    run(tmp_path, main)


def test_a_batch_is_refused_if_some_of_its_messages_are_here_and_others_are_not(tmp_path: Path) -> None:
    async def main(a: Topic, b: Topic) -> None:
        await a.publish([numbered_batch(3, 6)])
        await copy(a, b)
        for contents_of in ({5: "", 6: "", 7: ""}, {5: "", 6: "other"}):
            with pytest.raises(NotAllowedError, match="from another cluster"):
                await b.publish([batch_of(contents_of)])
        (receipt,) = await b.publish([batch_of({6: "other", 7: ""})])
        assert receipt != DUPLICATE

    run(tmp_path, main)


def test_a_chunk_that_goes_on_otherwise_than_its_copy_is_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    async def main(a: Topic, b: Topic) -> None:
        await a.publish(chunks_of(4, 3, uuid="u", contents=[b"0", b"1", b"2"]))
        await copy(a, b)
        other = chunks_of(4, 3, uuid="u", contents=[b"0", b"x", b"2"])
        assert await b.publish(other[:1]) == [DUPLICATE]
        for chunk in other[1:2]:
            with pytest.raises(NotAllowedError, match="begins with the same chunk"):
                await b.publish([chunk])
        assert DUPLICATE not in await b.publish(chunks_of(4, 3, uuid="u", contents=[b"x", b"1", b"2"]))
        assert len(logged(b)) == 6

    run(tmp_path, main)


def test_ciphertext_is_one_message_only_if_its_bytes_are_the_same(tmp_path: Path) -> None:
    keys = [EncryptionKeys(key="k", value=b"secret")]

    async def main(a: Topic, b: Topic) -> None:
        await a.publish([entry(b"cipher", encryption_keys=keys, encryption_param=b"iv")])
        await copy(a, b)
        again = entry(b"cipher", encryption_keys=keys, encryption_param=b"iv", publish_time=7)
        assert await b.publish([again]) == [DUPLICATE]
        (receipt,) = await b.publish([entry(b"rehpic", encryption_keys=keys, encryption_param=b"vi")])
        assert receipt != DUPLICATE

    run(tmp_path / "copied before", main)

    async def to_both(a: Topic, b: Topic) -> None:
        await a.publish([entry(b"cipher", encryption_keys=keys, encryption_param=b"iv"), numbered(6)])
        await b.publish([entry(b"rehpic", encryption_keys=keys, encryption_param=b"vi"), numbered(6, publish_time=2)])
        await delivered_by_both(a, b, 3)
        same = entry(b"cipher", encryption_keys=keys, encryption_param=b"iv", sequence_id=7)
        await a.publish([same])
        await b.publish([same])
        await delivered_by_both(a, b, 4)

    run(tmp_path / "copied after", to_both)


def test_past_the_limit_messages_count_as_different(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limited = False

    async def main(a: Topic, b: Topic) -> None:
        large, other = "x" * 5000, numbered(6)
        await a.publish([numbered(5, content=large, codec=LZ4), other])
        await copy(a, b)
        receipts = await b.publish([numbered(5, content=large, codec=ZSTD), numbered(6, codec=ZSTD)])
        assert receipts[0] != DUPLICATE
        assert receipts[1] == DUPLICATE

    async def to_both(a: Topic, b: Topic) -> None:
        large = "x" * 5000
        await a.publish([numbered(5, content=large, codec=LZ4), numbered(6, codec=LZ4)])
        await b.publish([numbered(5, content=large, codec=ZSTD), numbered(6, codec=ZSTD)])
        await delivered_by_both(a, b, 3 if limited else 2)

    run(tmp_path / "unlimited", to_both)
    limited = True
    monkeypatch.setattr(contents, "OPENED_BYTES_MAX", 4000)
    run(tmp_path / "copied before", main)
    run(tmp_path / "copied after", to_both)


def test_nothing_is_decompressed_while_a_transaction_is_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[bool] = []

    async def main(a: Topic, b: Topic) -> None:
        lock = b.reading._store.commit_lock
        decompress = compression.decompress

        def watched(*arguments: Any, **named: Any) -> bytes:
            held.append(lock.locked())
            return decompress(*arguments, **named)

        monkeypatch.setattr(compression, "decompress", watched)
        await a.publish([numbered_batch(first, first + 4, codec=LZ4) for first in range(0, 100, 5)])
        await copy(a, b)
        again = [numbered_batch(first, first + 9, codec=ZSTD) for first in range(0, 100, 10)]
        assert await b.publish(again) == [DUPLICATE] * 10

    run(tmp_path, main)
    assert held
    assert not any(held)


def test_a_group_of_publishes_that_are_compared_is_written_once_more_and_each_gets_its_answer(tmp_path: Path) -> None:
    clock = HeldClock()

    async def main() -> None:
        async with (
            opened(tmp_path / "a", "us-east", ON) as east,
            opened(tmp_path / "b", "eu-west", clock.settings()) as west,
        ):
            a, b = await east.topic(TOPIC), await west.topic(TOPIC)
            await b.policies.set(ON.policies)
            await a.publish([numbered_batch(first, first + 9, codec=LZ4) for first in range(0, 100, 10)])
            await copy(a, b)
            commits = west.writer.commits
            sent = [numbered_batch(number, number + 4, content="b" * (number % 10 == 5)) for number in range(0, 100, 5)]
            receipts = await one_group(west, clock, *(b.publish([each]) for each in sent))
            assert west.writer.commits <= commits + 2, "the group was torn apart"
            assert [each == [DUPLICATE] for each in receipts] == [number % 10 == 0 for number in range(0, 100, 5)]

    asyncio.run(main())


def test_what_group_commits_open_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "OPENED_MESSAGES_KEPT_MAX", 10)
    opened_before = Contents()
    for number in range(30):
        assert opened_before.messages(numbered_batch(number, number + 4)) is None
        opened_before.open_wanted()
        assert opened_before.messages(numbered_batch(number, number + 4)) is not None
        opened_before.settle()
    assert opened_before._messages <= 10
    assert len(opened_before._opened) == 2
    opened_before.closed = True
    assert opened_before.messages(numbered(99)) is None
    assert not opened_before.wanted, "nothing more is opened"


def broken(first: int) -> bytes:
    """Return an entry that can be decompressed, but is no batch."""
    body = b"\xff" * 3000
    metadata = MessageMetadata(
        producer_name="p", sequence_id=first, publish_time=1, num_messages_in_batch=3, compression=LZ4
    )
    metadata.uncompressed_size = len(body)
    return encode_entry(metadata, compression.compress(body, LZ4))


@pytest.mark.parametrize("kind", ["sound", "damaged"])
def test_what_one_group_commit_opens_is_bounded_over_all_its_openings(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Opening happens on the writer's thread, which confirms nothing meanwhile."""
    monkeypatch.setattr(contents, "OPENED_BYTES_MAX", 10_000)
    opened: list[int] = []
    decompress = compression.decompress

    def counted(payload: Any, codec: Any, size: int, **more: Any) -> bytes:
        opened.append(size)
        return decompress(payload, codec, size, **more)

    monkeypatch.setattr(compression, "decompress", counted)
    of_group = Contents()
    for number in range(100):
        sound = numbered_batch(number, number, content="x" * 3000, codec=LZ4)
        of_group.messages(sound if kind == "sound" else broken(number))
        of_group.open_wanted()
    assert len(opened) == 3
    assert sum(opened) <= 10_000
    of_group.settle()
    of_group.messages(numbered_batch(500, 500, codec=LZ4))
    of_group.open_wanted()
    assert len(opened) == 4, "the next group has the whole bounds again"


def test_batches_of_tiny_messages_are_bounded_by_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "OPENED_MESSAGES_MAX", 25)
    of_group = Contents()
    batches = [numbered_batch(number, number + 9, codec=LZ4) for number in range(0, 50, 10)]
    for each in batches:
        of_group.messages(each)
    assert of_group.exceeds_budget
    of_group.open_wanted()
    assert [of_group.messages(each) is not None for each in batches] == [True, True, False, False, False]


def test_stored_bytes_decide_where_they_can() -> None:
    assert compare_stored(entry(), entry()) is True
    assert compare_stored(entry(), entry(publish_time=5)) is True
    assert compare_stored(entry(), entry(b"other")) is False
    assert compare_stored(entry(), entry(event_time=5)) is False
    assert compare_stored(numbered_batch(1, 3, codec=LZ4), numbered_batch(1, 3, codec=LZ4, publish_time=9)) is True
    assert compare_stored(numbered_batch(1, 3, codec=LZ4), numbered_batch(1, 3)) is None
    assert compare_stored(b"no entry", entry()) is False
    assert alike(numbered_batch(1, 3, codec=LZ4), numbered_batch(1, 3))
    assert not alike(numbered_batch(1, 3, codec=LZ4), numbered_batch(1, 3, content="x"))


def test_messages_of_a_batch_without_ids_of_their_own_count_on_from_the_first() -> None:
    body = bytearray()
    metadata = MessageMetadata(
        producer_name="p", sequence_id=4, highest_sequence_id=5, publish_time=1, num_messages_in_batch=2
    )
    for payload in (b"p 4", b"p 5"):
        append_to_batch(body, SingleMessageMetadata(payload_size=0), payload)
    found = open_entry(encode_entry(metadata, bytes(body)))
    assert found is not None
    with_ids = open_entry(numbered_batch(4, 5))
    assert found == with_ids
