"""Publishing within one transaction: a run, publishes to one topic, becomes one block of its log.

Invariants (DESIGN §3): 3, requests are taken in their order, and so are their entries; 2, the high-water mark of this
cluster is written with the block.

1. A publish joins its topic's run if both have the same kind and the same clusters, and the block stays below its
   target size. Otherwise the run is ended first. Runs of other topics go on meanwhile.
2. Deduplication looks at each request before it joins, so that a refused one is not part of the run. What its producer
   sent behind a refused one is refused as well (:mod:`replicator.engine.producing.publish_order`).
3. All runs end before a request that is no publish. Ending a run builds one block of the stored entries, appends it,
   and gives each request its positions. A request whose entries are all duplicates gets ``DUPLICATE`` for each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import compress, repeat
from typing import Final

import lmdb

from replicator.engine.errors import BlockCorrupt, EngineError, NotAllowedError, TopicNotFound, TopicTerminated
from replicator.engine.log.block import (
    BLOCK_ENTRIES_MAX,
    PIECE_BYTES_MIN,
    BlockHeader,
    BlockKind,
    Buffer,
    build_block,
    build_small_block,
    columns_begin,
)
from replicator.engine.log.commit.appending import LogAppender
from replicator.engine.log.commit.deduplicating import GroupDeduplication
from replicator.engine.log.requests import Committed, PublishRequest, PublishStagedRequest, StagedPart, Tail
from replicator.engine.log.store_tables import HighWater
from replicator.engine.producing.deduplication import SequencedEntry
from replicator.engine.types import DUPLICATE
from snapshots.position import Position

BLOCK_BYTES_TARGET: Final = 1024 * 1024
"""Publishes are merged into blocks of about this size: large enough to copy fast, small enough to read one entry."""
BLOCK_ENTRIES_TARGET: Final = 10_000
"""Most entries of a block, about. So even with the largest batches the messages fit the block's 32-bit count."""
_new_position = partial(tuple.__new__, Position)
"""Make a ``Position`` of a pair of ledger and entry. This takes a third of the usual time, on the writer's thread."""


class _Run:
    """Publishes to one topic that together become its next block."""

    __slots__ = ("entries", "requests", "size_bytes")

    def __init__(self, request: PublishRequest) -> None:
        self.requests = [request]
        self.size_bytes = request.bytes
        self.entries = len(request.entries)

    def takes(self, request: PublishRequest) -> bool:
        """Return whether ``request`` can join this run, and so become part of the same block."""
        first = self.requests[0]
        return (
            first.tail is request.tail
            and first.kind is request.kind
            and first.only == request.only
            and self.size_bytes + request.bytes <= BLOCK_BYTES_TARGET
            and self.entries + len(request.entries) <= BLOCK_ENTRIES_TARGET
        )

    def add(self, request: PublishRequest) -> None:
        self.requests.append(request)
        self.size_bytes += request.bytes
        self.entries += len(request.entries)


