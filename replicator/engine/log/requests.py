"""Requests of the event loop to the writer, and its results: tails of logs, copied and appended blocks.

All are plain values. :mod:`replicator.engine.log.commit.group` carries the requests out.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from replicator.engine.log.block import BlockHeader, BlockKind, Buffer
from replicator.engine.log.left_out import Hole, LeftOutNote
from replicator.engine.log.store_tables import HighWater
from replicator.engine.producing.deduplication import SequencedEntry, SequenceTable
from replicator.engine.producing.duplicate_chains import Pair
from replicator.engine.producing.publish_order import OrderTicket
from replicator.engine.producing.sequence_index import SequenceIndex
from replicator.running.short_tasks import Receiver
from snapshots.position import BEFORE_ALL, Position


class AppendedBlock(NamedTuple):
    """Block that was committed: its position in this cluster's log, its header and its size.

    It is a tuple because one is made for each block: a frozen dataclass takes four times as long.
    """

    position: Position
    header: BlockHeader
    size_bytes: int
    """Bytes of the block, in the table or in a segment."""
    hole: bool = False
    """Whether the link that brought the block may have left messages out before it."""
    duplicates: Sequence[Pair] = ()
    """Pairs of entries with the same message: an earlier entry, and the entry of this block."""
    partly: tuple[int, ...] = ()
    """Indexes of the block's entries (batches) that lack messages."""
    connected: tuple[str, ...] = ()
    """Producers of a copied block that are connected to this cluster, too. Empty if deduplication is off."""
    block: Buffer | None = None
    """The block's bytes, for those who read the tail of the log; None for a block that is read from the store."""

    @property
    def last(self) -> Position:
        entries = self.header.entries
        return self.position if entries == 1 else Position(self.position.ledger, self.position.entry + entries - 1)


class CopiedBlock(NamedTuple):
    """A block from another cluster. ``previous`` is the origin position that the link sent before this block.

    ``left_out`` says that the link may have left messages out between the two, such as those that a filter excludes. It
    is a tuple for the same reason as :class:`AppendedBlock`.
    """

    previous: Position
    block: Buffer
    left_out: bool = False


@dataclass(frozen=True, slots=True)
class NewBlock:
    """A copied block, or the part of it that is not here yet. ``hole`` is the range before it that may have been left
    out."""

    header: BlockHeader
    block: Buffer
    hole: Hole | None = None


@dataclass(frozen=True, slots=True)
class NewHole:
    """Range of messages that a note reports as left out. It starts above the messages that are here."""

    note: LeftOutNote
    after: Position


@dataclass(frozen=True, slots=True)
class Extent:
    """``entries`` entries from ``origin_first`` on at the origin lie here from ``local_first`` on."""

    origin: str
    origin_first: Position
    local_first: Position
    entries: int


@dataclass(slots=True)
class Tail:
    """The end of one topic's log. Owned by the writer thread after the topic is loaded."""

    topic_id: int
    name: str
    incarnation: int
    entries: int
    messages: int
    high_water: dict[str, HighWater]
    ledger: int | None = None
    """Ledger that is written now; None until this process appends, because each process writes its own ledgers."""
    next_entry: int = 0
    open_extents: dict[str, Extent] = field(default_factory=dict)
    holes: dict[str, tuple[Hole, ...]] = field(default_factory=dict)
    """For each origin, the ranges that links left out. Only origins that were needed are loaded."""
    numbered: bool = False
    """Whether the store may have rows of deduplication for this topic."""
    sequences: SequenceTable | None = None
    """Rows of deduplication for this topic; None until they are needed."""
    indexed: bool = False
    """Whether the store may have rows that say where the log has which sequence ids."""
    index: SequenceIndex | None = None
    """Rows that say where the log has which sequence ids; None until they are needed."""
    copied: SequenceTable | None = None
    """Highest sequence ids of producers in entries from other clusters; None until they are needed."""
    connected: Container[str] = ()
    """Names of the producers that are connected. The event loop owns it; the writer only reads it."""
    deleted: bool = False
    """Whether the topic was deleted. Nothing is appended to it any more."""
    terminated: bool = False
    """Whether the topic was terminated. Markers and copied blocks are still appended, but producers' entries are
    not."""


class Answer(Receiver, Protocol):
    """Receiver of the outcome of one request. An :class:`asyncio.Future` is one.

    The writer calls it on the event loop, once, after the commit. A receiver that is not a future can act at once: the
    event loop need not run a callback for each request.
    """

    def cancel(self) -> bool:
        """Note that there will be no outcome. Return False if there was one before."""


@dataclass(slots=True)
class Request:
    answer: Answer
    bytes: int = 0
    submitted: float = 0.0
    """Time at which the request was handed to the writer, by ``time.perf_counter``."""


