"""Comparison of the brokers' messages with the copies that other clusters have at the same positions.

Invariant (DESIGN §3): 2. The store of the worker has nothing of the topic, and may be a new one. If the brokers were
put back or set up anew, they give positions of former messages to others, which no link would copy.

1. A position is taken if the brokers do not reach it, or have another message there.
2. All before a message that is the same is the same. So one cluster that tells its newest message answers for those
   that have less.
3. Positions of a raised life (:mod:`replicator.apache.broker_lives`) have their places below its incarnation. If the
   brokers have the newest messages of all clusters at these places, the life goes on. Nothing gets another name then.
"""

from __future__ import annotations

from collections.abc import Sequence

from replicator.apache.admin import BrokerAdmin
from replicator.apache.copies_elsewhere import Copy, EntryFingerprint
from replicator.apache.errors import BridgeHalted, BrokersPutBack, entries_hidden
from replicator.apache.names import renewing_command
from replicator.apache.shown import TopicInternals
from replicator.engine.log.store_tables import HighWater
from snapshots.position import BEFORE_ALL, Position


async def check_positions_are_free(
    admin: BrokerAdmin, topic: str, copies: Sequence[Copy], internals: TopicInternals, *, moved: bool
) -> None:
    """Raise :class:`BrokersPutBack` if the brokers reuse a position at which another cluster has a message, or
    would.

    Brokers that were restored from an older copy, or set up anew, do that. ``copies`` has the last position of
    these brokers in each other cluster, and the message there. If a cluster cannot tell its message, the positions
    count as reused; where the cursor has ``moved``, an operator decides. Raises :class:`BridgeHalted` then, and if
    the brokers do not show the worker which message they have.
    """
    first = min(internals.ledgers, default=0)
    taken: list[Position] = []
    untold: list[Position] = []
    same = BEFORE_ALL  # all before a message that is the same is the same
    for mark, newest, content, is_untold in copies:
        at = mark.position
        if at.ledger >= first and at.entry > internals.last_entries.get(at.ledger, -1):
            taken.append(at)
        elif content is not None and newest.ledger in internals.ledgers:
            if await _has(admin, topic, newest, content):
                same = max(same, newest)
            else:
                taken.append(at)
        elif is_untold and at.ledger in internals.ledgers:
            untold.append(at)
    unknown = max(untold, default=BEFORE_ALL)
    if not taken and unknown > same and moved:
        raise BridgeHalted(
            f"{topic}: the store of this worker has nothing of it. Another cluster has messages of "
            f"these brokers up to {unknown}, and can no longer tell its newest one, so nobody knows whether the "
            "brokers have given its position to another message. If there is a backup of the store, restore it. "
            "Else a renewal reads all that the brokers have under new positions: other clusters may have messages "
            "twice then",
            renewing_command(topic),
        )
    if taken or unknown > same:
        raise BrokersPutBack(
            f"{topic}: another cluster has messages of these brokers up to {max([*taken, unknown])}, and neither they "
            "nor the store of this worker has those, as far as anybody knows. They were put back to an older copy of "
            "their data, or set up anew. The worker goes on by itself: a new life of their data begins, with "
            "positions of its own",
            HighWater(max(each.mark.incarnation for each in copies), max(each.mark.position for each in copies)),
        )


async def _has(admin: BrokerAdmin, topic: str, at: Position, content: EntryFingerprint) -> bool:
    """Return whether the brokers have this message at the place ``at``.

    Raises :class:`BridgeHalted` if they do not show that.
    """
    found = await admin.seen_entry(topic, at)
    if found is None:
        raise BridgeHalted(entries_hidden(topic, "; reading goes on by itself then"))
    return content.is_same(found)


async def life_elsewhere(admin: BrokerAdmin, topic: str, copies: Sequence[Copy], internals: TopicInternals) -> int:
    """Return the incarnation of the raised life of these brokers' data that all other clusters have; 0 if there is
    none.

    A worker with an earlier store has begun it (:mod:`replicator.apache.broker_lives`). The brokers must have the
    newest message of the clusters at its place, and all places of the others before it.
    """
    incarnation = copies[0].mark.incarnation
    same = BEFORE_ALL
    last = BEFORE_ALL
    for mark, newest, content, _ in copies:
        at = _in_original_life(mark.position, incarnation)
        if mark.incarnation != incarnation or at is None or at > internals.last:
            return 0
        last = max(last, at)
        place = _in_original_life(newest, incarnation)
        if content is None or place is None or place.ledger not in internals.ledgers:
            continue
        if not await _has(admin, topic, place, content):
            return 0
        same = max(same, place)
    return incarnation if BEFORE_ALL < last <= same else 0


def _in_original_life(position: Position, incarnation: int) -> Position | None:
    """Return the place of ``position`` in the raised life ``incarnation``; None if it is of an earlier life."""
    return Position(position.ledger - incarnation, position.entry) if position.ledger >= incarnation else None
