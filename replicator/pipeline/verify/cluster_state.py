"""State of topics, subscriptions and mappings that verify reads from all workers at once, in an order that makes a cut.

A cut is a set of readings that fit together although clusters publish, copy and consume meanwhile. Messages on their
way then do not look lost.

1. First verify reads subscriptions, mappings and high-water marks of every cluster. From then on, the logs and the
   other clusters' states must contain what these readings claim. Copies are compared up to where a log then ends.
2. When all clusters have answered, verify reads where their logs end, and what is trimmed. Everything that the marks
   claim lies before these ends. Each origin's log has all that was copied before.
3. Subscriptions that changed meanwhile are read again after a pause. Acknowledgements of the first reading must have
   arrived in the other clusters by then.

A worker that does not answer is left out of all steps, and named. A topic that a cluster deletes meanwhile is left out
in all clusters, and named too.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from replicator.engine.errors import TopicNotFound
from replicator.engine.topic_digest import TopicDigest
from replicator.engine.topic_name import parse_topic
from replicator.peering.comparing import POSITIONS_MAX, TOPICS_MAX, SubscriptionState
from replicator.pipeline.data_plane import TopicState
from replicator.pipeline.errors import BadOption, PeerUnavailable, UnexpectedAnswer
from replicator.pipeline.verify.comparison.acked import Acked
from replicator.pipeline.verify.comparison.in_step import positions_asked
from replicator.pipeline.verify.comparison.promises import by_pair
from replicator.pipeline.verify.comparison.scope import ReplicaState, Scope, TopicScope
from replicator.pipeline.verify.plane import LinkState, VerifyPlane
from replicator.pipeline.verify.reachability import TopicRoutes
from replicator.topology import Link
from snapshots.mapping import SnapshotMapping
from snapshots.position import Position

TOLD_SECONDS: Final = 1.0
"""Pause before subscriptions are read again: acknowledgements are announced within 0.1 s and copied within 0.1 s."""

Wanted = Callable[[str], bool]
Progress = Callable[[str, int, int], None]
"""Function that reports progress: a step's name, how much is done, how much there is. Any thread may call it."""


def no_progress(step: str, done: int, total: int) -> None:
    """Ignore a report of progress."""


@dataclass(slots=True)
class ClusterState:
    """All that verify has read from one cluster's worker, by topic."""

    name: str
    url: str
    topics: dict[str, TopicState] = field(default_factory=dict)
    standings: dict[str, ReplicaState] = field(default_factory=dict)
    links: list[LinkState] = field(default_factory=list)
    told: dict[str, list[SubscriptionState]] = field(default_factory=dict)
    subscriptions: dict[str, list[SubscriptionState]] = field(default_factory=dict)
    deleted: dict[str, Mapping[str, int]] = field(default_factory=dict)
    """Replicated subscriptions that were deleted, by topic, each with the generation of its deletion."""
    mappings: dict[str, list[SnapshotMapping]] = field(default_factory=dict)
    no_mappings: str | None = None
    """Reason why snapshot mappings could not be read; None if they were."""
    gone: set[str] = field(default_factory=set)
    """Topics that this cluster deleted while its state was read."""

    def leave_out(self, topics: Collection[str]) -> None:
        """Drop the state of ``topics``."""
        for read in (self.topics, self.standings, self.told, self.subscriptions, self.deleted, self.mappings):
            for topic in topics:
                read.pop(topic, None)


@dataclass(frozen=True, slots=True)
class ClusterStates:
    """States of all clusters that answered, and the reasons why others did not."""

    clusters: tuple[ClusterState, ...]
    unreachable: Mapping[str, str]
    gone: frozenset[str] = frozenset()
    """Topics that a cluster deleted while states were read. No other field of the picture has them."""

    @property
    def topics(self) -> list[str]:
        return sorted({name for cluster in self.clusters for name in cluster.topics})


