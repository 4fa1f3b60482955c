"""Dry run of a reclaim: what it would take back, from whom, and how many messages that is.

Invariant (DESIGN §3): 13, a count is exact or it is not given.

1. Peers send the heads of their blocks, without the messages. A block that two peers have counts once. Nobody can count
   messages that no peer has any more.
2. A peer may trim or delete messages between its answer about what it has and its heads. So each peer is asked again
   after the count. A plan that is still the same was counted while the peers had all that it names.
3. A plan that changed replaces the one before it, and is counted anew. After :data:`COUNTS_MAX` times it has no count.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np

from replicator.backup import new_lives
from replicator.backup.errors import WorkerNotAsked
from replicator.backup.reclaim_peers import Peer, ask_again, check_known, rewritten_at
from replicator.backup.reclaim_plan import TopicPlan
from replicator.backup.reclaim_reading import begin_of
from replicator.backup.reclaiming import asked, opened
from replicator.backup.topic_lives import deleted_lives, lives_of, names_of, not_asked, out_of_place
from replicator.engine.engine import Engine
from replicator.engine.log.block import BlockKind
from replicator.engine.log.store_files import LOG, check_unused, is_there
from replicator.pipeline.errors import PeerUnavailable, UnexpectedAnswer
from replicator.pipeline.verify.plane import Head, VerifyPlane
from replicator.topology import Topology
from snapshots.position import Position

COUNTS_MAX: Final = 5
"""Limit of counts of one plan, which peers change meanwhile. They hold back retention, so few of them change any."""
END: Final = Position(2**62, 0)
"""Position above every log. A peer answers up to the end of its log."""


@dataclass(frozen=True, slots=True)
class Counted:
    """Numbers of messages that peers have of one plan."""

    messages: int | None = None
    """Messages of all peers together, each once; None if a peer cannot count its own."""
    of_peer: Mapping[str, int | None] = field(default_factory=dict)
    """For each peer, the number of messages that it has; None if it cannot count them."""


@dataclass(frozen=True, slots=True)
class ReclaimPlan:
    """Plan of a reclaim."""

    topics: tuple[TopicPlan, ...]
    lost: tuple[str, ...]
    """Known losses, and clusters that would not be asked, in words."""
    deleted: tuple[str, ...]
    """Lives of topics that this cluster deleted on purpose while peers still have copies, in words."""
    begun: tuple[str, ...] = ()
    """Topics that would begin a new life because a later one than theirs was deleted, in words."""
    without: frozenset[str] = frozenset()
    """Clusters that were not asked."""
    counts: tuple[Counted, ...] = ()
    """For each of ``topics``, in the same order, how many messages would come back."""

    def counted(self, number: int) -> Counted:
        """Return the counts of the topic with this index. They are unknown if nobody counted."""
        return self.counts[number] if number < len(self.counts) else Counted()


async def plan_reclaim(
    topology: Topology, name: str, *, without: frozenset[str] = frozenset(), from_directory: Path | None = None
) -> ReclaimPlan:
    """Return what :func:`~replicator.backup.reclaiming.reclaim` would take back, without taking it.

    Raises the same errors.
    """
    check_known(topology, without)
    check_unused(topology.cluster(name).data)  # before a silent peer is named as the cause
    async with asked(topology, name, without, from_directory) as peers:
        if not is_there(topology.cluster(name).data / LOG / "data.mdb"):  # opening the store would create one
            return await _counted(None, topology, name, peers, without)
        async with opened(topology, name) as engine:
            return await _counted(engine, topology, name, peers, without)


async def _counted(
    engine: Engine | None, topology: Topology, name: str, peers: Sequence[Peer], without: frozenset[str]
) -> ReclaimPlan:
    """Return the plan of the reclaim, and count the messages that each topic of it would bring back.

    Peers may trim or delete messages meanwhile, so ask them again after the count: see the algorithm of this module.
    """
    plan, known = _planned(engine, topology, name, peers, without), _Counts()
    for _ in range(COUNTS_MAX):
        try:
            for each in plan.topics:
                if known.of(each) is None:
                    known.keep(each, await asyncio.to_thread(count, each, peers, name))
        except PeerUnavailable as error:
            raise WorkerNotAsked(
                f"{error}; nothing was changed. Start the worker that does not answer, and run the command again"
            ) from None
        peers = await ask_again(peers, name)
        before, plan = plan, _planned(engine, topology, name, peers, without)
        if plan.topics == before.topics:
            break
    return replace(plan, counts=tuple(known.of(each) or Counted() for each in plan.topics))


class _Counts:
    """Counts of plans, as the plans were when they were counted."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, int, Position], tuple[TopicPlan, Counted]] = {}

    def keep(self, plan: TopicPlan, counted: Counted) -> None:
        self._counts[plan.name, plan.incarnation, plan.after] = plan, counted

    def of(self, plan: TopicPlan) -> Counted | None:
        """Return the count of ``plan``; None if it was not counted, or has changed since."""
        counted = self._counts.get((plan.name, plan.incarnation, plan.after))
        return counted[1] if counted is not None and counted[0] == plan else None


