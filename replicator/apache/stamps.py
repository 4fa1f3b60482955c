"""Stamp that the bridge writes into each entry that it publishes to a broker, and reads again from it. Sans-IO.

Invariants (DESIGN §3): 2, an entry at a broker names its origin and first position, so the bridge knows which entries
the broker has; 4, an entry with a stamp came through a bridge and is nobody's new message.

Only the metadata of the entry changes: payload, batch, compression and encryption stay the producer's. The exception is
a batch without the messages that a link left out (:mod:`replicator.apache.dense_batches`). The metadata gets
``copied_from``, a field that other programs skip, and ``replicated_from``, which tells a broker's own geo-replication
not to carry the entry further. The schema version becomes the version that the schema has there
(:mod:`replicator.apache.schemas`). Ids of a transaction are removed: the transaction belongs to the cluster where the
entry comes from, and means nothing to other brokers.
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
    """Identity of an entry: the place where it was first published."""

    origin: str
    incarnation: int
    position: Position


class Marks(NamedTuple):
    """Metadata of an entry that the bridge needs."""

    identity: Identity | None
    """Identity from the entry's stamp; None if its producer published it here."""
    schema_version: bytes
    """Version of the entry's schema in the cluster where it lies; empty if it has none."""
    clusters: frozenset[str] | None = None
    """Clusters to which the producer wants the entry copied; None for all."""
    delay_ms: int = 0
    """Delay after the publish time with which the producer wants it delivered."""
    publish_time_ms: int = 0
    sequence_id: int = 0
    replicated_from: str = ""
    """Brokers' name of the cluster from which their own geo-replication, or a bridge, brought the entry."""


def stamped(
    entry: bytes | memoryview, identity: Identity, schema_version: bytes, absent: BitMap | None = None
) -> bytes:
    """Return the entry as it is published to a broker. ``absent`` has the indexes of messages that links left out.

    With ``absent`` call it on a thread (:func:`~replicator.apache.dense_batches.dense`).

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
    """Return the entry with another schema version; without one if it is empty. Raises as :func:`stamped`."""
    metadata, payload = decode_entry(entry, check=False)
    _set_schema_version(metadata, schema_version)
    return encode_entry(metadata, payload)


def marks_of(entry: bytes | memoryview) -> Marks:
    """Return the marks of an entry. An entry that nobody can read has empty marks."""
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
    """Return the identity in an entry's stamp; None if it has no stamp."""
    if not metadata.HasField("copied_from"):
        return None
    copied = metadata.copied_from
    if not isinstance(copied.origin, str):
        return None  # text that is not UTF-8 comes as bytes: no bridge wrote it
    return Identity(copied.origin, copied.incarnation, Position(copied.ledger, copied.entry))


def clusters_of(metadata: MessageMetadata) -> frozenset[str] | None:
    """Return the clusters to which an entry's producer wants it copied; None for all."""
    return frozenset(metadata.replicate_to) if metadata.replicate_to else None


def _set_schema_version(metadata: MessageMetadata, schema_version: bytes) -> None:
    if schema_version:
        metadata.schema_version = schema_version
    else:
        metadata.ClearField("schema_version")
