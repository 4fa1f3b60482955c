"""Reader of the messages that one peer has of a cluster that lost them. It records what the peer does not give.

Invariant (DESIGN §3): 5, each range that was planned and that the peer did not give is recorded as missed. None is
passed over in silence.

With A the cluster that lost messages, a peer is planned to have all of A's messages in a range (:mod:`.reclaim_plan`):

1. Pages are read in order. Each page says up to which position the peer's log is trimmed at that moment.
2. Positions between two of A's blocks need not have been messages. So such a gap counts as missed only if the peer may
   have lost messages there: after a page that says that the log is trimmed above the page's begin, or after the peer
   made the topic anew.
3. After trimming, the peer is asked up to where it trimmed A's messages. The part of the gap up to there is missed.
4. A block that is damaged at the peer is missed. Reading goes on after the block.
5. When the peer has no more blocks, the rest of the range is missed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

from replicator.backup.errors import ReclaimPaused
from replicator.backup.reclaim_plan import TopicPlan
from replicator.engine.errors import BlockCorrupt, TopicNotFound
from replicator.engine.log.block import BlockHeader, read_header, verify_block
from replicator.links.token_bucket import TokenBucket
from replicator.pipeline.data_plane import FetchedBlock
from replicator.pipeline.errors import UnexpectedAnswer
from replicator.pipeline.verify.blocks import LogRange, Lost, Selection, Unreadable, blocks
from replicator.pipeline.verify.plane import VerifyPlane
from snapshots.ack_vector import Range
from snapshots.position import BEFORE_ALL, Position

TRIMMED: Final = "trimmed them meanwhile"


class Pace:
    """Rate limit that all readings of a reclaim share, and the switch that pauses them.

    One thread reads at a time. :meth:`pause` may be called from any thread, or from a signal's handler.
    """

    def __init__(self, bytes_per_second: int | None = None, now_seconds: Callable[[], float] = time.monotonic) -> None:
        self._now_seconds = now_seconds
        self._bucket = None if bytes_per_second is None else TokenBucket(bytes_per_second, now_seconds())
        self._paused = threading.Event()
        self.read_bytes = 0
        """Bytes of answers that were read so far."""

    def pause(self) -> None:
        """Stop reading before the next page: :meth:`check` and :meth:`took` raise from now on."""
        self._paused.set()

    def check(self) -> None:
        """Raise :class:`ReclaimPaused` if :meth:`pause` was called."""
        if self._paused.is_set():
            raise ReclaimPaused(
                "the reclaim was paused: what came back so far stays. Run `replicator backup reclaim` again: it goes "
                "on from there. The worker does not start before that"
            )

    def took(self, size_bytes: int) -> None:
        """Count answers of ``size_bytes``, and wait until the next request may be sent.

        Raises :class:`ReclaimPaused` if :meth:`pause` was called.
        """
        self.read_bytes += size_bytes
        if self._bucket is not None:
            self._bucket.take(size_bytes, self._now_seconds())
            self._paused.wait(self._bucket.wait_seconds(self._now_seconds()))
        self.check()


def begin_of(plan: TopicPlan, peer: str, plane: VerifyPlane, origin: str) -> Position:
    """Return the position in a peer's log after which the planned range begins, or BEFORE_ALL if it is not known."""
    if plan.after == BEFORE_ALL:
        return BEFORE_ALL
    if (first := plan.firsts.get(peer)) is not None:
        with suppress(UnexpectedAnswer):  # the peer trimmed that entry
            place = plane.place(plan.name, origin, plan.incarnation, first)
            return Position(place.ledger, place.entry - 1)
    try:
        return plane.place(plan.name, origin, plan.incarnation, plan.after)
    except UnexpectedAnswer:  # the peer trimmed that position, so all that it has lies above
        return BEFORE_ALL


Given = tuple[BlockHeader, bytes]
"""An undamaged block and its header."""


@dataclass(frozen=True, slots=True)
class MissedRange:
    """Range of A's positions that a peer was planned to give and did not give."""

    range: Range
    reason: str
    damaged: bool = False
    """Whether the range is missed because a block is damaged at the peer."""


class _Unknown(NamedTuple):
    reason: str
    damaged: bool


