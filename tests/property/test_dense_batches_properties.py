"""Batches that links shortened, as brokers get them: exactly the remaining messages, whole and in order."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap
from test_filtering_properties import CODECS, entry_of

from replicator.apache.dense_batches import dense
from replicator.apache.stamps import Identity, marks_of, stamped
from replicator.engine.log.compression import decompress
from replicator.engine.log.entry import decode_entry, encode_entry, split_batch
from replicator.metadata.metadata_pb2 import LZ4, MessageMetadata
from replicator.pipeline.live.filtering import rewrite_entry
from replicator.pipeline.verify.brokers.entry_log import content_of
from snapshots.position import Position

PLACE = Position(7, 3)
IDENTITY = Identity("us-east.pulsar", 1_700_000_000_000, PLACE)


@st.composite
def in_part(draw: st.DrawFn) -> tuple[bytes, bytes, BitMap]:
    """Draw a batch; return it, the part that a link lets pass, and the indexes of the messages that it leaves out."""
    size = draw(st.integers(2, 20))
    absent = BitMap(draw(st.sets(st.integers(0, size - 1), min_size=1, max_size=size - 1)))
    whole = entry_of(PLACE, size, draw(st.sampled_from(CODECS)))
    stays = np.array([index not in absent for index in range(size)])
    return whole, rewrite_entry(whole, stays, {}, frozenset()), absent


def opened(entry: bytes) -> tuple[MessageMetadata, list[tuple[bytes, bytes]]]:
    """Return the metadata of a batch, and for each message its encoded metadata and its payload."""
    metadata, payload = decode_entry(entry)
    content = memoryview(decompress(payload, metadata.compression, metadata.uncompressed_size))
    return metadata, [
        (single.SerializeToString(), bytes(message)) for single, message in split_batch(metadata, content)
    ]


@given(in_part())
def test_what_is_left_is_as_it_was_published_and_nothing_is_between(batch: tuple[bytes, bytes, BitMap]) -> None:
    whole, part, absent = batch
    before, messages = opened(whole)
    after, left = opened(dense(part, absent))
    assert left == [message for index, message in enumerate(messages) if index not in absent]
    before.num_messages_in_batch -= len(absent)
    before.uncompressed_size = after.uncompressed_size
    after.uncompressed_size = before.uncompressed_size  # it is there in both
    assert after == before


@given(in_part())
def test_the_stamp_says_how_many_are_absent_and_whose_the_batch_is(batch: tuple[bytes, bytes, BitMap]) -> None:
    whole, part, absent = batch
    entry = stamped(part, IDENTITY, b"", absent)
    assert marks_of(entry).identity == IDENTITY
    metadata, left = opened(entry)
    assert metadata.copied_from.absent == len(absent)
    assert len(left) + len(absent) == opened(whole)[0].num_messages_in_batch
    assert not opened(stamped(whole, IDENTITY, b""))[0].copied_from.HasField("absent")


@given(in_part())
def test_a_log_and_brokers_have_the_same_of_it_and_it_is_not_the_whole(batch: tuple[bytes, bytes, BitMap]) -> None:
    whole, part, absent = batch
    in_log, at_broker = content_of(part, absent=absent), content_of(stamped(part, IDENTITY, b"", absent))
    assert in_log == at_broker._replace(identity=None)
    assert in_log.absent == len(absent)
    assert in_log.messages == content_of(whole).messages - len(absent)
    assert not content_of(whole).absent
    assert content_of(whole).checksum != in_log.checksum


@given(in_part())
def test_a_batch_that_cannot_be_read_is_content_all_the_same_and_keeps_its_identity(
    batch: tuple[bytes, bytes, BitMap],
) -> None:
    _, part, absent = batch
    sound = stamped(part, IDENTITY, b"", absent)
    metadata, payload = decode_entry(sound)
    metadata.compression, metadata.uncompressed_size = LZ4, 1 << 30
    broken = content_of(encode_entry(metadata, payload))
    assert broken.checksum != content_of(sound).checksum
    assert broken == content_of(sound)._replace(checksum=broken.checksum)
    assert content_of(part[:20], absent=absent).identity is None
