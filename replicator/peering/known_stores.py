"""Message by which a starting worker learns what other clusters know of its own cluster, and of its store.

``GET /replication/v1/store-of?cluster=NAME`` answers with a :class:`StoreOf`. With ``messages=true`` the answer counts
the topics, which a worker asks for once, at its start. A worker answers before it serves clients, as soon as its own
store is open; until then the status is 503. A worker of an earlier version has no such route.

``POST /replication/v1/store-of?cluster=NAME`` with a store and its predecessors announces that store, if it is later
than the one in the answer. Its own link may be refused while a worker runs on the store before it. The announcement is
a hint: the worker at the configured address of that cluster is asked for its own store.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Self

from replicator.engine.lineage import PREDECESSORS_MAX, NewestStore, StoreLine, check_store_ids

STORE_OF_ROUTE: Final = "/replication/v1/store-of"


@dataclass(frozen=True, slots=True)
class StoreOf:
    """Answer of the worker of ``cluster``: what it knows of the asking cluster and its store."""

    cluster: str
    record: Mapping[str, Any]
    """Newest failover epoch that the answering worker knows, in JSON."""
    newest: NewestStore | None
    """Newest store of the asking cluster that the answering worker heard of; None if it heard of none."""
    topics: int = 0
    """Number of topics with entries of the asking cluster, such as markers."""
    messages: int = 0
    """Number of topics with messages of the asking cluster. Topics that it deleted on purpose do not count."""
    own: StoreLine | None = None
    """Store on which the answering worker runs; None if it has none yet, or if its version is earlier."""

    @classmethod
    def of_json(cls, body: Mapping[str, Any]) -> Self:
        """Return the answer in a JSON body. Raises KeyError, TypeError, ValueError or AttributeError if the body is
        malformed."""
        newest = None
        if body["store"] is not None:
            earlier = tuple(body["earlier"][:PREDECESSORS_MAX])
            check_store_ids(earlier)
            since_ms = None if body["since_ms"] is None else int(body["since_ms"])
            if since_ms is not None:
                datetime.fromtimestamp(since_ms / 1000, UTC)  # texts show it
            newest = NewestStore(StoreLine.of_json(body), since_ms, earlier)
        own = None if body.get("own") is None else StoreLine.of_json(body["own"])
        numbers = int(body["topics"]), int(body["messages"])
        return cls(str(body["cluster"]), dict(body["record"]), newest, *numbers, own)

    def as_json(self) -> dict[str, Any]:
        newest = self.newest
        about = (
            {"store": None, "predecessors": [], "earlier": [], "since_ms": None}
            if newest is None
            else {**newest.line.as_json(), "earlier": list(newest.earlier), "since_ms": newest.since_ms}
        )
        told = {"cluster": self.cluster, "record": dict(self.record), "topics": self.topics, "messages": self.messages}
        return {**told, **about, "own": None if self.own is None else self.own.as_json()}
