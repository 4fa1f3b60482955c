"""Evidence for a switch: asks the source and the target for everything that :mod:`replicator.failover.comparing`
compares.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from replicator.failover import comparing
from replicator.failover.deleted_topics import with_deleted
from replicator.failover.errors import ClusterUnreachable, FailoverError, SwitchRefused
from replicator.failover.obstacles import StoppedLink, Way
from replicator.failover.peers import PATH, WORK_SECONDS_MAX, Peers
from replicator.failover.planned import RequiredEntries, missing_of, why_stopped
from replicator.failover.report import Stranded, SwitchReport, TopicReport
from replicator.topology import Link, Topology
from snapshots.markers import FailoverEpoch
from snapshots.position import Position

COMPARED_AT_ONCE: Final = 16
DIGEST_SECONDS_MAX: Final = 10.0
"""Time limit of the exact state of one topic, which a busy worker may take seconds to gather."""


class Evidence:
    """Evidence from the clusters of ``topology``. Its questions raise :class:`ClusterUnreachable` and
    :class:`SwitchRefused`.
    """

    def __init__(self, topology: Topology, peers: Peers) -> None:
        self._topology = topology
        self._peers = peers

    def carried(self, source: str, target: str) -> Callable[[str, Mapping[str, Any]], bool]:
        """Return a function that tells whether a topic's messages get from the source to the target."""

        def carried(name: str, topic: Mapping[str, Any]) -> bool:
            allowed = topic["clusters"] is None or target in topic["clusters"]
            return allowed and target in self._topology.reached_from(source, name)

        return carried

    def origin(self, cluster: str) -> str:
        """Return the origin of messages that clients publish at the cluster."""
        return self._topology.origin_of_clients(cluster)

    async def topics(
        self,
        cluster: str,
        names: Sequence[str] | None = None,
        earlier: tuple[str, Mapping[str, Sequence[Position]]] | None = None,
    ) -> dict[str, Mapping[str, Any]]:
        """Return the state of topics in ``cluster``, by name. None as ``names`` means all topics.

        ``earlier`` is an origin and, by topic, positions of messages of earlier lives. The answer names those that the
        cluster lacks.
        """
        body: dict[str, Any] = {} if names is None else {"names": list(names)}
        if earlier is not None and earlier[1]:
            origin, positions = earlier
            body["earlier"] = {name: {origin: list(map(str, each))} for name, each in positions.items()}
        answer = await self._peers.call(cluster, "POST", f"{PATH}/topics", body, seconds_max=WORK_SECONDS_MAX)
        return comparing.by_name(answer)

    async def copies(
        self, source: str, target: str, names: Sequence[str], earlier: Mapping[str, Sequence[Position]]
    ) -> tuple[dict[str, RequiredEntries], dict[str, Sequence[Position]]]:
        """Return up to where the target serves the source's messages, and which messages in ``earlier`` it lacks.

        Each result has only the topics with such messages.
        """
        origin = self.origin(source)
        answer = await self.topics(target, names, (origin, earlier))
        found = {name: comparing.served(topic, origin) for name, topic in answer.items()}
        lacks: dict[str, Sequence[Position]] = {
            name: each for name, topic in answer.items() if (each := comparing.lacks(topic, origin))
        }
        return {name: goal for name, goal in found.items() if goal is not None}, lacks

    async def way(
        self,
        source: str,
        target: str,
        missing: Collection[str] | None = None,
        silent: frozenset[str] = frozenset(),
    ) -> Way:
        """Return how the links from the source to the target stand. The clusters in ``silent`` are not asked.

        ``missing`` are topics of which the target may lack something; None means all topics. A link whose destination
        deleted one of them stands still for it. :attr:`Way.silent` has the clusters in ``silent``, and those that do
        not answer. Their links count as open.
        """
        way = Way(self._topology, source, target, silent=silent)

        async def ask(cluster: str, links: Sequence[Link]) -> dict[str, StoppedLink] | None:
            try:
                answer = await self._peers.call(cluster, "GET", "/replication/v1/links")
                states = {each["key"]: each for each in answer["links"]}
                found = [StoppedLink.of(link, states[link.key]) for link in links if link.key in states]
            except (FailoverError, KeyError, TypeError, ValueError):
                return None
            return {each.link.key: each for each in found if each.paused or each.halted}

        asked = {cluster: links for cluster, links in way.links().items() if cluster not in silent}
        answers = await asyncio.gather(*(ask(cluster, links) for cluster, links in asked.items()))
        stopped = {key: each for answer in answers for key, each in (answer or {}).items()}
        quiet = {cluster for cluster, answer in zip(asked, answers, strict=True) if answer is None}
        way = replace(way, stopped=stopped, silent=silent | quiet)
        return await with_deleted(self._peers, self.origin(source), way, missing)

    async def held_up(self, way: Way) -> dict[str, RequiredEntries]:
        """Return, for every topic that the links of ``way`` hold up, what the target must have of it."""
        names = way.topics()
        if names is not None and not names:
            return {}
        topics = await self.topics(way.source, None if names is None else sorted(names))
        carried = self.carried(way.source, way.target)
        held_up = await asyncio.to_thread(way.obstacles, list(topics))  # a paused link holds up all topics
        return comparing.goals(self.origin(way.source), {name: topics[name] for name in held_up}, carried)

    async def why_stopped(self, source: str, target: str) -> str | None:
        """Return why stopped links make a planned switch impossible now; None if they do not."""
        way = await self.way(source, target)
        goals = await self.held_up(way)
        if not goals:
            return None
        earlier = {name: goal.earlier for name, goal in goals.items() if goal.earlier}
        missing = missing_of(goals, *await self.copies(source, target, list(goals), earlier))
        found = await asyncio.to_thread(way.obstacles, list(missing))
        return why_stopped(source, target, missing, found) if found else None

    async def compare_drained(self, source: str, target: str, names: Sequence[str]) -> list[TopicReport]:
        """Compare topics whose messages the target has completely."""
        here, there = await asyncio.gather(self.topics(source, names), self.topics(target, names))
        digests = await asyncio.gather(self._digests(source, names), self._digests(target, names))
        return [
            comparing.compare_topic(
                name, self.origin(source), here.get(name), there.get(name), carried=True, missing=None, digests=digests
            )
            for name in names
        ]

    async def compare_all(
        self,
        report: SwitchReport,
        marks: Mapping[str, Any] | None = None,
        record_id: str | None = None,
        *,
        asked: Sequence[str] | None = None,
        missing: Mapping[str, Any] | None = None,
    ) -> list[TopicReport]:
        """Compare every topic of the source, or those in ``asked``, with the target. ``marks`` are those of a switch
        that was made. ``missing`` is what :meth:`missing` counted while the source took no messages.
        """
        there = await self.topics(report.target, asked)
        origin = self.origin(report.source)
        if marks is None:
            positions = {name: str(goal.last) for name, goal in comparing.marks(there, origin).items()}
        else:
            positions = _positions(marks)
        here: Mapping[str, Mapping[str, Any]] | None = None
        counted: Mapping[str, Any] = {}
        digests: tuple[comparing.Digests, comparing.Digests] = ({}, {})
        if report.source_answers:
            try:
                here = await self.topics(report.source, asked)
                if lives := {name: each for name, topic in here.items() if (each := comparing.earlier(topic, origin))}:
                    there = {**there, **await self.topics(report.target, list(lives), (origin, lives))}
                counted = await self._missing(report.source, positions, record_id, asked)
                if missing is not None:
                    counted = {name: each for name, each in counted.items() if name not in positions} | dict(missing)
                if note := comparing.note_of_unreplicated(here, report.target):
                    report.notes.append(note)
                subscribed = [name for name, topic in here.items() if comparing.replicated(topic)]
                digests = (
                    await self._digests(report.source, subscribed),
                    await self._digests(report.target, subscribed),
                )
            except ClusterUnreachable as error:
                report.source_answers, here, counted = False, None, {}
                report.notes.append(str(error))
        carried = self.carried(report.source, report.target)
        names = sorted(there if here is None else here)
        return [
            comparing.compare_topic(
                name,
                origin,
                None if here is None else here[name],
                there.get(name),
                carried=carried(name, there[name] if here is None else here[name]),
                missing=counted.get(name),
                digests=digests,
            )
            for name in names
            if here is not None or comparing.mark(there[name], origin) is not None
        ]

    async def compare_made(
        self,
        report: SwitchReport,
        marks: Mapping[str, Any],
        *,
        record_id: str | None = None,
        missing: Mapping[str, Any] | None = None,
    ) -> None:
        """Put the comparison of every topic into the report of a switch that was made. If it fails, the switch is done
        all the same, and the report has a note."""
        try:
            report.topics = await self.compare_all(report, marks, record_id, missing=missing)
        except FailoverError as error:
            report.notes.append(f"the switch is done; what was to be compared after it was not: {error}")

    async def missing(self, source: str, marks: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return, by topic, the source's messages above the positions of a switch. Ask before it takes clients again:
        later messages are not missing. Topics without a position are left out, because counting all of their
        messages takes long. Raise :class:`FailoverError`.
        """
        positions = _positions(marks)
        return await self._missing(source, positions, None, list(positions))

    async def stranded(self, record: FailoverEpoch) -> list[Stranded]:
        """Return the messages that the source of a switch had and its target lacked."""
        answer = await self._peers.call(record.target, "GET", f"{PATH}/switches", seconds_max=WORK_SECONDS_MAX)
        for switch in answer["switches"]:
            if switch["record"]["record_id"] == record.record_id:
                break
        else:
            raise ClusterUnreachable(
                f"{record.target} no longer has its positions of the switch from {record.source} to it, so that the "
                f"messages that only {record.source} had cannot be counted: compare the clusters with `replicator "
                "verify`"
            )
        missing = await self._missing(record.source, _positions(switch["marks"]), record.record_id)
        there = await self.topics(record.target, list(missing))
        found: list[Stranded] = []
        for name, each in missing.items():
            has = comparing.mark(there.get(name), self.origin(record.source))
            flowed = has is not None and has.last >= comparing.position(each["last"])
            found.append(Stranded(name, each["messages"], each["exact"], flowed))
        return found

    async def _digests(self, cluster: str, names: Sequence[str]) -> comparing.Digests:
        """Return the exact states of topics; for those that cannot be had, why.

        Once the worker does not answer, it is not asked for further topics: each would take the time limit.
        """
        room = asyncio.Semaphore(COMPARED_AT_ONCE)
        found: dict[str, Mapping[str, Any] | comparing.StateUnavailable] = {}
        silent: comparing.StateUnavailable | None = None

        async def ask(name: str) -> None:
            nonlocal silent
            async with room:
                if silent is not None:
                    found[name] = silent
                    return
                try:
                    answer = await self._peers.call(
                        cluster,
                        "GET",
                        "/replication/v1/ack-vectors",
                        query={"topic": name},
                        seconds_max=DIGEST_SECONDS_MAX,
                    )
                except SwitchRefused as error:
                    found[name] = comparing.StateUnavailable(str(error))
                except ClusterUnreachable as error:
                    found[name] = silent = comparing.StateUnavailable(str(error))
                else:
                    malformed = comparing.StateUnavailable(f"{cluster} answers with no state")
                    found[name] = answer if isinstance(answer, Mapping) else malformed

        await asyncio.gather(*map(ask, names))
        return found

    async def _missing(
        self, cluster: str, marks: Mapping[str, str], record_id: str | None, names: Sequence[str] | None = None
    ) -> Mapping[str, Any]:
        """Return, by topic, a cluster's own messages above ``marks``: for all topics, or for the named ones."""
        body = {"marks": marks, "record_id": record_id, "names": None if names is None else list(names)}
        answer = await self._peers.call(cluster, "POST", f"{PATH}/missing", body, seconds_max=WORK_SECONDS_MAX)
        missing: Mapping[str, Any] = answer["topics"]
        return missing


def _positions(marks: Mapping[str, Any]) -> dict[str, str]:
    return {name: each["position"] for name, each in marks.items()}
