"""Counts of the messages that a reclaim would take back, for its dry run.

Invariant (DESIGN §3): 13, a count is exact or it is not given. Peers send the heads of their blocks, without the
messages. A block that two peers have counts once. Nobody can count messages that no peer has any more.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from replicator.backup.reclaim_peers import Peer
from replicator.backup.reclaim_plan import TopicPlan
from replicator.backup.reclaim_reading import begin_of
from replicator.engine.log.block import BlockKind
from replicator.pipeline.errors import UnexpectedAnswer
from replicator.pipeline.verify.plane import Head, VerifyPlane
from snapshots.position import Position

END: Final = Position(2**62, 0)
"""Position above every log. A peer answers up to the end of its log."""


@dataclass(frozen=True, slots=True)
class Counted:
    """Numbers of messages that peers have of one plan."""

    messages: int | None = None
    """Messages of all peers together, each once; None if a peer cannot count its own."""
    of_peer: Mapping[str, int | None] = field(default_factory=dict)
    """For each peer, the number of messages that it has; None if it cannot count them."""


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
