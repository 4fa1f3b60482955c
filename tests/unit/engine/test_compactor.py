"""A pass of compaction chooses the messages to keep, and writes batches anew."""

from __future__ import annotations

import pytest
from compaction_support import at, chunk, keyed, keyed_batch, messages_in

from replicator.engine.compaction.compactor import OPEN_MS_MAX, Compactor
from replicator.engine.errors import NotAllowedError
from replicator.engine.log.entry import decode_entry, encode_entry
from replicator.engine.types import LoggedEntry
from replicator.metadata.metadata_pb2 import (
    LZ4,
    NONE,
    SNAPPY,
    ZLIB,
    ZSTD,
    CompressionType,
    EncryptionKeys,
    MessageMetadata,
)
from snapshots.position import Position


def compacted(*entries: LoggedEntry) -> list[LoggedEntry]:
    compactor = Compactor()
    for entry in entries:
        compactor.note(entry)
    return retained(compactor, *entries)


def retained(compactor: Compactor, *entries: LoggedEntry) -> list[LoggedEntry]:
    found = []
    for entry in entries:
        kept = compactor.retained(entry)
        if kept is not None:
            found.append(entry._replace(entry=memoryview(kept.content)))
    return found


def in_order(*contents: bytes) -> list[LoggedEntry]:
    sizes = [decode_entry(content)[0].num_messages_in_batch for content in contents]
    return [at(number, content, size) for number, (content, size) in enumerate(zip(contents, sizes, strict=True))]


def kept(*contents: bytes) -> list[tuple[str | None, bytes]]:
    return [(key, payload) for key, payload, _, _ in messages_in(compacted(*in_order(*contents)))]


def test_the_newest_message_of_each_key_stays_in_its_place() -> None:
    assert kept(keyed("a", b"1"), keyed("b", b"1"), keyed("a", b"2")) == [("b", b"1"), ("a", b"2")]


def test_a_message_without_a_key_goes() -> None:
    assert kept(keyed(None, b"1"), keyed("a", b"1"), keyed_batch([(None, b"2"), ("b", b"2")])) == [
        ("a", b"1"),
        ("b", b"2"),
    ]
    assert kept(keyed("a", b"1", null_partition_key=True)) == []


def test_an_empty_key_is_a_key() -> None:
    assert kept(keyed("", b"1"), keyed("", b"2")) == [("", b"2")]


@pytest.mark.parametrize(
    "tombstone",
    [
        keyed("a", b""),
        keyed("a", b"x", null_value=True),
        keyed("a", b"", compression=LZ4),
        keyed_batch([("b", b"2"), ("a", b"")]),
    ],
)
def test_a_tombstone_takes_its_key_away_and_goes_itself(tombstone: bytes) -> None:
    assert ("a", b"1") not in kept(keyed("a", b"1"), keyed("b", b"1"), tombstone)
    assert all(payload for _, payload in kept(keyed("a", b"1"), keyed("b", b"1"), tombstone))
    assert ("a", b"3") in kept(keyed("a", b"1"), tombstone, keyed("a", b"3"))


@pytest.mark.parametrize("codec", [NONE, LZ4, ZLIB, ZSTD, SNAPPY])
def test_a_batch_keeps_its_newest_messages_under_their_indexes(codec: CompressionType) -> None:
    first = keyed_batch([("a", b"1"), ("b", b"1"), ("c", b"1"), ("a", b"2")], compression=codec)
    entries = compacted(*in_order(first, keyed("b", b"2")))
    assert messages_in(entries) == [
        ("c", b"1", Position(1, 0), 2),
        ("a", b"2", Position(1, 0), 3),
        ("b", b"2", Position(1, 1), 0),
    ]
    metadata, _ = decode_entry(entries[0].entry)
    assert metadata.num_messages_in_batch == entries[0].batch_size == 4
    assert metadata.compression == codec


def test_a_batch_that_is_all_new_or_all_old_is_not_written_anew() -> None:
    old, new = keyed_batch([("a", b"1"), ("b", b"1")]), keyed_batch([("a", b"2"), ("b", b"2")])
    (entry,) = compacted(*in_order(old, new))
    assert entry.entry == new


