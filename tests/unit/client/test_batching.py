"""The batch container seals at the first limit, keeps order, and says only true things of a batch."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from replicator.client.batching import BatchContainer
from replicator.client.framing import EntryFramer, SealedEntry
from replicator.client.message import OutgoingMessage
from replicator.client.settings import BatchLimits
from replicator.engine.entry import decode_entry, split_batch
from replicator.engine.metadata_pb2 import MessageMetadata


def _container(**limits: int) -> BatchContainer[int]:
    return BatchContainer(BatchLimits(**limits), EntryFramer("producer"))


def _read(sealed: SealedEntry[int]) -> tuple[MessageMetadata, list[bytes]]:
    assert isinstance(sealed.entry, bytes)
    metadata, payload = decode_entry(sealed.entry)
    return metadata, [bytes(message.payload) for message in split_batch(metadata, payload)]


def test_a_batch_is_sealed_when_it_has_its_count() -> None:
    container = _container(messages_max=3)
    assert container.add(OutgoingMessage(b"a"), 0, 0.0, 1_000, 0) == []
    assert container.add(OutgoingMessage(b"b"), 1, 0.0, 1_001, 1) == []
    (sealed,) = container.add(OutgoingMessage(b"c"), 2, 0.0, 1_002, 2)
    metadata, contents = _read(sealed)
    assert contents == [b"a", b"b", b"c"]
    assert (metadata.sequence_id, metadata.highest_sequence_id) == (0, 2)
    assert metadata.publish_time == 1_000
    assert sealed.batched
    assert container.open_messages() == []
    assert list(sealed.confirmations) == [0, 1, 2]


def test_a_message_that_does_not_fit_seals_the_batch_before_it() -> None:
    container = _container(payload_bytes_max=200)
    assert container.add(OutgoingMessage(b"x" * 100), 0, 0.0, 0, 0) == []
    (sealed,) = container.add(OutgoingMessage(b"y" * 100), 1, 0.0, 0, 1)
    assert _read(sealed)[1] == [b"x" * 100]
    assert [message.content for message in container.open_messages()] == [b"y" * 100]


def test_a_message_over_the_batch_size_becomes_a_batch_of_one_behind_the_open_one() -> None:
    container = _container(payload_bytes_max=200)
    container.add(OutgoingMessage(b"small"), 0, 0.0, 0, 0)
    first, second = container.add(OutgoingMessage(b"x" * 1_000), 1, 0.0, 0, 1)
    assert _read(first)[1] == [b"small"]
    assert _read(second)[1] == [b"x" * 1_000]


def test_the_deadline_is_that_of_the_first_message() -> None:
    container = _container(publish_delay_ms=10)
    assert container.deadline is None
    container.add(OutgoingMessage(b"a"), 0, 5.0, 0, 0)
    container.add(OutgoingMessage(b"b"), 1, 5.009, 0, 1)
    assert container.deadline == 5.01
    assert len(container.seal()) == 1
    assert container.deadline is None
    assert container.seal() == []


def test_the_entry_has_a_key_only_when_all_its_messages_share_it() -> None:
    container = _container()
    for index in range(2):
        container.add(OutgoingMessage(b"a", partition_key="N1", ordering_key="o"), index, 0.0, 0, index)
    metadata, _ = _read(container.seal()[0])
    assert (metadata.partition_key, metadata.ordering_key) == ("N1", b"o")

    for index, key in enumerate(("N1", "N2", "N1")):
        container.add(OutgoingMessage(b"a", partition_key=key), index, 0.0, 0, index)
    metadata, _ = _read(container.seal()[0])
    assert not metadata.HasField("partition_key")

    container.add(OutgoingMessage(b"a"), 0, 0.0, 0, 0)
    container.add(OutgoingMessage(b"a", partition_key="N1"), 1, 0.0, 0, 1)
    metadata, _ = _read(container.seal()[0])
    assert not metadata.HasField("partition_key"), "a message without key counts too"


def test_each_message_of_a_batch_keeps_its_own_metadata() -> None:
    container = _container()
    container.add(OutgoingMessage(b"a", {"p": "1"}, "key", "order", event_timestamp=77), 5, 0.0, 0, 5)
    container.add(OutgoingMessage(b"b"), 9, 0.0, 0, 9)
    entry = container.seal()[0].entry
    assert isinstance(entry, bytes)
    first, second = (message.metadata for message in split_batch(*decode_entry(entry)))
    assert {pair.key: pair.value for pair in first.properties} == {"p": "1"}
    assert (first.partition_key, first.ordering_key, first.event_time) == ("key", b"order", 77)
    assert (first.sequence_id, second.sequence_id) == (5, 9)
    assert not second.HasField("partition_key")


@given(
    sizes=st.lists(st.integers(0, 400), max_size=60),
    messages_max=st.integers(1, 10),
    payload_bytes_max=st.integers(1, 600),
)
def test_every_message_leaves_once_in_order_and_no_batch_is_over_a_limit(
    sizes: list[int], messages_max: int, payload_bytes_max: int
) -> None:
    container = _container(messages_max=messages_max, payload_bytes_max=payload_bytes_max)
    contents = [index.to_bytes(2, "big") + b"x" * size for index, size in enumerate(sizes)]
    sealed: list[SealedEntry[int]] = []
    for index, content in enumerate(contents):
        sealed += container.add(OutgoingMessage(content), index, 0.0, 0, index)
    sealed += container.seal()
    batches = [_read(entry) for entry in sealed]
    assert [content for _, batch in batches for content in batch] == contents
    for metadata, batch in batches:
        assert len(batch) <= messages_max
        assert len(batch) == 1 or metadata.uncompressed_size <= payload_bytes_max
