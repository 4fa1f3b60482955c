"""Values at the controller's border: its settings, the state of the log, and the actions that its shell carries out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from snapshots.ack_vector import AckVector
from snapshots.mapping import SnapshotMapping
from snapshots.markers import LocalSnapshot, SnapshotRequest, SnapshotResponse, SubscriptionsUpdate
from snapshots.position import BEFORE_ALL, Position
from snapshots.starts import Starts


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """Intervals of the controller, in milliseconds.

    ``snapshot_interval_ms`` bounds how far the coarse state is behind while the topic moves. ``whole_interval_ms`` is
    the time between announcements of a changing subscription's whole state, ``update_interval_ms`` the shortest between
    two updates."""

    snapshot_interval_ms: int = 200
    snapshot_timeout_ms: int = 30_000
    update_interval_ms: int = 5
    whole_interval_ms: int = 60_000


def _holds_all(origin: str, position: Position) -> bool:
    return True


def _never(origin: str) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class LogState:
    """State of one topic's local log at one moment.

    ``vector`` has, by origin (the local cluster included), the highest origin position in the log. ``messages`` is the
    same for message entries only. Without it the vector is used, which is true but may make a peer wait for markers
    that never come. ``holds`` tells whether an origin's entry at or below the vector is or was in the log. That can be
    false if the origin was restored from an old copy, and other clusters have more of it than it has left.
    """

    lac: Position
    vector: Mapping[str, Position]
    messages: Mapping[str, Position] | None = None
    holds: Callable[[str, Position], bool] = _holds_all
    earlier_lives: Mapping[str, Position] = field(default_factory=dict)
    """Last position of each earlier life of an origin that is here. The keys are names that no origin has."""
    incomplete: Callable[[str], bool] = _never
    """Tells whether messages of an origin, or parts of its batches, were left out on their way to this log."""

    def reached(self) -> dict[str, Position]:
        """Return, by origin, the position of the last message that is here; without ``messages``, of the last entry."""
        return dict(self.vector if self.messages is None else self.messages)

    def said(self) -> dict[str, Position]:
        """Return the positions to put into a request or an answer: for each origin, the last message that is here.

        Each earlier life counts as an origin with a name of its own. A cluster that lacks this life never gets that
        origin, so an answer from here proves nothing to it.
        """
        return {**self.reached(), **self.earlier_lives}

    def lacking(self, response: SnapshotResponse, local: str) -> set[str]:
        """Return the origins that have later messages in the cluster that gave ``response`` than in this log.

        That cluster's own origin and ``local`` do not count."""
        return {
            origin
            for origin, reached in response.vector.items()
            if origin not in (local, response.cluster)
            and self.earlier_lives.get(origin, self.vector.get(origin, BEFORE_ALL)) < reached
        }

    def may_lack_messages_of(self, response: SnapshotResponse) -> bool:
        """Return whether the cluster that gave ``response`` may have messages that this log passed over and never had.

        It may if messages of any origin in ``response`` were left out here. It also may if the newest message of an
        origin was never here. For the latter, the cluster's own origin and earlier lives that are here do not count.
        """
        return any(self.incomplete(origin) for origin in response.vector) or any(
            not self.holds(origin, reached)
            for origin, reached in response.vector.items()
            if origin != response.cluster and origin not in self.earlier_lives
        )


@dataclass(frozen=True, slots=True)
class WriteRequest:
    """Action: append a request for a snapshot to the topic; links carry it."""

    marker: SnapshotRequest


@dataclass(frozen=True, slots=True)
class WriteResponse:
    """Action: append an answer to a snapshot request to the topic; links carry it."""

    marker: SnapshotResponse


@dataclass(frozen=True, slots=True)
class RecordMapping:
    """Action: index this mapping in Postgres; the local snapshot that follows keeps it in the log."""

    mapping: SnapshotMapping


@dataclass(frozen=True, slots=True)
class WriteLocalSnapshot:
    """Action: append a local snapshot to the topic as a local marker, which no link carries."""

    marker: LocalSnapshot


@dataclass(frozen=True, slots=True)
class WriteUpdate:
    """Action: append an update of subscriptions to the topic; links carry it."""

    marker: SubscriptionsUpdate


@dataclass(frozen=True, slots=True)
class ApplyUpdate:
    """Action: apply what cluster ``source`` announced about a subscription. Applying it twice changes nothing.
    A subscription here that is not replicated stays as it is. A lower ``generation`` without ``deleted`` is ignored.

    1. If ``deleted``, delete the subscription, unless its generation here is higher, and keep ``generation`` as its
       tombstone. Keep it as it is, in the next generation after ``generation``, if ``unless_in_use`` and consumers here
       use it, or if ``whole`` and it was made here, or its replication turned on here, without knowing of the deletion.
    2. If the subscription does not exist, create it from the earliest message on.
    3. If ``generation`` is higher than the one here, forget what is acknowledged. If ``whole``, forget only the
       acknowledgements of the origins that ``acks`` names.
    4. Merge ``starts``: the earlier start of each origin counts. If that is earlier than before, the mark-delete
       position moves back.
    5. Merge ``acks``. If there is a ``position``, move the mark-delete position up to it, unless ``starts`` are later
       than the starts that count. In that case nobody consumed the messages between the two starts.
    """

    subscription: str
    generation: int
    position: Position | None
    source: str
    acks: AckVector = field(default_factory=AckVector)
    whole: bool = False
    deleted: bool = False
    properties: Mapping[str, str] = field(default_factory=dict)
    read_compacted: bool = False
    starts: Starts = field(default_factory=dict)
    unless_in_use: bool = False
    answer: str = ""
    """Last question of this cluster that the source had heard, in the last part of a whole state.

    After this update, everything is here that the source knew when it heard the question.
    """


Action = WriteRequest | WriteResponse | RecordMapping | WriteLocalSnapshot | WriteUpdate | ApplyUpdate


@dataclass(slots=True)
class ControllerStats:
    """Counters of one topic's controller since it was made."""

    requests: int = 0
    """Requests written here."""
    answers: int = 0
    """Responses written here, to requests of other clusters."""
    responses: int = 0
    """Responses of other clusters, to any requests."""
    mappings: int = 0
    timeouts: int = 0
    """Requests that some peer left unanswered for ``snapshot_timeout_ms``."""
    skipped: int = 0
    """Responses that can make no mapping, and updates that point past our log."""
    updates_sent: int = 0
    """Announced subscriptions, summed over markers."""
    updates_applied: int = 0
