"""Starts of the subscriptions that somebody makes in this cluster, by origin (DESIGN 4.7).

Invariant (DESIGN §3): 5. The position at which a cursor is put says nothing about what was consumed, so it is kept as a
start, apart from acknowledgements.

A start names each origin that the topic has or had, and each origin that links bring here:

1. Messages of this cluster up to the position lie before the start, and so do those of other origins that are here at
   or below it.
2. Every message of an origin that links bring lies after the start if nothing of the origin is here yet.
3. Trimmed messages lie before the start, except for a subscription that reads compacted: the view may have them.
4. Origins that never come here are not named. Another cluster knows better where they begin.
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
"""Origin, its incarnation, its first position there and here, and the entries."""


class StartedTopic(Protocol):
    """The topic, as far as the start of a subscription goes."""

    name: str
    cluster: str
    topic_id: int
    incarnation: int
    log: LogIndex
    origins: Origins


class ExtentTables(Protocol):
    """The store, as far as the start of a subscription goes."""

    def extents(self, topic_id: int) -> Iterator[StoredExtent]: ...


class MergesStarts(Protocol):
    """What takes over a start into a subscription."""

    def start(self, starts: Starts, uncovered: PositionSet, unclaimed: Mapping[str, Position] | None) -> None: ...


class StartedSubscription(Protocol):
    """A subscription, as far as its start goes."""

    @property
    def name(self) -> str: ...
    @property
    def cursor(self) -> Cursor: ...
    @property
    def merging(self) -> MergesStarts: ...


def _nobody(topic: str) -> Collection[str]:
    return ()


def _alone(topic: str, subscription: StartedSubscription, said: Starts) -> bool:
    """Merge a start in an engine without subscription sync: it opens nothing that is consumed."""
    state = subscription.cursor.state
    if (after := merged(state.starts, said)) == state.starts:
        return False
    subscription.merging.start(after, PositionSet(), state.unclaimed)
    return True


class Starting:
    """Says where subscriptions of one engine's topics begin."""

    __slots__ = ("brought", "merge")

    def __init__(self) -> None:
        self.brought: Callable[[str], Collection[str]] = _nobody
        """The clusters whose messages links bring into a topic. The subscription sync knows them."""
        self.merge: Callable[[str, StartedSubscription, Starts], bool] = _alone
        """Merge the start of a topic's subscription that somebody made beside the engine, at brokers.

        Return whether anything changed; the caller saves it. The subscription sync does it, and tells other clusters.
        """

    def at(
        self, topic: StartedTopic, store: ExtentTables, position: Position, *, read_compacted: bool = False
    ) -> dict[str, Start]:
        """Return the start of a subscription that counts nothing after ``position``."""
        others = {origin: each for origin, each in topic.origins.high_waters().items() if origin != topic.cluster}
        starts = dict.fromkeys((topic.cluster, *self.brought(topic.name), *others), FROM_THE_FIRST)
        if not read_compacted:
            position = max(position, topic.log.trimmed)
        if position == BEFORE_ALL:
            return starts
        starts[topic.cluster] = Start(topic.incarnation, position)
        starts.update({origin: Start(each.incarnation, each.position) for origin, each in others.items()})
        if position < topic.log.last:
            starts.update(_reached(store.extents(topic.topic_id), position))
        return starts


def _reached(extents: Iterable[StoredExtent], position: Position) -> dict[str, Start]:
    """Return how far each origin is here at ``position``, for those that have any entry left here.

    An origin that is here above the position only was trimmed below it: it begins with the first entry that is left.
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
    return first | found
