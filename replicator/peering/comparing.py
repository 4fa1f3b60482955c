"""Messages and routes by which ``replicator verify`` asks a worker about many topics at once.

A worker that takes over states of subscriptions uses the first route, too.

* :data:`STATES_ROUTE`: subscriptions and snapshot mappings. The body ``{"topics": [name], "mappings": true}`` gets
  ``{"cluster", "topics": {name: {"subscriptions", "mappings", "deleted"}}, "no_mappings", "left": [name]}``.
  ``deleted`` has the generations of replicated subscriptions that were deleted there; a worker of an earlier version
  leaves it out. With ``"mappings": false`` the worker does not ask Postgres, and lists of mappings are empty.
* :data:`DIGESTS_ROUTE`: digests (:mod:`replicator.engine.topic_digest`). The body ``{"form", "topics": [[name,
  [position]]]}`` gets ``{"cluster", "form", "topics": {name: digest}, "left": [name]}``. A digest is null for a topic
  whose log is too large, damaged or out of order.

A worker answers for as many topics as the time of one request allows. ``left`` names the others, for the next request.
A topic that does not exist, or that the role may not read, is in neither.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

from replicator.engine.topic_digest import OriginDigest, TopicDigest
from snapshots.mapping import SnapshotMapping
from snapshots.position import Position
from snapshots.starts import Starts, from_data

STATES_ROUTE: Final = "/replication/v1/topic-states"
DIGESTS_ROUTE: Final = "/replication/v1/topic-digests"
TOPICS_MAX: Final = 500
"""Topics in one request: its answer has some hundred kilobytes, and is encoded in some milliseconds."""
POSITIONS_MAX: Final = 10_000
"""Positions in one request for digests, over all topics: its body stays below aiohttp's limit of 1 MiB."""


@dataclass(frozen=True, slots=True)
class SubscriptionState:
    """State of one subscription, message by message, in positions of its own cluster.

    ``individually_deleted`` has ranges of acknowledged entries: both ends included, disjoint, each within one ledger.
    ``batch_acks`` has the acknowledged indexes of entries that are acknowledged in part.
    """

    name: str
    replicated: bool
    generation: int
    mark_delete: Position
    individually_deleted: tuple[tuple[Position, Position], ...]
    batch_acks: dict[Position, tuple[int, ...]]
    starts: Starts = field(default_factory=dict)
    """By origin, the last position before the subscription's start. Empty from a worker of an earlier version."""

    @classmethod
    def of_json(cls, state: Mapping[str, Any]) -> Self:
        """Return the subscription in one row of ``GET /replication/v1/subscriptions``.

        Raises ValueError, KeyError, TypeError, AttributeError or InvalidPosition if the row is malformed.
        """
        return cls(
            name=str(state["name"]),
            replicated=bool(state["replicated"]),
            generation=int(state["generation"]),
            mark_delete=Position.parse(state["mark_delete"]),
            individually_deleted=tuple(_range(*pair) for pair in state["individually_deleted"]),
            batch_acks={
                Position.parse(position): tuple(int(index) for index in indexes)
                for position, indexes in state["batch_acks"].items()
            },
            starts=from_data(state.get("starts", {})),
        )


def mapping_of_json(row: Mapping[str, Any]) -> SnapshotMapping:
    """Return the snapshot mapping in a JSON object.

    Raises ValueError, KeyError, TypeError or InvalidPosition if the object is malformed.
    """
    return SnapshotMapping(
        snapshot_id=str(row["snapshot_id"]),
        local=Position.parse(row["local"]),
        peer=str(row["peer"]),
        remote=Position.parse(row["remote"]),
    )


def mapping_as_json(mapping: SnapshotMapping) -> dict[str, str]:
    """Return a snapshot mapping as a JSON object."""
    return {
        "snapshot_id": mapping.snapshot_id,
        "local": str(mapping.local),
        "peer": mapping.peer,
        "remote": str(mapping.remote),
    }


@dataclass(frozen=True, slots=True)
class StatesAsked:
    """Request for the subscriptions of ``topics``, and for their snapshot mappings if ``mappings`` is true."""

    topics: Sequence[str]
    mappings: bool = True

    @classmethod
    def of_json(cls, body: Mapping[str, Any]) -> Self:
        """Return the request in a JSON body. Raises ValueError, KeyError, TypeError or AttributeError if the body is
        malformed."""
        return cls([str(name) for name in body["topics"]], bool(body.get("mappings", True)))

    def as_json(self) -> dict[str, Any]:
        return {"topics": list(self.topics), "mappings": self.mappings}