class PublishRuns:
    """Open runs of one transaction: for each topic, the publishes that become its next block."""

    __slots__ = ("_appender", "_cluster", "_columns_at", "_committed", "_deduplication", "_now_ms", "_runs")

    def __init__(
        self,
        cluster: str,
        now_ms: int,
        appender: LogAppender,
        deduplication: GroupDeduplication,
        committed: Committed,
    ) -> None:
        self._cluster = cluster
        self._columns_at = columns_begin(cluster, None)
        self._now_ms = now_ms
        self._appender = appender
        self._deduplication = deduplication
        self._committed = committed
        self._runs: dict[int, _Run] = {}
        """Runs by topic id."""

    def join(self, txn: lmdb.Transaction, request: PublishRequest) -> None:
        tail = request.tail
        if request.turn is not None and (refusal := request.turn.refusal) is not None:
            self._refuse(request, refusal)
            return
        if tail.deleted:
            self._refuse(request, topic_deleted(tail))
            return
        is_message = request.kind is BlockKind.MESSAGES
        if tail.terminated and is_message:
            self._refuse(request, topic_terminated(tail.name))
            return
        run = self._runs.get(tail.topic_id)
        if run is not None and (run.requests[0].numbered is None) is not (request.numbered is None):
            self._end(txn, tail)  # deduplication was switched between them, and a block is noted whole or not at all
            run = None
        if is_message and (request.numbered is not None or tail.numbered or tail.indexed):
            try:
                self._deduplication.admit(txn, request)
            except (NotAllowedError, BlockCorrupt) as error:  # the latter: whether it is here already is not known
                self._refuse(request, error)
                return
        if run is not None and not run.takes(request):
            self._end(txn, tail)
            run = None
        if run is None:
            self._runs[tail.topic_id] = _Run(request)
        else:
            run.add(request)

    def _refuse(self, request: PublishRequest, error: EngineError) -> None:
        if request.turn is not None and not self._deduplication.comparing.wants:  # otherwise the group is written again
            request.turn.refused(error)
        self._committed.results.append((request.answer, error))

    def end(self, txn: lmdb.Transaction) -> None:
        """End the runs of all topics: append the gathered publishes of each topic as one block."""
        if self._runs:
            runs, self._runs = self._runs, {}
            for run in runs.values():
                self._write(txn, run.requests)

    def _end(self, txn: lmdb.Transaction, tail: Tail) -> None:
        """End the run of one topic: append its gathered publishes as one block."""
        self._write(txn, self._runs.pop(tail.topic_id).requests)

    def _write(self, txn: lmdb.Transaction, run: list[PublishRequest]) -> None:
        request = run[0]
        tail, kind, only = request.tail, request.kind, request.only
        if len(run) == 1 and request.stored is None:
            entries, sizes = request.entries, request.batch_sizes
        else:
            entries, sizes = _stored(run)
        count = len(entries)
        assert count <= BLOCK_ENTRIES_MAX
        if not count:
            self._committed.results += [(request.answer, [DUPLICATE] * len(request.entries)) for request in run]
            return
        cluster, appender, incarnation, now_ms = self._cluster, self._appender, tail.incarnation, self._now_ms
        first = appender.next_own_position(tail, cluster)
        if count == 1 and len(entries[0]) < PIECE_BYTES_MIN:  # the usual message sent alone
            messages, last = sizes[0], first
            block = build_small_block(
                kind, cluster, incarnation, first, now_ms, entries[0], messages, only, appender.prefix(tail)
            )
        else:
            messages, last = sum(sizes), Position(first.ledger, first.entry + count - 1)
            block = build_block(
                kind=kind,
                origin=cluster,
                incarnation=incarnation,
                origin_first=first,
                publish_time_ms=now_ms,
                entries=entries,
                batch_sizes=sizes,
                only=only,
                before=appender.prefix(tail),
            )
        columns_at = self._columns_at if only is None else columns_begin(cluster, only)
        header = BlockHeader(kind, cluster, incarnation, first, count, messages, now_ms, columns_at, 0, only)
        appender.append_own(txn, tail, header, block)
        if kind is BlockKind.MESSAGES and request.numbered is not None:
            numbered = [each for request in run for each in _numbered_stored(request)]
            self._deduplication.record(txn, tail, first, numbered)
        if kind is not BlockKind.LOCAL_MARKERS:  # no link carries them, so no other cluster can come up to them
            appender.put_high_water(txn, tail, cluster, HighWater(incarnation, last))
        if len(run) == 1 and request.stored is None and count == 1 and request.noted is None:
            self._committed.results.append((request.answer, [first]))
        else:
            self._answer(run, first)

    def _answer(self, run: list[PublishRequest], first: Position) -> None:
        """Add the positions of each request to the results. The block of the run begins at ``first``."""
        ledger, at = first
        results = self._committed.results
        for request in run:
            if request.stored is None:
                stop = at + len(request.entries)
                positions = list(map(_new_position, zip(repeat(ledger), range(at, stop))))
                at = stop
            else:
                positions = []
                for stored in request.stored:
                    positions.append(Position(ledger, at) if stored else DUPLICATE)
                    at += stored
            results.append((request.answer, positions))
            if request.noted is not None:
                self._committed.noted.append((request.noted, positions))

    def publish_staged(
        self, txn: lmdb.Transaction, request: PublishStagedRequest
    ) -> list[tuple[Position, Position] | None]:
        """Return the first and last position of each part; None for a topic that is terminated or deleted."""
        found: list[tuple[Position, Position] | None] = []
        results = self._committed.results
        for part in request.parts:
            if part.tail.deleted or part.tail.terminated:
                found.append(None)
                continue
            before = len(results)
            for piece in _pieces(part):
                self.join(
                    txn,
                    PublishRequest(
                        request.answer,
                        sum(map(len, piece.entries)),
                        tail=part.tail,
                        entries=piece.entries,
                        batch_sizes=piece.batch_sizes,
                        numbered=piece.numbered,
                        known_new=True,
                    ),
                )
            self.end(txn)
            positions = [position for _, each in results[before:] for position in each]
            del results[before:]  # they are this request's, which has one answer
            found.append((positions[0], positions[-1]))
        return found


def topic_deleted(tail: Tail) -> TopicNotFound:
    return TopicNotFound(f"topic {tail.name!r} was deleted")


def topic_terminated(name: str) -> TopicTerminated:
    return TopicTerminated(f"topic {name!r} was terminated: it takes no more messages")


def _pieces(part: StagedPart) -> Iterator[StagedPart]:
    """Yield the part in pieces of about a block's size and number of entries."""
    for start in range(0, len(part.entries), BLOCK_ENTRIES_TARGET):
        yield from _pieces_by_size(part, start, min(start + BLOCK_ENTRIES_TARGET, len(part.entries)))


def _pieces_by_size(part: StagedPart, start: int, stop: int) -> Iterator[StagedPart]:
    size = 0
    for index in range(start, stop):
        size += len(part.entries[index])
        if size >= BLOCK_BYTES_TARGET or index + 1 == stop:
            cut = slice(start, index + 1)
            numbered = None if part.numbered is None else part.numbered[cut]
            yield StagedPart(part.tail, part.entries[cut], part.batch_sizes[cut], numbered)
            start, size = index + 1, 0


def _stored(run: Iterable[PublishRequest]) -> tuple[list[Buffer], list[int]]:
    """Return the entries of a run's requests that are not duplicates, and their batch sizes."""
    entries: list[Buffer] = []
    sizes: list[int] = []
    for request in run:
        if request.stored is None:
            entries += request.entries
            sizes += request.batch_sizes
        else:
            entries += compress(request.entries, request.stored)
            sizes += compress(request.batch_sizes, request.stored)
    return entries, sizes


def _numbered_stored(request: PublishRequest) -> Iterable[SequencedEntry]:
    assert request.numbered is not None
    return request.numbered if request.stored is None else compress(request.numbered, request.stored)
