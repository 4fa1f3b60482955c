"""Blocks of a range of a log, for a comparison: fetched raw, a page at a time.

Blocks that a worker cannot serve are passed over and reported. If only the head of a block can be read, it is
:class:`Lost`. If not even heads can be read, the range is :class:`Unreadable`.

With a :class:`Selection` the heads of blocks are read first, and only the wanted blocks are fetched. A block that is
not in a sample is compared by its head alone: its entries, their order, and the checksums that it states.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from replicator.engine.log.block import BlockKind, read_header
from replicator.pipeline.data_plane import FetchedBlock
from replicator.pipeline.verify.plane import BlockUnreadable, Head, VerifyPlane
from snapshots.position import Position

PASSED_BYTES_MAX: Final = 256 * 1024
"""Largest gap between two wanted blocks that is fetched with them, because another request would cost more."""
_SAMPLE_STEPS: Final = 1 << 32


@dataclass(frozen=True, slots=True)
class LogRange:
    """Entries of one topic in one cluster with ``after < position <= upto``; ``number`` orders the ranges of a log."""

    cluster: int
    topic: int
    number: int
    after: Position
    upto: Position
    copies_upto: Position | None = None
    """Last position at which copies of other clusters' entries are read; None means ``upto``."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Choice of the blocks that are read: those since a time, or a sample of them."""

    since_ms: int | None = None
    sample: float | None = None

    @property
    def by_heads(self) -> bool:
        return self.since_ms is not None or self.sample is not None

    def takes(self, head: Head) -> bool:
        return self.since_ms is None or head.publish_time_ms >= self.since_ms

    def reads(self, head: Head) -> bool:
        """Return whether a block's content is read. The answer is the same in every cluster."""
        if self.sample is None or head.kind != BlockKind.MESSAGES:
            return True
        identity = f"{head.origin} {head.incarnation} {head.origin_first}".encode()
        return int.from_bytes(blake2b(identity, digest_size=4).digest(), "big") < self.sample * _SAMPLE_STEPS


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Range of a log that its worker cannot serve."""

    after: Position
    upto: Position
    reason: str


@dataclass(frozen=True, slots=True)
class Lost:
    """Block with only its head readable: the disk does not give the rest."""

    head: Head
    reason: str


Block = FetchedBlock | Head | Lost | Unreadable


def blocks(worker: VerifyPlane, topic: str, part: LogRange, selection: Selection) -> Iterator[Block]:
    """Yield the blocks of a range that are to be read, in order, and the heads of those that are only counted."""
    return _selected(worker, topic, part, selection) if selection.by_heads else _raw(worker, topic, part)


def _raw(worker: VerifyPlane, topic: str, part: LogRange) -> Iterator[Block]:
    after = part.after
    while after < part.upto:
        try:
            for block in _readable_or_lost(worker, topic, after, part.upto):
                yield block
                after = _last_of(block)
        except BlockUnreadable as error:
            good = _last_readable(worker, topic, after, part.upto)
            yield from worker.raw_blocks(topic, after, good)
            after = max(good, after)
            beyond = _next_readable(worker, topic, after, part.upto)
            yield Unreadable(after, beyond, str(error))
            after = beyond
        else:
            return


def _readable_or_lost(
    worker: VerifyPlane, topic: str, after: Position, upto: Position
) -> Iterator[FetchedBlock | Lost]:
    """Yield raw blocks in order. Raises :class:`BlockUnreadable` at a block whose head cannot be read."""
    while after < upto:
        try:
            for fetched in worker.raw_blocks(topic, after, upto):
                yield fetched
                after = _last_of(fetched)
        except BlockUnreadable as error:
            head = worker.first_head(topic, after, upto)
            if head is None or _end(head, -1) <= after:  # it was trimmed meanwhile
                return
            yield from _alone(worker, topic, head, str(error))
            after = _end(head, -1)
        else:
            return


def _alone(worker: VerifyPlane, topic: str, head: Head, reason: str) -> Iterator[FetchedBlock | Lost]:
    """Yield one block. A worker of the version before refuses a whole page with one unreadable block."""
    try:
        yield from worker.raw_blocks(topic, Position(head.first.ledger, head.first.entry - 1), _end(head, -1))
    except BlockUnreadable:
        yield Lost(head, reason)


def _last_of(block: FetchedBlock | Lost) -> Position:
    if isinstance(block, Lost):
        return _end(block.head, -1)
    return Position(block.first.ledger, block.first.entry + read_header(block.block).entries - 1)


def _last_readable(worker: VerifyPlane, topic: str, after: Position, upto: Position) -> Position:
    """Return the highest position that can be read up to, by halving the ledger with the fault."""
    low, high = after, upto
    if low.ledger != high.ledger:
        low = Position(high.ledger, -1) if _readable(worker, topic, after, Position(high.ledger, -1)) else after
        high = high if low.ledger == high.ledger else Position(low.ledger, low.entry + _SAMPLE_STEPS)
    while high.entry - low.entry > 1:
        middle = Position(low.ledger, (low.entry + high.entry) // 2)
        if _readable(worker, topic, after, middle):
            low = middle
        else:
            high = middle
    return low


def _next_readable(worker: VerifyPlane, topic: str, after: Position, upto: Position) -> Position:
    """Return the lowest position after which reading works again, or ``upto``."""
    step = 1
    while after.ledger < upto.ledger or after.entry + step < upto.entry:
        beyond = Position(after.ledger, after.entry + step)
        if step > _SAMPLE_STEPS:
            return upto
        if _readable(worker, topic, beyond, Position(after.ledger, after.entry + step + 1)):
            low, high = after.entry + step // 2, after.entry + step
            while high - low > 1:
                middle = (low + high) // 2
                if _readable(worker, topic, Position(after.ledger, middle), Position(after.ledger, middle + 1)):
                    high = middle
                else:
                    low = middle
            return min(Position(after.ledger, high), upto)
        step *= 2
    return upto


def _readable(worker: VerifyPlane, topic: str, after: Position, upto: Position) -> bool:
    try:
        for _ in worker.heads(topic, after, upto):
            pass
    except BlockUnreadable:
        return False
    return True


def _selected(worker: VerifyPlane, topic: str, part: LogRange, selection: Selection) -> Iterator[Block]:
    run: list[Head] = []
    """Heads that wait: from a wanted one on, with unwanted ones in between."""
    passed_bytes = 0
    reached = part.after
    try:
        for head in worker.heads(topic, part.after, part.upto):
            reached = _end(head, -1)
            if not selection.takes(head):
                continue
            if selection.reads(head):
                passed_bytes = 0
                run.append(head)
            elif not run:
                yield head
            else:
                run.append(head)
                passed_bytes += head.size_bytes
                if passed_bytes > PASSED_BYTES_MAX:
                    yield from _fetch(worker, topic, run, selection)
                    run, passed_bytes = [], 0
    except BlockUnreadable as error:
        yield from _fetch(worker, topic, run, selection)
        yield Unreadable(reached, part.upto, str(error))
        return
    yield from _fetch(worker, topic, run, selection)


def _fetch(worker: VerifyPlane, topic: str, run: Sequence[Head], selection: Selection) -> Iterator[Block]:
    """Yield the wanted blocks of a run, and the heads of the others. Neighbours are fetched at once."""
    stop = len(run)
    while stop > 0 and not selection.reads(run[stop - 1]):
        stop -= 1
    start, rest = 0, run[stop:]
    with VerifyPlane(worker.url) as reader:  # the other connection is in the midst of a page of heads
        while start < stop:
            end = start + 1
            while end < stop and run[end].first == _end(run[end - 1], 0):
                end += 1
            passed = {head.first: head for head in run[start:end] if not selection.reads(head)}
            first = run[start].first
            before = Position(first.ledger, first.entry - 1)
            for block in _readable_or_lost(reader, topic, before, _end(run[end - 1], -1)):
                yield passed.get(block.head.first if isinstance(block, Lost) else block.first, block)
            start = end
    yield from rest


def _end(head: Head, offset: int) -> Position:
    return Position(head.first.ledger, head.first.entry + head.entries + offset)
