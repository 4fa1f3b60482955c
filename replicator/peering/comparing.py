"""The conversation of ``replicator verify`` with a worker about many topics at once: messages and routes.

* :data:`STATES_ROUTE`: subscriptions and snapshot mappings. ``{"topics": [name], "mappings": true}`` is answered by
  ``{"cluster", "topics": {name: {"subscriptions", "mappings"}}, "no_mappings", "left": [name]}``. With
  ``"mappings": false`` Postgres is not asked, and there are none.
* :data:`DIGESTS_ROUTE`: digests (:mod:`replicator.engine.topic_digest`). ``{"form", "topics": [[name, [position]]]}``
  is answered by ``{"cluster", "form", "topics": {name: digest}, "left": [name]}``.

A worker answers for as many topics as it can in the time that one request may take. The others are ``left``: whoever
asks asks for them again. A topic that is not there, or that the role may not read, is in neither.
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
    """The exact state of one subscription.

    Ranges are inclusive, disjoint, and each in one ledger; ``batch_acks`` are of entries that are not wholly acked.
    """

    name: str
    replicated: bool
    generation: int
    mark_delete: Position
    individually_deleted: tuple[tuple[Position, Position], ...]
    batch_acks: dict[Position, tuple[int, ...]]
    starts: Starts = field(default_factory=dict)
    """Where it begins; nobody acknowledged what lies before. Earlier versions do not say."""

    @classmethod
    def of_json(cls, state: Mapping[str, Any]) -> Self:
        """Read the form of ``GET /replication/v1/subscriptions``. Raises what wrong values raise."""
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
    """Read a snapshot mapping. Raises what wrong values raise."""
    return SnapshotMapping(
        snapshot_id=str(row["snapshot_id"]),
        local=Position.parse(row["local"]),
        peer=str(row["peer"]),
        remote=Position.parse(row["remote"]),
    )


def mapping_as_json(mapping: SnapshotMapping) -> dict[str, str]:
    """Return the form in which a worker tells a snapshot mapping."""
    return {
        "snapshot_id": mapping.snapshot_id,
        "local": str(mapping.local),
        "peer": mapping.peer,
        "remote": str(mapping.remote),
    }


@dataclass(frozen=True, slots=True)
class StatesAsked:
    """The topics whose subscriptions are wanted, and whether their snapshot mappings are wanted too."""

    topics: Sequence[str]
    mappings: bool = True

    @classmethod
    def of_json(cls, body: Mapping[str, Any]) -> Self:
        """Raises ValueError, KeyError, TypeError or AttributeError."""
        return cls([str(name) for name in body["topics"]], bool(body.get("mappings", True)))

    def as_json(self) -> dict[str, Any]:
        return {"topics": list(self.topics), "mappings": self.mappings}


@dataclass(frozen=True, slots=True)
class StatesAnswer:
    """Subscriptions and mappings of topics; ``no_mappings`` says why there are no mappings, if there are none."""

    cluster: str
    subscriptions: Mapping[str, Sequence[SubscriptionState]]
    mappings: Mapping[str, Sequence[SnapshotMapping]]
    no_mappings: str | None
    left: Sequence[str]

    @classmethod
    def of_json(cls, answer: Mapping[str, Any]) -> Self:
        """Raises what wrong values raise."""
        rows = {str(name): row for name, row in answer["topics"].items()}
        return cls(
            str(answer["cluster"]),
            {name: list(map(SubscriptionState.of_json, row["subscriptions"])) for name, row in rows.items()},
            {name: list(map(mapping_of_json, row["mappings"])) for name, row in rows.items()},
            None if answer["no_mappings"] is None else str(answer["no_mappings"]),
            [str(name) for name in answer["left"]],
        )


@dataclass(frozen=True, slots=True)
class DigestsAsked:
    """The topics whose digests are wanted, each with the local positions at which it is to say what lies before."""

    form: int
    topics: Mapping[str, Sequence[Position]]

    @classmethod
    def of_json(cls, body: Mapping[str, Any]) -> Self:
        """Raises ValueError, KeyError, TypeError, AttributeError or InvalidPosition."""
        topics = {str(name): [Position.parse(each) for each in positions] for name, positions in body["topics"]}
        return cls(int(body["form"]), topics)

    def as_json(self) -> dict[str, Any]:
        return {"form": self.form, "topics": [[name, list(map(str, asked))] for name, asked in self.topics.items()]}


@dataclass(frozen=True, slots=True)
class DigestsAnswer:
    """The digests of topics; None for a topic that has none, because it is large, damaged or out of order."""

    cluster: str
    form: int
    topics: Mapping[str, TopicDigest | None]
    left: Sequence[str] = field(default=())

    @classmethod
    def of_json(cls, answer: Mapping[str, Any]) -> Self:
        """Raises what wrong values raise."""
        topics = {str(name): None if row is None else digest_of_json(row) for name, row in answer["topics"].items()}
        return cls(str(answer["cluster"]), int(answer["form"]), topics, [str(name) for name in answer["left"]])


def digest_as_json(digest: TopicDigest) -> dict[str, Any]:
    """Return the form in which a worker tells a digest."""
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
    """Read a digest. Raises what wrong values raise."""
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
        raise ValueError("a digest says of more or fewer origins than it has what was acknowledged or reached")
    return digest


def _range(first: str, last: str) -> tuple[Position, Position]:
    start, end = Position.parse(first), Position.parse(last)
    if start.ledger != end.ledger or start > end:
        raise ValueError(f"{first} to {last} is not a range of entries of one ledger")
    return start, end
