"""Stamps that the bridge writes into the entries that it publishes."""

from __future__ import annotations

import zlib

from replicator.apache.stamps import Identity, Marks, marks_of, stamped, with_schema_version
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
    after, same = decode_entry(stamped(an_entry(), IDENTITY, b""))  # the checksum is right, too
    assert bytes(same) == bytes(payload)
    for field in ("producer_name", "sequence_id", "publish_time", "num_messages_in_batch", "compression", "properties"):
        assert getattr(after, field) == getattr(before, field)


def test_it_says_whose_it_is_and_no_geo_replication_carries_it_on() -> None:
    stamp = stamped(an_entry(), IDENTITY, b"")
    assert marks_of(stamp).identity == IDENTITY
    assert marks_of(memoryview(stamp)).identity == IDENTITY
    assert decode_entry(stamp)[0].replicated_from == "us-east.pulsar"


def test_a_transaction_of_another_cluster_is_left_out() -> None:
    metadata, _ = decode_entry(stamped(an_entry(), IDENTITY, b""))
    assert not metadata.HasField("txnid_least_bits")
    assert not metadata.HasField("txnid_most_bits")


def test_what_producers_publish_has_no_stamp_nor_has_what_nobody_can_read() -> None:
    assert marks_of(an_entry()).identity is None
    assert marks_of(b"nonsense") == Marks(None, b"")


def test_the_version_of_a_schema_is_seen_and_becomes_that_of_another_cluster() -> None:
    assert marks_of(an_entry()).schema_version == b""
    entry = with_schema_version(an_entry(), bytes(8))
    assert marks_of(entry) == Marks(None, bytes(8), publish_time_ms=8, sequence_id=7)
    assert marks_of(stamped(entry, IDENTITY, b"\0" * 7 + b"\3"))[:2] == (IDENTITY, b"\0" * 7 + b"\3")
    assert not decode_entry(stamped(entry, IDENTITY, b""))[0].HasField("schema_version")
    assert with_schema_version(entry, b"") == an_entry()


def test_for_which_clusters_a_message_is_is_said_where_it_was_published_and_nowhere_else() -> None:
    metadata, payload = decode_entry(an_entry())
    metadata.replicate_to.extend(["eu", "ap"])
    entry = encode_entry(metadata, payload)
    assert marks_of(entry).clusters == {"eu", "ap"}
    assert marks_of(stamped(entry, IDENTITY, b"")).clusters is None  # other bridges know it by the stamp
