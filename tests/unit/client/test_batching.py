"""The batch container seals at the first limit, keeps order, and says only true things of a batch."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from replicator.client.message import OutgoingMessage
from replicator.client.producing.batching import KEYS_MAX, BatchContainer, KeyBasedBatchContainer
from replicator.client.producing.framing import EntryFramer, SealedEntry
from replicator.client.settings import BatchLimits
from replicator.engine.log.entry import decode_entry, split_batch
from replicator.metadata.metadata_pb2 import MessageMetadata


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


def _keyed(**limits: int) -> KeyBasedBatchContainer[int]:
    return KeyBasedBatchContainer(BatchLimits(**limits), EntryFramer("producer"))


def test_batches_by_key_hold_one_key_each_and_bear_it() -> None:
    container = _keyed()
    for index in range(9):
        container.add(OutgoingMessage(b"v%d" % index, partition_key=f"k{index % 3}"), index, 0.0, 0, index)
    sealed = container.seal()
    read = [_read(entry) for entry in sealed]
    assert [metadata.partition_key for metadata, _ in read] == ["k0", "k1", "k2"]
    assert [contents for _, contents in read] == [[b"v%d" % (3 * n + key) for n in range(3)] for key in range(3)]
    assert [list(entry.confirmations) for entry in sealed] == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]
    assert container.open_messages() == []


def test_the_ordering_key_comes_before_the_partition_key_and_messages_without_either_share_a_batch() -> None:
    container = _keyed()
    messages = [
        OutgoingMessage(b"a", partition_key="p1", ordering_key="o"),
        OutgoingMessage(b"b", partition_key="o"),
        OutgoingMessage(b"c"),
        OutgoingMessage(b"d", partition_key="p2", ordering_key="o"),
        OutgoingMessage(b"e"),
    ]
    for index, message in enumerate(messages):
        container.add(message, index, 0.0, 0, index)
    by_contents = {tuple(contents): metadata for metadata, contents in map(_read, container.seal())}
    assert set(by_contents) == {(b"a", b"d"), (b"b",), (b"c", b"e")}
    assert by_contents[b"a", b"d"].ordering_key == b"o"
    assert by_contents[(b"b",)].partition_key == "o"
    assert not by_contents[b"c", b"e"].HasField("partition_key")
    assert not by_contents[b"c", b"e"].HasField("ordering_key")


def test_batches_by_key_leave_in_the_order_of_their_highest_sequence_ids_so_that_none_looks_like_a_duplicate() -> None:
    container = _keyed()
    for sequence_id, key in enumerate("ABBAA"):
        container.add(OutgoingMessage(b"", partition_key=key), sequence_id, 0.0, 0, sequence_id)
    first, second = (_read(entry)[0] for entry in container.seal())
    assert (first.partition_key, first.sequence_id) == ("B", 2)
    assert (second.partition_key, second.sequence_id) == ("A", 4)
    assert not first.HasField("highest_sequence_id"), "a range would overlap the other batch's"


def test_limits_count_over_all_batches_by_key_and_seal_them_together() -> None:
    by_count = _keyed(messages_max=3)
    assert by_count.add(OutgoingMessage(b"", partition_key="a"), 0, 0.0, 0, 0) == []
    assert by_count.add(OutgoingMessage(b"", partition_key="b"), 1, 0.0, 0, 1) == []
    assert len(by_count.add(OutgoingMessage(b"", partition_key="c"), 2, 0.0, 0, 2)) == 3

    by_size = _keyed(payload_bytes_max=300)
    by_size.add(OutgoingMessage(b"x" * 100, partition_key="a"), 0, 0.0, 0, 0)
    by_size.add(OutgoingMessage(b"x" * 100, partition_key="b"), 1, 0.0, 0, 1)
    assert len(by_size.add(OutgoingMessage(b"x" * 100, partition_key="c"), 2, 0.0, 0, 2)) == 2
    assert [message.partition_key for message in by_size.open_messages()] == ["c"]


def test_the_number_of_open_batches_is_bounded() -> None:
    container = _keyed(messages_max=100_000)
    for index in range(KEYS_MAX):
        assert container.add(OutgoingMessage(b"", partition_key=str(index)), index, 0.0, 0, index) == []
    assert container.add(OutgoingMessage(b"", partition_key="0"), KEYS_MAX, 0.0, 0, 0) == [], "no new key"
    assert len(container.add(OutgoingMessage(b"", partition_key="new"), KEYS_MAX + 1, 0.0, 0, 0)) == KEYS_MAX
    assert [message.partition_key for message in container.open_messages()] == ["new"]


def test_the_deadline_of_batches_by_key_is_that_of_the_first_message_of_any() -> None:
    container = _keyed(publish_delay_ms=10)
    container.add(OutgoingMessage(b"", partition_key="a"), 0, 5.0, 0, 0)
    container.add(OutgoingMessage(b"", partition_key="b"), 1, 5.009, 0, 1)
    assert container.deadline == 5.01
    container.seal()
    assert container.deadline is None


@given(
    keys=st.lists(st.sampled_from(["a", "b", "c", None]), max_size=60),
    messages_max=st.integers(1, 10),
    payload_bytes_max=st.integers(1, 600),
)
def test_by_key_every_message_leaves_once_in_the_order_of_its_key_under_growing_sequence_ids(
    keys: list[str | None], messages_max: int, payload_bytes_max: int
) -> None:
    container = _keyed(messages_max=messages_max, payload_bytes_max=payload_bytes_max)
    sealed: list[SealedEntry[int]] = []
    for index, key in enumerate(keys):
        sealed += container.add(OutgoingMessage(b"%d" % index, partition_key=key), index, 0.0, 0, index)
    sealed += container.seal()
    read = [_read(entry) for entry in sealed]
    for key in ("a", "b", "c", None):
        sent = [b"%d" % index for index, one in enumerate(keys) if one == key]
        got = [
            content
            for metadata, contents in read
            if (metadata.partition_key if metadata.HasField("partition_key") else None) == key
            for content in contents
        ]
        assert got == sent
    assert [b"%d" % index for entry in sealed for index in entry.confirmations] == [
        content for _, contents in read for content in contents
    ]
    sequence_ids = [metadata.sequence_id for metadata, _ in read]
    assert sequence_ids == sorted(set(sequence_ids))