def test_a_batch_that_was_written_anew_can_be_compacted_again() -> None:
    once = compacted(*in_order(keyed_batch([("a", b"1"), ("b", b"1"), ("c", b"1")]), keyed("b", b"2")))
    twice = compacted(*once, at(2, keyed("c", b"2")))
    assert messages_in(twice) == [
        ("a", b"1", Position(1, 0), 0),
        ("b", b"2", Position(1, 1), 0),
        ("c", b"2", Position(1, 2), 0),
    ]


def encrypted(key: str | None, batch_size: int | None = None) -> bytes:
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    metadata.encryption_keys.append(EncryptionKeys(key="k", value=b"v"))
    if key is not None:
        metadata.partition_key = key
    if batch_size is not None:
        metadata.num_messages_in_batch = batch_size
    return encode_entry(metadata, b"unreadable")


def test_an_encrypted_batch_whose_keys_nobody_sees_is_kept_as_it_is() -> None:
    entries = compacted(at(0, encrypted(None, 3), 3), at(1, keyed("a", b"1")))
    assert [bytes(entry.entry) for entry in entries] == [encrypted(None, 3), keyed("a", b"1")]


def test_an_encrypted_entry_whose_key_is_seen_is_replaced_whole() -> None:
    entries = compacted(at(0, encrypted("a")), at(1, encrypted("b", 3), 3), at(2, encrypted("a", 2), 2))
    assert [entry.position.entry for entry in entries] == [1, 2]
    assert entries[0].entry == encrypted("b", 3)


def test_an_entry_that_cannot_be_read_is_kept() -> None:
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=3)
    broken = encode_entry(metadata, b"?")
    entries = compacted(at(0, broken, 3), at(1, keyed("a", b"1")))
    assert [entry.position.entry for entry in entries] == [0, 1]


def test_markers_are_left_out() -> None:
    assert compacted(at(0, keyed("a", b"1"))._replace(marker=True)) == []


def test_a_chunked_message_is_kept_whole_and_replaces_what_came_before() -> None:
    parts = [at(number, chunk("a", b"%d" % number, number - 1, 3, "u")) for number in (1, 2, 3)]
    entries = compacted(at(0, keyed("a", b"0")), *parts)
    assert [entry.position.entry for entry in entries] == [1, 2, 3]
    assert compacted(*parts, at(9, keyed("a", b"9"))) == [at(9, keyed("a", b"9"))]


def test_a_chunked_message_that_is_not_complete_replaces_nothing() -> None:
    parts = [at(1, chunk("a", b"x", 0, 3, "u")), at(2, chunk("a", b"x", 2, 3, "u"))]
    assert [entry.position.entry for entry in compacted(at(0, keyed("a", b"0")), *parts)] == [0]


def test_the_horizon_stays_before_a_message_whose_chunks_are_still_coming() -> None:
    compactor = Compactor()
    for entry in (at(0, keyed("a", b"0")), at(1, chunk("b", b"x", 0, 2, "u", published_at_ms=1000))):
        compactor.note(entry)
    end = Position(1, 5)
    assert compactor.horizon(end, 1000 + OPEN_MS_MAX) == Position(1, 0)
    assert compactor.horizon(end, 1001 + OPEN_MS_MAX) == end
    compactor.note(at(2, chunk("b", b"x", 1, 2, "u", published_at_ms=1000)))
    assert compactor.horizon(end, 1000) == end


def test_too_many_keys_are_refused() -> None:
    compactor = Compactor(keys_max=2)
    compactor.note(at(0, keyed("a", b"1")))
    compactor.note(at(1, keyed("b", b"1")))
    compactor.note(at(2, keyed("a", b"")))
    compactor.note(at(3, keyed("c", b"1")))
    assert compactor.keys == 2
    with pytest.raises(NotAllowedError, match="2 different keys"):
        compactor.note(at(4, keyed("d", b"1")))
