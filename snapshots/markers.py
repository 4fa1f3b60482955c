"""Markers: messages of workers to each other inside the log.

This module owns the marker values, their types, and their bytes (``markers.proto``; numbers as on the public Pulsar
wire). It decides nothing: :mod:`snapshots.controller` does.

A position's entry is a ``uint64`` on the wire, and -1 (the place before a ledger's first entry) travels as its two's
complement, 2**64 - 1. A 64-bit signed writer produces that too, so upstream's readers see -1. No real entry comes near
it: an entry id from 2**63 up is refused as corrupt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message
from pyroaring import BitMap

from snapshots import markers_pb2 as pb
from snapshots.ack_vector import BITMAP_POSITIONS_MAX, AckVector, OriginAcks, bitmap_pieces, merged_ranges
from snapshots.errors import MarkerCorrupt
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet
from snapshots.starts import Start, Starts

MARKER_VERSION: Final = 1
"""``MessageMetadata.marker_version`` that is written here, and the highest that is read.

New fields do not raise it, because older workers skip fields that they do not know. A change that must not be skipped
raises it, and older workers refuse the marker."""
_ENTRY_BEFORE_FIRST: Final = 2**64 - 1
_ENTRY_LIMIT: Final = 2**63
BATCH_INDEXES_MAX: Final = 1 << 24
"""Limit of message indexes in a batch: an entry of 5 MiB holds fewer."""
GENERATION_MAX: Final = 1 << 62
"""Limit of a generation. Generations count up by one from 1, so none comes near it.

A higher one could not be counted up, and would break the index, whose numbers are signed."""


class MarkerType(IntEnum):
    """Type of a marker, ``MessageMetadata.marker_type``. Pulsar has further types, from 20 on, for transactions."""

    SNAPSHOT_REQUEST = 10
    SNAPSHOT_RESPONSE = 11
    LOCAL_SNAPSHOT = 12
    SUBSCRIPTIONS_UPDATE = 13
    FAILOVER_EPOCH = 100
    """This project's own type, only in the log of the topic ``persistent://replicator/system/epochs``."""


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    """Request of ``source_cluster`` for the state of every log that it reaches.

    ``position`` and ``vector`` are the writer's own answer, as in :class:`SnapshotResponse`. Requests of earlier
    versions have no vector, and so no answer.
    """

    snapshot_id: str
    source_cluster: str
    position: Position = BEFORE_ALL
    vector: Mapping[str, Position] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SnapshotResponse:
    """Answer of ``cluster`` to a request.

    ``position`` is its LAC. ``vector`` holds, for each origin, the highest origin position of a message in its log up
    to there; it is empty in the answers of brokers that do not know the field. ``requested_by`` is the cluster that
    asked, "" in such answers and in unasked ones. Readers use an answer whoever asked for it.
    """

    snapshot_id: str
    cluster: str
    position: Position
    vector: Mapping[str, Position]
    requested_by: str


@dataclass(frozen=True, slots=True)
class LocalSnapshot:
    """Recorded mappings of one topic. Links do not copy this marker.

    ``clusters`` holds each peer's position for ``local``. With ``covers``, all messages that were here at that time lie
    at or below that position in the peer."""

    snapshot_id: str
    local: Position
    clusters: Mapping[str, Position]
    covers: bool = False


@dataclass(frozen=True, slots=True)
class SubscriptionUpdate:
    """State of one subscription in an update marker.

    ``clusters`` is the coarse state: the mark-delete position in the positions of each cluster that has a mapping.
    ``acks`` is the exact state: what changed, or, with ``whole``, a part or all of the whole state. An update without
    both only announces that the subscription exists in this generation. With ``deleted`` it announces that the
    subscription was deleted; with ``unless_in_use`` as well, a cluster with consumers keeps it. With ``deleted`` and
    ``whole``, the sender does not announce that it deletes the subscription, but that it has a tombstone, maybe an old
    one. With ``asks``, the sender asks every cluster that has more to announce it.

    ``properties`` and ``read_compacted`` are settings for a cluster that must create the subscription. ``starts`` is
    the subscription's start by origin. A whole state has it, and so has a coarse state that may include messages before
    the start.

    ``ask_id`` names the question of an update that asks, if the sender waits for the answer. ``answers`` has, by
    cluster, the last such question that the sender had heard. The last part of a whole state has it: whoever asked has
    everything then that the sender knew when it heard the question.
    """

    subscription: str
    clusters: Mapping[str, Position]
    generation: int
    acks: AckVector = field(default_factory=AckVector)
    whole: bool = False
    deleted: bool = False
    asks: bool = False
    properties: Mapping[str, str] = field(default_factory=dict)
    read_compacted: bool = False
    starts: Starts = field(default_factory=dict)
    unless_in_use: bool = False
    ask_id: str = ""
    answers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SubscriptionsUpdate:
    """Updates of the changed subscriptions of a topic; at least one."""

    updates: tuple[SubscriptionUpdate, ...]

    def __post_init__(self) -> None:
        assert self.updates, "an update of no subscription"


