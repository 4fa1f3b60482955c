"""What the bridge writes into an entry that it publishes to a broker, and reads again from it. Sans-IO.

Invariants (DESIGN §3): 2, an entry in a broker says whose it is and where it was published first, so what stands there
can be told from what does not; 4, what bears a stamp came through a bridge and is nobody's new message.

The entry stays as it came but for its metadata: payload, batch, compression and encryption are the producer's. Into the
metadata goes ``copied_from``, a field that other programs skip, and ``replicated_from``, by which a broker's own
geo-replication sees that it must not carry the entry further. Out of it go the ids of a transaction: it was one of the
cluster where the entry comes from, and means nothing to other brokers.
"""

from __future__ import annotations

from typing import NamedTuple

from replicator.engine.errors import EntryCorrupt, MessageTooLarge
from replicator.engine.log.entry import decode_entry, encode_entry
from snapshots.position import Position


class Identity(NamedTuple):
    """Where an entry was first published."""

    origin: str
    incarnation: int
    position: Position


def stamped(entry: bytes | memoryview, identity: Identity) -> bytes:
    """The entry as it is published to a broker. Raises :class:`EntryCorrupt`, :class:`MessageTooLarge`."""
    metadata, payload = decode_entry(entry, check=False)
    metadata.replicated_from = identity.origin
    copied = metadata.copied_from
    copied.origin, copied.incarnation = identity.origin, identity.incarnation
    copied.ledger, copied.entry = identity.position
    metadata.ClearField("txnid_least_bits")
    metadata.ClearField("txnid_most_bits")
    metadata.ClearField("replicate_to")
    return encode_entry(metadata, payload)


def identity_of(entry: bytes | memoryview) -> Identity | None:
    """Whose the entry is; None if its producer published it here, or nobody can read it."""
    try:
        metadata, _ = decode_entry(entry, check=False)
    except (EntryCorrupt, MessageTooLarge):
        return None
    if not metadata.HasField("copied_from"):
        return None
    copied = metadata.copied_from
    return Identity(copied.origin, copied.incarnation, Position(copied.ledger, copied.entry))


def has_schema_version(entry: bytes | memoryview) -> bool:
    """Whether the entry names a version of a schema, which is one of the cluster where it was published."""
    metadata, _ = decode_entry(entry, check=False)
    return metadata.HasField("schema_version")
