"""Message by which a link tells its destination how many partitions topics have at its source.

:data:`PARTITIONS_ROUTE` gets ``{"topics": {name: number}}`` and answers ``{"topics": {name: number there}, "refused":
{name: {"code", "message"}}}``. With ``"idle": true`` no message is about to follow. Then the destination does not make
a topic again that it deleted on purpose, and answers 0 for it, with the id of its deletion in ``"deleted": {name:
id}``.

A message has two more objects of the form ``{name: {cluster: id}}``, without names that they say nothing about.
``deleted`` has the newest deletion of the topic by each cluster that the source knows. ``known`` has those that it knew
when its own topic was made, so that topic is a later one. Earlier versions send neither, nor ``idle``, and ignore them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from replicator.engine.lineage import checked_life

PARTITIONS_ROUTE: Final = "/replication/v1/partitions"
TOPICS_MAX: Final = 1_000
"""Most topics in one message."""
CLUSTERS_MAX: Final = 100
"""Most clusters whose deletions of one topic are told."""
CLUSTER_CHARS_MAX: Final = 100
"""Longest name of a cluster in a message."""

Deletions = Mapping[str, int]
"""Ids of the newest deletion of one partitioned topic, by the cluster that deleted it."""


@dataclass(frozen=True, slots=True)
class PartitionsReport:
    """Message of a link: numbers of partitions by topic. See this module for ``idle``, ``known`` and ``deleted``."""

    topics: Mapping[str, int]
    idle: bool = False
    known: Mapping[str, Deletions] = field(default_factory=dict)
    deleted: Mapping[str, Deletions] = field(default_factory=dict)

    @classmethod
    def of_json(cls, body: Mapping[str, Any]) -> Self:
        """Return the message in a JSON body. Raises ValueError, KeyError, TypeError or AttributeError if the body is
        malformed or too large."""
        topics = body["topics"]
        if not isinstance(topics, dict) or not all(type(number) is int for number in topics.values()):
            raise TypeError(
                "`topics` of a link's message must be an object of numbers of partitions by topic, not "
                f"{topics!r:.80}; run the same version at both ends"
            )
        if len(topics) > TOPICS_MAX:
            raise ValueError(
                f"a link's message has {len(topics)} topics, the limit is {TOPICS_MAX}; run the same version at both "
                "ends"
            )
        known, deleted = (_deletions(body.get(key, {})) for key in ("known", "deleted"))
        return cls(topics, body.get("idle") is True, known, deleted)

    def as_json(self) -> dict[str, Any]:
        known, deleted = (
            {name: dict(each) for name, each in rows.items() if each} for rows in (self.known, self.deleted)
        )
        about = {"idle": self.idle, "known": known, "deleted": deleted}
        return {"topics": dict(self.topics), **{key: value for key, value in about.items() if value}}

    def deletion_after(self, name: str, cluster: str, own: int) -> int:
        """Return the id of the newest deletion of topic ``name`` by ``cluster``, if the source's topic is older.

        ``own`` is the newest deletion that ``cluster`` itself remembers, or 0; this message may tell of a newer one.
        Return 0 if there is none, if the source's topic was made later, or if the message is not ``idle``.
        """
        newest = max(own, self.deleted.get(name, {}).get(cluster, 0))
        return newest if self.idle and newest > self.known.get(name, {}).get(cluster, 0) else 0


def _deletions(rows: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for name, ids in rows.items():
        if not all(type(each) is int and 0 <= each < 1 << 63 for each in ids.values()):
            raise ValueError(
                f"deletions of topic {name[:100]} in a link's message must be ids by cluster, not {ids!r:.80}; run the "
                "same version at both ends"
            )
        if len(ids) > CLUSTERS_MAX or any(len(cluster) > CLUSTER_CHARS_MAX for cluster in ids):
            raise ValueError(
                f"deletions of topic {name[:100]} in a link's message name too many clusters, or one with too long a "
                "name; run the same version at both ends"
            )
        found[name] = dict(ids)
    return found


@dataclass(frozen=True, slots=True)
class PartitionsReply:
    """Reply to a link's message: the numbers of partitions that the destination has, by topic.

    ``refused`` has code and message by topic. ``deleted`` has the id of the destination's own deletion of each topic
    that it did not make again.
    """

    partitions: Mapping[str, int]
    refused: Mapping[str, tuple[str, str]]
    deleted: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of_json(cls, body: Mapping[str, Any]) -> Self:
        """Return the reply in a JSON body. Raises KeyError, TypeError, ValueError or AttributeError if it is
        malformed."""
        refused = {topic: (str(row["code"]), str(row["message"])) for topic, row in body["refused"].items()}
        deleted = {str(topic): checked_life(each) for topic, each in body.get("deleted", {}).items()}
        return cls(body["topics"], refused, deleted)

    def as_json(self) -> dict[str, Any]:
        refused = {topic: {"code": code, "message": message} for topic, (code, message) in self.refused.items()}
        deleted = {"deleted": dict(self.deleted)} if self.deleted else {}
        return {"topics": dict(self.partitions), "refused": refused, **deleted}