@dataclass(frozen=True, slots=True)
class FailoverEpoch:
    """Assignment of serving clusters to home clusters, valid from this epoch on. See :mod:`replicator.failover.epochs`.

    ``serving`` holds every home cluster that another one serves; a cluster that is not in it serves itself.
    ``consumers_kept`` are clusters whose consumers stay though they serve nobody. ``record_id`` is random. It tells
    apart two records that one writer wrote under one number, as after a restore from an old copy. ``at_ms`` is the
    writer's wall clock; nothing is decided by it.
    """

    epoch: int
    writer: str
    record_id: str
    at_ms: int
    kind: str
    source: str
    target: str
    serving: Mapping[str, str]
    consumers_kept: tuple[str, ...] = ()


Marker = SnapshotRequest | SnapshotResponse | LocalSnapshot | SubscriptionsUpdate | FailoverEpoch


def encode_marker(marker: Marker) -> tuple[MarkerType, bytes]:
    """Return the type of a marker and its payload bytes."""
    message: Message
    match marker:
        case SnapshotRequest():
            kind = MarkerType.SNAPSHOT_REQUEST
            message = pb.ReplicatedSubscriptionsSnapshotRequest(
                snapshot_id=marker.snapshot_id,
                source_cluster=marker.source_cluster,
                position=_position_to_wire(marker.position) if marker.vector else None,
                vector=_clusters_to_wire(marker.vector),
            )
        case SnapshotResponse():
            kind = MarkerType.SNAPSHOT_RESPONSE
            message = pb.ReplicatedSubscriptionsSnapshotResponse(
                snapshot_id=marker.snapshot_id,
                cluster=_cluster_to_wire(marker.cluster, marker.position),
                vector=_clusters_to_wire(marker.vector),
                requested_by=marker.requested_by,
            )
        case LocalSnapshot():
            kind = MarkerType.LOCAL_SNAPSHOT
            message = pb.ReplicatedSubscriptionsSnapshot(
                snapshot_id=marker.snapshot_id,
                local_message_id=_position_to_wire(marker.local),
                clusters=_clusters_to_wire(marker.clusters),
                covers=marker.covers or None,
            )
        case SubscriptionsUpdate():
            kind = MarkerType.SUBSCRIPTIONS_UPDATE
            message = _update_to_wire(marker.updates[0])
            message.more.extend(_update_to_wire(update) for update in marker.updates[1:])
        case FailoverEpoch():
            kind = MarkerType.FAILOVER_EPOCH
            message = pb.FailoverEpoch(
                epoch=marker.epoch,
                writer=marker.writer,
                record_id=marker.record_id,
                at_ms=marker.at_ms,
                kind=marker.kind,
                source=marker.source,
                target=marker.target,
                serving=[pb.FailoverAssignment(home=home, serving=by) for home, by in sorted(marker.serving.items())],
                consumers_kept=marker.consumers_kept,
            )
    return kind, message.SerializeToString()


def _corrupt(what: str) -> MarkerCorrupt:
    return MarkerCorrupt(f"{what}: it is damaged, or another version wrote it; run the same version in all clusters")


def decode_marker(marker_type: int, payload: bytes | memoryview) -> Marker | None:
    """Decode a marker; return None for a type that is not one of ours (transactions have theirs).

    Fields that this version does not know are skipped. Raises :class:`MarkerCorrupt` if the payload is not the message
    that its type says, or lacks an indispensable field.
    """
    if marker_type not in MarkerType._value2member_map_:
        return None
    kind = MarkerType(marker_type)
    try:
        return _decode(kind, bytes(payload))
    except DecodeError as error:
        raise _corrupt(f"a {kind.name} marker of {len(payload)} bytes is not readable: {error}") from error