def read_picture(
    urls: Mapping[str, str],
    wanted: Wanted,
    *,
    sleep: Callable[[float], None] = time.sleep,
    progress: Progress = no_progress,
) -> ClusterStates:
    """Ask every cluster; see above. Raises :class:`PeerUnavailable` only if none answers, :class:`UnexpectedAnswer`."""
    unreachable: dict[str, str] = {}
    states = {name: ClusterState(name, url) for name, url in urls.items()}
    with ThreadPoolExecutor(max_workers=max(len(urls), 1)) as pool:

        def everywhere(step: Callable[[ClusterState], None]) -> None:
            running = {name: pool.submit(step, state) for name, state in states.items()}
            for name, each in running.items():
                try:
                    each.result()
                except PeerUnavailable as error:
                    unreachable[name] = str(error)
                    del states[name]

        everywhere(lambda state: _read_first(state, wanted, progress))
        marks = {name: state.standings for name, state in states.items()}
        everywhere(lambda state: _read_ends(state, wanted, marks[state.name]))
        moving = _moving(states.values())
        if moving:
            sleep(TOLD_SECONDS)
            everywhere(lambda state: _read_subscriptions(state, moving))
    if not states and unreachable:
        raise PeerUnavailable("; ".join(unreachable.values()))
    gone = frozenset[str]().union(*(state.gone for state in states.values()))
    for state in states.values():
        state.leave_out(gone)
    return ClusterStates(tuple(states.values()), unreachable, gone)


def deleted_since(picture: ClusterStates, topics: Collection[str]) -> set[str]:
    """Return those of ``topics`` that a cluster has deleted, or deleted and made again, since ``picture`` was read.

    Clusters that do not answer count as unchanged. Raises :class:`UnexpectedAnswer` if an answer is wrong.
    """
    found: set[str] = set()
    for state in picture.clusters if topics else ():
        try:
            with VerifyPlane(state.url) as worker:
                now = {topic.name: topic.incarnation for topic in worker.topics()[1]}
        except PeerUnavailable:
            continue
        there = (topic for topic in topics if topic in state.topics)
        found.update(topic for topic in there if now.get(topic) != state.topics[topic].incarnation)
    return found


def read_again(picture: ClusterStates, topics: Collection[str]) -> ClusterStates:
    """Return the present state of ``topics``. It keeps the acknowledgements first read for ``picture``, which must have
    arrived.

    Raises the same errors as :func:`read_picture`.
    """
    now = read_picture({state.name: state.url for state in picture.clusters}, set(topics).__contains__)
    before = {state.name: state for state in picture.clusters}
    for state in now.clusters:
        for topic, told in before[state.name].told.items():
            if topic in state.told:
                state.told[topic] = _merged(told, state.subscriptions[topic])
    return replace(now, unreachable={**picture.unreachable, **now.unreachable})


def _merged(told: Sequence[SubscriptionState], now: Sequence[SubscriptionState]) -> list[SubscriptionState]:
    """Return the states in ``told``, except for subscriptions whose generation has changed since: their states in
    ``now``."""
    first = {state.name: state for state in told}
    return [
        first[state.name] if state.name in first and first[state.name].generation == state.generation else state
        for state in now
    ]


def _read_first(state: ClusterState, wanted: Wanted, progress: Progress) -> None:
    with VerifyPlane(state.url) as worker:
        answering, listing = worker.topics()
        if answering != state.name:
            raise UnexpectedAnswer(
                f"worker at {state.url} is of cluster {answering}, not {state.name}: correct its address in the "
                "topology"
            )
        state.topics = {topic.name: topic for topic in listing if wanted(topic.name)}
        state.links = worker.link_states()
        _read_states(state, worker, list(state.topics), progress)
        state.told = state.subscriptions
        # Last: copies are compared up to here, and what is told and mapped must be among them.
        state.standings = {name: each for name, each in worker.standings().items() if wanted(name)}


def _read_ends(state: ClusterState, wanted: Wanted, marks: Mapping[str, ReplicaState]) -> None:
    with VerifyPlane(state.url) as worker:
        ends = {name: each for name, each in worker.standings().items() if wanted(name)}
        state.standings = {
            name: replace(end, high_water=marks[name].high_water, copied_upto=marks[name].end)
            for name, end in ends.items()
            if name in marks
        }
    state.gone |= state.topics.keys() - ends.keys()
    _read_subscriptions(state, state.topics)


def _read_subscriptions(state: ClusterState, topics: Iterable[str]) -> None:
    names = [name for name in topics if name in state.topics and name not in state.gone]
    with VerifyPlane(state.url) as worker:
        _read_states(state, worker, names, no_progress, mappings=False)


