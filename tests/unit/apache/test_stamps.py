"""What the bridge writes into the entries that it publishes."""

from __future__ import annotations

import zlib

from replicator.apache.stamps import Identity, has_schema_version, identity_of, stamped
from replicator.engine.log.entry import decode_entry, encode_entry
from replicator.metadata.metadata_pb2 import CompressionType, MessageMetadata
from snapshots.position import Position

IDENTITY = Identity("us-east.pulsar", 1_700_000_000_000, Position(2**40, 17))


def an_entry() -> bytes:
    metadata = MessageMetadata(producer_name="orders", sequence_id=7, publish_time=8, num_messages_in_batch=3)
    metadata.compression = CompressionType.ZLIB
    metadata.uncompressed_size = 300
    metadata.txnid_least_bits, metadata.txnid_most_bits = 5, 6
    metadata.properties.add(key="k", value="v")
    return encode_entry(metadata, zlib.compress(bytes(300)))


def test_an_entry_keeps_its_payload_and_what_its_producer_said() -> None:
    before, payload = decode_entry(an_entry())
    after, same = decode_entry(stamped(an_entry(), IDENTITY))  # the checksum is right, too
    assert bytes(same) == bytes(payload)
    for field in ("producer_name", "sequence_id", "publish_time", "num_messages_in_batch", "compression", "properties"):
        assert getattr(after, field) == getattr(before, field)


def test_it_says_whose_it_is_and_no_geo_replication_carries_it_on() -> None:
    stamp = stamped(an_entry(), IDENTITY)
    assert identity_of(stamp) == IDENTITY
    assert identity_of(memoryview(stamp)) == IDENTITY
    assert decode_entry(stamp)[0].replicated_from == "us-east.pulsar"


def test_a_transaction_of_another_cluster_is_left_out() -> None:
    metadata, _ = decode_entry(stamped(an_entry(), IDENTITY))
    assert not metadata.HasField("txnid_least_bits")
    assert not metadata.HasField("txnid_most_bits")


def test_what_producers_publish_has_no_stamp_nor_has_what_nobody_can_read() -> None:
    assert identity_of(an_entry()) is None
    assert identity_of(b"nonsense") is None


def test_a_version_of_a_schema_is_seen() -> None:
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=0)
    assert not has_schema_version(encode_entry(metadata, b""))
    metadata.schema_version = bytes(8)
    assert has_schema_version(encode_entry(metadata, b""))