def _decode(kind: MarkerType, payload: bytes) -> Marker:
    match kind:
        case MarkerType.SNAPSHOT_REQUEST:
            request = _parse(pb.ReplicatedSubscriptionsSnapshotRequest, payload)
            _require(request, "source_cluster")
            if not request.HasField("position"):
                return SnapshotRequest(request.snapshot_id, request.source_cluster)
            position, vector = _position_from_wire(request.position), _clusters_from_wire(request.vector)
            return SnapshotRequest(request.snapshot_id, request.source_cluster, position, vector)
        case MarkerType.SNAPSHOT_RESPONSE:
            response = _parse(pb.ReplicatedSubscriptionsSnapshotResponse, payload)
            _require(response, "cluster")
            return SnapshotResponse(
                snapshot_id=response.snapshot_id,
                cluster=response.cluster.cluster,
                position=_position_from_wire(response.cluster.message_id),
                vector=_clusters_from_wire(response.vector),
                requested_by=response.requested_by,
            )
        case MarkerType.LOCAL_SNAPSHOT:
            snapshot = _parse(pb.ReplicatedSubscriptionsSnapshot, payload)
            _require(snapshot, "local_message_id")
            local = _position_from_wire(snapshot.local_message_id)
            return LocalSnapshot(snapshot.snapshot_id, local, _clusters_from_wire(snapshot.clusters), snapshot.covers)
        case MarkerType.SUBSCRIPTIONS_UPDATE:
            update = _parse(pb.ReplicatedSubscriptionsUpdate, payload)
            if any(nested.more for nested in update.more):
                raise _corrupt("a SUBSCRIPTIONS_UPDATE marker has updates within updates (`more` inside `more`)")
            return SubscriptionsUpdate(tuple(map(_update_from_wire, (update, *update.more))))
        case MarkerType.FAILOVER_EPOCH:
            epoch = _parse(pb.FailoverEpoch, payload)
            serving = {assignment.home: assignment.serving for assignment in epoch.serving}
            if len(serving) != len(epoch.serving):
                raise _corrupt("a FAILOVER_EPOCH marker assigns one cluster twice")
            return FailoverEpoch(
                epoch=epoch.epoch,
                writer=epoch.writer,
                record_id=epoch.record_id,
                at_ms=epoch.at_ms,
                kind=epoch.kind,
                source=epoch.source,
                target=epoch.target,
                serving=serving,
                consumers_kept=tuple(epoch.consumers_kept),
            )


_M = TypeVar("_M", bound=Message)


def _parse(kind: type[_M], payload: bytes) -> _M:
    message = kind.FromString(payload)
    # The runtime reads on when a required field is missing, and leaves it to us to look.
    if not message.IsInitialized():
        raise _corrupt(f"a {message.DESCRIPTOR.name} marker lacks a required field")
    return message


def _require(message: Message, field: str) -> None:
    """Raise :class:`MarkerCorrupt` if ``message`` lacks ``field``, which is optional on the wire but needed here."""
    if not message.HasField(field):
        raise _corrupt(f"a {message.DESCRIPTOR.name} marker has no {field}")


def _position_to_wire(position: Position) -> pb.MarkersMessageIdData:
    assert -1 <= position.entry < _ENTRY_LIMIT, position
    entry = _ENTRY_BEFORE_FIRST if position.entry == -1 else position.entry
    return pb.MarkersMessageIdData(ledger_id=position.ledger, entry_id=entry)


def _position_from_wire(wire: pb.MarkersMessageIdData) -> Position:
    if wire.entry_id == _ENTRY_BEFORE_FIRST:
        return Position(wire.ledger_id, -1)
    if wire.entry_id >= _ENTRY_LIMIT:
        raise _corrupt(f"a marker names a position with entry id {wire.entry_id}, which no entry can have")
    return Position(wire.ledger_id, wire.entry_id)


def _cluster_to_wire(cluster: str, position: Position) -> pb.ClusterMessageId:
    return pb.ClusterMessageId(cluster=cluster, message_id=_position_to_wire(position))


def _clusters_to_wire(clusters: Mapping[str, Position]) -> list[pb.ClusterMessageId]:
    """Encode positions by cluster, sorted, so that equal markers are equal bytes."""
    return [_cluster_to_wire(cluster, position) for cluster, position in sorted(clusters.items())]


def _clusters_from_wire(wire: Iterable[pb.ClusterMessageId]) -> dict[str, Position]:
    clusters: dict[str, Position] = {}
    for item in wire:
        if item.cluster in clusters:
            raise _corrupt(f"a marker names cluster {item.cluster[:60]!r} twice in one list")
        clusters[item.cluster] = _position_from_wire(item.message_id)
    return clusters