def _planned(
    engine: Engine | None, topology: Topology, name: str, peers: Sequence[Peer], without: frozenset[str]
) -> ReclaimPlan:
    rewritten = rewritten_at(topology, name)
    found = {topic: lives_of(engine, topic, peers, rewritten) for topic in names_of(peers)}
    lost = [each for lives in found.values() for each in lives.refused]
    if engine is not None:
        lost += [each for topic in found for each in out_of_place(engine, topic, peers, found[topic])]
    begun: list[str] = []
    for topic, lives in found.items():
        here = None if engine is None else engine.find(topic)
        new = None
        if engine is not None and here is not None:
            new = new_lives.new_life(engine, here, peers, lives, whole=not lives.plans)
        if isinstance(new, str):
            lost.append(new)
        elif new is not None:
            begun.append(new_lives.in_words(topic, new))
    return ReclaimPlan(
        tuple(plan for lives in found.values() for plan in lives.plans),
        (*lost, *not_asked(name, without)),
        tuple(
            each
            for topic, lives in found.items()
            for each in deleted_lives(engine, topic, lives, peers, others_come_back=bool(lives.plans))
        ),
        tuple(begun),
        without,
    )


def count(plan: TopicPlan, peers: Iterable[Peer], origin: str) -> Counted:
    """Ask ``peers`` how many messages of ``origin`` they have of ``plan``. Blocks the thread.

    Raises :class:`~replicator.pipeline.errors.PeerUnavailable` if a peer does not answer.
    """
    found: dict[str, list[Head] | None] = {}
    for peer in peers:
        if peer.name in plan.sources:
            try:
                found[peer.name] = list(_heads(peer.plane, peer.name, plan, origin))
            except UnexpectedAnswer:  # a block whose head is damaged, or a version that cannot say it
                found[peer.name] = None
    of_peer = {name: None if heads is None else _messages([heads], plan) for name, heads in found.items()}
    known = [heads for heads in found.values() if heads is not None]
    return Counted(_messages(known, plan) if len(known) == len(found) else None, of_peer)


def _heads(plane: VerifyPlane, peer: str, plan: TopicPlan, origin: str) -> Iterator[Head]:
    """Yield the heads of the messages of ``origin`` that a peer has of ``plan``, in order."""
    mark = plan.sources[peer]
    for head in plane.heads(plan.name, begin_of(plan, peer, plane, origin), END):
        if head.origin != origin or head.incarnation != plan.incarnation:
            continue
        if head.origin_first > mark:
            return
        if head.kind == BlockKind.MESSAGES and _last(head) > plan.after:
            yield head


def _last(head: Head) -> Position:
    return Position(head.origin_first.ledger, head.origin_first.entry + head.entries - 1)


def _messages(peers: Iterable[list[Head]], plan: TopicPlan) -> int:
    """Return the number of messages in the blocks of all ``peers``, each message once."""
    reached, messages = plan.after, 0
    for head in heapq.merge(*peers, key=lambda head: head.origin_first):
        if (last := _last(head)) <= reached:
            continue
        first = head.origin_first.entry
        above = reached.entry + 1 - first if reached >= head.origin_first else 0
        messages += _in_part(head, above)
        reached = last
    return messages


def _in_part(head: Head, above: int) -> int:
    """Return the number of messages in the entries of a block from its entry number ``above`` on."""
    if not above:
        return head.messages
    if head.sizes:
        return int(np.frombuffer(head.sizes, "<u4")[above:].sum())
    return head.messages // head.entries * (head.entries - above)
