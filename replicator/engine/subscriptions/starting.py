"""Starts, by origin, of subscriptions that are made in this cluster (DESIGN 4.7).

Invariant (DESIGN §3): 5. The position at which a new cursor is put says nothing about what was consumed. So that
position is stored as a start, apart from acknowledgements.

A start names each origin that the topic has or had, and each origin that links bring into the topic:

1. Messages at or below the cursor's position lie before the start, whatever their origin.
2. If no message of an origin has come yet, all messages of the origin lie after the start.
3. Trimmed messages lie before the start. For a subscription that reads the compacted view they do not: the view may
   have them.
4. An origin that never comes to this cluster is not named, because another cluster knows its start.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Protocol

from replicator.engine.log.log_index import LogIndex
from replicator.engine.log.origins import Origins
from replicator.engine.subscriptions.cursor import Cursor
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet
from snapshots.starts import FROM_THE_FIRST, Start, Starts, merged

StoredExtent = tuple[str, int, Position, Position, int]
"""Origin, its incarnation, first origin position, first local position, and number of entries."""


class StartedTopic(Protocol):
    """Interface of a topic whose subscriptions get a start."""

    name: str
    cluster: str
    topic_id: int
    incarnation: int
    log: LogIndex
    origins: Origins


class ExtentTables(Protocol):
    """Interface of a store that lists the extents of a topic."""

    def extents(self, topic_id: int) -> Iterator[StoredExtent]: ...


class StartMerger(Protocol):
    """Interface that changes the start of a subscription."""

    def start(self, starts: Starts, uncovered: PositionSet, unclaimed: Mapping[str, Position] | None) -> None: ...


class StartedSubscription(Protocol):
    """Interface of a subscription whose start can be merged."""

    @property
    def name(self) -> str: ...
    @property
    def cursor(self) -> Cursor: ...
    @property
    def merging(self) -> StartMerger: ...


def _nobody(topic: str) -> Collection[str]:
    return ()


def _alone(topic: str, subscription: StartedSubscription, said: Starts) -> bool:
    """Merge the start ``said`` in an engine without subscription sync. Return whether anything changed.

    No entry that counts as consumed becomes unconsumed.
    """
    state = subscription.cursor.state
    if (after := merged(state.starts, said)) == state.starts:
        return False
    subscription.merging.start(after, PositionSet(), state.unclaimed)
    return True


class Starting:
    """Computes the starts of new subscriptions on all topics of one engine."""

    __slots__ = ("brought", "merge")

    def __init__(self) -> None:
        self.brought: Callable[[str], Collection[str]] = _nobody
        """Returns the clusters whose messages links bring into a topic. The subscription sync sets it."""
        self.merge: Callable[[str, StartedSubscription, Starts], bool] = _alone
        """Merges the start of a subscription that somebody made at the brokers beside the engine.

        Returns whether anything changed; then the caller saves the subscription. The subscription sync replaces this
        function by one that also tells other clusters.
        """

    def at(
        self, topic: StartedTopic, store: ExtentTables, position: Position, *, read_compacted: bool = False
    ) -> dict[str, Start]:
        """Return, by origin, the start of a subscription whose cursor is put at ``position``. Later messages lie after
        it.

        In the trimmed range of a compacted topic, the log does not tell which messages of other origins lie below
        ``position``. Then their start is before the first: a later one would pass over messages of the compacted view.
        """
        others = {origin: each for origin, each in topic.origins.high_waters().items() if origin != topic.cluster}
        starts = dict.fromkeys((topic.cluster, *self.brought(topic.name), *others), FROM_THE_FIRST)
        if not read_compacted:
            position = max(position, topic.log.trimmed)
        if position == BEFORE_ALL:
            return starts
        starts[topic.cluster] = Start(topic.incarnation, position)
        starts.update({origin: Start(each.incarnation, each.position) for origin, each in others.items()})
        if position < topic.log.last:
            trimmed = position < topic.log.trimmed
            if trimmed:
                starts.update(dict.fromkeys(others, FROM_THE_FIRST))
            starts.update(_reached(store.extents(topic.topic_id), position, trimmed=trimmed))
        return starts


def _reached(extents: Iterable[StoredExtent], position: Position, *, trimmed: bool) -> dict[str, Start]:
    """Return, by origin, the last entry at or below ``position``, as a start. Origins without extents are left out.

    If all extents of an origin lie above ``position``, its earlier entries were trimmed. Then the start lies right
    before the first entry that is left. But if ``position`` itself is ``trimmed``, the origin is left out.
    """
    found: dict[str, Start] = {}
    first: dict[str, Start] = {}
    for origin, incarnation, origin_first, local_first, entries in extents:
        if local_first > position:
            before = Start(incarnation, Position(origin_first.ledger, origin_first.entry - 1))
            first[origin] = min(before, first.get(origin, before))
            continue
        count = (
            min(entries, position.entry - local_first.entry + 1) if local_first.ledger == position.ledger else entries
        )
        start = Start(incarnation, Position(origin_first.ledger, origin_first.entry + count - 1))
        found[origin] = max(start, found.get(origin, start))
    return found if trimmed else first | found
