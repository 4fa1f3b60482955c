"""Decision which of the blocks that a link sent are new in this cluster. Pure; :mod:`.copying` writes them.

Invariants (DESIGN §3): 2, entries at or below the destination's high-water mark are dropped, so an entry of an origin
is here at most once; 3, a block that does not follow the high-water mark is refused, so order is kept; 4, a block of
this cluster is refused.

For each block or note, in the order in which they were sent:

1. Refuse it if it is damaged, is of this cluster, is of another incarnation, or comes after a gap. Also refuse markers
   that only a later version understands: they wait at the source, because this cluster would skip them.
2. Drop it if all of it is here. If only its first entries are here, cut them off. A block of an earlier life of its
   topic is accepted while nothing of the later life is here: after ``keep-both``, the source may still send the rest of
   the earlier life (docs/adr/0080). A block of a later life is accepted right behind the end of the earlier life,
   because then the source has both lives.
3. If the link left messages out before the block, record the hole between the high-water mark and the block.
4. Move the high-water mark, with which the next block is compared, to the end of this block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from replicator.engine.errors import (
    CopyGap,
    EntryCorrupt,
    IncarnationMismatch,
    MarkerNewer,
    MessageTooLarge,
    NotAllowedError,
)
from replicator.engine.log.block import BlockHeader, BlockKind, BlockView, verify_block
from replicator.engine.log.entry import decode_entry
from replicator.engine.log.left_out import Hole, LeftOutNote, decode_note, is_note
from replicator.engine.log.requests import CopiedBlock, NewBlock, NewHole
from replicator.engine.log.store_tables import HighWater
from snapshots.markers import MARKER_VERSION
from snapshots.position import BEFORE_ALL, Position


def select_new(
    blocks: Sequence[CopiedBlock], *, cluster: str, topic: str, high_water: Mapping[str, HighWater]
) -> list[NewBlock | NewHole]:
    """Return the blocks and holes that a topic with the marks ``high_water`` lacks, in order. Cut off entries it has.

    Raises :class:`BlockCorrupt`, :class:`CopyGap`, :class:`IncarnationMismatch`, :class:`NotAllowedError` or
    :class:`MarkerNewer` if one of ``blocks`` cannot be taken.
    """
    selected: list[NewBlock | NewHole] = []
    reached = dict(high_water)
    for copied in blocks:
        if is_note(copied.block):
            if (new := _new_hole(copied, cluster=cluster, topic=topic, high_water=reached)) is not None:
                reached[new.note.origin] = _moved(reached.get(new.note.origin), new.note.incarnation, new.note.upto)
                selected.append(new)
            continue
        header, block = verify_block(copied.block), copied.block
        if header.origin == cluster:
            raise NotAllowedError(
                f"a link sent a block of {header.origin!r} back to {header.origin!r} itself: see that no other cluster "
                "has its name, and run the same version in all clusters"
            )
        if header.kind is BlockKind.LOCAL_MARKERS:
            raise NotAllowedError(
                f"a link sent a block of local markers, which only cluster {header.origin!r} itself may have in its "
                "log: run the same version in all clusters"
            )
        if header.kind is BlockKind.MARKERS:
            _check_versions(BlockView(block, header), cluster)
        have = reached.get(header.origin) or HighWater(header.incarnation, BEFORE_ALL)
        _check_follows(f"topic {topic!r}, origin {header.origin!r}", copied.previous, header, have)
        if header.origin_last <= have.position:
            continue
        if not header.is_for(cluster):  # a link would have sent a note; whoever sends it all the same, it is left out
            note = LeftOutNote(header.origin, header.incarnation, header.origin_last)
            reached[header.origin] = _moved(have, header.incarnation, header.origin_last)
            selected.append(NewHole(note, have.position))
            continue
        hole: Hole | None = None
        if header.origin_first <= have.position:
            keep_from = have.position.entry - header.origin_first.entry + 1
            block = BlockView(block, header).slice(keep_from, header.entries)
            header = verify_block(block)
        elif copied.left_out:
            before = Position(header.origin_first.ledger, header.origin_first.entry - 1)
            hole = (have.position, before) if have.position < before else None
        reached[header.origin] = _moved(have, header.incarnation, header.origin_last)
        selected.append(NewBlock(header, block, hole))
    return selected


def _check_versions(markers: BlockView, cluster: str) -> None:
    for entry in markers.entries():
        try:
            metadata, _ = decode_entry(entry, check=False)
        except (EntryCorrupt, MessageTooLarge):
            continue  # who reads markers says so
        if metadata.marker_version > MARKER_VERSION:
            raise MarkerNewer(
                f"{markers.header.origin} wrote a marker of version {metadata.marker_version}, {cluster} reads version "
                f"{MARKER_VERSION}: upgrade the worker of {cluster} (docs/upgrade.md)"
            )


def _moved(have: HighWater | None, incarnation: int, position: Position) -> HighWater:
    return HighWater(incarnation if have is None else max(have.incarnation, incarnation), position)


def _check_follows(where: str, previous: Position, sent: BlockHeader | LeftOutNote, have: HighWater) -> None:
    place = sent.upto if isinstance(sent, LeftOutNote) else sent.origin_first
    is_earlier = sent.incarnation < have.incarnation and place.ledger < have.incarnation
    # A source that goes on right behind the end of the earlier life here has both lives.
    is_next = sent.incarnation > have.incarnation and previous == have.position > BEFORE_ALL
    is_next = is_next and place.ledger > have.position.ledger
    if have.incarnation != sent.incarnation and not is_earlier and not is_next:
        raise IncarnationMismatch(
            f"{where}: incarnation {sent.incarnation} was sent, {have.incarnation} is here: the topic was deleted and "
            "made anew in one of the two clusters. `replicator links resolve --policy keep-both` lets the link go on, "
            "and keeps what is here"
        )
    if previous > have.position:
        raise CopyGap(
            f"{where}: entries are missing. The link sent {place} as the next after {previous}, and the last one here "
            f"is {have.position}. Nothing is to be done: the link asks again where to go on"
        )


def _new_hole(copied: CopiedBlock, *, cluster: str, topic: str, high_water: Mapping[str, HighWater]) -> NewHole | None:
    """Return the hole that a link's note describes, or None if it is not above the high-water mark. Raise the errors of
    :func:`select_new`."""
    note = decode_note(copied.block)
    if note.origin == cluster:
        raise NotAllowedError(
            f"a link sent a note on left-out messages of {note.origin!r} back to {note.origin!r} itself: see that no "
            "other cluster has its name, and run the same version in all clusters"
        )
    have = high_water.get(note.origin) or HighWater(note.incarnation, BEFORE_ALL)
    _check_follows(f"topic {topic!r}, origin {note.origin!r}", copied.previous, note, have)
    return NewHole(note, have.position) if note.upto > have.position else None