@dataclass(slots=True)
class PublishRequest(Request):
    tail: Tail = None  # type: ignore[assignment]
    kind: BlockKind = BlockKind.MESSAGES
    entries: Sequence[Buffer] = ()
    batch_sizes: Sequence[int] = ()
    numbered: Sequence[SequencedEntry] | None = None
    """Numbers for deduplication, one for each entry; None if deduplication is off."""
    stored: Sequence[bool] | None = None
    """For each entry, whether it is stored; False for a duplicate. None if all entries are stored."""
    known_new: bool = False
    """Whether the publisher knows that the entries are no duplicates. Deduplication then records them without a
    check."""
    turn: OrderTicket | None = None
    """Place of this request among the publishes of its producer, for producers that have several on their way."""
    only: frozenset[str] | None = None
    """Other clusters that may have these entries; None if all may."""
    noted: Callable[[Sequence[Position]], None] | None = None
    """Function that gets the entries' positions before anyone learns of their block."""


@dataclass(frozen=True, slots=True)
class StagedPart:
    """Entries that a step of a commit appends to one topic; see :mod:`replicator.engine.staging.core`."""

    tail: Tail
    entries: Sequence[Buffer]
    batch_sizes: Sequence[int]
    numbered: Sequence[SequencedEntry] | None = None


@dataclass(slots=True)
class PublishStagedRequest(Request):
    """Appends entries to several topics and sets rows, in one transaction."""

    parts: Sequence[StagedPart] = ()
    writes: Sequence[tuple[str, bytes, bytes | None]] = ()


@dataclass(slots=True)
class OpenProducerRequest(Request):
    """Saves the topic's epoch (unless None) and, with ``numbered``, asks for the producer's highest sequence id."""

    tail: Tail = None  # type: ignore[assignment]
    name: str = ""
    epoch: int | None = None
    numbered: bool = False


@dataclass(slots=True)
class DropInactiveRequest(Request):
    """Forgets the sequence ids of producers that were not seen for long."""

    tail: Tail = None  # type: ignore[assignment]


@dataclass(slots=True)
class CopyRequest(Request):
    tail: Tail = None  # type: ignore[assignment]
    blocks: Sequence[CopiedBlock] = ()
    numbered: bool = False
    """Whether deduplication is on. Then the sequence ids of the copied entries are recorded."""
    writes: Sequence[tuple[str, bytes, bytes | None]] = ()
    """Rows that are set (or deleted, if the value is None) together with the blocks."""


@dataclass(slots=True)
class KeepBothRequest(Request):
    """Takes up later lives of a topic at other clusters. The earlier lives then stay in the log as closed history."""

    tail: Tail = None  # type: ignore[assignment]
    lives: Mapping[str, HighWater] = field(default_factory=dict)
    """For each origin, the life to take up, and the position up to which the link's source has that life."""
    holes: Mapping[str, Hole] = field(default_factory=dict)
    """For each origin, the range that is missing at the end of the earlier life."""


@dataclass(slots=True)
class ReclaimRequest(Request):
    """Appends blocks of this cluster's own at the positions that they had; see
    :mod:`replicator.engine.log.commit.reclaiming`."""

    tail: Tail = None  # type: ignore[assignment]
    last: Position = BEFORE_ALL
    """LAC of the log when the reclaim was requested. It counts only if the log has no ledger to go on with."""
    blocks: Sequence[tuple[BlockHeader, bytes]] = ()
    """Verified blocks to append, in their order."""
    holes: Sequence[Hole] = ()
    """Ranges that no cluster has. This cluster does not claim these positions."""
    upto: Position = BEFORE_ALL
    """Position up to which all own positions are accounted for after the request."""
    numbered: bool = False
    fillers: int = 0
    """Most fillers that the transaction writes (:mod:`replicator.engine.log.commit.filling`)."""


@dataclass(slots=True)
class PutBackRequest(Request):
    """Puts lost blocks of this cluster below the end of a log (:mod:`replicator.engine.log.commit.putting_back`)."""

    tail: Tail = None  # type: ignore[assignment]
    incarnation: int = 0
    """The life of the topic to which the blocks belong."""
    after: Position = BEFORE_ALL
    """Position below the blocks. The log has no block between it and the last of the blocks."""
    blocks: Sequence[tuple[BlockHeader, bytes]] = ()
    """Verified blocks with their headers, in the order of their positions."""
    holes: Sequence[Hole] = ()
    """Ranges that no cluster has any more, so that this cluster does not claim their positions."""
    upto: Position = BEFORE_ALL
    """Position up to which every position of that life is then a block or a hole."""
    numbered: bool = False
    fillers: int = 0
    """Most fillers that the transaction writes (:mod:`replicator.engine.log.commit.filling`)."""


@dataclass(frozen=True, slots=True)
class Counted:
    """Entries and messages of a log up to and including the position ``through``."""

    through: Position
    entries: int
    messages: int


@dataclass(slots=True)
class RecountRequest(Request):
    """Corrects the counts of entries and messages before a topic's next blocks.

    The result is the :class:`Counted` to go on with, or None at the end of the log.
    """

    tail: Tail = None  # type: ignore[assignment]
    counted: Counted = Counted(BEFORE_ALL, 0, 0)


@dataclass(slots=True)
class PutRequest(Request):
    table: str = ""
    key: bytes = b""
    value: bytes | None = None


@dataclass(slots=True)
class PutManyRequest(Request):
    """Deletes every row under the ``cleared`` prefixes, then sets or (with None) deletes the rows of ``writes``."""

    writes: Sequence[tuple[str, bytes, bytes | None]] = ()
    cleared: Sequence[tuple[str, bytes]] = ()


