"""Steps between a producer and the log: the checks of its entries, and the gate of the backlog quota.

Every entry is checked for its frame, checksum and metadata, its size, and, if it is a chunk, its place among the
chunks. A batch must have room for as many messages as it says, and its first message must be readable: reading all 100
of a batch would take 67 µs, in addition to 3 µs for the rest. Consumers report errors in later messages.

The gate holds publishes while a backlog is over its quota (invariant 11: a bounded number of them), and then lets them
pass in the order in which they came.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from replicator.engine.errors import (
    BacklogQuotaExceeded,
    BacklogQuotaHolds,
    EngineError,
    EntryCorrupt,
    MessageTooLarge,
    NotAllowedError,
)
from replicator.engine.log.entry import decode_entry, is_plain, split_batch
from replicator.engine.policies import QuotaPolicy, TopicPolicies
from replicator.engine.producing.deduplication import SEQUENCE_ID_MAX, SequencedEntry
from replicator.engine.producing.producer_registry import check_producer_name
from replicator.metadata.metadata_pb2 import NONE, MessageMetadata
from replicator.running.short_tasks import complete

PUBLISH_ENTRIES_MAX: Final = 10_000
"""Limit of entries in one publish call. Larger calls are refused, so that one caller does not fill a transaction."""
PUBLISH_BYTES_MAX: Final = 32 * 1024 * 1024
"""Limit of bytes in one call, whose entries become one block. It leaves room below the largest block."""
HELD_PUBLISHES_MAX: Final = 10_000
HELD_BYTES_MAX: Final = 64 * 1024 * 1024
"""Limit of bytes of publishes that wait for one topic's quota. Producers have queues of their own behind it."""
_BATCHED_BYTES_MIN: Final = 6
"""Bytes of the smallest message in a batch: the size of its metadata, and the one field that it must have."""


_ONE_MESSAGE: Final = (1,)


class CheckedEntries(NamedTuple):
    """Entries that may be published, with their size, their batch sizes, and the ids for deduplication, if it is on."""

    size_bytes: int
    batch_sizes: Sequence[int]
    numbered: Sequence[SequencedEntry] | None
    only: frozenset[str] | None = None
    """Clusters to which all of them are restricted; None if they name none."""


def check_entries(
    entries: Sequence[bytes | memoryview], policies: TopicPolicies, producer: str | None = None
) -> CheckedEntries:
    """Check the entries of one publish call. ``producer`` is the name of the connected producer, if there is one.

    Raises :class:`EntryCorrupt`, :class:`MessageTooLarge` or :class:`NotAllowedError` for the first wrong entry, or if
    the entries are for different clusters, because they would be one block.
    """
    bytes_max, deduplication = policies.max_message_bytes, policies.deduplication
    if len(entries) == 1 and not deduplication:
        size_bytes = len(entries[0])
        if (bytes_max is None or size_bytes <= bytes_max) and is_plain(entries[0]):  # the usual message sent alone
            return CheckedEntries(size_bytes, _ONE_MESSAGE, None)
    if not 0 < len(entries) <= PUBLISH_ENTRIES_MAX:
        raise NotAllowedError(f"1 to {PUBLISH_ENTRIES_MAX} entries can be published at once, not {len(entries)}")
    size_bytes = sum(map(len, entries))
    if size_bytes > PUBLISH_BYTES_MAX:
        raise MessageTooLarge(
            f"{size_bytes} bytes were published at once, the limit is {PUBLISH_BYTES_MAX}: publish less at once"
        )
    batch_sizes: list[int] = []
    numbered: list[SequencedEntry] | None = [] if deduplication else None
    only: set[frozenset[str] | None] = set()
    for entry in entries:
        if bytes_max is not None and len(entry) > bytes_max:
            raise MessageTooLarge(
                f"entry of {len(entry)} bytes is over the topic's limit of {bytes_max} bytes "
                "(max_message_bytes): send it in chunks, or smaller batches"
            )
        metadata, payload = decode_entry(entry)
        if metadata.HasField("marker_type"):
            raise EntryCorrupt(
                "a producer sent an entry with a marker type, which only workers write: publish messages without one"
            )
        if metadata.HasField("txnid_most_bits") or metadata.HasField("txnid_least_bits"):
            # If it were stored, it would be delivered before the transaction commits, and even if it is aborted.
            raise NotAllowedError("the message belongs to a transaction; there are none here: send it without one")
        only.add(frozenset(metadata.replicate_to) if metadata.replicate_to else None)
        if metadata.num_chunks_from_msg:
            _check_chunk(metadata)
        if metadata.HasField("num_messages_in_batch"):
            _check_batch(metadata, payload)
        batch_sizes.append(metadata.num_messages_in_batch)
        if numbered is not None:
            numbered.append(_numbered(metadata, producer))
    if len(only) > 1:  # who publishes them together publishes them in parts then
        raise NotAllowedError(
            "messages for different clusters cannot be published at once: publish them one after another"
        )
    return CheckedEntries(size_bytes, batch_sizes, numbered, only.pop())


def _check_chunk(metadata: MessageMetadata) -> None:
    chunk, chunks, size = metadata.chunk_id, metadata.num_chunks_from_msg, metadata.total_chunk_msg_size
    if chunks < 1 or not 0 <= chunk < chunks or size < 1:
        raise EntryCorrupt(
            f"entry says it is chunk {chunk} of {chunks}, of a message of {size} bytes, which cannot be: the "
            "producer's client is wrong"
        )
    if chunks > 1 and (not metadata.uuid or metadata.num_messages_in_batch != 1):
        raise EntryCorrupt(
            f"chunk {chunk} of {chunks} has no uuid, or says it is a batch: the producer's client is wrong"
        )


