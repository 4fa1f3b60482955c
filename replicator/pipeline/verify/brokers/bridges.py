"""State of the bridges of workers that run beside Apache Pulsar's brokers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from replicator.apache.broker_lives import BrokerLives
from replicator.pipeline.data_plane import _checked_answer
from replicator.pipeline.errors import UnexpectedAnswer
from replicator.pipeline.verify.brokers.entry_log import Life
from replicator.pipeline.verify.comparison.scope import ReplicaState
from replicator.pipeline.verify.plane import VerifyPlane
from snapshots.position import BEFORE_ALL, Position

Key = tuple[str, str]
"""Cluster and topic."""


@dataclass(frozen=True, slots=True)
class PublishedRange:
    """Range of one life that a bridge has published, and found again at the brokers."""

    first: Position
    first_at: Position
    """Position of ``first`` at the brokers."""
    last: Position
    last_at: Position


@dataclass(frozen=True, slots=True)
class BridgedTopic:
    """One topic at the brokers of one cluster, as the worker beside them sees it."""

    read_through: Position
    published: Mapping[Life, PublishedRange]
    waits: bool
    """Whether entries wait to be published."""
    halted: str
    """Reason why the bridge does not continue; empty if it does."""
    left_out: Mapping[str, Sequence[tuple[Position, Position]]] = field(default_factory=dict)
    """Ranges, by origin, that an operator passed over because the brokers refuse them: after, up to."""
    lives: BrokerLives = field(default_factory=BrokerLives)

    def absent(self, origin: str) -> dict[str, list[tuple[Position, Position]]]:
        """Return, by origin, ranges that the brokers lack on purpose, or lost when they were restored from an older
        copy.

        ``origin`` is that of the brokers."""
        found = {each: list(ranges) for each, ranges in self.left_out.items()}
        for life in self.lives.later:
            found.setdefault(origin, []).append((self.lives.origin_of(life.after), life.lost))
        return found


@dataclass(frozen=True, slots=True)
class BridgeState:
    """State of the bridge of one cluster."""

    topics: Mapping[str, BridgedTopic]
    refused: Mapping[str, str]
    """Topics that cannot be bridged, each with the reason."""


def read_bridge(url: str) -> BridgeState:
    """Ask a worker for its bridge's state. Raises :class:`PeerUnavailable`, :class:`UnexpectedAnswer`."""
    with VerifyPlane(url) as worker:
        answer = worker.call("GET", "/replication/v1/status", topics="false")
        with _checked_answer(url, "status"):
            shown = answer.get("apache")
            if not shown:
                raise UnexpectedAnswer(
                    f"worker at {url} runs beside no Apache Pulsar brokers: correct the cluster's kind or address in "
                    "the topology"
                )
            return BridgeState(
                {str(each["topic"]): _topic(each) for each in shown["topics"]},
                {str(topic): str(reason) for topic, reason in shown["refused"].items()},
            )


@dataclass(slots=True)
class Progress:
    """Progress of all bridges from :meth:`begin` to :meth:`end`. Call ``end`` only if the wait took all of its time.

    A bridge that made progress may be about to bring the rest. One that had something to do, and did nothing of it
    during the whole wait, will not bring it.
    """

    unread: set[Key] = field(default_factory=set)
    """Topics at brokers whose entries the bridge did not read, though there were some."""
    unpublished: set[Key] = field(default_factory=set)
    """Topics whose waiting entries the bridge did not publish at the brokers."""
    _first: dict[Key, BridgedTopic] = field(default_factory=dict)
    _ends: Mapping[Key, Position] = field(default_factory=dict)

    def begin(self, bridges: Mapping[str, BridgeState], ends: Mapping[Key, Position]) -> None:
        """Note the state before the wait. ``ends`` has the last entries at the brokers."""
        self._first = {(name, topic): each for name, bridge in bridges.items() for topic, each in bridge.topics.items()}
        self._ends = ends

    def end(self, bridges: Mapping[str, BridgeState]) -> None:
        """Compare the state after the wait with that before it."""
        for (name, topic), first in self._first.items():
            now = bridges[name].topics.get(topic)
            if now is None:
                continue
            end = self._ends.get((name, topic))
            if end is not None and now.read_through == first.read_through < end:
                self.unread.add((name, topic))
            if first.waits and now.waits and now.published == first.published:
                self.unpublished.add((name, topic))

    def unpublished_origins(self, name: str, topic: str, standing: ReplicaState) -> set[str]:
        """Return the origins in the worker's log, which has this ``standing``, if the bridge publishes nothing."""
        return set(standing.high_water or ()) if (name, topic) in self.unpublished else set()


def _topic(shown: Mapping[str, Any]) -> BridgedTopic:
    read_through = shown["read_through"]
    return BridgedTopic(
        BEFORE_ALL if read_through is None else Position.parse(read_through),
        {
            Life(str(origin), int(each["incarnation"])): PublishedRange(
                *(Position.parse(each[end][side]) for end in ("first", "last") for side in (0, 1))
            )
            for origin, each in shown["published"].items()
        },
        bool(shown["publishing_waits"]),
        "; ".join(f"{part}: {why}" for part, why in shown["errors"].items()) if shown["halted"] else "",
        _left_out(shown.get("left_out", ())),
        BrokerLives.of_shown(shown.get("lives", ())),
    )


def _left_out(shown: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[Position, Position]]]:
    found: dict[str, list[tuple[Position, Position]]] = {}
    for each in shown:
        at = Position.parse(each["entry"])
        found.setdefault(str(each["origin"]), []).append((Position(at.ledger, at.entry - 1), at))
    return found
