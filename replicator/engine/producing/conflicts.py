"""Conflicts between producers of several clusters: sequence ids used twice, and names used in two clusters at once.

Deduplication works across clusters only while one producer at a time uses a name. If two producers use one name, no
message is lost. But their messages come in different orders in different clusters, and the protocol tells nobody. So
the worker notes:

1. messages that have a sequence id of a message from another cluster, but other content;
2. names under which a producer is connected here, while another cluster stores messages under that name;
3. entries that an earlier version hid as duplicates although their content differs (:mod:`.duplicate_check`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import structlog

from replicator.engine.log.requests import AppendedBlock

ACTIVE_MS: Final = 5 * 60 * 1000
"""For this time after a name was last seen in two clusters, it counts as shared."""
CLOCKS_DIFFER_MS_MAX: Final = 5_000
"""Assumed difference between the clocks of two clusters. Only messages that are younger than the connection by more
than this show that a name is shared."""
NAMES_MAX: Final = 1_000
"""Names that are kept in memory. Beyond that, the name that was seen longest ago is dropped."""
NAMES_TOLD_MAX: Final = 10
"""Names in the worker's status."""

log = structlog.get_logger(__name__)


class SharedName(NamedTuple):
    """A producer name that is in use in this cluster and in ``cluster``."""

    topic: str
    producer: str
    cluster: str


class Connections(Protocol):
    """Interface of the connected producers of one topic."""

    def connected_since(self, name: str) -> int | None:
        """Return when the producer ``name`` connected, in milliseconds since 1970, or None if it is not connected."""
        ...


class ProducedTopic(Protocol):
    """Interface of a topic that :class:`ProducerConflicts` reports about."""

    name: str

    @property
    def producers(self) -> Connections: ...


class ProducerConflicts:
    """Records and reports the producer conflicts that one worker notices. Runs on the event loop."""

    def __init__(self, wall_clock_ms: Callable[[], int]) -> None:
        self._now_ms = wall_clock_ms
        self._names: dict[SharedName, int] = {}
        """Shared names and when each was last seen, the longest ago first."""
        self._reused: dict[SharedName, int] = {}
        """Names whose sequence ids were used twice, and when each was last seen, the longest ago first."""
        self.other_content = 0
        """Messages, since the worker started, that reuse sequence ids of another cluster's messages with other
        content."""
        self.hidden_differing = 0
        """Entries that an earlier version hid as duplicates though their content differs; found at the start."""

    def on_committed(self, topic: ProducedTopic, blocks: Sequence[AppendedBlock]) -> None:
        """Record each producer name of copied blocks under which a producer is connected to this cluster at the same
        time."""
        for block in blocks:
            for name in block.connected:
                since = topic.producers.connected_since(name)
                if since is not None and block.header.publish_time_ms > since + CLOCKS_DIFFER_MS_MAX:
                    self._note(SharedName(topic.name, name, block.header.origin))

    def on_other_content(self, topics: Mapping[int, ProducedTopic], found: Mapping[tuple[int, str, str], int]) -> None:
        """Record messages that reuse sequence ids of messages from another cluster, but have other content.

        ``found`` counts the messages by topic id, producer, and origin of the other messages.
        """
        for (topic_id, producer, origin), messages in found.items():
            self.other_content += messages
            topic = topics.get(topic_id)
            name = SharedName("" if topic is None else topic.name, producer, origin)
            if self._is_news(self._reused, name):
                log.warning(
                    "messages reuse sequence ids of another cluster's messages with other content: all are delivered",
                    **name._asdict(),
                )

    def shared_names(self) -> list[SharedName]:
        """Return the names that were in use in two clusters in the last :data:`ACTIVE_MS`, the most recently seen
        first."""
        after = self._now_ms() - ACTIVE_MS
        for name in [name for name, at_ms in self._names.items() if at_ms < after]:
            del self._names[name]
        return list(reversed(self._names))

    def status(self) -> dict[str, Any]:
        """Return the counts of conflicts and the first shared names, for the worker's status."""
        names = self.shared_names()
        return {
            "other_content": self.other_content,
            "hidden_differing": self.hidden_differing,
            "shared_names": len(names),
            "names": [name._asdict() for name in names[:NAMES_TOLD_MAX]],
        }

    def _note(self, name: SharedName) -> None:
        if self._is_news(self._names, name):
            log.warning(
                "producers of two clusters use one name at once: give each producer a name of its own", **name._asdict()
            )

    def _is_news(self, kept: dict[SharedName, int], name: SharedName) -> bool:
        """Record that ``name`` was seen now. Return whether it was not seen in the last :data:`ACTIVE_MS`."""
        now = self._now_ms()
        before = kept.pop(name, None)
        kept[name] = now
        if len(kept) > NAMES_MAX:
            del kept[next(iter(kept))]
        return before is None or before < now - ACTIVE_MS
