"""Exact subscription sync of one topic over two to four clusters, whose links lose, repeat and reorder frames.

Real engines, stores and subscription syncs; only the links are a model, so that they can misbehave in every way. The
checks name the invariants of DESIGN §3. The machine keeps what everybody said of a subscription, by message identity:

- ``said`` is what a consumer acknowledged, or an operator's seek passed over, in which cluster and generation;
- ``began`` is the start of a subscription that was made in a cluster, for the origins which that has or receives;
- a message counts as consumed only if somebody said so, or if it lies before a start that was told (5);
- within a generation nothing that was said is taken back (6);
- generations change while a rule begins, so what is said is noted in the same step of the loop as it is said;
- a deletion is not forced here, so no consumer loses its subscription, wherever it is connected; a subscription that
  is kept has all that was said before in its new generation;
- at rest, every cluster counts as consumed what was said, in the newest generation, in all clusters from which links
  lead to it, and what lies before the earliest start that was told there, by origin (convergence);
- at rest nobody writes a marker (7).

Some links leave out whole entries and parts of batches, as links with a ``where`` do. Their destinations lack these
messages; what is said of them elsewhere must still reach all clusters that have them.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
from engine_support import batch, message, subscribed
from examples import examples
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from replicator.engine.engine import Engine
from replicator.engine.errors import CopyGap, NotAllowedError, SubscriptionBusy, SubscriptionNotFound
from replicator.engine.log.block import BlockKind, BlockView
from replicator.engine.log.writer import CopiedBlock
from replicator.engine.subscriptions.consumer import EngineConsumer
from replicator.engine.subscriptions.merging import Merging
from replicator.engine.subscriptions.subscription import Subscription
from replicator.engine.topic import Topic
from replicator.engine.types import Ack
from replicator.pipeline.live.filtering import Chain, filter_block
from replicator.sync.routes import TopologyRoutes
from replicator.sync.service import SubscriptionSync
from replicator.sync.shared import monotonic_ms
from replicator.topology import Link, Topology
from snapshots.actions import ControllerSettings
from snapshots.position import BEFORE_ALL, Position

TOPIC = "persistent://public/default/orders"
NAMES = ("sub",)
FAST = ControllerSettings(snapshot_interval_ms=5, update_interval_ms=2, snapshot_timeout_ms=200)
QUIET_SECONDS = 0.03
"""Time above any interval of :data:`FAST` that could still write a marker: five snapshot intervals and an update."""
REST_SECONDS_MAX = 20.0
SCRATCH = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else None

TWO_WAY = [("a", "b", False), ("b", "a", False)]
FILTERED: dict[str, list[tuple[str, str]]] = {
    "two-way": [("a", "b")],
    "one-way": [("a", "b")],
    "mesh": [("a", "b"), ("b", "c")],
    "ring": [("a", "b")],
    "hub that forwards": [("a", "h")],
    "hub that does not": [("h", "a")],
    "chain of four": [("b", "c")],
    "hub that lacks what its spokes have": [("o", "h")],
}
"""The links that leave messages out, in runs that do."""
SHAPES: dict[str, list[tuple[str, str, bool]]] = {
    "two-way": TWO_WAY,
    "one-way": [("a", "b", False)],
    "mesh": [(x, y, False) for x in "abc" for y in "abc" if x != y],
    "ring": [("a", "b", True), ("b", "c", True), ("c", "a", True)],
    "hub that forwards": [("a", "h", False), ("b", "h", False), ("h", "a", True), ("h", "b", True)],
    "hub that does not": [("a", "h", False), ("b", "h", False), ("h", "a", False), ("h", "b", False)],
    "chain of four": [("a", "b", True), ("b", "c", True), ("c", "d", True)],
    "hub that lacks what its spokes have": [
        *(("o", each, False) for each in "abh"),
        *(("a", "h", False), ("b", "h", False), ("h", "a", False), ("h", "b", False)),
    ],
}


class Identity(NamedTuple):
    origin: str
    position: Position
    index: int


class NoIndex:
    """Stand-in for the index, which nobody reads in this test."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


