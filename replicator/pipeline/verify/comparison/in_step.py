"""Decision which topics agree in all clusters, by digests alone, without reading logs. Pure.

Workers make the digests (:mod:`replicator.engine.topic_digest`). A topic is in step if:

1. Every cluster with the topic has a digest of it. Then its log is undamaged and in order.
2. For each origin, all clusters with entries of it have the same entries, and each cluster that should have entries of
   it has some.
3. For each link and each replicated subscription, both clusters have acknowledged the same messages of the origins that
   both have.
4. Each snapshot mapping is true: the entries that it promises before its position lie there.

A comparison block by block would then find nothing. A topic that is not in step may still be correct: a copy may have
other blocks, or lack what was trimmed, filtered or not copied yet. Verify compares such topics block by block.

The clusters need not make their digests at the same moment. Logs keep their entries and acknowledgements only grow, so
a cluster still has what it had when it made its digest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from replicator.engine.topic_digest import OriginKey, TopicDigest
from replicator.pipeline.verify.comparison.rows import COMPARED, PROBE, READ, FindingRow
from replicator.pipeline.verify.comparison.scope import home_of
from replicator.pipeline.verify.reachability import Reachability
from replicator.pipeline.verify.report import marker_name
from snapshots.mapping import SnapshotMapping
from snapshots.position import BEFORE_ALL, Position


@dataclass(frozen=True, slots=True)
class TopicAnswers:
    """Answers about one topic, by cluster. A cluster without the topic is left out."""

    digests: Mapping[str, TopicDigest | None]
    mappings: Mapping[str, Sequence[SnapshotMapping]] = field(default_factory=dict)
    subscriptions: Mapping[str, Collection[str]] = field(default_factory=dict)
    """The names of all subscriptions of the topic, replicated or not."""


def positions_asked(mappings: Mapping[str, Sequence[SnapshotMapping]], cluster: str) -> list[Position]:
    """Return the positions in the log of ``cluster`` that snapshot mappings name, in order.

    ``mappings`` has, by cluster, the mappings that this cluster stores.
    """
    here = {mapping.local for mapping in mappings.get(cluster, ())}
    here |= {mapping.remote for each in mappings.values() for mapping in each if mapping.peer == cluster}
    return sorted(here)


def is_in_step(answers: TopicAnswers, ways: Reachability) -> bool:
    """Return whether digests prove that a comparison block by block would find no fault in a topic.

    If they do not, the topic must be compared block by block; it need not have a fault. ``ways`` says between which
    clusters links copy the topic.
    """
    digests: dict[str, TopicDigest] = {}
    for name, digest in answers.digests.items():
        if digest is None:
            return False
        digests[name] = digest
    return (
        _same_entries(digests, ways)
        and _same_acknowledgements(digests, answers.subscriptions, ways)
        and _mappings_hold(digests, answers.mappings)
    )


def found_in_step(topic: str, answers: TopicAnswers) -> Iterator[FindingRow]:
    """Yield the findings on a topic that is in step: how much was compared, and some messages for a probe of the
    mapping."""
    messages: dict[OriginKey, int] = {}
    for cluster, digest in answers.digests.items():
        if digest is None:
            continue
        here = {each.key: each.messages for each in digest.origins}
        messages |= here
        yield FindingRow(READ, topic, sum(here.values()), cluster=cluster)
        for kind, count in digest.markers.items():
            yield FindingRow(READ, topic, count, cluster=cluster, other=marker_name(kind))
        for each in digest.origins:
            if each.origin != cluster:
                for there, place in each.places[:1]:
                    yield _probe(topic, cluster, each.key, there, place)
    yield FindingRow(COMPARED, topic, sum(messages.values()))


def _probe(topic: str, cluster: str, key: OriginKey, there: Position, here: Position) -> FindingRow:
    return FindingRow(
        PROBE,
        topic,
        0,
        cluster=cluster,
        origin=key[0],
        incarnation=key[1],
        origin_ledger=there.ledger,
        origin_first=there.entry,
        ledger=here.ledger,
        entry=here.entry,
    )


def _same_entries(digests: Mapping[str, TopicDigest], ways: Reachability) -> bool:
    having: dict[OriginKey, dict[str, str]] = {}
    for cluster, digest in digests.items():
        for each in digest.origins:
            having.setdefault(each.key, {})[cluster] = each.digest
    if any(len(set(of_clusters.values())) > 1 for of_clusters in having.values()):
        return False
    if any(
        home_of(key[0]) == origin and source in of_clusters and destination not in of_clusters
        for key, of_clusters in having.items()
        for origin, source, destination in ways.forwarded
    ):
        return False
    return not any(
        home_of(key[0]) == origin and (origin in of_clusters) != (cluster in of_clusters)
        for key, of_clusters in having.items()
        for origin, cluster in ways.messages
    )


def _same_acknowledgements(
    digests: Mapping[str, TopicDigest], subscriptions: Mapping[str, Collection[str]], ways: Reachability
) -> bool:
    names = {name for digest in digests.values() for name in digest.subscriptions}
    for name in names:
        for cluster, digest in digests.items():
            if name not in digest.subscriptions and name in subscriptions.get(cluster, ()):
                return False  # a subscription that is not replicated has no digest
        for source, destination in ways.acks:
            if source in digests and destination in digests:
                here, there = (_acknowledged(digests[each], name) for each in (source, destination))
                if any(mine and there[key] != mine for key, mine in here.items() if key in there):
                    return False
    return True


def _acknowledged(digest: TopicDigest, name: str) -> dict[OriginKey, str]:
    of_origins = digest.subscriptions.get(name, ("",) * len(digest.origins))
    return {each.key: acknowledged for each, acknowledged in zip(digest.origins, of_origins, strict=True)}


def _mappings_hold(digests: Mapping[str, TopicDigest], mappings: Mapping[str, Sequence[SnapshotMapping]]) -> bool:
    for home, of_home in mappings.items():
        for mapping in of_home:
            if mapping.peer not in digests:
                continue  # the peer is not compared, or does not have the topic
            if home not in digests:
                return False
            promised, there = _reached(digests[mapping.peer], mapping.remote), _reached(digests[home], mapping.local)
            if promised is None or there is None:
                return False
            if any(last > there.get(key, BEFORE_ALL) for key, last in promised.items()):
                return False
    return True


def _reached(digest: TopicDigest, position: Position) -> dict[OriginKey, Position] | None:
    reached = digest.reached.get(position)
    if reached is None:
        return None
    return {each.key: last for each, last in zip(digest.origins, reached, strict=True) if last is not None}
