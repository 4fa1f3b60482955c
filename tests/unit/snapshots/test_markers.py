"""Marker bytes: what is written is read back, foreign things are passed over, broken things are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshots import markers_pb2 as pb
from snapshots.ack_vector import BITMAP_POSITIONS_MAX, AckVector, OriginAcks
from snapshots.errors import MarkerCorrupt
from snapshots.markers import (
    GENERATION_MAX,
    FailoverEpoch,
    LocalSnapshot,
    Marker,
    MarkerType,
    SnapshotRequest,
    SnapshotResponse,
    SubscriptionsUpdate,
    SubscriptionUpdate,
    decode_marker,
    encode_marker,
)
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet

names = st.text(max_size=20)
positions = st.builds(Position, st.integers(0, 2**64 - 1), st.integers(-1, 2**63 - 1))
vectors = st.dictionaries(names, positions, max_size=4)
updates = st.builds(
    SubscriptionUpdate,
    names,
    vectors,
    st.integers(0, GENERATION_MAX),
    deleted=st.booleans(),
    unless_in_use=st.booleans(),
    ask_id=names,
    answers=st.dictionaries(names, names, max_size=3),
)
markers = st.one_of(
    st.builds(SnapshotRequest, names, names),
    st.builds(SnapshotRequest, names, names, positions, vectors.filter(bool)),
    st.builds(SnapshotResponse, names, names, positions, vectors, names),
    st.builds(LocalSnapshot, names, positions, vectors, st.booleans()),
    st.builds(SubscriptionsUpdate, st.lists(updates, min_size=1, max_size=4).map(tuple)),
    st.builds(
        FailoverEpoch,
        st.integers(0, 2**64 - 1),
        names,
        names,
        st.integers(0, 2**64 - 1),
        names,
        names,
        names,
        st.dictionaries(names, names, max_size=4),
        st.lists(names, max_size=3).map(tuple),
    ),
)


@given(markers)
def test_every_marker_comes_back_as_it_was_written(marker: Marker) -> None:
    kind, payload = encode_marker(marker)
    assert decode_marker(kind, payload) == marker
    assert decode_marker(int(kind), memoryview(payload)) == marker


@given(markers, st.integers(112, 200), st.binary(max_size=20))
def test_fields_of_a_later_version_are_skipped(marker: Marker, number: int, unknown: bytes) -> None:
    kind, payload = encode_marker(marker)
    tag = number << 3 | 2
    field = bytes([tag & 0x7F | 0x80, tag >> 7, len(unknown)]) + unknown
    assert decode_marker(kind, payload + field) == marker


@given(st.sampled_from(MarkerType), st.binary(max_size=60))
def test_arbitrary_bytes_are_a_marker_or_refused_as_corrupt(marker_type: int, payload: bytes) -> None:
    try:
        marker = decode_marker(marker_type, payload)
    except MarkerCorrupt:
        return
    assert marker is not None
    assert decode_marker(*encode_marker(marker)) == marker


@pytest.mark.parametrize("marker_type", [0, 9, 14, 20, 21, 22, -1])
def test_types_of_others_are_not_ours_to_read(marker_type: int) -> None:
    assert decode_marker(marker_type, b"\xff\xff") is None


def test_a_lac_before_the_first_entry_travels_as_minus_one() -> None:
    response = SnapshotResponse("1", "eu-west", BEFORE_ALL, {"us-east": Position(7, -1)}, "us-east")
    kind, payload = encode_marker(response)
    assert decode_marker(kind, payload) == response
    wire = pb.ReplicatedSubscriptionsSnapshotResponse.FromString(payload)
    assert wire.cluster.message_id.entry_id == 2**64 - 1  # as upstream's signed writer has it


def test_the_first_subscription_stands_where_upstream_reads_it() -> None:
    update = SubscriptionsUpdate(
        (SubscriptionUpdate("s1", {"eu-west": Position(3, 4)}, 1), SubscriptionUpdate("s2", {}, 2))
    )
    kind, payload = encode_marker(update)
    wire = pb.ReplicatedSubscriptionsUpdate.FromString(payload)
    assert (kind, wire.subscription_name) == (MarkerType.SUBSCRIPTIONS_UPDATE, "s1")
    assert [more.subscription_name for more in wire.more] == ["s2"]


def test_an_answer_of_a_broker_that_knows_no_vector_is_read() -> None:
    wire = pb.ReplicatedSubscriptionsSnapshotResponse(snapshot_id="1")
    wire.cluster.cluster = "eu-west"
    wire.cluster.message_id.ledger_id, wire.cluster.message_id.entry_id = 3, 4
    response = decode_marker(MarkerType.SNAPSHOT_RESPONSE, wire.SerializeToString())
    assert response == SnapshotResponse("1", "eu-west", Position(3, 4), {}, "")


@pytest.mark.parametrize("entries", [(0, BITMAP_POSITIONS_MAX), (7, 5_000_000, 2**32 - 1)])
def test_acknowledgements_far_apart_in_one_ledger_travel(entries: tuple[int, ...]) -> None:
    """A reader refuses a bitmap that spans too much, so none such is written."""
    positions = PositionSet(Position(3, entry) for entry in entries)
    told = SubscriptionsUpdate(
        (SubscriptionUpdate("a", {}, 1, AckVector({"us-east": OriginAcks(7, positions=positions)})),)
    )
    assert decode_marker(*encode_marker(told)) == told
    (part,) = (part for part, _ in told.updates[0].acks.parts())
    assert part == told.updates[0].acks


def _update_in_update_in_update() -> bytes:
    inner = pb.ReplicatedSubscriptionsUpdate(subscription_name="c")
    middle = pb.ReplicatedSubscriptionsUpdate(subscription_name="b", more=[inner])
    return pb.ReplicatedSubscriptionsUpdate(subscription_name="a", more=[middle]).SerializeToString()


def _cluster_twice() -> bytes:
    item = pb.ClusterMessageId(cluster="x", message_id=pb.MarkersMessageIdData(ledger_id=1, entry_id=1))
    return pb.ReplicatedSubscriptionsUpdate(subscription_name="a", clusters=[item, item]).SerializeToString()


def _generation_too_high() -> bytes:
    return pb.ReplicatedSubscriptionsUpdate(subscription_name="a", generation=GENERATION_MAX + 1).SerializeToString()


def _entry_too_high() -> bytes:
    snapshot = pb.ReplicatedSubscriptionsSnapshot(snapshot_id="1")
    snapshot.local_message_id.ledger_id, snapshot.local_message_id.entry_id = 1, 2**63
    return snapshot.SerializeToString()


@pytest.mark.parametrize(
    ("marker_type", "payload", "message"),
    [
        (MarkerType.SNAPSHOT_REQUEST, b"\xff", "SNAPSHOT_REQUEST"),
        (MarkerType.SNAPSHOT_REQUEST, b"", "required field"),
        (MarkerType.SNAPSHOT_REQUEST, b"\n\x011", "source_cluster"),
        (MarkerType.SNAPSHOT_RESPONSE, b"\n\x011", "cluster"),
        (MarkerType.LOCAL_SNAPSHOT, b"\n\x011", "local_message_id"),
        (MarkerType.LOCAL_SNAPSHOT, _entry_too_high(), "9223372036854775808"),
        (MarkerType.SUBSCRIPTIONS_UPDATE, _update_in_update_in_update(), "has updates within updates"),
        (MarkerType.SUBSCRIPTIONS_UPDATE, _cluster_twice(), "twice"),
        (MarkerType.SUBSCRIPTIONS_UPDATE, _generation_too_high(), "generation 4611686018427387905"),
    ],
)
def test_a_broken_marker_is_refused_with_its_reason(marker_type: int, payload: bytes, message: str) -> None:
    with pytest.raises(MarkerCorrupt, match=message):
        decode_marker(marker_type, payload)
