"""Checks between a producer and the log: of entries, and by the gate of the backlog quota."""

from __future__ import annotations

import asyncio
from pathlib import Path

import google_crc32c
import pytest
from engine_support import TOPIC, batch, entries_of, eventually, message, opened
from hypothesis import given, settings
from hypothesis import strategies as st

from replicator.engine.engine import EngineSettings
from replicator.engine.errors import (
    BacklogQuotaExceeded,
    EngineError,
    EntryCorrupt,
    MessageTooLarge,
    NotAllowedError,
    ProducerFenced,
    StoreFailed,
)
from replicator.engine.log.compression import compress
from replicator.engine.log.entry import append_to_batch, encode_entry, is_plain
from replicator.engine.policies import QuotaPolicy, TopicPolicies
from replicator.engine.producing import publishing
from replicator.engine.producing.publishing import HELD_BYTES_MAX, PublishGate, check_entries
from replicator.engine.types import AccessMode, ProducerOptions
from replicator.metadata.metadata_pb2 import LZ4, EncryptionKeys, MessageMetadata, SingleMessageMetadata
from snapshots.position import Position

NO_POLICIES = TopicPolicies()
HOLD = QuotaPolicy.PRODUCER_REQUEST_HOLD
REFUSE = QuotaPolicy.PRODUCER_EXCEPTION


def metadata(**fields: object) -> MessageMetadata:
    return MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, **fields)  # type: ignore[arg-type]


def batch_body(messages: int) -> bytearray:
    body = bytearray()
    for _ in range(messages):
        append_to_batch(body, SingleMessageMetadata(payload_size=0), b"")
    return body


# Entries.


def test_sound_entries_pass_with_their_batch_sizes() -> None:
    entries = [
        message(),
        batch([b"a", b"b"]),
        encode_entry(metadata(num_messages_in_batch=3), batch_body(3)),
        encode_entry(metadata(chunk_id=1, num_chunks_from_msg=2, total_chunk_msg_size=9, uuid="u"), b"x"),
        encode_entry(metadata(chunk_id=0, num_chunks_from_msg=1, total_chunk_msg_size=9), b"x"),
    ]
    checked = check_entries(entries, NO_POLICIES)
    assert checked.batch_sizes == [1, 2, 3, 1, 1]
    assert checked.size_bytes == sum(map(len, entries))
    assert checked.numbered is None


@pytest.mark.parametrize(
    ("entry", "what"),
    [
        (encode_entry(metadata(num_messages_in_batch=7), b"payload"), "7 messages"),
        (encode_entry(metadata(num_messages_in_batch=3), batch_body(2)), "3 messages"),
        (encode_entry(metadata(num_messages_in_batch=1), b"not a batch"), "message 0"),
        (encode_entry(metadata(num_messages_in_batch=1), batch_body(1)[:4] + b"\xff\xff\xff"), "message 0"),
        (
            encode_entry(metadata(num_messages_in_batch=9, compression=LZ4, uncompressed_size=12), b"x"),
            "9 messages, in 12",
        ),
        (encode_entry(metadata(chunk_id=2, num_chunks_from_msg=2, total_chunk_msg_size=9, uuid="u"), b""), "chunk 2"),
        (encode_entry(metadata(chunk_id=-1, num_chunks_from_msg=2, total_chunk_msg_size=9, uuid="u"), b""), "chunk -1"),
        (encode_entry(metadata(chunk_id=0, num_chunks_from_msg=-2, total_chunk_msg_size=9, uuid="u"), b""), "of -2"),
        (encode_entry(metadata(chunk_id=0, num_chunks_from_msg=2, uuid="u"), b""), "of 0 bytes"),
        (encode_entry(metadata(chunk_id=0, num_chunks_from_msg=2, total_chunk_msg_size=9), b""), "no uuid"),
        (encode_entry(metadata(marker_type=10), b""), "marker"),
        (b"noise that is long enough", "starts with"),
    ],
)
def test_an_entry_that_contradicts_itself_is_corrupt(entry: bytes, what: str) -> None:
    with pytest.raises(EntryCorrupt, match=what):
        check_entries([message(), entry], NO_POLICIES)


@st.composite
def sent_entries(draw: st.DrawFn) -> bytes:
    """Draw an entry as clients send it, often a plain one, or one that is nearly so."""
    sent = MessageMetadata(
        producer_name=draw(st.sampled_from(["", "p", "ü", "x" * 127, "x" * 128])),
        sequence_id=draw(st.sampled_from([0, 127, 128, 2**63 - 1, 2**63, 2**64 - 1])),
        publish_time=draw(st.sampled_from([0, 1_700_000_000_000, 2**64 - 1])),
    )
    for name, value in draw(
        st.lists(
            st.sampled_from(
                [
                    ("uncompressed_size", 100),
                    ("uncompressed_size", 2**32 - 1),
                    ("num_messages_in_batch", 1),
                    ("marker_type", 10),
                    ("txnid_least_bits", 1),
                    ("num_chunks_from_msg", 2),
                    ("partition_key", "key"),
                    ("deliver_at_time", 5),
                ]
            ),
            max_size=2,
        )
    ):
        setattr(sent, name, value)
    if draw(st.booleans()):
        sent.replicate_to.append("eu-west")
    entry = bytearray(encode_entry(sent, draw(st.binary(max_size=20))))
    for _ in range(draw(st.integers(0, 2))):
        entry[draw(st.integers(0, len(entry) - 1))] = draw(st.integers(0, 255))
    if draw(st.booleans()):  # with a right checksum, so that the metadata alone decides
        entry[2:6] = google_crc32c.value(bytes(entry[6:])).to_bytes(4, "big")
    return bytes(entry[: draw(st.integers(0, len(entry)))] if draw(st.booleans()) else entry)


