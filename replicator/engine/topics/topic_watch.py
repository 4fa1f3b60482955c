"""Watchers of topic patterns: the names that match, and the changes that each watcher does not know yet. Sans-IO.

Watchers of equal patterns share a :class:`WatchedPattern`, which has the matching names. A name is matched once for all
of them, so a hundred consumers of one pattern cost little more than one.

Algorithm:

1. A created topic is matched and joins the names; a deleted one leaves them. Each watcher that got a listing gathers
   the difference until it is taken: at most a name in each of two sets, however often it came and went (invariant 11).
   Past :data:`CHANGED_NAMES_MAX`, a notification has only the hash. The watcher sees that its own hash differs, and
   polls.
2. A listing takes the names from the catalog, and not from notifications. So a poll repairs missed ones. The changes
   that it finds go to the other watchers of the pattern, too.
3. A name that was deleted and created again is notified as both, since neither a hash nor a listing shows it. A listing
   in between does not cancel that.
4. Only names that the last listing did not have are matched, so polls of an unchanged namespace only cost a comparison.
   A step of work is one match, so that the caller can pause in between: RE2 is linear, but a hostile pattern over
   thousands of long names still takes seconds.

Source: PIP-145.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator
from dataclasses import dataclass
from typing import Final

from replicator.engine.errors import InvalidPattern, TooManyWatchers
from replicator.engine.topics.topic_list import TopicListChange, sorted_list_hash, topic_list_change
from replicator.engine.topics.topic_patterns import TopicPattern

WATCHES_PER_CONNECTION_MAX: Final = 1_000
WATCHES_MAX: Final = 20_000
"""Limit of watchers of one worker."""
PATTERNS_MAX: Final = 2_000
"""Limit of different patterns. Each may take
:data:`~replicator.engine.topics.topic_patterns.PATTERN_MEMORY_BYTES_MAX`."""
LISTED_NAMES_MAX: Final = 10_000
"""Limit of names that a pattern may match: as many as a consumer may have topics, and as fit in one frame."""
CHANGED_NAMES_MAX: Final = 1_000
"""Limit of names in one notification."""


@dataclass(frozen=True, slots=True)
class TopicListing:
    """Answer to a poll: the hash of the names, and the names, or None if the watcher has them already."""

    hash: str
    names: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class TopicsChanged:
    """Notification of a watcher about changed names. ``hash`` is that of all names after the change."""

    change: TopicListChange
    hash: str


class TopicWatch:
    """One watcher of a pattern. Made by :meth:`TopicWatchRegistry.open`."""

    __slots__ = ("_added", "_deleted", "_flooded", "_listed", "connection", "pattern")

    def __init__(self, pattern: WatchedPattern, connection: Hashable) -> None:
        self.pattern = pattern
        self.connection = connection
        self._listed = False
        self._added: set[str] = set()
        self._deleted: set[str] = set()
        self._flooded = False

    @property
    def pending(self) -> bool:
        """Whether there is a change that the watcher was not told."""
        return bool(self._added or self._deleted or self._flooded)

    def listing(self, known_hash: str | None) -> TopicListing:
        """Return all names, after :meth:`WatchedPattern.refresh`; without the names if their hash is ``known_hash``.

        Raises :class:`InvalidPattern` if the pattern matches too many names.
        """
        if len(self.pattern.names) > LISTED_NAMES_MAX:
            raise InvalidPattern(
                f"pattern {str(self.pattern.pattern)!r:.120} matches {len(self.pattern.names)} topics; make it "
                f"narrower, {LISTED_NAMES_MAX} are allowed"
            )
        made_anew = self._added & self._deleted
        self._added, self._deleted, self._flooded = made_anew, set(made_anew), False
        self._listed = True
        names_hash = self.pattern.hash()
        return TopicListing(names_hash, None if known_hash == names_hash else self.pattern.sorted_names())

    def take(self) -> TopicsChanged | None:
        """Return the changes that the watcher was not told, or None. They count as told afterwards."""
        if not self.pending:
            return None
        change = TopicListChange(tuple(sorted(self._added)), tuple(sorted(self._deleted)))
        if self._flooded:
            change = TopicListChange((), ())
        self._added, self._deleted, self._flooded = set(), set(), False
        return TopicsChanged(change, self.pattern.hash())

    def created(self, name: str) -> None:
        """Note that a matching name appeared."""
        if self._listed and not self._flooded:
            self._added.add(name)
            self._check_room()

    def deleted(self, name: str) -> None:
        """Note that a matching name disappeared."""
        if not self._listed or self._flooded:
            return
        if name in self._added:
            self._added.remove(name)  # it was never told; what it was made in place of, if anything, still is
        else:
            self._deleted.add(name)
            self._check_room()

    def _check_room(self) -> None:
        if len(self._added) + len(self._deleted) > CHANGED_NAMES_MAX:
            self._added, self._deleted, self._flooded = set(), set(), True


class WatchedPattern:
    """Names that match one pattern: those of the last listing, with the changes since."""

    __slots__ = ("_hash", "_seen", "_sorted", "names", "pattern", "watches")

    def __init__(self, pattern: TopicPattern) -> None:
        self.pattern = pattern
        self.names: set[str] = set()
        self.watches: dict[TopicWatch, None] = {}
        self._seen: frozenset[str] = frozenset()
        """All names of the namespace at the last listing. Those that are not in ``names`` do not match."""
        self._hash: str | None = None
        self._sorted: tuple[str, ...] | None = None

    def hash(self) -> str:
        """Return the hash of the names."""
        if self._hash is None:
            self._hash = sorted_list_hash(self._sorted or sorted(self.names))
        return self._hash

    def sorted_names(self) -> tuple[str, ...]:
        """Return the sorted names. All callers share one tuple until the names change, because answers may wait for
        slow readers."""
        if self._sorted is None:
            self._sorted = tuple(sorted(self.names))
        return self._sorted

    def created(self, name: str) -> None:
        """Note that a topic was created in the namespace. This costs one match."""
        if name not in self.names and self.pattern.matches(_local(name)):
            self.names.add(name)
            self._hash = self._sorted = None
            for watch in self.watches:
                watch.created(name)

    def deleted(self, name: str) -> None:
        """Note that a topic of the namespace was deleted."""
        if name in self.names:
            self.names.remove(name)
            self._hash = self._sorted = None
            for watch in self.watches:
                watch.deleted(name)

    def made_anew(self, name: str) -> None:
        """Tell the watchers that know the topic ``name`` that it was deleted and created again."""
        if name in self.names:
            for watch in self.watches:
                watch.deleted(name)
                watch.created(name)

    def refresh(self, topics: frozenset[str]) -> Iterator[None]:
        """Set ``names`` to the matching names of ``topics``, which are all topics of the namespace. Each step is one
        match. Nothing else may change this pattern until the last step."""
        names = self.names & topics
        for name in topics - self.names - self._seen:
            if self.pattern.matches(_local(name)):
                names.add(name)
            yield
        change = topic_list_change(self.names, names)
        self._seen = topics
        if change:
            self.names = names
            self._hash = self._sorted = None
            for watch in self.watches:
                for name in change.deleted:
                    watch.deleted(name)
                for name in change.added:
                    watch.created(name)


class TopicWatchRegistry:
    """Watched patterns of one worker, by namespace."""

    def __init__(self) -> None:
        self._by_pattern: dict[TopicPattern, WatchedPattern] = {}
        self._by_namespace: dict[str, dict[TopicPattern, WatchedPattern]] = {}
        self._of_connection: dict[Hashable, int] = {}
        self._watches = 0
        self._topics: dict[str, frozenset[str]] = {}

    def __len__(self) -> int:
        """Return the number of watchers."""
        return self._watches

    def open(self, connection: Hashable, pattern: TopicPattern) -> TopicWatch:
        """Return a new watcher, which gets no notifications before its first listing. Raise
        :class:`TooManyWatchers`."""
        if self._of_connection.get(connection, 0) >= WATCHES_PER_CONNECTION_MAX:
            raise TooManyWatchers(
                f"{WATCHES_PER_CONNECTION_MAX} patterns are watched over this connection already, the limit: close "
                "consumers of patterns, or use another connection"
            )
        if self._watches >= WATCHES_MAX:
            raise TooManyWatchers(
                f"{WATCHES_MAX} watchers of patterns are connected already, the limit: close consumers of patterns "
                "first"
            )
        watched = self._by_pattern.get(pattern)
        if watched is None:
            if len(self._by_pattern) >= PATTERNS_MAX:
                raise TooManyWatchers(
                    f"{PATTERNS_MAX} different patterns are watched already, the limit: close consumers of patterns "
                    "first, or use a pattern that is watched already"
                )
            watched = self._by_pattern[pattern] = WatchedPattern(pattern)
            self._by_namespace.setdefault(pattern.namespace, {})[pattern] = watched
        watch = TopicWatch(watched, connection)
        watched.watches[watch] = None
        self._watches += 1
        self._of_connection[connection] = self._of_connection.get(connection, 0) + 1
        return watch

    def close(self, watch: TopicWatch) -> None:
        """Remove a watcher. Idempotent."""
        watched = watch.pattern
        if watch not in watched.watches:
            return
        del watched.watches[watch]
        self._watches -= 1
        self._of_connection[watch.connection] -= 1
        if not self._of_connection[watch.connection]:
            del self._of_connection[watch.connection]
        if not watched.watches:
            namespace = watched.pattern.namespace
            del self._by_pattern[watched.pattern]
            del self._by_namespace[namespace][watched.pattern]
            if not self._by_namespace[namespace]:
                del self._by_namespace[namespace]
                self._topics.pop(namespace, None)

    def watching(self, topic: str) -> list[WatchedPattern]:
        """Return the patterns of the namespace of a topic, which is given by its full name."""
        namespace = topic.removeprefix("persistent://").rpartition("/")[0]
        return list(self._by_namespace.get(namespace, {}).values())

    def topics(self, namespace: str, names: Collection[str]) -> frozenset[str]:
        """Return ``names`` as a set. The patterns of the namespace share one set as long as the names are unchanged."""
        known = self._topics.get(namespace)
        if known is not None and len(known) == len(names) and known.issuperset(names):
            return known
        self._topics[namespace] = frozenset(names)
        return self._topics[namespace]


def _local(topic: str) -> str:
    """Return the local part of a full topic name."""
    return topic.rpartition("/")[2]
