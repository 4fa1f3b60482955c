"""Subscriptions of another copy of this cluster's store: a reclaim merges them into the cursors here.

Invariant (DESIGN §3): 6, within a generation the acknowledged sets only grow. Both copies have one life of a topic, and
ids of ledgers are never used twice. So a position names one entry in both, and the union of their acknowledgements is
right.

1. A subscription that both have in one generation, with one start: what either copy acknowledged is acknowledged.
2. A subscription that only the other copy has is made here, in the state that it has there. What the other copy never
   had is not consumed. A replicated subscription that was deleted here is not made again
   (:mod:`replicator.engine.subscriptions.tombstones`).
3. A subscription whose generations or starts differ, as after a seek or a deletion, stays as it is here.
4. A topic that is not here, or is here in another life, has other positions. Links bring its replicated subscriptions.
   The others are named as lost.

One transaction changes all subscriptions of a topic. Doing it again changes nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from copy import deepcopy

from replicator.backup.directory_peer import known_ranges
from replicator.engine.engine import Engine
from replicator.engine.subscriptions.cursor_rows import RowWrite, load_cursors, rewritten
from replicator.engine.subscriptions.cursor_state import CursorState
from replicator.engine.subscriptions.mark_delete import place_before
from replicator.engine.topic import Topic
from replicator.running.naming import named
from snapshots.position import BEFORE_ALL
from snapshots.position_set import PositionSet


async def merge_cursors(engine: Engine, topic: Topic, other: Topic, begin: Callable[[], Awaitable[None]]) -> Topic:
    """Merge the subscriptions of ``other``, the same topic in another copy of the store, into ``topic``.

    Await ``begin`` before the first change. Return the reloaded topic, or ``topic`` itself if nothing changed.
    """
    if other.incarnation != topic.incarnation:
        return topic
    messages = _messages(topic)
    here = {name: state for name, (state, _) in load_cursors(engine.store, topic.topic_id).items()}
    buried = engine.store.tombstones(topic.topic_id)
    writes: list[RowWrite] = []
    cleared: list[tuple[str, bytes]] = []
    for name, subscription in other.subscriptions.items():
        there = subscription.cursor.state
        consumed = _consumed(messages, other, there)
        state = here.get(name)
        if state is None:
            if name in buried:
                continue
            state = _made(there, messages, consumed)
        elif not _merge(state, there, messages, consumed):
            continue
        if state.replicated:
            state.to_announce = True
        rows = rewritten(topic.topic_id, name, state)
        writes += rows.writes
        cleared += rows.cleared
    if not writes:
        return topic
    await begin()
    await engine.writer.put_many(writes, cleared=cleared)
    return engine.loaded.load_again(topic)


def not_merged(topic: Topic | None, other: Topic, directory: str, deleted: Collection[int]) -> list[str]:
    """Return in words which subscriptions of ``other``, a topic in the other copy of the store in ``directory``, do not
    come here because ``topic``, the one here, is not in the same life or does not exist.

    Lives in ``deleted`` were deleted on purpose, with their subscriptions.
    """
    if other.incarnation in deleted or (topic is not None and topic.incarnation == other.incarnation):
        return []
    here = () if topic is None else topic.subscriptions
    names = sorted(
        name for name, each in other.subscriptions.items() if not each.cursor.state.replicated and name not in here
    )
    if not names:
        return []
    return [
        f"{other.name}: subscriptions that only {directory} has do not come here, as the topic is not here in the life "
        f"that it has there: {named(names)}. Make those that are needed again"
    ]


def _messages(topic: Topic) -> PositionSet:
    found = PositionSet()
    for ledger, first, last in topic.log.runs_between(BEFORE_ALL, topic.log.last):
        found.add_range(ledger, first, last)
    found.difference_update(topic.log.markers)
    return found


def _consumed(messages: PositionSet, other: Topic, there: CursorState) -> PositionSet:
    """Return the ``messages`` that the other copy has or had, and that count as consumed there."""
    found = messages.common(there.individually_deleted)
    for after, upto in known_ranges(other, there.mark_delete):
        part = messages.after(after)
        part.discard_above(upto)
        found.update(part)
    return found


def _made(there: CursorState, messages: PositionSet, consumed: PositionSet) -> CursorState:
    """Return the state here for a subscription that only the other copy of this cluster's store has.

    ``there`` is its state in the other copy. ``messages`` are the topic's messages here. Of these, ``consumed`` are
    those that the subscription has consumed there.
    """
    state = deepcopy(there)
    left = messages.copy()
    left.difference_update(consumed)
    first = left.first()
    state.mark_delete = there.mark_delete if first is None else min(there.mark_delete, place_before(first))
    state.individually_deleted = consumed.after(state.mark_delete)
    return state


def _merge(state: CursorState, there: CursorState, messages: PositionSet, consumed: PositionSet) -> bool:
    """Add the other copy's acknowledgements to ``state``. Return whether ``state`` changed.

    Leave ``state`` as it is if the generations or the starts differ.
    """
    if state.generation != there.generation or state.starts != there.starts:
        return False
    new = consumed.after(state.mark_delete)
    new.difference_update(state.individually_deleted)
    changed = bool(new)
    if new:
        state.consume_all(new, announce=True)
    for position, indexes in there.batch_acks.items():
        if position <= state.mark_delete or position in state.individually_deleted or position not in messages:
            continue
        mine = state.batch_acks.get(position)
        both = indexes if mine is None else mine | indexes
        if both != mine:
            state.put_batch(position, both, announce=True)
            changed = True
    return changed