@given(sent_entries(), st.sampled_from([NO_POLICIES, TopicPolicies(max_message_bytes=40)]))
@settings(max_examples=1_000)
def test_a_plain_message_is_checked_as_any_other(entry: bytes, policies: TopicPolicies) -> None:
    def outcome() -> object:
        try:
            checked = check_entries([memoryview(entry)], policies)
        except EngineError as error:
            return type(error), str(error)
        return checked.size_bytes, list(checked.batch_sizes), checked.numbered, checked.only

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publishing, "is_plain", lambda entry: False)
        expected = outcome()
    assert outcome() == expected


@pytest.mark.parametrize("more", [{}, {"uncompressed_size": 100}])
def test_a_message_that_a_client_sends_alone_is_plain(more: dict[str, object]) -> None:
    """Nothing else would notice that single messages take the slow check again."""
    assert is_plain(encode_entry(metadata(**more), b"payload"))


def test_what_cannot_be_looked_into_cheaply_passes() -> None:
    encrypted = metadata(num_messages_in_batch=50)
    encrypted.encryption_keys.append(EncryptionKeys(key="k", value=b"v"))
    compressed = metadata(num_messages_in_batch=50, compression=LZ4, uncompressed_size=len(batch_body(50)))
    entries = [encode_entry(encrypted, b"?"), encode_entry(compressed, compress(batch_body(50), LZ4))]
    assert check_entries(entries, NO_POLICIES).batch_sizes == [50, 50]


def test_the_policys_limit_on_a_message_is_kept_to_the_byte() -> None:
    entry = message(b"x" * 500)
    check_entries([entry], TopicPolicies(max_message_bytes=len(entry)))
    with pytest.raises(MessageTooLarge, match="max_message_bytes"):
        check_entries([message(), entry], TopicPolicies(max_message_bytes=len(entry) - 1))


def test_an_empty_publish_is_refused() -> None:
    with pytest.raises(NotAllowedError):
        check_entries([], NO_POLICIES)


# The gate.


def test_held_publishes_go_on_in_their_order_when_there_is_room_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            topic.writing.quota_exceeded = HOLD
            held = [asyncio.ensure_future(topic.publish([message(b"%d" % number)])) for number in range(5)]
            await eventually(lambda: topic.writing.gate.held == 5)
            held[2].cancel()
            await asyncio.wait([held[2]])
            topic.writing.quota_exceeded = None
            await topic.publish([message(b"late")])  # comes before those that were held have run
            await asyncio.gather(*held[:2], *held[3:])
            assert entries_of(topic, "us-east") == [message(b"%d" % number) for number in (0, 1, 3, 4)] + [
                message(b"late")
            ]
            assert topic.writing.gate.open

    asyncio.run(main())


def test_publishes_are_refused_where_the_policy_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            topic.writing.quota_exceeded = HOLD
            held = asyncio.ensure_future(topic.publish([message()]))
            await eventually(lambda: topic.writing.gate.held)
            topic.writing.quota_exceeded = REFUSE
            with pytest.raises(BacklogQuotaExceeded):
                await held
            with pytest.raises(BacklogQuotaExceeded):
                await topic.publish([message()])
            topic.writing.quota_exceeded = QuotaPolicy.CONSUMER_BACKLOG_EVICTION
            assert len(await topic.publish([message()])) == 1

    asyncio.run(main())


def test_only_so_much_is_held() -> None:
    async def main() -> None:
        gate = PublishGate("t")
        gate.policy = HOLD
        first = asyncio.ensure_future(gate.enter(HELD_BYTES_MAX - 1))
        await eventually(lambda: gate.held)
        with pytest.raises(BacklogQuotaExceeded, match="limit"):
            await gate.enter(2)
        first.cancel()
        await asyncio.wait([first])
        second = asyncio.ensure_future(gate.enter(2))
        await eventually(lambda: gate.held)
        gate.policy = None
        await second

    asyncio.run(main())


def test_a_producer_that_is_fenced_while_it_is_held_publishes_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            old = await topic.producers.create(ProducerOptions())
            topic.writing.quota_exceeded = HOLD
            held = asyncio.ensure_future(old.publish([message()]))
            await eventually(lambda: topic.writing.gate.held)
            await topic.producers.create(ProducerOptions(access_mode=AccessMode.EXCLUSIVE_WITH_FENCING))
            topic.writing.quota_exceeded = None
            with pytest.raises(ProducerFenced):
                await held
            assert topic.log.messages == 0

    asyncio.run(main())


def test_what_is_held_when_the_engine_stops_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            topic.writing.quota_exceeded = HOLD
            held = asyncio.ensure_future(topic.publish([message()]))
            await eventually(lambda: topic.writing.gate.held)
        with pytest.raises(StoreFailed, match="stopping"):
            await held

    asyncio.run(main())


def test_what_would_be_held_after_the_engine_has_stopped_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            topic.writing.quota_exceeded = HOLD
        with pytest.raises(StoreFailed):
            await asyncio.wait_for(topic.publish([message()]), 5)

    asyncio.run(main())


def test_a_topics_own_limit_holds_for_what_is_published_to_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, settings=EngineSettings(policies=TopicPolicies(max_message_bytes=100))) as engine:
            topic = await engine.topic(TOPIC)
            with pytest.raises(MessageTooLarge):
                await topic.publish([message(b"x" * 100)])
            (position,) = await topic.publish([message()])
            assert position == Position(position.ledger, 0)

    asyncio.run(main())
