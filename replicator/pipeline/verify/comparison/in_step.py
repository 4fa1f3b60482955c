"""The decision which topics are in step, by their digests alone: their logs are not read. Pure.

Digests are made by workers (:mod:`replicator.engine.topic_digest`). A topic is in step if

1. every cluster that has it has a digest of it, so that its log is sound and in order;
2. of each origin all clusters have the same entries, or do not have and need not have any;
3. each replicated subscription has acknowledged the same at both ends of each link, of the origins that both have;
4. each snapshot mapping promises what lies before it, and no more.

Then comparing it block by block would find nothing. The converse does not hold: clusters may have cut blocks elsewhere,
and a copy that is trimmed further, behind, or filtered lacks what it need not have. Such topics are compared block by
block. No moment has to be common to the digests: what one cluster had acknowledged when it made its digest, the other
had when it made its own, and acknowledgements only grow.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from replicator.engine.topic_digest import OriginKey, TopicDigest
from replicator.pipeline.verify.comparison.rows import COMPARED, PROBE, READ, Found
from replicator.pipeline.verify.comparison.scope import home_of
from replicator.pipeline.verify.reachability import Reachability
from replicator.pipeline.verify.report import marker_name
from snapshots.mapping import SnapshotMapping
from snapshots.position import BEFORE_ALL, Position


@dataclass(frozen=True, slots=True)
class TopicAnswers:
    """The answers of those clusters that have a topic, by their names."""

    digests: Mapping[str, TopicDigest | None]
    mappings: Mapping[str, Sequence[SnapshotMapping]] = field(default_factory=dict)
    subscriptions: Mapping[str, Collection[str]] = field(default_factory=dict)
    """The names of all subscriptions, replicated or not."""


def positions_asked(mappings: Mapping[str, Sequence[SnapshotMapping]], cluster: str) -> list[Position]:
    """Return the positions in the log of ``cluster`` that mappings, by home, speak of."""
    here = {mapping.local for mapping in mappings.get(cluster, ())}
    here |= {mapping.remote for each in mappings.values() for mapping in each if mapping.peer == cluster}
    return sorted(here)


def is_in_step(answers: TopicAnswers, ways: Reachability) -> bool:
    """Whether block by block nothing would be found wrong in a topic. See above."""
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


def found_in_step(topic: str, answers: TopicAnswers) -> Iterator[Found]:
    """Return what to report of a topic that is in step: how much was compared, and some places to look up."""
    messages: dict[OriginKey, int] = {}
    for cluster, digest in answers.digests.items():
        if digest is None:
            continue
        here = {each.key: each.messages for each in digest.origins}
        messages |= here
        yield Found(READ, topic, sum(here.values()), cluster=cluster)
        for kind, count in digest.markers.items():
            yield Found(READ, topic, count, cluster=cluster, other=marker_name(kind))
        for each in digest.origins:
            if each.origin != cluster:
                for there, place in each.places[:1]:
                    yield _probe(topic, cluster, each.key, there, place)
    yield Found(COMPARED, topic, sum(messages.values()))


def _probe(topic: str, cluster: str, key: OriginKey, there: Position, here: Position) -> Found:
    return Found(
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
                return False  # it is not replicated there: what it has acknowledged has no digest
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
                continue  # of a cluster that is not compared, or that does not have the topic
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
