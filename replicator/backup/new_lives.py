"""New lives of topics that came back in a life before a later one that was deleted.

Invariants (DESIGN §3): 12, each gap can be ended without loss; 10, no id is given out twice.

A backup has life 1 of a topic of cluster A. Life 1 was deleted, and life 2 was made, copied and deleted. After a
restore A has life 1, and other clusters know life 2. No link can go on: what A publishes in life 1 would follow life 2.
Nothing can be taken back, because both lives were deleted on purpose. So the topic begins a new life, above all that
the other clusters know of it. Its log stays, as an earlier life (docs/adr/0085). From then on it is a topic that was
made again.

1. A topic qualifies if a cluster that was asked knows a later life of it, and all such later lives were deleted or
   were put back into the log just now.
2. Nothing of the log lies above the later lives, as right after a restore: the new life is a new id.
3. A worker published on the older store, so blocks lie above the later lives. The new life is an id between both, and
   these blocks belong to it from then on. Only their headers change.
4. A life that is older than the one here can reach above it, too: an older store went on with it, and was replaced.
   If that life was deleted, or cannot come back, it counts like a later one: the other clusters keep it.
5. If another cluster copied such blocks already, the topic is refused: that cluster knows these positions as life 1.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from replicator.backup.reclaim_peers import Peer
from replicator.backup.reclaim_plan import Lives
from replicator.engine.engine import Engine
from replicator.engine.lineage import reclaim_command
from replicator.engine.log.block import BlockKind
from replicator.engine.log.block_heads import BlockHead
from replicator.engine.topic import Topic
from snapshots.position import BEFORE_ALL, Position

RELABELLED_BLOCKS: Final = 100
"""Blocks that one transaction changes. A block has up to 64 MB, but most have some KB."""
HEADS_READ: Final = 1_000
"""Heads of blocks that one transaction reads."""


@dataclass(frozen=True, slots=True)
class NewLife:
    """Plan of the new life that a reclaim must begin for a topic.

    A life lasts from a topic's creation to its deletion. A new life is needed if other clusters know a life that
    reaches above the one of this store.
    """

    later: int
    """Newest life that other clusters know."""
    above: int
    """Highest id that they know of the topic."""
    incarnation: int | None = None
    """The new life, if blocks of the log belong to it; None for a new id."""
    follows: Position = BEFORE_ALL
    """Position above which this cluster's blocks belong to the new life."""


def new_life(engine: Engine, topic: Topic, peers: Sequence[Peer], lives: Lives, *, whole: bool) -> NewLife | str | None:
    """Return the plan of the new life that ``topic`` must begin, or None if it needs none.

    Return a text with the reason if no life can begin. ``lives`` is the plan of the reclaim. ``whole`` says that the
    plan was carried out, or has nothing to do, and that nothing was missed.
    """
    name, known = topic.name, dict[int, Position]()
    for peer in peers:
        for copy in peer.copies.get(name, ()):
            if copy.incarnation > topic.incarnation:
                if copy.incarnation not in lives.deleted.get(peer.name, ()) and not lives.joins:
                    return None  # that life comes back, or is refused with a reason of its own
                known[copy.incarnation] = max(copy.mark, known.get(copy.incarnation, BEFORE_ALL))
            elif copy.incarnation < topic.incarnation < copy.mark.ledger and (
                copy.incarnation in lives.deleted.get(peer.name, ()) or copy.incarnation in lives.apart
            ):
                known[copy.incarnation] = max(copy.mark, known.get(copy.incarnation, BEFORE_ALL))
        for life, upto in peer.deletions.get(name, {}).items():
            if life > topic.incarnation and peer.engine is None:  # no link stops at what only a directory knows
                known[life] = max(upto, known.get(life, BEFORE_ALL))
    if not known:
        return None
    later = max(known)
    above = max(later, *(mark.ledger for mark in known.values()))
    first = next((head.first for head in _own_blocks(engine, topic, Position(above + 1, -1))), None)
    if first is None:
        return NewLife(later, above)
    has = [
        peer
        for peer in sorted(peers, key=lambda peer: peer.name)
        for copy in peer.copies.get(name, ())
        if copy.incarnation == topic.incarnation and copy.mark.ledger > above
    ]
    incarnation = (above + first.ledger) // 2
    if has or not above < incarnation < first.ledger:
        where = "there is no id between the two"
        if has:
            where = f"{', '.join(peer.name for peer in has)} has copies of them"
        way = "".join(_way_on(engine, topic, peer, whole=whole) for peer in has)
        return (
            f"{name}: other clusters know another life ({later}) that reaches up to ledger {above}, and messages of "
            f"{engine.cluster} from {first} on lie above it here. No new life can begin, as {where}. Nothing was "
            f"changed{way}"
        )
    return NewLife(later, above, incarnation, Position(above + 1, -1))