def _read_states(
    state: ClusterState, worker: VerifyPlane, names: Sequence[str], progress: Progress, *, mappings: bool = True
) -> None:
    """Read subscriptions of many topics into ``state``; also snapshot mappings if ``mappings`` is true.

    A worker of an earlier version is asked topic by topic. Raises :class:`PeerUnavailable` if the worker does not
    answer, and :class:`UnexpectedAnswer` if its answer is wrong.
    """
    state.subscriptions = dict(state.subscriptions)
    left = list(names)
    while left:
        part, rest = left[:TOPICS_MAX], left[TOPICS_MAX:]
        answer = worker.states(part, mappings=mappings)
        if answer is None:
            _read_states_singly(state, worker, left, progress, mappings=mappings)
            return
        state.subscriptions |= {name: list(each) for name, each in answer.subscriptions.items()}
        state.deleted |= answer.deleted
        if mappings:
            state.mappings |= {name: list(each) for name, each in answer.mappings.items()}
            state.no_mappings = answer.no_mappings or state.no_mappings
        _check_progress(state, part, answer.subscriptions, answer.left)
        state.gone.update(set(part).difference(answer.subscriptions, answer.left))
        left = [*answer.left, *rest]
        progress(f"states of {state.name}", len(names) - len(left), len(names))


def _check_progress(state: ClusterState, asked: Collection[str], told: Collection[str], left: Collection[str]) -> None:
    """Raise :class:`UnexpectedAnswer` if the answer makes no progress, so that asking for the rest would never end."""
    if not set(asked).issuperset(left) or len(left) >= len(asked) or not set(left).isdisjoint(told):
        raise UnexpectedAnswer(
            f"worker at {state.url} was asked for {len(asked)} topics and leaves {len(left)}, so that asking again "
            "would never end; run the same version in all clusters"
        )


def _read_states_singly(
    state: ClusterState, worker: VerifyPlane, names: Sequence[str], progress: Progress, *, mappings: bool
) -> None:
    """Read subscriptions into ``state``, topic by topic; also snapshot mappings if ``mappings`` is true.

    This is for workers of earlier versions, which cannot answer for many topics at once.
    """
    for number, name in enumerate(names, 1):
        with collecting_gone_topics(state.gone, name):
            state.subscriptions[name] = worker.subscriptions(name)
        progress(f"states of {state.name}", number, len(names))
    if mappings:
        try:
            for name in names:
                with collecting_gone_topics(state.gone, name):
                    state.mappings[name] = worker.mappings(name)
        except PeerUnavailable as error:
            state.mappings, state.no_mappings = {}, str(error)


@contextmanager
def collecting_gone_topics(gone: set[str], topic: str) -> Iterator[None]:
    """Catch the worker's error that it has no topic ``topic``, and add the topic to ``gone``. Other errors are
    raised."""
    try:
        yield
    except UnexpectedAnswer as error:
        if error.code != TopicNotFound.code:
            raise
        gone.add(topic)


def read_digests(picture: ClusterStates, progress: Progress) -> dict[str, dict[str, TopicDigest | None]]:
    """Return the digests of all topics, by cluster and topic; clusters whose workers make no digests are left out.

    Raises :class:`PeerUnavailable` if a worker does not answer, and :class:`UnexpectedAnswer` if its answer is wrong.
    """
    spoken_of: dict[str, dict[str, list[SnapshotMapping]]] = {}
    for state in picture.clusters:
        for topic, of_topic in state.mappings.items():
            spoken_of.setdefault(topic, {})[state.name] = of_topic

    def read(state: ClusterState) -> dict[str, TopicDigest | None] | None:
        asked = {name: positions_asked(spoken_of.get(name, {}), state.name) for name in state.topics}
        with VerifyPlane(state.url) as worker:
            return _read_digests(state, worker, asked, progress)

    with ThreadPoolExecutor(max_workers=max(len(picture.clusters), 1)) as pool:
        found = dict(zip((state.name for state in picture.clusters), pool.map(read, picture.clusters), strict=True))
    return {name: digests for name, digests in found.items() if digests is not None}


def _read_digests(
    state: ClusterState, worker: VerifyPlane, asked: Mapping[str, Sequence[Position]], progress: Progress
) -> dict[str, TopicDigest | None] | None:
    found: dict[str, TopicDigest | None] = {}
    left = deque(name for name, positions in asked.items() if len(positions) <= POSITIONS_MAX)
    while left:
        part: dict[str, Sequence[Position]] = {}
        room = POSITIONS_MAX
        while left and len(part) < TOPICS_MAX and len(asked[left[0]]) <= room:
            name = left.popleft()
            part[name] = asked[name]
            room -= len(asked[name])
        answer = worker.digests(part)
        if answer is None:
            return None
        _check_progress(state, part, answer.topics, answer.left)
        found |= answer.topics
        left.extendleft(reversed(answer.left))
        progress(f"digests of {state.name}", len(asked) - len(left), len(asked))
    return found