def _check_batch(metadata: MessageMetadata, payload: memoryview) -> None:
    if metadata.encryption_keys:
        return
    messages = metadata.num_messages_in_batch
    compressed = metadata.compression != NONE
    size_bytes = metadata.uncompressed_size if compressed else len(payload)
    if size_bytes < messages * _BATCHED_BYTES_MIN:
        raise EntryCorrupt(
            f"entry says it is a batch of {messages} messages, in {size_bytes} bytes, which are too few: the "
            "producer's client is wrong"
        )
    if not compressed:
        next(split_batch(metadata, payload))


def _numbered(metadata: MessageMetadata, producer: str | None) -> SequencedEntry:
    first, last = metadata.sequence_id, metadata.highest_sequence_id
    if max(first, last) > SEQUENCE_ID_MAX:
        raise EntryCorrupt(f"sequence id {max(first, last)} is over {SEQUENCE_ID_MAX}: give a smaller one")
    name = check_producer_name(metadata.producer_name) if producer is None else producer
    chunks = metadata.num_chunks_from_msg
    if chunks > 1:
        return SequencedEntry(name, first, first, metadata.chunk_id, chunks, metadata.uuid)
    return SequencedEntry(name, first, max(first, last))


class PublishGate:
    """Lets publishes pass while the backlog is within its quota. Runs on the event loop."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._policy: QuotaPolicy | None = None
        self._held: dict[asyncio.Future[None], object] = {}
        """Waiting publishes in order, each with its owner."""
        self._held_bytes = 0
        self._refusing_holder: str | None = None
        self._closed: EngineError | None = None

    @property
    def policy(self) -> QuotaPolicy | None:
        """Policy for publishes now; None lets them pass."""
        return self._policy

    @policy.setter
    def policy(self, policy: QuotaPolicy | None) -> None:
        self._policy = policy
        if policy is QuotaPolicy.PRODUCER_EXCEPTION:
            self.refuse(self._exceeded())
        elif policy is not QuotaPolicy.PRODUCER_REQUEST_HOLD:
            for waiting in self._held:
                complete(waiting, None)

    @property
    def held(self) -> int:
        """Number of publishes that wait."""
        return len(self._held)

    @property
    def open(self) -> bool:
        """Whether a publish may pass without :meth:`enter`: none waits, and none has to wait."""
        policy = self._policy
        within = policy is None or policy is QuotaPolicy.CONSUMER_BACKLOG_EVICTION
        return within and self._refusing_holder is None and not self._held

    def set_refusing_holder(self, name: str | None) -> None:
        """Refuse publishes because the link ``name`` holds back more of the log than it may; None ends that."""
        self._refusing_holder = name
        if name is not None:
            self.refuse(self._quota_error(name))

    def check(self) -> None:
        """Raise the error that says why publishes are refused. Return if they pass or are held."""
        if self._closed is not None:
            raise self._closed.with_traceback(None)
        if self._policy is QuotaPolicy.PRODUCER_EXCEPTION:
            raise self._exceeded()
        if self._refusing_holder is not None:
            raise self._quota_error(self._refusing_holder)

    def check_newcomer(self) -> None:
        """Raise :class:`BacklogQuotaHolds` if a new producer's messages would have to wait."""
        if self._policy is QuotaPolicy.PRODUCER_REQUEST_HOLD:
            raise BacklogQuotaHolds(
                f"{self._topic}: its backlog is over its quota (backlog_quota), so that new producers have to wait: "
                "consume or skip messages, or raise the quota"
            )

    async def enter(self, size_bytes: int, whose: object = None) -> None:
        """Wait until the publish may go on. It can be cancelled, or be given back to its owner ``whose``.

        Raises :class:`BacklogQuotaExceeded` if publishes are refused, and :class:`BacklogQuotaHolds` if too many wait.
        """
        self.check()
        if len(self._held) >= HELD_PUBLISHES_MAX or self._held_bytes + size_bytes > HELD_BYTES_MAX:
            raise BacklogQuotaHolds(
                f"{self._topic}: its backlog is over its quota (backlog_quota), and {len(self._held)} publishes wait "
                "for that already, as many as the limit allows: consume or skip messages, or raise the quota"
            )
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[None] = loop.create_future()
        if self._policy is not QuotaPolicy.PRODUCER_REQUEST_HOLD:
            loop.call_soon(complete, waiting, None)  # those before it are awake already, and pass first
        self._held[waiting] = whose
        self._held_bytes += size_bytes
        try:
            await waiting
        finally:
            del self._held[waiting]
            self._held_bytes -= size_bytes

    def close(self, error: EngineError) -> None:
        """Refuse all waiting and later publishes with ``error``. The gate never opens again."""
        self._closed = error
        self.refuse(error)

    def refuse(self, error: EngineError) -> None:
        """Refuse all waiting publishes with ``error``."""
        for waiting in self._held:
            complete(waiting, error)

    def give_back(self, whose: object, error: EngineError) -> bool:
        """Refuse the waiting publishes of the owner ``whose`` with ``error``. Return whether there were any."""
        found = [waiting for waiting, its in self._held.items() if its is whose]
        for waiting in found:
            complete(waiting, error)
        return bool(found)

    def _quota_error(self, name: str) -> BacklogQuotaExceeded:
        return BacklogQuotaExceeded(
            f"{self._topic}: publishes are refused until the {name} has caught up: it holds back more of the log than "
            "its `hold` allows; see `replicator links list`"
        )

    def _exceeded(self) -> BacklogQuotaExceeded:
        return BacklogQuotaExceeded(
            f"{self._topic}: the backlog is over its quota: consume or skip messages, or raise the quota"
        )
