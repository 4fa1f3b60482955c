"""Masking, where it is not only the message that tells: keys and properties of a whole batch, tombstones, seals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from engine_support import PUBLISH_TIME_MS

from replicator.engine.log.entry import append_to_batch, decode_entry, encode_entry, split_batch
from replicator.metadata.metadata_pb2 import EncryptionKeys, MessageMetadata, SingleMessageMetadata
from replicator.pipeline.errors import CannotMask
from replicator.pipeline.live.filtering import Masked, rewrite_entry


def batch_of(keys: Sequence[str], outside: str) -> bytes:
    """Return a batch as key-based batching makes it."""
    metadata = MessageMetadata(
        producer_name="p",
        sequence_id=1,
        publish_time=PUBLISH_TIME_MS,
        num_messages_in_batch=len(keys),
        partition_key=outside,
        ordering_key=b"order",
    )
    metadata.properties.add(key="secret", value="outside")
    body = bytearray()
    for key in keys:
        append_to_batch(body, SingleMessageMetadata(payload_size=0, partition_key=key, ordering_key=b"order"), b"text")
    return encode_entry(metadata, body)


def opened(entry: bytes) -> tuple[MessageMetadata, list[SingleMessageMetadata]]:
    metadata, payload = decode_entry(entry)
    return metadata, [single for single, _ in split_batch(metadata, payload)]


@pytest.mark.parametrize(
    ("new", "outside"),
    [({0: "x", 1: "x"}, "x"), ({0: "x", 1: "y"}, None), ({0: None, 1: None}, None)],
    ids=["the same key", "different keys", "no keys"],
)
def test_a_batch_does_not_tell_a_key_that_its_messages_do_not_have(new: Mapping[int, str], outside: str | None) -> None:
    masked = {index: Masked(key=key) for index, key in new.items()}
    metadata, singles = opened(rewrite_entry(batch_of(["k", "k"], "k"), [True, True], masked, frozenset({"key"})))
    assert (metadata.partition_key if metadata.HasField("partition_key") else None) == outside
    assert not metadata.HasField("ordering_key")
    assert [single.partition_key for single in singles] == [new[0] or "", new[1] or ""]
    assert not any(single.HasField("ordering_key") for single in singles)


def test_properties_are_replaced_as_a_whole_and_a_batch_keeps_none_outside() -> None:
    masked = {index: Masked(properties={"a": "1", "null is none": None}) for index in range(2)}
    metadata, singles = opened(
        rewrite_entry(batch_of(["k", "k"], "k"), [True, True], masked, frozenset({"properties"}))
    )
    assert not metadata.properties
    assert [[(pair.key, pair.value) for pair in single.properties] for single in singles] == [[("a", "1")]] * 2
    assert metadata.partition_key == "k", "what is not named stays"


def test_what_goes_leaves_nothing_of_itself() -> None:
    metadata, singles = opened(rewrite_entry(batch_of(["k", "secret key"], "k"), [True, False], {}, frozenset()))
    assert metadata.num_messages_in_batch == 2
    assert [single.compacted_out for single in singles] == [False, True]
    assert singles[1] == SingleMessageMetadata(compacted_out=True, payload_size=0)


def test_a_payload_that_becomes_null_is_a_tombstone_and_back() -> None:
    entry = encode_entry(MessageMetadata(producer_name="p", sequence_id=1, publish_time=1), b"text")
    fields = frozenset({"payload"})
    tombstone = rewrite_entry(entry, [True], {0: Masked(None)}, fields)
    metadata, payload = decode_entry(tombstone)
    assert (metadata.null_value, bytes(payload)) == (True, b"")
    metadata, payload = decode_entry(rewrite_entry(tombstone, [True], {0: Masked(b"back")}, fields))
    assert (metadata.null_value, bytes(payload)) == (False, b"back")


@pytest.mark.parametrize("chunk", [True, False])
def test_what_cannot_be_seen_is_not_masked(chunk: bool) -> None:
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
    if chunk:
        metadata.num_chunks_from_msg = 2
    else:
        metadata.encryption_keys.append(EncryptionKeys(key="k", value=b"v"))
    with pytest.raises(CannotMask):
        rewrite_entry(encode_entry(metadata, b"text"), [True], {0: Masked(b"x")}, frozenset({"payload"}))