class PeerReading:
    """Reading of one peer's messages of a topic. No other thread may use ``plane`` until it ends."""

    def __init__(self, name: str, plane: VerifyPlane, origin: str, plan: TopicPlan, pace: Pace | None = None) -> None:
        self.name = name
        self._pace = pace or Pace()
        self.missed: list[MissedRange] = []
        """The ranges found to be missing so far, in order. They are complete below each block that was given."""
        self._plane = plane
        self._counted_bytes = plane.answered_bytes
        """Bytes of the peer's answers that ``pace`` knows of."""
        self._origin = origin
        self._plan = plan
        self._mark = plan.sources[name]
        self._reached = plan.has[name][0][0]
        """Position up to which every message was given or recorded as missed."""
        self._trimmed = False
        """Whether the peer may have trimmed messages behind the last block that it gave."""
        self._unknown: _Unknown | None = None
        """Why the messages behind the last block cannot be known; None if they can."""

    def blocks(self) -> Iterator[Given]:
        """Yield the undamaged blocks of the planned range, in order.

        Raises :class:`~replicator.pipeline.errors.PeerUnavailable` if the peer does not answer, and
        :class:`UnexpectedAnswer` if it refuses.
        """
        try:
            yield from self._read()
        except UnexpectedAnswer as error:
            if error.code != TopicNotFound.code:
                raise
            self._miss(self._mark, "deleted the topic meanwhile")
        if self._unknown is not None:
            self._miss(self._mark, self._unknown.reason, damaged=self._unknown.damaged)
        self._miss(self._mark, TRIMMED if self._trimmed else "does not have them any more")

    def _read(self) -> Iterator[Given]:
        after = begin_of(self._plan, self.name, self._plane, self._origin)
        incarnation = None
        while self._reached < self._mark:
            try:
                page = self._plane.page(self._plan.name, after)
            except UnexpectedAnswer as error:
                if error.code != BlockCorrupt.code:
                    raise
                beyond = yield from self._past_damage(after)
                if beyond is None:
                    return
                after = beyond
                continue
            self._count()
            self._trimmed |= page.trimmed > after
            if incarnation is not None and page.incarnation != incarnation:
                self._unknown = self._unknown or _Unknown("made the topic anew meanwhile", damaged=False)
            incarnation = page.incarnation
            for fetched in page.blocks:
                content = bytes(fetched.block)
                header = self._whole(content)
                if header is not None and self._gives(header):
                    yield header, content
            if page.at_end:
                return
            after = page.reached

    def _count(self) -> None:
        """Count what the peer answered since the last call, and wait until it may be asked again.

        Answers with heads and marks count, too, and so do pages that are used only up to a damaged block.
        """
        answered_bytes = self._plane.answered_bytes
        self._pace.took(answered_bytes - self._counted_bytes)
        self._counted_bytes = answered_bytes

    def _past_damage(self, after: Position) -> Generator[Given, None, Position | None]:
        """Yield the undamaged blocks after ``after``, up to the first damaged one. Return the position where that block
        ends.

        Return None if the peer has nothing after ``after``.
        """
        standing = self._plane.standing(self._plan.name)
        runs = () if standing is None else standing.runs
        run = next((run for run in runs if Position(run[0], run[2]) > after), None)
        if run is None:
            return None
        ledger, first, last = run
        part = LogRange(0, 0, 0, max(after, Position(ledger, first - 1)), Position(ledger, last))
        for block in blocks(self._plane, self._plan.name, part, Selection()):
            self._count()
            self._trimmed = True  # pages of raw blocks do not say whether the log was trimmed
            if isinstance(block, Unreadable):
                self._unknown = _Unknown(f"has a damaged block after {block.after}: {block.reason}", damaged=True)
                return block.upto
            if isinstance(block, Lost):
                head = block.head
                self._lose(head.origin, head.incarnation, head.origin_first, head.entries, block.reason)
                return Position(head.first.ledger, head.first.entry + head.entries - 1)
            assert isinstance(block, FetchedBlock), "heads come alone where a selection is made"
            content = bytes(block.block)
            header = self._whole(content)
            if header is None:
                return Position(block.first.ledger, block.first.entry + read_header(content).entries - 1)
            if self._gives(header):
                yield header, content
        return part.upto

    def _whole(self, content: bytes) -> BlockHeader | None:
        """Return the header of an undamaged block. Record a damaged block as missed, and return None."""
        try:
            return verify_block(content)
        except BlockCorrupt as error:
            try:
                header = read_header(content)
            except BlockCorrupt:
                self._unknown = _Unknown(f"has a damaged block: {error}", damaged=True)
            else:
                self._lose(header.origin, header.incarnation, header.origin_first, header.entries, str(error))
            return None

    def _gives(self, header: BlockHeader) -> bool:
        """Return whether a block belongs to the planned range. If it does, record what is missed before the block."""
        if not self._wants(header.origin, header.incarnation, header.origin_first, header.origin_last):
            return False
        self._note_missed_before(header.origin_first)
        self._reached = header.origin_last
        return True

    def _lose(self, origin: str, incarnation: int, first: Position, entries: int, reason: str) -> None:
        last = Position(first.ledger, first.entry + entries - 1)
        if self._wants(origin, incarnation, first, last):
            self._note_missed_before(first)
            self._reached = max(self._reached, Position(first.ledger, first.entry - 1))
            self._miss(last, f"has them in a damaged block: {reason}", damaged=True)

    def _wants(self, origin: str, incarnation: int, first: Position, last: Position) -> bool:
        same = origin == self._origin and incarnation == self._plan.incarnation
        return same and self._reached < last and first <= self._mark

    def _note_missed_before(self, first: Position) -> None:
        """Record what is missed between the last block and the next one, which begins at ``first``."""
        before = Position(first.ledger, first.entry - 1)
        unknown, trimmed = self._unknown, self._trimmed
        self._unknown, self._trimmed = None, False
        if before <= self._reached:
            return
        if unknown is not None:
            self._miss(before, unknown.reason, damaged=unknown.damaged)
        elif trimmed:
            standing = self._plane.standing(self._plan.name)
            gone = before if standing is None else standing.trimmed_of.get(self._origin, BEFORE_ALL)
            self._miss(min(gone, before), TRIMMED)

    def _miss(self, upto: Position, reason: str, *, damaged: bool = False) -> None:
        if self._reached < upto:
            self.missed.append(MissedRange((self._reached, upto), reason, damaged))
            self._reached = upto
