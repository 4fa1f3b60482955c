"""Choice of the blocks of a segment: those that :class:`Copier` lets a link copy next. Only their headers are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from replicator.engine.errors import EngineError
from replicator.engine.log.left_out import note_of
from replicator.engine.log.stored_blocks import StoredHeader
from replicator.links.copier import FRAME_BYTES_TARGET, Read, Send
from replicator.links.plans import LEFT_OUT, NOTE, PlannedBlock, PlannedTopic, Segment
from replicator.links.transfer import Transfer
from snapshots.position import BEFORE_ALL, Position

SEGMENT_BYTES_MAX: Final = 64 * 1024 * 1024
"""Largest segment. A carrier may ask for smaller ones."""
SEGMENT_BLOCKS_MAX: Final = 10_000
SEGMENT_TOPICS_MAX: Final = 1_000
"""Most topics of a segment. With the longest names and :data:`SEGMENT_BLOCKS_MAX`, an answer has a megabyte."""


class Choice(NamedTuple):
    """Chosen segment; None if there is nothing. Then ``again`` says whether to ask again: not all was looked at."""

    segment: Segment | None
    begun: Sequence[str]
    """Topics of the segment that may begin anew at the destination."""
    again: bool


class SegmentChooser:
    """Chooses segments from what ``transfer`` has to carry."""

    def __init__(self, transfer: Transfer) -> None:
        self._transfer = transfer

    def next_segment(self, lane: int, bytes_max: int) -> Choice:
        """Return the next segment of the lane, with about ``bytes_max`` bytes."""
        copier = self._transfer.copier
        bytes_max = min(bytes_max, SEGMENT_BYTES_MAX if self._transfer.bucket is None else FRAME_BYTES_TARGET)
        planned: dict[str, PlannedTopic] = {}
        first: list[str] = []
        size_bytes, blocks, searching = 0, 0, False
        while blocks < SEGMENT_BLOCKS_MAX and len(planned) < SEGMENT_TOPICS_MAX:
            read = copier.next_read(size_bytes, lane=lane, frame_bytes_max=bytes_max)
            if read is None:
                break
            chosen, reached = self._read(read, SEGMENT_BLOCKS_MAX - blocks)
            if chosen:
                piece = planned.setdefault(read.topic, PlannedTopic(read.topic, read.after, reached))
                piece.blocks += map(_row, chosen)
                size_bytes += sum(each.size_bytes for each in chosen)
                blocks += len(chosen)
                if any(map(_is_first, chosen)):
                    first.append(read.topic)
            if read.topic in planned:
                planned[read.topic].upto = reached
            if not chosen:  # others have their turn before it looks further
                searching = True
                break
        if not planned:
            self._transfer.topics.reached(copier.on_idle(lane=lane))
            return Choice(None, (), searching)
        return Choice(Segment(self._transfer.sent(size_bytes, lane=lane), lane, size_bytes, planned), first, False)

    def _read(self, read: Read, blocks_max: int) -> tuple[list[_Chosen], Position]:
        """Look at a piece of a topic's log. Return the blocks to carry, and how far was read."""
        topic = self._transfer.engine.find(read.topic)
        if topic is None:  # it is being deleted
            return [], read.after
        try:
            found, reached = topic.reading.headers(
                read.after, bytes_max=read.bytes_max, blocks_max=blocks_max, origins=read.origins
            )
        except EngineError as error:
            self._transfer.topics.halt(read.topic, str(error))
            return [], read.after
        sends, gap = self._transfer.choose(topic, [stored.header for stored in found])
        chosen = [_Chosen(found[index], send) for index, send in sends]
        if gap:
            return chosen, chosen[-1].stored.last if chosen else read.after
        self._transfer.copier.on_read(read.topic, reached)
        return chosen, reached


class _Chosen(NamedTuple):
    stored: StoredHeader
    send: Send

    @property
    def size_bytes(self) -> int:
        return len(note_of(self.stored.header)) if self.send.note else self.stored.size_bytes


def _row(chosen: _Chosen) -> PlannedBlock:
    (ledger, first), entries = chosen.stored.position, chosen.stored.header.entries
    previous = chosen.send.previous
    flags = (LEFT_OUT if chosen.send.left_out else 0) | (NOTE if chosen.send.note else 0)
    return ledger, first, entries, chosen.size_bytes, previous.ledger, previous.entry, flags


def _is_first(chosen: _Chosen) -> bool:
    return chosen.send.previous == BEFORE_ALL
