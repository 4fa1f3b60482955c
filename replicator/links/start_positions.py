"""Positions at which the copying of a topic starts: the local log, compared with what the destination has.

This module reads the source's engine; :func:`replicator.links.gaps.find_gap` judges.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from replicator.engine.engine import Engine
from replicator.engine.lineage import Judgement, RemoteCopy, cause, judge
from replicator.engine.topic import Topic
from replicator.links.copier import Start
from replicator.links.gaps import (
    LOST_DATA,
    MADE_ANEW,
    Gap,
    Hole,
    Mark,
    Missing,
    SourceState,
    find_gap,
    lives_to_raise,
    reached,
)
from replicator.links.route import Route
from snapshots.position import BEFORE_ALL, Position

REMEMBERED_MAX: Final = 10_000
"""Most topics for which the missing messages are remembered; some hundred bytes each."""


class _CachedGaps(NamedTuple):
    """Missing messages of a topic. They are valid while its log is trimmed up to ``trimmed`` and its origins have
    ``holes``."""

    trimmed: Position
    holes: tuple[tuple[Hole, ...], ...]
    found: tuple[Missing, Missing]


class StartPositions:
    """Decides for one link where the copying of each topic starts."""

    def __init__(self, engine: Engine, route: Route) -> None:
        self._engine = engine
        self._route = route
        self._origins = tuple(sorted(route.origins))
        self._remembered: dict[int, _CachedGaps] = {}
        """For each topic id, the last result of :meth:`lacking`."""

    def marks(self, topic: Topic) -> dict[str, Mark]:
        """Return the marks of the local log for every origin that the link carries."""
        found = {origin: topic.origins.high_water(origin) for origin in self._route.origins}
        return {origin: Mark(mark.incarnation, mark.position) for origin, mark in found.items() if mark is not None}

    def whole(self, topic: Topic) -> dict[str, Mark]:
        """Return the marks of the origins that are complete here. Of these a full new copy is possible."""
        missing = self.missing(topic)
        return {origin: mark for origin, mark in self.marks(topic).items() if missing.newest(origin) == BEFORE_ALL}

    def lacking(self, topic: Topic) -> tuple[Missing, Missing]:
        """Return :meth:`missing` and :meth:`unexpected`, without a look into the store if nothing changed since the
        last call for this topic."""
        trimmed, holes = topic.log.trimmed, tuple(map(topic.origins.holes, self._origins))
        remembered = self._remembered.get(topic.topic_id)
        if remembered is not None and (remembered.trimmed, remembered.holes) == (trimmed, holes):
            return remembered.found
        found = self.missing(topic), self.unexpected(topic)
        if topic.trimming.in_store == trimmed:  # else the store has not recorded yet what is trimmed
            if len(self._remembered) >= REMEMBERED_MAX:
                self._remembered.clear()
            self._remembered[topic.topic_id] = _CachedGaps(trimmed, holes, found)
        return found

    def missing(self, topic: Topic) -> Missing:
        """Return the messages of ``topic`` that this cluster trimmed or never got."""
        trimmed: Mapping[str, Position] = {}
        if topic.log.trimmed > BEFORE_ALL:
            trimmed = self._engine.store.trim(topic.topic_id).vector
        holes = {origin: tuple(topic.origins.left_out(origin)) for origin in self._route.origins}
        return Missing(trimmed, {origin: each for origin, each in holes.items() if each})

    def unexpected(self, topic: Topic) -> Missing:
        """Return what :meth:`missing` returns, without messages of origins that other links filter by SQL for this
        one."""
        missing = self.missing(topic)
        if not self._route.filtered:
            return missing
        holes = {origin: each for origin, each in missing.holes.items() if origin not in self._route.filtered}
        return Missing(missing.trimmed, holes)

    def gap(
        self,
        topic: Topic,
        there: Mapping[str, Mark],
        *,
        copied_before: bool,
        accepted: Mapping[str, Hole],
        also: Collection[str] = (),
    ) -> Gap | None:
        """Return why copying cannot start; None if it can. ``accepted`` has the missing messages, by origin, that may
        be passed over. Missing messages of the origins in ``also`` are a gap even if the destination has nothing of
        the origin."""
        gap = find_gap(
            self._here(topic),
            there,
            self._route.origins,
            copied_before=copied_before,
            comes_elsewhere=lambda origin: origin in self._route.elsewhere or origin in also,
            accepted=accepted,
        )
        if (
            gap is None
            or gap.markers_only
            or gap.kind not in (MADE_ANEW, LOST_DATA)
            or gap.origin != self._engine.cluster
        ):
            return gap
        judgement, cause = self.judged(topic.name, there[gap.origin])
        return replace(gap, judgement=judgement, cause=cause)

    def lives_to_raise(self, topic: Topic, there: Mapping[str, Mark], *, asked: bool = False) -> dict[str, Mark]:
        """Return the later lives that the destination should learn; see
        :func:`~replicator.links.gaps.lives_to_raise`."""
        ours = {**self.marks(topic), self._engine.cluster: Mark(topic.incarnation, BEFORE_ALL)}
        if not any(origin in ours and ours[origin].incarnation > mark.incarnation for origin, mark in there.items()):
            return {}  # the usual case
        return lives_to_raise(self._here(topic), there, self._route.origins, asked=asked)

    def earlier(self, topic: Topic) -> list[dict[str, Mark]]:
        """Return the newest message of each earlier life that is here of an origin that the link carries.

        Each element has at most one life of an origin, by origin; lives of one origin follow each other in order.
        """
        lives = topic.origins.newest_of_earlier_lives(self._route.origins)
        count = max(map(len, lives.values()), default=0)
        return [
            {origin: Mark(0, newest[number]) for origin, newest in lives.items() if number < len(newest)}
            for number in range(count)
        ]

    def _here(self, topic: Topic) -> SourceState:
        # A restored source knows what it lost.
        own_holes = topic.origins.left_out(self._engine.cluster)

        def has(position: Position) -> bool:
            lost = any(after < position <= upto for after, upto in own_holes)
            return lost or topic.log.had(position)

        return SourceState(
            self._engine.cluster,
            self._route.link.destination,
            topic.incarnation,
            self.marks(topic),
            self.unexpected(topic),
            has,
            lambda origin, mark: topic.origins.had(origin, mark.position),
        )

    def judged(self, name: str, theirs: Mark) -> tuple[Judgement, str]:
        """Return how the destination's copy of this cluster's own messages is to be judged, and the cause in words."""
        own = self._engine.origin_stores.own_topic(name)
        copy = RemoteCopy(theirs.incarnation, theirs.position, theirs.store, theirs.deleted)
        judgement = judge(copy, own)
        holder = self._route.link.destination
        return judgement, cause(judgement, copy, own, cluster=self._engine.cluster, holder=holder)

    def has_only_markers_for(self, topic: Topic) -> bool:
        """Return whether the destination deleted the topic, and the link has no message to bring to it."""
        if not self._route.origins.isdisjoint(topic.origins.message_vector()):
            return False
        stores, destination = self._engine.origin_stores, self._route.link.destination
        if (mark := topic.origins.high_water(destination)) is None:
            deleted = stores.deleted_lives(topic.name, destination)
            return bool(deleted) or self._engine.partitioned.is_of_deleted(topic.name, destination)
        return stores.is_deleted(topic, destination, mark.incarnation, mark.position)

    def start(self, topic: Topic, there: Mapping[str, Mark]) -> Start:
        """Return the start of copying, if messages that are missing here may be left out.

        Reading starts at the lowest position that an origin needs.
        """
        read = topic.log.last
        for origin, ours in self.marks(topic).items():
            theirs = there.get(origin)
            if theirs is None:
                read = BEFORE_ALL
            elif theirs.position < ours.position:
                read = min(read, self._place(topic, origin, theirs))
        missing = self.missing(topic)
        return Start(
            read,
            sent={origin: mark.position for origin, mark in there.items()},
            passable={
                origin: newest for origin in self._route.origins if (newest := missing.newest(origin)) > BEFORE_ALL
            },
        )

    def lost(self, topic: Topic, there: Mapping[str, Mark], mark: Position, *, accepted: Mapping[str, Hole]) -> bool:
        """Return whether the destination lacks something that the link carried. The destination had everything up to
        ``mark``, except for the messages in ``accepted``."""
        for origin, ours in self.marks(topic).items():
            theirs = there.get(origin)
            if theirs is not None and reached(there, origin, accepted) >= ours.position:
                continue
            after = BEFORE_ALL if theirs is None else self._place(topic, origin, theirs)
            if after < mark and after < topic.log.trimmed:  # and who knows what was there
                return True
            pages = topic.reading.pages(after, mark, bytes_max=1, origins={origin}, verify=False)
            if any(found for found, _ in pages):
                return True
        return False

    def has_nothing_again(self, topic: Topic, there: Mapping[str, Mark]) -> bool:
        """Return whether the destination once wrote to the topic, and now has none of the blocks that the link copies.

        It may have deleted its copy while this worker was down. A crash may have lost the stored position that would
        show this.
        """
        if topic.origins.high_water(self._route.link.destination) is None or not there.keys().isdisjoint(self._origins):
            return False
        return bool(self.marks(topic))

    def _place(self, topic: Topic, origin: str, theirs: Mark) -> Position:
        """Return the local position above which all entries of ``origin`` are missing at the destination."""
        if origin == self._engine.cluster:
            earlier_life = theirs.position.ledger < topic.incarnation
            return topic.log.clamp(theirs.position) if earlier_life else theirs.position
        place = self._engine.store.floor(topic.topic_id, origin, theirs.position)
        return BEFORE_ALL if place is None else place
