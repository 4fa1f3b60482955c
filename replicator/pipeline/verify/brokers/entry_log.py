"""Entries of one topic in one place, as columns: the life, the place and the content's checksum of each. Pure.

A batch from which a link left messages out has no gaps at brokers, and has them in logs. Its checksum covers the
remaining messages, uncompressed, so it is the same in both.

A row has 60 bytes, whatever the size of its entry, so a topic of a million entries takes some 60 MB in each place.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from replicator.apache.dense_batches import dense
from replicator.apache.stamps import Identity, clusters_of, identity_of
from replicator.engine.errors import EntryCorrupt, MessageTooLarge
from replicator.engine.log.compression import decompress
from replicator.engine.log.entry import BATCH_MESSAGES_MAX, decode_entry
from replicator.metadata.metadata_pb2 import MessageMetadata
from snapshots.position import Position

Int64s = npt.NDArray[np.int64]


Audience = frozenset[str] | None
"""Clusters that are to have an entry; None for all."""


class Life(NamedTuple):
    """One life of a topic at the place where messages are published."""

    origin: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class EntryLog:
    """Log of a topic in one place, in order. Columns have one length."""

    lives: tuple[Life, ...] = ()
    life: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))
    """Index of each entry's life in ``lives``."""
    origin_ledger: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))
    origin_entry: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))
    ledger: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))
    entry: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))
    checksum: npt.NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))
    messages: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    audiences: tuple[Audience, ...] = ()
    audience: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    """Index in ``audiences`` of the clusters that the entry's producer wants to have it."""
    absent: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    """Number of messages that links left out of the batch."""

    def __len__(self) -> int:
        return len(self.ledger)

    @property
    def first(self) -> Position | None:
        """Position of the first entry; None if the log is empty."""
        return Position(int(self.ledger[0]), int(self.entry[0])) if len(self) else None


class EntryRows:
    """Builder of a log, entry by entry."""

    def __init__(self) -> None:
        self._lives: dict[Life, int] = {}
        self._numbers = [array("q") for _ in range(5)]
        self._checksums = array("Q")
        self._messages = array("i")
        self._audiences: dict[Audience, int] = {}
        self._audience = array("i")
        self._absent = array("i")

    def __len__(self) -> int:
        return len(self._checksums)

    def add(self, identity: Identity, at: Position, content: Content) -> None:
        life = self._lives.setdefault(Life(identity.origin, identity.incarnation), len(self._lives))
        for column, value in zip(self._numbers, (life, *identity.position, *at), strict=True):
            column.append(value)
        self._checksums.append(content.checksum)
        self._messages.append(content.messages)
        self._audience.append(self._audiences.setdefault(content.audience, len(self._audiences)))
        self._absent.append(content.absent)

    def log(self) -> EntryLog:
        """Return the log of the collected entries. Nothing may be added after it."""
        life, origin_ledger, origin_entry, ledger, entry = (np.frombuffer(each, np.int64) for each in self._numbers)
        return EntryLog(
            tuple(self._lives),
            life,
            origin_ledger,
            origin_entry,
            ledger,
            entry,
            np.frombuffer(self._checksums, np.uint64),
            np.frombuffer(self._messages, np.int32),
            tuple(self._audiences),
            np.frombuffer(self._audience, np.int32),
            np.frombuffer(self._absent, np.int32),
        )


class Content(NamedTuple):
    """Values of an entry that are compared."""

    identity: Identity | None
    """Identity in the entry's stamp; None if it has no stamp."""
    checksum: int
    messages: int
    publish_time_ms: int
    absent: int = 0
    """Number of messages that links left out of the batch."""
    audience: Audience = None


def content_of(
    entry: bytes | memoryview, versions: Mapping[bytes, bytes] | None = None, absent: BitMap | None = None
) -> Content:
    """Return the values of an entry that are compared.

    The checksum covers the payload, and the metadata without the fields that a bridge writes: their bytes are the same
    in every place. For an unreadable entry it covers all bytes. ``versions`` translates the versions that brokers give
    to schemas; :class:`KeyError` is raised for a missing one. ``absent`` has the indexes of messages that a log lacks
    of the entry."""
    try:
        metadata, payload = decode_entry(entry if absent is None else dense(entry, absent), check=False)
    except (EntryCorrupt, MessageTooLarge):
        return Content(None, _checksum(bytes(entry)), 1, 0)
    identity, audience = identity_of(metadata), clusters_of(metadata)
    lacking = min(metadata.copied_from.absent, BATCH_MESSAGES_MAX) if absent is None else len(absent)
    if lacking:
        with suppress(EntryCorrupt, MessageTooLarge):  # nobody can read it: then it is compared as it lies there
            payload = memoryview(decompress(payload, metadata.compression, metadata.uncompressed_size))
    messages, published = metadata.num_messages_in_batch, metadata.publish_time
    if versions is not None:
        metadata.schema_version = versions[metadata.schema_version]
    if not metadata.schema_version:
        metadata.ClearField("schema_version")
    for name in _WRITTEN_BY_BRIDGES:
        metadata.ClearField(name)
    checksum = _checksum(metadata.SerializeToString(deterministic=True), payload)
    return Content(identity, checksum, messages, published, lacking, audience)


def schema_version_of(entry: bytes | memoryview) -> bytes:
    """Return the schema version in the entry's metadata; empty if it has none, or cannot be read."""
    try:
        return bytes(decode_entry(entry, check=False)[0].schema_version)
    except (EntryCorrupt, MessageTooLarge):
        return b""


_WRITTEN_BY_BRIDGES: tuple[str, ...] = (
    "copied_from",
    "replicated_from",
    "txnid_least_bits",
    "txnid_most_bits",
    "replicate_to",
)
"""Metadata fields that bridges write; see :mod:`replicator.apache.stamps`."""
assert all(name in MessageMetadata.DESCRIPTOR.fields_by_name for name in _WRITTEN_BY_BRIDGES)


def _checksum(*parts: bytes | memoryview) -> int:
    digest = blake2b(digest_size=8)
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return int.from_bytes(digest.digest(), "big")
