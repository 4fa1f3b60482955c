"""What the bridge writes into an entry that it publishes to a broker, and reads again from it. Sans-IO.

Invariants (DESIGN §3): 2, an entry in a broker says whose it is and where it was published first, so what stands there
can be told from what does not; 4, what bears a stamp came through a bridge and is nobody's new message.

The entry stays as it came but for its metadata: payload, batch, compression and encryption are the producer's. Only a
batch of which a link left messages out is made anew (:mod:`replicator.apache.dense_batches`). Into the metadata goes
``copied_from``, a field that other programs skip, and ``replicated_from``, by which a broker's own geo-replication sees
that it must not carry the entry further. The version of its schema becomes the one that the schema has there
(:mod:`replicator.apache.schemas`). Out of it go the ids of a transaction: it was one of the cluster where the entry
comes from, and means nothing to other brokers.
"""

from __future__ import annotations

from typing import NamedTuple

from pyroaring import BitMap

from replicator.apache.dense_batches import dense
from replicator.engine.errors import EntryCorrupt, MessageTooLarge
from replicator.engine.log.entry import decode_entry, encode_entry
from replicator.metadata.metadata_pb2 import MessageMetadata
from snapshots.position import Position


class Identity(NamedTuple):
    """Where an entry was first published."""

    origin: str
    incarnation: int
    position: Position


class Marks(NamedTuple):
    """What the bridge has to know of an entry."""

    identity: Identity | None
    """Whose it is; None if its producer published it here."""
    schema_version: bytes
    """The version of its schema, in the cluster where it lies; empty if it has none."""
    clusters: frozenset[str] | None = None
    """The clusters that its producer wants it copied to; None for all."""
    delay_ms: int = 0
    """How long after its publish time its producer wants it delivered."""
    publish_time_ms: int = 0
    sequence_id: int = 0
    replicated_from: str = ""
    """The brokers' name of the cluster from which their own geo-replication, or a bridge, brought it."""


def stamped(
    entry: bytes | memoryview, identity: Identity, schema_version: bytes, absent: BitMap | None = None
) -> bytes:
    """The entry as it is published to a broker; ``absent`` are the indexes of the messages that links left out of it.

    Raises :class:`EntryCorrupt`, :class:`MessageTooLarge`.
    """
    metadata, payload = decode_entry(entry if absent is None else dense(entry, absent), check=False)
    _set_schema_version(metadata, schema_version)
    metadata.replicated_from = identity.origin
    copied = metadata.copied_from
    copied.origin, copied.incarnation = identity.origin, identity.incarnation
    copied.ledger, copied.entry = identity.position
    if absent is not None:
        copied.absent = len(absent)
    metadata.ClearField("txnid_least_bits")
    metadata.ClearField("txnid_most_bits")
    metadata.ClearField("replicate_to")
    return encode_entry(metadata, payload)


def with_schema_version(entry: bytes | memoryview, schema_version: bytes) -> bytes:
    """The entry with another version of its schema, or without, if that is empty. Raises as :func:`stamped`."""
    metadata, payload = decode_entry(entry, check=False)
    _set_schema_version(metadata, schema_version)
    return encode_entry(metadata, payload)


def marks_of(entry: bytes | memoryview) -> Marks:
    """None of them for an entry that nobody can read."""
    try:
        metadata, _ = decode_entry(entry, check=False)
    except (EntryCorrupt, MessageTooLarge):
        return Marks(None, b"")
    delay_ms = metadata.deliver_at_time - metadata.publish_time if metadata.HasField("deliver_at_time") else 0
    return Marks(
        identity_of(metadata),
        metadata.schema_version,
        clusters_of(metadata),
        delay_ms,
        metadata.publish_time,
        metadata.sequence_id,
        metadata.replicated_from,
    )


def identity_of(metadata: MessageMetadata) -> Identity | None:
    """Of an entry's stamp; None if it has none."""
    if not metadata.HasField("copied_from"):
        return None
    copied = metadata.copied_from
    if not isinstance(copied.origin, str):
        return None  # text that is not UTF-8 comes as bytes: no bridge wrote it
    return Identity(copied.origin, copied.incarnation, Position(copied.ledger, copied.entry))


def clusters_of(metadata: MessageMetadata) -> frozenset[str] | None:
    """The clusters that an entry's producer wants it copied to; None for all."""
    return frozenset(metadata.replicate_to) if metadata.replicate_to else None


def _set_schema_version(metadata: MessageMetadata, schema_version: bytes) -> None:
    if schema_version:
        metadata.schema_version = schema_version
    else:
        metadata.ClearField("schema_version")