@dataclass(frozen=True, slots=True)
class StatesAnswer:
    """Answer with subscriptions and snapshot mappings by topic.

    ``no_mappings`` says why mappings could not be read, or is None. ``left`` names the topics to ask for again.
    """

    cluster: str
    subscriptions: Mapping[str, Sequence[SubscriptionState]]
    mappings: Mapping[str, Sequence[SnapshotMapping]]
    no_mappings: str | None
    left: Sequence[str]
    deleted: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By topic, the replicated subscriptions that were deleted, each with the generation of its deletion."""

    @classmethod
    def of_json(cls, answer: Mapping[str, Any]) -> Self:
        """Return the answer about subscriptions and snapshot mappings in a JSON body.

        Raises ValueError, KeyError, TypeError, AttributeError or InvalidPosition if the body is malformed.
        """
        rows = {str(name): row for name, row in answer["topics"].items()}
        return cls(
            str(answer["cluster"]),
            {name: list(map(SubscriptionState.of_json, row["subscriptions"])) for name, row in rows.items()},
            {name: list(map(mapping_of_json, row["mappings"])) for name, row in rows.items()},
            None if answer["no_mappings"] is None else str(answer["no_mappings"]),
            [str(name) for name in answer["left"]],
            {
                topic: {str(name): int(generation) for name, generation in row.get("deleted", {}).items()}
                for topic, row in rows.items()
            },
        )


@dataclass(frozen=True, slots=True)
class DigestsAsked:
    """Request for digests: each topic, with the positions in the worker's log up to which a digest sums up origins.

    ``form`` is the version of digests that the client can compare.
    """

    form: int
    topics: Mapping[str, Sequence[Position]]

    @classmethod
    def of_json(cls, body: Mapping[str, Any]) -> Self:
        """Return the request for digests in a JSON body.

        Raises ValueError, KeyError, TypeError, AttributeError or InvalidPosition if the body is malformed.
        """
        topics = {str(name): [Position.parse(each) for each in positions] for name, positions in body["topics"]}
        return cls(int(body["form"]), topics)

    def as_json(self) -> dict[str, Any]:
        return {"form": self.form, "topics": [[name, list(map(str, asked))] for name, asked in self.topics.items()]}


@dataclass(frozen=True, slots=True)
class DigestsAnswer:
    """Answer with digests by topic; None for a topic whose log is too large, damaged or out of order.

    ``left`` names the topics to ask for again.
    """

    cluster: str
    form: int
    topics: Mapping[str, TopicDigest | None]
    left: Sequence[str] = field(default=())

    @classmethod
    def of_json(cls, answer: Mapping[str, Any]) -> Self:
        """Return the answer about digests in a JSON body.

        Raises ValueError, KeyError, TypeError, AttributeError or InvalidPosition if the body is malformed.
        """
        topics = {str(name): None if row is None else digest_of_json(row) for name, row in answer["topics"].items()}
        return cls(str(answer["cluster"]), int(answer["form"]), topics, [str(name) for name in answer["left"]])


def digest_as_json(digest: TopicDigest) -> dict[str, Any]:
    """Return a digest of a topic as a JSON object."""
    return {
        "origins": [
            [each.origin, each.incarnation, each.digest, each.messages, [list(map(str, at)) for at in each.places]]
            for each in digest.origins
        ],
        "subscriptions": {name: list(of_origins) for name, of_origins in digest.subscriptions.items()},
        "reached": {
            str(at): [None if each is None else str(each) for each in reached] for at, reached in digest.reached.items()
        },
        "markers": {str(kind): count for kind, count in digest.markers.items()},
    }


def digest_of_json(row: Mapping[str, Any]) -> TopicDigest:
    """Return the digest of a topic in a JSON object.

    Raises ValueError, KeyError, TypeError, AttributeError or InvalidPosition if the object is malformed.
    """
    digest = TopicDigest(
        tuple(
            OriginDigest(
                str(origin),
                int(incarnation),
                str(digest),
                int(messages),
                tuple((Position.parse(there), Position.parse(here)) for there, here in places),
            )
            for origin, incarnation, digest, messages, places in row["origins"]
        ),
        {str(name): tuple(map(str, of_origins)) for name, of_origins in row["subscriptions"].items()},
        {
            Position.parse(at): tuple(None if each is None else Position.parse(each) for each in reached)
            for at, reached in row["reached"].items()
        },
        {int(kind): int(count) for kind, count in row["markers"].items()},
    )
    of_origins = [*digest.subscriptions.values(), *digest.reached.values()]
    if any(len(each) != len(digest.origins) for each in of_origins):
        raise ValueError(
            f"a topic's digest from another cluster is malformed: it has {len(digest.origins)} origins, and positions "
            "of subscriptions for another number of them; run the same version in all clusters"
        )
    return digest


def _range(first: str, last: str) -> tuple[Position, Position]:
    start, end = Position.parse(first), Position.parse(last)
    if start.ledger != end.ledger or start > end:
        raise ValueError(
            f"{first} to {last} in another cluster's request for digests is not a range of entries of one ledger; run "
            "the same version in all clusters"
        )
    return start, end