@dataclass(slots=True)
class PutViewRequest(PutManyRequest):
    """Writes rows of a compacted view. Like an append, it is refused before the room is used up that acknowledgements
    and trims need."""


@dataclass(slots=True)
class TrimRequest(Request):
    """Deletes a topic's oldest blocks as far as they lie at or below ``upto``, but never its last block."""

    topic_id: int = 0
    upto: Position = BEFORE_ALL
    tail: Tail | None = None
    """Tail of the topic's log; None if the topic is not loaded."""


@dataclass(slots=True)
class RelabelRequest(Request):
    """Request that assigns blocks of this cluster to another life of their topic.

    It comes before the :class:`BeginLifeRequest` that begins that life. A life lasts from creation to deletion.
    """

    topic_id: int = 0
    blocks: Sequence[Position] = ()
    """The first positions of the blocks."""
    incarnation: int = 0


@dataclass(slots=True)
class BeginLifeRequest(Request):
    """Request that begins a new life of a topic. The blocks in its log stay, as an earlier life."""

    tail: Tail = None  # type: ignore[assignment]
    above: int = 0
    """Highest id that another cluster knows of the topic."""
    incarnation: int | None = None
    """The new life; None for a new id."""


@dataclass(slots=True)
class CreateTopicRequest(Request):
    name: str = ""
    incarnation: int | None = None
    """Incarnation of a topic that this cluster had before it was restored; None for a new topic."""


@dataclass(slots=True)
class CountRequest(Request):
    """Asks how many messages were ever appended to a topic, including those of all earlier requests."""

    tail: Tail = None  # type: ignore[assignment]


@dataclass(slots=True)
class DeleteTopicsRequest(Request):
    """Takes topics out of the catalog, with the partitioned topic that they are the partitions of, if they are."""

    tails: Sequence[Tail] = ()
    partitioned: str | None = None
    earlier: Mapping[int, Mapping[int, Position]] = field(default_factory=dict)
    """For each topic id, the earlier lives in the log that this cluster wrote: by incarnation, their last positions."""
    noted_ms: int | None = None
    """Time at which a client or an operator asked for the deletion. It is recorded with the topics. None records
    nothing."""
    above: int = 0
    """Id of an earlier deletion of the partitioned topic, which the new one exceeds. A clock that was ahead made it."""
    messages: Mapping[int, int] = field(default_factory=dict)
    """By topic id, the result of the :class:`CountRequest` on which the deletion was decided. If a topic has got
    messages since, no topic is deleted."""


@dataclass(slots=True)
class TerminateRequest(Request):
    """Terminates a topic: later publishes of producers are refused."""

    tail: Tail = None  # type: ignore[assignment]


@dataclass(slots=True)
class SweepRequest(Request):
    """Deletes rows that a deleted topic left behind."""

    topic_id: int = 0


@dataclass(slots=True)
class ReplaceBlockRequest(Request):
    """Replaces a damaged block by the right bytes."""

    topic_id: int = 0
    first: Position = BEFORE_ALL
    block: bytes = b""


@dataclass(slots=True)
class CompactSegmentsRequest(Request):
    """Moves some live blocks out of sparse segments, so that the segments become free. The result is the number of
    moved bytes, or None if no segment is sparse."""

    begins: bool = False
    """Whether a new pass over the segments begins."""
    quiet_only: bool = True
    """Whether the pass takes only segments that have not changed since the pass before."""


@dataclass(slots=True)
class Committed:
    """Result of one group for the event loop: results by request, and the new blocks of each topic in order."""

    results: list[tuple[Answer, Any]] = field(default_factory=list)
    appended: dict[int, list[AppendedBlock]] = field(default_factory=dict)
    left_out: dict[int, list[LeftOutNote]] = field(default_factory=dict)
    """For each topic id, the notes of links about messages that they left out."""
    noted: list[tuple[Callable[[Sequence[Position]], None], Sequence[Position]]] = field(default_factory=list)
    """Functions that get the positions of new entries before the new blocks are announced."""
    other_content: dict[tuple[int, str, str], int] = field(default_factory=dict)
    """Messages that reuse sequence ids of another cluster's messages with other content, counted by topic id,
    producer, and origin of the other messages."""
    bytes: int = 0
    publishes: int = 0
    """Number of publish requests that were not refused."""
    oldest_publish: float = 0.0
    """Time at which the first publish request was handed to the writer."""

    def extend(self, later: Committed) -> None:
        """Add what was committed after this."""
        self.results += later.results
        for topic_id, blocks in later.appended.items():
            self.appended.setdefault(topic_id, []).extend(blocks)
        for topic_id, notes in later.left_out.items():
            self.left_out.setdefault(topic_id, []).extend(notes)
        self.noted += later.noted
        for key, messages in later.other_content.items():
            self.other_content[key] = self.other_content.get(key, 0) + messages
        self.bytes += later.bytes
        self.oldest_publish = self.oldest_publish if self.publishes else later.oldest_publish
        self.publishes += later.publishes