class Cluster:
    """Cluster of one engine with its sync, which can be stopped and started again."""

    def __init__(self, name: str, path: Path, topology: Topology, *, whole: bool) -> None:
        self.name = name
        self._settings = replace(FAST, whole_interval_ms=0) if whole else FAST
        self._path = path
        self._topology = topology
        self.trimmed: set[Identity] = set()
        """Messages that were here. A subscription that is put elsewhere here passes over them."""
        self.trimmed_parts: set[Identity] = set()
        """Trimmed messages of batches that were here in part. The cluster does not claim them any more."""
        self.engine: Engine
        self.sync: SubscriptionSync

    async def start(self) -> None:
        self.engine = await Engine.open(self._path / self.name, cluster=self.name)
        self.sync = SubscriptionSync(
            self.engine, routes=TopologyRoutes(self._topology, self.name), settings=self._settings, index=NoIndex()
        )
        await self.sync.start()

    async def stop(self) -> None:
        await self.sync.stop()
        await self.engine.close()

    async def crash(self) -> None:
        """Start the cluster again from what the store had at this moment, without a regular stop."""
        copy = self._path / f"{self.name}-crashed"
        await self.engine.writer.put_many([])  # what was confirmed is in the file
        shutil.copytree(self._path / self.name, copy)
        await self.stop()
        shutil.rmtree(self._path / self.name)
        copy.rename(self._path / self.name)
        await self.start()

    @property
    def topic(self) -> Topic | None:
        return self.engine.find(TOPIC)

    def subscription(self, name: str) -> Subscription | None:
        return None if self.topic is None else self.topic.subscriptions.get(name)

    def parts(self) -> set[Identity]:
        """Return the messages of batches that are here in part."""
        parts = None if self.topic is None else self.topic.log.parts
        return set() if parts is None else {each for each, place in self.messages() if parts.absent(place) is not None}

    def messages(self) -> list[tuple[Identity, Position]]:
        """Return each message of the log, and the position of its entry here."""
        if self.topic is None:
            return []
        entries = self.topic.reading.entries(BEFORE_ALL, None, 100_000, 1 << 30)
        parts = self.topic.log.parts
        return [
            (Identity(entry.origin, entry.origin_position, index), entry.position)
            for entry in entries
            if not entry.marker
            for index in range(entry.batch_size)
            if parts is None or index not in (parts.absent(entry.position) or ())
        ]

    def busy(self) -> bool:
        """Return whether the sync has something to do by itself, now or later: on a busy machine it may take long."""
        return not self.sync.is_idle

    def consumed(self, name: str) -> set[Identity]:
        """Return the messages here that count as consumed."""
        subscription = self.subscription(name)
        assert subscription is not None
        cursor = subscription.cursor
        found = set()
        for identity, position in self.messages():
            indexes = cursor.acked_indexes(position)
            if cursor.is_consumed(position) or (indexes is not None and identity.index in indexes):
                found.add(identity)
        return found


class Began(NamedTuple):
    """Start of a subscription that somebody made: a position for each origin that its cluster has or receives."""

    cluster: str
    ends: dict[str, Position]

    def has_before(self, identity: Identity) -> bool:
        return identity.position <= self.ends.get(identity.origin, BEFORE_ALL)


def after_the_start(subscription: Subscription, messages: set[Identity]) -> set[Identity]:
    """Return the ``messages`` that can be acknowledged: nobody is delivered those before the start."""
    starts = subscription.cursor.state.starts
    ends = {origin: start.position for origin, start in starts.items()}
    return {each for each in messages if each.position > ends.get(each.origin, BEFORE_ALL)}