def _way_on(engine: Engine, topic: Topic, peer: Peer, *, whole: bool) -> str:
    """Return the way on where ``peer`` copied messages that would belong to a new life.

    It deletes the peer's copy. So it is named only if nothing is trimmed here, this store has all that others have
    (``whole``), and the peer has no more messages than this store and none of others.
    """
    cluster, held, here = engine.cluster, peer.held.get(topic.name), topic.reading.messages_stored()
    others = [] if held is None else sorted(set(held.of) - {cluster})
    if held is None or others or held.messages > here or not whole or topic.log.trimmed > BEFORE_ALL:
        what = "can be the only ones" if held is None else f"of {', '.join(held.of)} can be the only ones"
        count = "The" if held is None else f"The {held.messages}"
        return f". {count} messages that {peer.name} has in it {what}: keep them (docs/backup.md, other ways back)"
    return (
        f". `replicator topics delete {shlex.quote(topic.name)} -f FILE --cluster {peer.name} --force` deletes the "
        f"copy of {peer.name}: {held.messages} messages, all of {cluster}, which has "
        f"{here} here and trimmed none, and {held.subscriptions} subscriptions. Then run "
        f"`{reclaim_command(cluster)}` again, and the link copies the topic there anew"
    )


def can_join(engine: Engine, topic: Topic, peers: Iterable[Peer]) -> bool:
    """Return whether later lives of ``topic`` at ``peers`` lie apart from what the log here has of its own life and of
    other clusters, so that they can be put back into the log."""
    copies = [copy for peer in peers for copy in peer.copies.get(topic.name, ())]
    later = [copy for copy in copies if copy.incarnation > topic.incarnation]
    if not later:
        return False
    above = max(copy.mark.ledger for copy in later)
    if any(copy.incarnation == topic.incarnation and copy.mark.ledger > above for copy in copies):
        return False
    for head in _blocks(engine, topic, Position(min(copy.incarnation for copy in later), -1)):
        if head.first.ledger > above:
            break
        if head.header.origin != engine.cluster or head.header.incarnation == topic.incarnation:
            return False
    return True


async def begin(engine: Engine, topic: Topic, new: NewLife) -> Topic:
    """Begin the life ``new`` of ``topic``, and return the reloaded topic. An interrupted call can be repeated."""
    if new.incarnation is not None:
        blocks = (
            head.first for head in _own_blocks(engine, topic, new.follows) if head.header.incarnation != new.incarnation
        )
        while part := list(islice(blocks, RELABELLED_BLOCKS)):
            await engine.writer.relabel(topic.topic_id, part, new.incarnation)
    record = await engine.writer.begin_life(topic.tail, above=new.above, incarnation=new.incarnation)
    return engine.loaded.load(record)


def in_words(name: str, new: NewLife) -> str:
    """Return the sentence that tells an operator of a new life."""
    return (
        f"{name}: other clusters know a life of it ({new.later}) that reaches above the one of this store. A new life "
        "begins here, and what the log has stays as earlier ones. Where a link stops at it, `replicator links resolve` "
        "with keep-both goes on"
    )


def _own_blocks(engine: Engine, topic: Topic, after: Position) -> Iterator[BlockHead]:
    """Yield the heads of blocks above ``after`` that this cluster published and that links carry, in order."""
    return (head for head in _blocks(engine, topic, after) if head.header.origin == engine.cluster)


def _blocks(engine: Engine, topic: Topic, after: Position) -> Iterator[BlockHead]:
    """Yield the heads of blocks above ``after`` of all clusters, without local markers, in order."""
    last = topic.log.last
    while after < last:
        heads = engine.store.block_heads(topic.topic_id, after, last, blocks_max=HEADS_READ)
        if not heads:
            return
        for head in heads:
            if head.header.kind is not BlockKind.LOCAL_MARKERS:
                yield head
        after = Position(heads[-1].first.ledger, heads[-1].first.entry + heads[-1].header.entries - 1)