def _update_to_wire(update: SubscriptionUpdate) -> pb.ReplicatedSubscriptionsUpdate:
    return pb.ReplicatedSubscriptionsUpdate(
        subscription_name=update.subscription,
        clusters=_clusters_to_wire(update.clusters),
        generation=update.generation,
        acks=[_acks_to_wire(origin, acks) for origin, acks in sorted(update.acks.origins.items())],
        # False values are left out: most updates are one subscription's small change.
        whole=update.whole or None,
        deleted=update.deleted or None,
        asks=update.asks or None,
        properties=[pb.SubscriptionProperty(key=key, value=value) for key, value in sorted(update.properties.items())],
        read_compacted=update.read_compacted or None,
        starts=[
            pb.SubscriptionStart(
                origin=origin, incarnation=start.incarnation, message_id=_position_to_wire(start.position)
            )
            for origin, start in sorted(update.starts.items())
        ],
        unless_in_use=update.unless_in_use or None,
        ask_id=update.ask_id or None,
        answers=[pb.SubscriptionAnswer(cluster=each, ask_id=name) for each, name in sorted(update.answers.items())],
    )


def _update_from_wire(wire: pb.ReplicatedSubscriptionsUpdate) -> SubscriptionUpdate:
    vector = AckVector()
    for acks in wire.acks:
        if acks.origin in vector.origins:
            raise _corrupt(f"an update of a subscription names origin {acks.origin[:60]!r} twice")
        vector.origins[acks.origin] = _acks_from_wire(acks)
    starts = {item.origin: Start(item.incarnation, _position_from_wire(item.message_id)) for item in wire.starts}
    if len(starts) != len(wire.starts):
        raise _corrupt("an update of a subscription names an origin twice among its starts")
    if wire.generation > GENERATION_MAX:
        raise _corrupt(f"an update of a subscription has generation {wire.generation}, which no subscription can have")
    return SubscriptionUpdate(
        wire.subscription_name,
        _clusters_from_wire(wire.clusters),
        wire.generation,
        vector,
        wire.whole,
        wire.deleted,
        wire.asks,
        {item.key: item.value for item in wire.properties},
        wire.read_compacted,
        starts,
        wire.unless_in_use,
        wire.ask_id,
        {item.cluster: item.ask_id for item in wire.answers},
    )


def _acks_to_wire(origin: str, acks: OriginAcks) -> pb.OriginAcks:
    return pb.OriginAcks(
        origin=origin,
        incarnation=acks.incarnation,
        ranges=[
            pb.PositionRange(after=_position_to_wire(after), upto=_position_to_wire(upto))
            for after, upto in acks.ranges
        ],
        ledgers=[
            pb.LedgerAcks(ledger_id=ledger, entries=piece.serialize())
            for ledger, entries in acks.positions.by_ledger()
            for piece in bitmap_pieces(entries)
        ],
        parts=[
            pb.PartAcks(message_id=_position_to_wire(position), indexes=_bitmap_to_wire(acks.batches[position]))
            for position in sorted(acks.batches)
        ],
    )


def _acks_from_wire(wire: pb.OriginAcks) -> OriginAcks:
    positions = PositionSet()
    for ledger in wire.ledgers:
        positions.add_entries(ledger.ledger_id, _bitmap_from_wire(ledger.entries, BITMAP_POSITIONS_MAX))
    return OriginAcks(
        wire.incarnation,
        merged_ranges((_position_from_wire(item.after), _position_from_wire(item.upto)) for item in wire.ranges),
        positions,
        {
            _position_from_wire(part.message_id): _bitmap_from_wire(part.indexes, BATCH_INDEXES_MAX)
            for part in wire.parts
        },
    )


def _bitmap_to_wire(bitmap: BitMap) -> bytes:
    compact = bitmap.copy()
    compact.run_optimize()
    return compact.serialize()


def _bitmap_from_wire(encoded: bytes, span_max: int) -> BitMap:
    """Return the bitmap in ``encoded``.

    Raise :class:`MarkerCorrupt` if it cannot be read, is empty, or its first and last member are ``span_max`` or more
    apart, since few bytes could then unpack to many.
    """
    try:
        bitmap = BitMap.deserialize(encoded)
    except (ValueError, IndexError, MemoryError) as error:
        raise _corrupt(
            f"an update of a subscription has a bitmap of {len(encoded)} bytes that cannot be read ({error})"
        ) from None
    if not bitmap or bitmap.max() - bitmap.min() >= span_max:
        raise _corrupt(
            f"an update of a subscription has a bitmap of {len(encoded)} bytes that is empty or spans too much"
        )
    return bitmap