class LossyLink:
    """Link that carries blocks in frames over a network that loses, repeats and reorders them."""

    def __init__(self, source: Cluster, destination: Cluster, origins: frozenset[str], *, leaves_out: bool) -> None:
        self.source = source
        self._leaves_out = leaves_out
        self.destination = destination
        self.origins = origins
        self.frames: deque[list[CopiedBlock]] = deque()
        self._read = BEFORE_ALL
        self._sent: dict[str, Position] = {}

    def connect(self) -> None:
        """Connect the link: it begins after what the destination has."""
        self.frames.clear()
        self._read = BEFORE_ALL
        there = self.destination.topic
        self._sent = {} if there is None else there.origins.vector()

    def send(self) -> bool:
        """Put the log's next blocks into a frame; return whether there were any."""
        topic = self.source.topic
        if topic is None:
            return False
        blocks, reached = topic.reading.blocks(self._read, bytes_max=2000, origins=self.origins)
        frame = []
        chains: dict[str, Chain] = {}
        for stored in blocks:
            origin, last = stored.header.origin, stored.header.origin_last
            before = self._sent.get(origin, BEFORE_ALL)
            if last > before:
                view = BlockView(stored.block)
                left_out = any(
                    after < stored.header.origin_first and upto > before
                    for after, upto in topic.origins.left_out(origin)
                )
                left = filter_block(stored.block, view, self._keep(view), {}, frozenset())
                frame += chains.setdefault(origin, Chain(TOPIC)).outgoing(before, left_out, view, left)
                self._sent[origin] = last
        frame += [note for chain in chains.values() for note in chain.end()]
        if frame:
            self.frames.append([CopiedBlock(each.previous, each.block, each.left_out) for each in frame])
        moved = reached > self._read
        self._read = reached
        return moved

    def _keep(self, view: BlockView) -> npt.NDArray[np.bool_]:
        """Return the messages to keep; a third is left out, anywhere in a batch."""
        first = view.header.origin_first.entry
        numbers = [first + entry + index for entry, size in enumerate(view.batch_sizes) for index in range(size)]
        return np.array([not self._leaves_out or number % 3 > 0 for number in numbers], dtype=bool)

    async def deliver(self, at: int, *, keep: bool = False) -> None:
        """Give the destination frame ``at`` of those on their way; with ``keep`` it stays there, and comes again."""
        frame = self.frames[at]
        if not keep:
            del self.frames[at]
        topic = await self.destination.engine.topic(TOPIC, by_link=True)
        try:
            await topic.writing.copy(frame)
        except CopyGap:
            self.connect()

    async def run(self) -> bool:
        """Send all there is, in order; return whether there was anything."""
        moved = False
        while self.send() or self.frames:
            moved = True
            while self.frames:
                await self.deliver(0)
        return moved


class SyncMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.path = Path(tempfile.mkdtemp(prefix="sync-", dir=SCRATCH))
        self.clusters: dict[str, Cluster] = {}
        self.links: list[LossyLink] = []
        self.said: dict[tuple[str, int], dict[str, set[Identity]]] = defaultdict(lambda: defaultdict(set))
        """Messages that were said, by subscription and generation, and by the cluster where it was said."""
        self.repeated: dict[tuple[str, int], dict[str, set[Identity]]] = defaultdict(lambda: defaultdict(set))
        """Messages that a cluster said only after it had heard of them from another one. It does not tell these."""
        self.unclaimed: dict[tuple[str, int], dict[str, set[Identity]]] = defaultdict(lambda: defaultdict(set))
        """Messages that a seek passed over in a cluster and does not claim, so that they may be delivered elsewhere."""
        self.began: dict[tuple[str, int], list[Began]] = defaultdict(list)
        self.made: set[str] = set()
        self.seen: dict[tuple[str, str], tuple[int, set[Identity]]] = {}
        self.published = 0
        self.using: dict[tuple[str, str], EngineConsumer] = {}
        self.kept: set[tuple[str, int]] = set()
        """Subscriptions, with their new generations, that consumers kept from being deleted."""
        self.noting = patch.object(Merging, "outlive", self.noting_kept(Merging.outlive))
        self.noting.start()
        self.sets: dict[tuple[str, int], list[tuple[str, frozenset[str]]]] = defaultdict(list)

    def noting_kept(self, outlive: Callable[[Merging, int], None]) -> Callable[[Merging, int], None]:
        def noted(merging: Merging, generation: int) -> None:
            name, starts = merging._subscription.name, merging._cursor.state.starts
            self.kept.add((name, generation + 1))
            if starts:
                (keeper,) = [
                    each.name
                    for each in self.clusters.values()
                    if (there := each.subscription(name)) is not None and there.merging is merging
                ]
                ends = {origin: start.position for origin, start in starts.items()}
                self.began[name, generation + 1].append(Began(keeper, ends))
            outlive(merging, generation)

        return noted

    def do(self, action: Any) -> Any:
        return self.loop.run_until_complete(action)

    @initialize(
        shape=st.sampled_from(sorted(SHAPES)),
        at=st.integers(0, 3),
        latest=st.booleans(),
        whole=st.booleans(),
        filtered=st.booleans(),
    )
    def start(self, shape: str, at: int, latest: bool, whole: bool, filtered: bool) -> None:
        """Start the clusters; with ``whole`` every update tells the whole state."""
        links = tuple(Link(source, destination, forward=forward) for source, destination, forward in SHAPES[shape])
        topology = Topology((), links)
        names = sorted({end for link in links for end in (link.source, link.destination)})
        self.topology = topology
        self.clusters = {name: Cluster(name, self.path, topology, whole=whole) for name in names}
        for cluster in self.clusters.values():
            self.do(cluster.start())
        self.links = [
            LossyLink(
                self.clusters[link.source],
                self.clusters[link.destination],
                topology.origins_over(link),
                leaves_out=filtered and (link.source, link.destination) in FILTERED[shape],
            )
            for link in links
        ]
        for cluster in range(len(self.clusters)):
            self.publish(cluster, [1, 3, 1])
        self.subscribe(at, NAMES[0], latest)

    def teardown(self) -> None:
        try:
            if self.clusters:
                self.do(self.rest())
                self.check_convergence()
        finally:
            self.noting.stop()
            for cluster in self.clusters.values():
                self.do(cluster.stop())
            self.loop.close()
            shutil.rmtree(self.path, ignore_errors=True)

    def a_cluster(self, number: int) -> Cluster:
        return self.clusters[sorted(self.clusters)[number % len(self.clusters)]]

    def one_that_has(self, name: str, number: int) -> Cluster | None:
        having = [each for _, each in sorted(self.clusters.items()) if each.subscription(name) is not None]
        return having[number % len(having)] if having else None

    # What producers, consumers and operators do.

    @rule(at=st.integers(0, 3), sizes=st.lists(st.integers(1, 3), min_size=1, max_size=4))
    def publish(self, at: int, sizes: list[int]) -> None:
        async def publish() -> None:
            topic = await self.a_cluster(at).engine.topic(TOPIC)
            entries = []
            for size in sizes:
                self.published += 1
                payload = b"%d" % self.published
                entries.append(message(payload) if size == 1 else batch([payload] * size))
            await topic.publish(entries)

        self.do(publish())

    @rule(at=st.integers(0, 3), name=st.sampled_from(NAMES), latest=st.booleans())
    def subscribe(self, at: int, name: str, latest: bool) -> None:
        async def subscribe() -> None:
            cluster = self.a_cluster(at)
            topic = await cluster.engine.topic(TOPIC)
            if name in topic.subscriptions:
                return
            start = topic.log.last if latest else BEFORE_ALL
            known = {cluster.name, *topic.origins.vector(), *TopologyRoutes(self.topology, cluster.name).origins(TOPIC)}
            ends = dict.fromkeys(known, BEFORE_ALL)
            for identity in cluster.trimmed:
                ends[identity.origin] = max(ends[identity.origin], identity.position)
            if latest:
                ends.update(topic.origins.vector())
            generation = topic.subscriptions.tombstones.get(name, 0) + 1
            self.made.add(name)
            self.began[name, generation].append(Began(cluster.name, ends))
            self.sets[name, generation].append((cluster.name, frozenset(topic.origins.high_waters())))
            await topic.subscriptions.create(name, start, replicated=True)

        self.do(subscribe())

    @rule(at=st.integers(0, 3), name=st.sampled_from(NAMES), picks=st.lists(st.integers(0, 30), min_size=1, max_size=8))
    def acknowledge(self, at: int, name: str, picks: list[int]) -> None:
        """Acknowledge entries or single messages of batches, in any order."""
        cluster = self.one_that_has(name, at)
        if cluster is None or not (messages := cluster.messages()):
            return
        subscription = cluster.subscription(name)
        assert subscription is not None

        async def acknowledge() -> None:
            for pick in picks:
                identity, position = messages[pick % len(messages)]
                alone = pick % 2 == 0
                whole = [each for each, place in messages if place == position]
                if cluster.subscription(name) is not subscription:  # another cluster deleted it just now
                    return
                said = after_the_start(subscription, {identity} if alone else set(whole))
                self.note(cluster, name, subscription.cursor.generation, said, cluster.consumed(name))
                indexes = (identity.index,) if alone and len(whole) > 1 else None
                try:
                    await subscription.acknowledge([Ack(position, indexes)])
                except SubscriptionNotFound:  # another cluster deleted it just now
                    return

        self.do(acknowledge())

    @rule(
        link=st.integers(0, 11), name=st.sampled_from(NAMES), picks=st.lists(st.integers(0, 30), min_size=1, max_size=8)
    )
    def acknowledge_what_others_do_not_have_yet(self, link: int, name: str, picks: list[int]) -> None:
        """Acknowledge messages that came over one link; others hear of that before they get the messages."""
        first = self.links[link % len(self.links)]
        self.do(first.run())
        if first.destination.subscription(name) is None:
            return
        having = [each for _, each in sorted(self.clusters.items()) if each.subscription(name) is not None]
        self.acknowledge(having.index(first.destination), name, picks)
        self.do(asyncio.sleep(0.006))
        for each in self.links:
            if each.source is first.destination and each.destination is not first.source:
                self.do(each.run())

    @rule(at=st.integers(0, 3), name=st.sampled_from(NAMES), pick=st.integers(0, 30))
    def acknowledge_cumulatively(self, at: int, name: str, pick: int) -> None:
        """Acknowledge all up to a message, except what an earlier start opened and nobody was delivered since."""
        cluster = self.one_that_has(name, at)
        if cluster is None or not (messages := cluster.messages()):
            return
        subscription = cluster.subscription(name)
        assert subscription is not None
        identity, position = messages[pick % len(messages)]
        upto = [(each, place) for each, place in messages if (place, each.index) <= (position, identity.index)]
        size = sum(place == position for _, place in messages)

        async def acknowledge() -> None:
            cursor = subscription.cursor
            covered = {each for each, place in upto if place == position or not cursor.is_uncovered(place)}
            said, generation = after_the_start(subscription, covered), cursor.generation
            had = cluster.consumed(name)
            with suppress(SubscriptionNotFound):
                try:
                    durable = subscription.begin_acknowledge_cumulative(position, identity.index if size > 1 else None)
                except NotAllowedError:
                    return  # its last consumers shared it, though they may be gone
                self.note(cluster, name, generation, said, had)
                await durable

        self.do(acknowledge())

    def note(self, cluster: Cluster, name: str, generation: int, said: set[Identity], had: set[Identity]) -> None:
        """Note what a consumer acknowledged in a cluster, where the messages ``had`` were consumed before."""
        before = self.said[name, generation][cluster.name]
        self.repeated[name, generation][cluster.name] |= (said & had) - before
        before |= said

    @rule(at=st.integers(0, 3), name=st.sampled_from(NAMES), pick=st.integers(0, 30))
    def seek(self, at: int, name: str, pick: int) -> None:
        cluster = self.one_that_has(name, at)
        if cluster is None or not (messages := cluster.messages()):
            return
        subscription = cluster.subscription(name)
        assert subscription is not None
        _, position = messages[pick % len(messages)]
        passed = {each for each, place in messages if place < position} | cluster.trimmed
        assert cluster.topic is not None
        known = frozenset(cluster.topic.origins.high_waters())

        async def seek() -> None:
            generation = subscription.cursor.generation + 1
            self.said[name, generation][cluster.name].update(passed)
            self.unclaimed[name, generation][cluster.name] |= cluster.trimmed_parts
            self.sets[name, generation].append((cluster.name, known))
            self.began[name, generation].append(Began(cluster.name, dict.fromkeys(known, BEFORE_ALL)))
            with suppress(SubscriptionNotFound):
                await subscription.moves.seek(position)

        self.do(seek())

    @rule(at=st.integers(0, 3), name=st.sampled_from(NAMES))
    def unsubscribe(self, at: int, name: str) -> None:
        cluster = self.one_that_has(name, at)
        if cluster is None:
            return
        self.replicate(at, name, True)  # else nobody hears of it, and those who tell bring it back

        async def unsubscribe() -> None:
            assert cluster.topic is not None
            try:
                await cluster.topic.subscriptions.delete(name)
            except (SubscriptionNotFound, SubscriptionBusy):
                return

        self.do(unsubscribe())

    @rule(at=st.integers(0, 3), name=st.sampled_from(NAMES))
    def use(self, at: int, name: str) -> None:
        """Connect a consumer that is sent nothing, in one more cluster or where the subscription is already."""
        cluster = self.one_that_has(name, at)
        if cluster is None or (cluster.name, name) in self.using or cluster.topic is None:
            return
        self.replicate(at, name, True)  # else its deletion concerns nobody else
        with suppress(SubscriptionNotFound):
            consumer, _ = self.do(subscribed(cluster.topic, name, permits=0, replicated=True))
            self.using[cluster.name, name] = consumer

    @rule(at=st.integers(0, 3), name=st.sampled_from(NAMES))
    def stop_using(self, at: int, name: str) -> None:
        consumer = self.using.pop((self.a_cluster(at).name, name), None)
        if consumer is not None:
            consumer.close()
            self.do(asyncio.sleep(0))

    @rule(at=st.integers(0, 3), name=st.sampled_from(NAMES), replicated=st.booleans())
    def replicate(self, at: int, name: str, replicated: bool) -> None:
        """Switch replication on or off; while it is off, the subscription neither tells nor listens."""
        cluster = self.one_that_has(name, at)
        if cluster is not None and (subscription := cluster.subscription(name)) is not None:
            with suppress(SubscriptionNotFound):
                self.do(subscription.set_replicated(replicated))

    @rule(at=st.integers(0, 3), pick=st.integers(0, 40))
    def trim(self, at: int, pick: int) -> None:
        """Trim as retention does: keep everything that a link still needs, or a subscription here."""
        cluster = self.a_cluster(at)
        if cluster.topic is None or not (messages := cluster.messages()):
            return
        for link in self.links:
            if link.source is cluster:
                link.connect()
                self.do(link.run())
        parts = cluster.parts()
        self.do(cluster.topic.trimming.trim(messages[pick % len(messages)][1]))
        gone = {identity for identity, _ in messages} - {identity for identity, _ in cluster.messages()}
        cluster.trimmed |= gone
        cluster.trimmed_parts |= gone & parts

    # What the network, the machines and time do.

    @rule(link=st.integers(0, 11), frames=st.integers(1, 4))
    def send(self, link: int, frames: int) -> None:
        for _ in range(frames):
            self.links[link % len(self.links)].send()

    @rule(link=st.integers(0, 11), at=st.integers(0, 3), keep=st.booleans())
    def deliver(self, link: int, at: int, keep: bool) -> None:
        """Deliver in order, out of order, or twice."""
        chosen = self.links[link % len(self.links)]
        if chosen.frames:
            self.do(chosen.deliver(at % len(chosen.frames), keep=keep))

    @rule(link=st.integers(0, 11))
    def lose_the_connection(self, link: int) -> None:
        self.links[link % len(self.links)].connect()

    @rule(link=st.integers(0, 11))
    def carry_all(self, link: int) -> None:
        self.do(self.links[link % len(self.links)].run())

    @rule(links=st.lists(st.integers(0, 11), min_size=1, max_size=6))
    def carry_all_over_some(self, links: list[int]) -> None:
        """Carry all over some links; the others are slow."""
        for link in links:
            self.do(self.links[link % len(self.links)].run())
            self.do(asyncio.sleep(0.004))

    @rule(milliseconds=st.integers(1, 8))
    def pass_time(self, milliseconds: int) -> None:
        self.do(asyncio.sleep(milliseconds / 1000))

    @rule(at=st.integers(0, 3))
    def crash(self, at: int) -> None:
        cluster = self.a_cluster(at)
        for name in NAMES:
            self.using.pop((cluster.name, name), None)
        self.do(cluster.crash())
        for link in self.links:
            if cluster in (link.source, link.destination):
                link.connect()

    @rule()
    def come_to_rest(self) -> None:
        self.do(self.rest())
        self.check_convergence()

    @rule(at=st.integers(0, 3))
    def come_to_rest_without_one(self, at: int) -> None:
        """Invariant 8: nobody hears of one cluster, and what is said in another reaches those that it has links to."""
        away = self.a_cluster(at)
        self.do(self.rest(away))
        for link in self.links:
            if away in (link.source, link.destination):
                continue
            for name in NAMES:
                here, there = link.source.subscription(name), link.destination.subscription(name)
                if here is None or there is None or here.cursor.generation != there.cursor.generation:
                    continue  # it may have heard of a seek or a deletion from the one that is away now
                said = self.claimed(name, here.cursor.generation, link.source.name)
                said -= self.repeated[name, here.cursor.generation][link.source.name]
                arrived = {identity for identity, _ in link.destination.messages()}
                missing = said & arrived - link.destination.consumed(name)
                assert not missing, f"{link.destination.name} waits for {away.name} to hear of {sorted(missing)}"

    async def rest(self, away: Cluster | None = None) -> None:
        """Let everybody carry on until nothing happens any more; then nothing may happen by itself (invariant 7)."""
        for cluster in self.clusters.values():
            for name in NAMES:
                if (subscription := cluster.subscription(name)) is not None:
                    with suppress(SubscriptionNotFound):
                        await subscription.set_replicated(True)
        deadline = self.loop.time() + REST_SECONDS_MAX
        quiet_since = self.loop.time()
        links = [link for link in self.links if away not in (link.source, link.destination)]
        for link in links:
            link.connect()
        while self.loop.time() - quiet_since < QUIET_SECONDS:
            assert self.loop.time() < deadline, "a topic that nobody uses does not come to rest (invariant 7)"
            for link in links:
                if await link.run():
                    quiet_since = self.loop.time()
            before = self.log_lengths()
            await asyncio.sleep(0.004)
            if self.log_lengths() != before or any(each.busy() for each in self.clusters.values()):
                quiet_since = self.loop.time()

    def log_lengths(self) -> list[int]:
        return [0 if each.topic is None else each.topic.log.entries for each in self.clusters.values()]

    # What must be true.

    @invariant()
    def nothing_is_copied_twice_or_out_of_order(self) -> None:
        """Check invariants 2, 3 and 4: nothing is copied twice or out of order."""
        for cluster in self.clusters.values():
            if cluster.topic is None:
                continue
            of: dict[str, list[Position]] = defaultdict(list)
            for stored in cluster.topic.reading.blocks(BEFORE_ALL, bytes_max=1 << 30)[0]:
                of[stored.header.origin] += [stored.header.origin_first, stored.header.origin_last]
                if stored.header.origin == cluster.name:
                    assert stored.position == stored.header.origin_first, "an entry came back to its origin"
                else:
                    assert stored.header.kind is not BlockKind.LOCAL_MARKERS
            for positions in of.values():
                assert positions == sorted(positions)

    @invariant()
    def what_is_due_has_a_timer(self) -> None:
        for cluster in self.clusters.values():
            for sync in cluster.sync._topics.values():
                due_ms = sync.controller.next_deadline(monotonic_ms())
                assert due_ms is None or not sync.is_idle, f"{cluster.name} forgets what is due"

    @invariant()
    def no_consumer_loses_its_subscription(self) -> None:
        assert [who for who, consumer in self.using.items() if consumer.closed] == []

    @invariant()
    def nothing_is_skipped_and_nothing_taken_back(self) -> None:
        """Check invariants 5 and 6: no message is skipped, and no acknowledgement taken back."""
        for cluster in self.clusters.values():
            for name in NAMES:
                subscription = cluster.subscription(name)
                if subscription is None:
                    self.seen.pop((cluster.name, name), None)
                    continue
                generation, consumed = subscription.cursor.generation, cluster.consumed(name)
                began = [each for older in range(1, generation + 1) for each in self.began[name, older]]
                allowed = self.allowed(name, generation)
                allowed |= {each for each in consumed if any(one.has_before(each) for one in began)}
                assert consumed <= allowed, f"{cluster.name} skips {sorted(consumed - allowed)} of {name}"
                before, had = self.seen.get((cluster.name, name), (generation, set()))
                assert before <= generation
                if before == generation:
                    had -= cluster.trimmed
                    assert had <= consumed, f"{cluster.name} takes back {sorted(had - consumed)} of {name}"
                self.seen[cluster.name, name] = generation, after_the_start(subscription, consumed)

    def claimed(self, name: str, generation: int, cluster: str) -> set[Identity]:
        """Return what was said in a cluster, and must be known in the others in the end."""
        return self.said[name, generation][cluster] - self.unclaimed[name, generation][cluster]

    def allowed(self, name: str, generation: int) -> set[Identity]:
        """Return what was said in a generation, and earlier of origins that its beginner did not know. That cluster may
        come from any older generation, without having heard of those in between."""
        found = set[Identity]().union(*self.said[name, generation].values())
        earlier = set[Identity]().union(
            *(said for older in range(1, generation) for said in self.said[name, older].values())
        )
        if (name, generation) in self.kept:
            found |= earlier
        for _, known in self.sets[name, generation]:
            found |= {identity for identity in earlier if identity.origin not in known}
        return found

    def check_convergence(self) -> None:
        for cluster in self.clusters.values():
            sources = self.sources(cluster.name)
            for name in self.made:
                states = [(other, self.clusters[other].subscription(name)) for other in sources]
                generations = [each.cursor.generation for _, each in states if each is not None]
                buried = [
                    topic.subscriptions.tombstones.get(name, 0)
                    for other in sources
                    if (topic := self.clusters[other].topic) is not None
                ]
                subscription = cluster.subscription(name)
                if not generations or max(buried, default=0) >= max(generations):
                    assert subscription is None, f"{cluster.name} still has {name}, which was deleted"
                    continue
                newest = max(generations)
                assert subscription is not None, f"{cluster.name} lacks {name}"
                assert subscription.cursor.generation == newest
                here = {identity for identity, _ in cluster.messages()}
                told = set[Identity]().union(*(self.claimed(name, newest, other) for other in sources))
                consumed = cluster.consumed(name)
                missing = told & here - consumed
                assert not missing, f"{cluster.name} has not heard of {sorted(missing)} of {name}"
                before = {each for each in here if self.lies_before_the_start(each, name, newest, sources)}
                assert before <= consumed, f"{cluster.name} delivers {sorted(before - consumed)}, before its start"
                skipped = consumed - before - self.allowed(name, newest)
                if newest == 1:  # a later generation keeps what an earlier one had of origins that it does not know
                    assert not skipped, f"{cluster.name} skips {sorted(skipped)} of {name}"

    def lies_before_the_start(self, identity: Identity, name: str, generation: int, clusters: set[str]) -> bool:
        """Return whether the message lies before the start of each of ``clusters`` that made the subscription.

        Clusters that do not know its origin do not count; False if none counts.
        """
        makers = [each for each in self.began[name, generation] if each.cluster in clusters]
        knowing = [each for each in makers if identity.origin in each.ends]
        return bool(knowing) and all(each.has_before(identity) for each in knowing)

    def sources(self, name: str) -> set[str]:
        """Return the clusters from which links lead to this one, and itself."""
        found = {name}
        while more := {link.source.name for link in self.links if link.destination.name in found} - found:
            found |= more
        return found


SyncMachine.TestCase.settings = settings(
    max_examples=examples(12),
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestSyncMachine = SyncMachine.TestCase