def _moving(states: Iterable[ClusterState]) -> set[str]:
    """Return the topics on which something was acknowledged between two readings."""
    return {
        topic for state in states for topic, now in state.subscriptions.items() if now != state.told.get(topic, now)
    }


def links_between(picture: ClusterStates, links: Sequence[Link]) -> list[Link]:
    """Return the links whose source and destination both answered."""
    names = {state.name for state in picture.clusters}
    return [link for link in links if link.source in names and link.destination in names]


def scope_of(picture: ClusterStates, links: Sequence[Link], without: Collection[str] = ()) -> Scope:
    """Return the scope of the comparison: for each topic, its states, and the clusters between which links copy it.

    Clusters that did not answer, and the topics in ``without``, are left out.
    """
    names = tuple(state.name for state in picture.clusters)
    numbers = {name: number for number, name in enumerate(names)}
    between = links_between(picture, links)
    ways = TopicRoutes(between)
    topics = []
    for topic in picture.topics:
        if topic in without:
            continue
        told = [state.told.get(topic, []) for state in picture.clusters]
        now = [state.subscriptions.get(topic, []) for state in picture.clusters]
        replicated = {each.name for states in (*told, *now) for each in states if each.replicated}
        mappings = {number: state.mappings.get(topic, ()) for number, state in enumerate(picture.clusters)}
        topics.append(
            TopicScope(
                topic,
                ways.of(topic, allowed_clusters(picture, topic)),
                # Where the topic is not yet, nothing of it has come.
                {
                    number: state.standings.get(topic, ReplicaState(high_water={}, absent=True))
                    for number, state in enumerate(picture.clusters)
                },
                _by_name(now, replicated),
                by_pair(mappings, numbers),
                _by_name(told, replicated),
                {number: state.deleted.get(topic, {}) for number, state in enumerate(picture.clusters)},
            )
        )
    return Scope(names, tuple(state.url for state in picture.clusters), tuple(topics), _rewritten(between))


def allowed_clusters(picture: ClusterStates, topic: str) -> dict[str, tuple[str, ...] | None]:
    """Return, for each cluster, where it may copy a topic, by its namespace; None for wherever links lead."""
    return {state.name: state.topics[topic].clusters for state in picture.clusters if topic in state.topics}


def _by_name(states: Sequence[Sequence[SubscriptionState]], names: Collection[str]) -> dict[str, dict[int, Acked]]:
    found: dict[str, dict[int, Acked]] = {name: {} for name in sorted(names)}
    for number, of_cluster in enumerate(states):
        for state in of_cluster:
            if state.name in found:
                found[state.name][number] = Acked.of(state)
    return found


def _rewritten(links: Sequence[Link]) -> frozenset[tuple[str, str]]:
    """Return pairs of origin and cluster between which some link changes messages, directly or on the way."""
    changed = {(link.source, link.destination) for link in links if getattr(link, "select", None)}
    if not changed:
        return frozenset()
    names = {name for link in links for name in (link.source, link.destination)}
    reached = {link.destination for link in links if (link.source, link.destination) in changed}
    onward = True
    while onward:
        further = {link.destination for link in links if link.forward and link.source in reached} - reached
        reached |= further
        onward = bool(further)
    return frozenset((origin, cluster) for origin in names for cluster in reached if origin != cluster)


def topic_filter(patterns: Sequence[str]) -> Wanted:
    """Return a function that returns whether one of ``patterns`` matches a topic; without patterns all match.

    Patterns are those of a link's ``topics``. Raises :class:`BadOption` if a pattern is malformed.
    """
    for pattern in patterns:
        try:
            check_pattern(pattern)
        except ValueError as error:
            raise BadOption("topics", str(error)) from None
    return Link("verify", "all", topics=tuple(patterns)).carries


def check_pattern(text: str) -> None:
    from replicator.topology.patterns import check_pattern as checked

    checked(text)


def named_filter(topics: Collection[str]) -> Wanted:
    return {str(parse_topic(topic)) for topic in topics}.__contains__
