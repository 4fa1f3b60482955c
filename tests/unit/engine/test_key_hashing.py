from __future__ import annotations

import base64

import pytest

from replicator.engine.subscriptions.key_shared.hashing import HASH_SPACE, NON_KEY, SLOTS, entry_key, key_hash, slot
from replicator.metadata.metadata_pb2 import MessageMetadata


def metadata(**fields: object) -> MessageMetadata:
    return MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, **fields)  # type: ignore[arg-type]


def test_the_key_of_the_seed_has_its_hash_and_its_slot() -> None:
    assert key_hash(b"Order-3459134") == 3112179635
    assert slot(3112179635) == 6067


@pytest.mark.parametrize(
    ("point", "expected"),
    [
        (b"orders-aggregator-pod-2345-consumer1", 1003084738),
        (b"orders-aggregator-pod-2345-consumer2", 373317202),
        (b"orders-aggregator-pod-2345-consumer100", 320276078),
    ],
)
def test_the_points_of_the_seed_have_their_hashes(point: bytes, expected: int) -> None:
    assert key_hash(point) == expected


def test_hashes_are_unsigned_and_every_one_has_a_slot() -> None:
    hashes = [key_hash(b"%d" % number) for number in range(1_000)]
    assert all(0 <= found < HASH_SPACE for found in hashes)
    assert max(hashes) > HASH_SPACE // 2
    assert all(0 <= slot(found) < SLOTS for found in hashes)
    assert slot(HASH_SPACE - 1) == SLOTS - 1


def test_the_ordering_key_goes_before_the_partition_key() -> None:
    assert entry_key(metadata(partition_key="partition", ordering_key=b"ordering")) == b"ordering"


def test_an_ordering_key_that_is_empty_is_still_the_key() -> None:
    assert entry_key(metadata(partition_key="partition", ordering_key=b"")) == b""


def test_without_an_ordering_key_the_partition_key_counts() -> None:
    assert entry_key(metadata(partition_key="ключ")) == "ключ".encode()
    assert entry_key(metadata(partition_key="")) == b""


def test_a_key_sent_as_base64_is_the_key_that_was_encoded() -> None:
    raw = bytes(range(256))
    encoded = base64.b64encode(raw).decode()
    assert entry_key(metadata(partition_key=encoded, partition_key_b64_encoded=True)) == raw
    assert entry_key(metadata(partition_key=encoded)) == encoded.encode()


@pytest.mark.parametrize("wrong", ["no base64!", "QUJD=", "QUJDR", "QUJDR===", "QUJDRF==", "=", "ключ"])
def test_a_key_that_is_said_to_be_base64_and_is_not_counts_as_it_stands(wrong: str) -> None:
    assert entry_key(metadata(partition_key=wrong, partition_key_b64_encoded=True)) == wrong.encode()


def test_messages_without_a_key_all_have_the_same_one() -> None:
    assert entry_key(metadata()) == NON_KEY == b"NON_KEY"
    assert entry_key(metadata(null_partition_key=True)) == NON_KEY
    assert entry_key(metadata(null_partition_key=True, partition_key="")) == NON_KEY


def test_a_batch_without_a_key_counts_as_one_of_no_key() -> None:
    assert entry_key(metadata(num_messages_in_batch=100)) == NON_KEY


def test_a_batch_counts_by_the_key_of_its_entry() -> None:
    assert entry_key(metadata(num_messages_in_batch=100, partition_key="k")) == b"k"
