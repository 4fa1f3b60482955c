"""Verification at Apache Pulsar's brokers: compares their topics with the other places. It changes nothing there.

Workers beside brokers have a spool, which :mod:`replicator.pipeline.verify.verify` compares. Here the brokers' own
topics are read entry by entry, and compared with each other, with the logs of embedded clusters, and with the spool
between.

1. Verify waits, at most the settling time, until everything at the brokers now was read, copied and published. What a
   bridge has not read or published then is missing if the bridge made no progress during the wait.
2. The cut: first the bridges' published positions are read, then the positions of the workers' logs, then, for each
   topic, its end and its acknowledgements at the brokers. Later readings must contain everything that these claim.
3. Topic by topic, all places are read at the same time and compared (:mod:`.comparison`). One topic is in memory.
4. Messages acknowledged in step 2 must be acknowledged at the links' destinations (:mod:`.acknowledgements`).

A place that cannot be read is left out, and named.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Final

from replicator.apache.errors import BridgeError
from replicator.apache.shown import TopicInternals
from replicator.client.errors import ConnectError, PulsarException, Timeout
from replicator.peering.comparing import SubscriptionState
from replicator.pipeline.errors import PeerUnavailable, PipelineError
from replicator.pipeline.verify.brokers.acknowledgements import States, compare_acknowledgements
from replicator.pipeline.verify.brokers.bridges import BridgedTopic, BridgeState, Progress, read_bridge
from replicator.pipeline.verify.brokers.comparison import BEHIND, GONE, Copy, Pair, compare
from replicator.pipeline.verify.brokers.differences import Difference
from replicator.pipeline.verify.brokers.entry_log import EntryLog, Life
from replicator.pipeline.verify.brokers.found import BrokersFound, brokers_of, spool_of
from replicator.pipeline.verify.brokers.reading import Brokers, read_worker
from replicator.pipeline.verify.cluster_state import ClusterStates, Wanted, allowed_clusters, read_picture
from replicator.pipeline.verify.comparison.acked import Acked
from replicator.pipeline.verify.comparison.scope import ReplicaState
from replicator.pipeline.verify.difference_files import DifferenceRows
from replicator.pipeline.verify.plane import VerifyPlane
from replicator.pipeline.verify.reachability import Reachability, reachability_of
from replicator.pipeline.verify.report import BrokerCounts
from replicator.topology import Topology
from replicator.topology.apache import ApacheSettings
from snapshots.position import BEFORE_ALL, Position

POLL_SECONDS: Final = 0.25
TOLD_SECONDS: Final = 2.0
"""Time for an acknowledgement at brokers to arrive: their bridge sees it within a second, and others make it at
once."""
_NOBODY: Final = BridgedTopic(BEFORE_ALL, {}, waits=False, halted="")


def verify_brokers(
    topology: Topology,
    wanted: Wanted,
    *,
    settle_seconds: float,
    since_ms: int | None,
    parquet: Path | None = None,
) -> BrokersFound:
    """Compare the brokers of all clusters of ``kind: pulsar`` in the wanted topics. Blocks the caller.

    All differences are written to the file ``parquet`` as rows, if it is given."""
    with DifferenceRows(parquet) if parquet is not None else nullcontext() as rows:
        return asyncio.run(_Verification(topology, wanted, settle_seconds, since_ms or 0, rows).run())


class _Verification:
    """One run."""

    def __init__(
        self, topology: Topology, wanted: Wanted, settle_seconds: float, since_ms: int, rows: DifferenceRows | None
    ) -> None:
        self._topology = topology
        self._wanted = wanted
        self._settle_seconds = settle_seconds
        self._since_ms = since_ms
        self._settings: dict[str, ApacheSettings] = {
            each.name: each.apache for each in topology.clusters if each.apache is not None
        }
        self._urls = {each.name: each.url for each in topology.clusters}
        self._brokers: dict[str, Brokers] = {}
        """Brokers that answer, by cluster."""
        self._bridges: dict[str, BridgeState] = {}
        self._acks_deadline: float | None = None
        """Time until which acknowledgements may arrive. All topics together have the settling time."""
        self._progress = Progress()
        self._rows = rows
        self._found = BrokersFound()

    async def run(self) -> BrokersFound:
        opened: list[Brokers] = []
        try:
            for name, settings in self._settings.items():
                try:
                    opened.append(Brokers(name, settings))
                except BridgeError as error:
                    self._lose(name, error)
            self._brokers = {each.cluster: each for each in opened}
            await self._settle()
            picture = await asyncio.to_thread(read_picture, self._urls, self._wanted)
            for name, reason in picture.unreachable.items():
                if name in self._settings:
                    self._lose(name, PeerUnavailable("its worker does not answer"))
                else:
                    self._found.unreachable[name] = reason
            self._halted()
            for topic in sorted({topic for name in self._brokers for topic in self._bridges[name].topics}):
                if self._wanted(topic):
                    await self._topic(topic, picture)
        finally:
            await asyncio.gather(*(each.close() for each in opened))
        return self._found

    def _lose(self, name: str, error: Exception) -> None:
        """Leave the brokers of a cluster out of the comparison from here on."""
        if name in self._settings:
            self._found.unreachable.setdefault(brokers_of(name), str(error))
            self._brokers.pop(name, None)

    def _halted(self) -> None:
        for name in self._brokers:
            bridge = self._bridges[name]
            stopped = {topic: each.halted for topic, each in bridge.topics.items() if each.halted} | dict(
                bridge.refused
            )
            for topic, why in stopped.items():
                if self._wanted(topic):
                    text = f"the bridge of {name} has stopped: {why}"
                    self._count(topic, [Difference("gaps", brokers_of(name), 0, 1, (text,))])

    # Wait for messages on their way.

    async def _settle(self) -> None:
        """Wait until everything at the brokers now was read, copied and published, at most the settling time."""
        deadline = time.monotonic() + self._settle_seconds
        await self._ask_bridges()
        ends = {
            (name, topic): await self._end(name, topic)
            for name in tuple(self._brokers)
            for topic in self._bridges[name].topics
            if self._wanted(topic)
        }
        goals: dict[tuple[str, str], Position] = {}
        """Positions that must be reached everywhere, by topic and origin."""
        self._progress.begin(self._bridges, ends)
        while True:
            standings = await self._standings()
            await self._ask_bridges()
            read = all(self._bridged(*key).read_through >= end for key, end in ends.items() if key[0] in self._brokers)
            waits = self._publishing_waits()
            if goals and read and not waits and self._level(goals, standings):
                return
            if read and not goals:
                goals = self._goals(await self._standings())
                if goals:
                    continue
                if not waits:
                    return
            if time.monotonic() >= deadline:
                self._progress.end(self._bridges)
                self._found.remarks.append("not all of what the brokers had was read, copied and published in time")
                return
            await asyncio.sleep(POLL_SECONDS)

    async def _ask_bridges(self) -> None:
        for name in tuple(self._brokers):
            try:
                self._bridges[name] = await asyncio.to_thread(read_bridge, self._urls[name])
            except PipelineError as error:
                self._lose(name, error)

    async def _end(self, name: str, topic: str) -> Position:
        internals = await self._internals(name, topic)
        return BEFORE_ALL if internals is None or internals.last.entry < 0 else internals.last

    async def _internals(self, name: str, topic: str) -> TopicInternals | None:
        if name in self._brokers:
            try:
                return await self._brokers[name].internals(topic)
            except (BridgeError, PulsarException) as error:
                self._lose(name, error)
        return None

    async def _standings(self) -> dict[str, dict[str, ReplicaState]]:
        found: dict[str, dict[str, ReplicaState]] = {}
        for name, url in self._urls.items():
            try:
                found[name] = await asyncio.to_thread(_standings_of, url)
            except PipelineError:
                continue  # the reader of the picture reports it
        return found

    def _goals(self, standings: Mapping[str, Mapping[str, ReplicaState]]) -> dict[tuple[str, str], Position]:
        """Return the positions that the origins at brokers have reached, by topic and origin."""
        return {
            (topic, origin): standing.high_water[origin][1]
            for name in self._brokers
            for origin in (self._topology.origin_of_clients(name),)
            for topic, standing in standings.get(name, {}).items()
            if self._wanted(topic) and standing.high_water is not None and origin in standing.high_water
        }

    def _level(
        self, goals: Mapping[tuple[str, str], Position], standings: Mapping[str, Mapping[str, ReplicaState]]
    ) -> bool:
        for (topic, origin), goal in goals.items():
            for name in self._topology.reached_from(origin.partition(".")[0], topic):
                marks = standings.get(name, {}).get(topic, ReplicaState()).high_water or {}
                if origin not in marks or marks[origin][1] < goal:
                    return False
        return True

    def _publishing_waits(self) -> bool:
        """Return whether entries of a compared topic wait to be published at brokers."""
        return any(
            each.waits
            for name in self._brokers
            for topic, each in self._bridges[name].topics.items()
            if self._wanted(topic)
        )

    def _bridged(self, name: str, topic: str) -> BridgedTopic:
        return self._bridges[name].topics.get(topic, _NOBODY)

    # One topic.

    async def _topic(self, topic: str, picture: ClusterStates) -> None:
        names = tuple(state.name for state in picture.clusters)
        links = [link for link in self._topology.links if link.source in names and link.destination in names]
        ways = reachability_of(topic, links, allowed_clusters(picture, topic))
        acknowledged = {
            state.name: _acked(state.told.get(topic, ()))
            if state.name not in self._settings
            else await self._states(state.name, topic) or {}
            for state in picture.clusters
        }
        standings = {state.name: state.standings.get(topic, ReplicaState()) for state in picture.clusters}
        ends = {name: await self._internals(name, topic) for name in tuple(self._brokers)}
        results = await asyncio.gather(
            *(self._at_brokers(name, topic, ends[name], standings[name]) for name in tuple(self._brokers)),
            *(self._at_worker(name, topic, standings[name]) for name in names if self._has_log(name, topic, standings)),
        )
        copies = {copy.name: copy for copy in results if copy is not None}
        self._count(topic, compare(list(copies.values()), self._pairs(ways, list(copies))))
        places = {name: (where, copies[where].log) for name in names if (where := self._served_at(name)) in copies}
        await self._acknowledgements(topic, ways, places, acknowledged)

    def _has_log(self, name: str, topic: str, standings: Mapping[str, ReplicaState]) -> bool:
        """Return whether a worker's log has entries, or should have them because the bridge stands still."""
        return bool(standings[name].runs) or (name, topic) in self._progress.unread

    async def _acknowledgements(
        self,
        topic: str,
        ways: Reachability,
        places: Mapping[str, tuple[str, EntryLog]],
        first: Mapping[str, States],
    ) -> None:
        now = time.monotonic()
        if self._acks_deadline is None:
            self._acks_deadline = now + self._settle_seconds
        pairs = [pair for pair in ways.acks if self._settings.keys() & set(pair)]
        differences, subscriptions = await compare_acknowledgements(
            pairs,
            places,
            first,
            lambda name: self._states(name, topic),
            max(self._acks_deadline, now + min(self._settle_seconds, TOLD_SECONDS)),
        )
        self._count(topic, differences)
        self._found.subscriptions += subscriptions

    async def _states(self, name: str, topic: str) -> States | None:
        """Return the acknowledgements at the place of a cluster's clients; None if that cannot be asked."""
        if name not in self._settings:
            try:
                return _acked(await asyncio.to_thread(_subscriptions_of, self._urls[name], topic))
            except PipelineError as error:
                self._found.unreachable.setdefault(name, str(error))
                return None
        if name in self._brokers:
            try:
                return await self._brokers[name].acknowledged(topic)
            except (BridgeError, PulsarException) as error:
                self._lose(name, error)
        return None

    def _served_at(self, name: str) -> str:
        """Return the name of the copy that the clients of a cluster use."""
        return brokers_of(name) if name in self._settings else name

    async def _at_brokers(
        self, name: str, topic: str, internals: TopicInternals | None, standing: ReplicaState
    ) -> Copy | None:
        brokers = self._brokers.get(name)
        if brokers is None:
            return None
        bridged = self._bridged(name, topic)
        published, lives, left_out = bridged.published, bridged.lives, dict(standing.left_out)
        origin = self._topology.origin_of_clients(name)
        for whose, ranges in bridged.absent(origin).items():
            left_out[whose] = [*left_out.get(whose, ()), *ranges]
        own = Life(origin, (standing.high_water or {}).get(origin, (0, BEFORE_ALL))[0])
        end = BEFORE_ALL if internals is None else internals.last
        # Entries that others had published by then are not above the end, unless nobody ever published them here.
        elsewhere = [each.last for other in self._brokers if (each := self._bridged(other, topic).published.get(own))]
        try:
            stored = end if internals is not None and internals.entries else BEFORE_ALL
            log, begin = await brokers.read(topic, stored, own, lives, self._since_ms)
        except (ConnectError, Timeout) as error:
            self._lose(name, error)
            return None
        except (BridgeError, PulsarException, PipelineError) as error:
            self._found.unreachable[f"{brokers_of(name)} in {topic}"] = str(error)
            return None
        counts = self._found.brokers.setdefault(name, BrokerCounts())
        counts.entries += len(log)
        counts.messages += int(log.messages.sum())
        if internals is None:  # it was deleted there: then nothing was by retention
            begin = BEFORE_ALL
        got = {
            life: each.first if each.first_at >= begin else each.last
            for life, each in published.items()
            if begin is not None and each.last_at >= begin
        }
        return Copy(
            brokers_of(name),
            log,
            {own: max([lives.origin_of(end), *elsewhere]), **{life: each.last for life, each in published.items()}},
            {origin: lives.origin_of(end if begin is None else Position(begin.ledger, begin.entry - 1))},
            left_out,
            got,
            cluster=name,
            still=self._progress.unpublished_origins(name, topic, standing) - {origin},
        )

    async def _at_worker(self, name: str, topic: str, standing: ReplicaState) -> Copy | None:
        url, place = self._urls[name], self._spool_or_log(name)
        try:
            log = await asyncio.to_thread(read_worker, url, topic, standing, self._since_ms)
            # Entries that were trimmed meanwhile are not missing.
            trimmed = (await asyncio.to_thread(_standings_of, url)).get(topic, standing)
        except PipelineError as error:
            self._found.unreachable[f"{place} in {topic}"] = str(error)
            return None
        own: dict[Life, Position] = {}
        if standing.runs:
            ledger, _, last = standing.runs[-1]
            own = {life: Position(ledger, last) for life in log.lives if life.origin == name}
        marks = {Life(origin, mark[0]): mark[1] for origin, mark in (standing.high_water or {}).items()}
        return Copy(
            place,
            log,
            {**marks, **own},
            {**trimmed.trimmed_of, name: trimmed.trimmed},
            standing.left_out,
            cluster=name,
            still={self._topology.origin_of_clients(name)} if (name, topic) in self._progress.unread else (),
        )

    def _spool_or_log(self, name: str) -> str:
        """Return the name of the copy that the worker of a cluster has in its log."""
        return spool_of(name) if name in self._settings else name

    def _pairs(self, ways: Reachability, names: Sequence[str]) -> list[Pair]:
        """Return the pairs of copies to compare, for each origin."""
        changed = any(link.select for link in self._topology.links)
        parts = any(link.where for link in self._topology.links)
        wanted: list[tuple[str, str, str, bool, bool]] = []
        for home, reached in sorted(ways.messages):
            if self._settings.keys() & {home, reached}:
                origin = self._topology.origin_of_clients(home)
                there, here = self._served_at(home), self._served_at(reached)
                wanted += [(there, here, origin, not changed, parts), (here, there, origin, False, False)]
                if reached in self._settings:  # the spool may have what was deleted where it comes from
                    wanted.append((spool_of(reached), brokers_of(reached), origin, True, False))
        for name in self._settings:
            own = self._topology.origin_of_clients(name)
            brokers, spool = brokers_of(name), spool_of(name)
            wanted += [(brokers, spool, own, True, False), (spool, brokers, own, False, False)]
        number = {name: index for index, name in enumerate(names)}
        return [
            Pair(number[having], number[lacking], origin, contents, parts)
            for having, lacking, origin, contents, parts in wanted
            if having in number and lacking in number
        ]

    def _count(self, topic: str, differences: Iterable[Difference]) -> None:
        clusters = {brokers_of(name): name for name in self._settings}
        for each in differences:
            if self._rows is not None:
                self._rows.write(each.rows(topic))
            if each.kind == BEHIND:
                self._found.behind += each.messages
            elif each.kind == GONE:
                self._found.brokers[clusters[each.copy]].gone += each.messages
            else:
                self._found.add(topic, [replace(each, where=None)])  # the logs go


def _standings_of(url: str) -> dict[str, ReplicaState]:
    with VerifyPlane(url) as worker:
        return worker.standings()


def _subscriptions_of(url: str, topic: str) -> list[SubscriptionState]:
    with VerifyPlane(url) as worker:
        return worker.subscriptions(topic)


def _acked(states: Iterable[SubscriptionState]) -> States:
    return {state.name: Acked.of(state) for state in states if state.replicated}
