"""The bridge of one worker: which topics it bridges, and what it shows of them.

The brokers are asked for their topics every :data:`DISCOVER_SECONDS`, and where they tell that some have come
(:mod:`replicator.apache.topic_watches`); the engine says of its own when messages come into them. A topic is bridged
from either side: what is at the brokers is made in the engine, and what links brought into the engine is made at the
brokers, in a namespace that is there.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, Final

import structlog

from replicator.apache.admin import BrokerAdmin
from replicator.apache.broker_clients import BrokerClients
from replicator.apache.comparison import quiet_seconds
from replicator.apache.copies_elsewhere import Elsewhere
from replicator.apache.credentials import showing_of
from replicator.apache.errors import AdminFailed, BridgeError, NotBridged
from replicator.apache.flow_control import read_budget
from replicator.apache.native_replication import NativeOrigins, NativeReplication
from replicator.apache.publish_budget import publish_budget
from replicator.apache.renewing import Renewal, ResumeMode
from replicator.apache.topic_bridge import TopicBridge
from replicator.apache.topic_watches import TopicWatches
from replicator.client.errors import PulsarException
from replicator.client.wire.connector import BrokerConnector
from replicator.engine.engine import Engine
from replicator.engine.errors import EngineError
from replicator.engine.log.requests import AppendedBlock
from replicator.engine.subscriptions.subscription import Subscription
from replicator.engine.topic import Topic
from replicator.engine.topic_listener import TopicListener
from replicator.engine.topics.partitions import base_name
from replicator.running.lasting_failure import LastingFailure
from replicator.running.supervisor import SupervisedTask
from replicator.running.timeouts import timeout
from replicator.topology import Topology
from replicator.topology.apache import ApacheSettings
from snapshots.position import Position

DISCOVER_SECONDS: Final = 2.0
"""Longest time between two looks for new topics at the brokers. A look makes one request for
each tenant and partitioned topic, and two for each namespace."""
LOOK_PAUSE_SECONDS: Final = 0.1
"""Shortest pause between two looks for topics, because many topics may come one after the other."""
LOOK_SHARE: Final = 5
"""Pause after a look, as a multiple of the time that the look took; at most :data:`DISCOVER_SECONDS`."""
WATCHED_TOPICS_MAX: Final = 5_000
"""Most topics of a watched namespace. With more, each change would cost milliseconds, even of unbridged topics."""
TOPICS_MAX: Final = 5_000
"""Most topics that one worker bridges. Each has a consumer, and may have a producer, at the brokers."""
ASKED_AT_ONCE: Final = 16
"""Topics whose consumers are asked for at the brokers at the same time."""
CONNECTION_SECONDS_MAX: Final = 10.0
OPERATION_SECONDS_MAX: Final = 30.0

log = structlog.get_logger(__name__)


class ApacheBridge(TopicListener[Topic]):
    """Bridges the topics of ``settings`` between the engine of ``broker_origin``'s cluster and the brokers.

    ``elsewhere`` returns what other clusters have of ``broker_origin``'s messages of a topic. ``natives`` decides to
    which clusters links copy messages that the brokers' own geo-replication brought; without it, to all.
    """

    def __init__(
        self,
        engine: Engine,
        settings: ApacheSettings,
        broker_origin: str,
        elsewhere: Elsewhere | None = None,
        natives: NativeOrigins | None = None,
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._broker_origin = broker_origin
        self._elsewhere = elsewhere
        self._natives = natives
        self._topics: dict[str, TopicBridge] = {}
        self._publish_room = publish_budget()
        self._read_room = read_budget()
        self.clients = BrokerClients(
            engine,
            broker_origin,
            lambda: self._topics,
            self._find_once,
            error=lambda: self._error,
            unfound=self._unfound,
            limited=lambda: self._admin.limited(),
            renewing=lambda: self._renewing,
        )
        self._error = ""
        self._failure = LastingFailure()
        self._found_all = False
        """Whether all topics of the brokers were looked for once."""
        self._refused: dict[str, str] = {}
        """For each topic at the brokers that cannot be bridged, the reason."""
        self._renewing: set[str] = set()
        """Topics that are not bridged for a moment, while their reading is renewed."""
        self._too_many: dict[str, str] = {}
        """Topics of the engine that are not bridged because there are too many, each with the reason as text."""
        self._task: SupervisedTask = engine.supervisor.task("apache-bridge", "finding topics to bridge", self._find)
        self._admin = BrokerAdmin(settings)
        self._native = NativeReplication(self._admin)
        self._connector = BrokerConnector(
            settings.service_url,
            connection_timeout_seconds=CONNECTION_SECONDS_MAX,
            operation_timeout_seconds=OPERATION_SECONDS_MAX,
            showing=showing_of(settings),
        )
        self._watches = TopicWatches(self._connector)
        self._sizes: dict[str, int] = {}
        """Number of topics of each namespace."""
        self._hearing: SupervisedTask = engine.supervisor.task(
            "apache-bridge", "hearing of new topics from the brokers", self._watch_namespaces
        )

    def start(self) -> None:
        """Bridge the engine's topics, and look for more. The brokers need not run."""
        self._engine.add_listener(self)
        for topic in self._engine.topics():
            self._bridge_if_needed(topic)
        self._task.start()
        self._hearing.start()

    async def stop(self) -> None:
        await asyncio.gather(self._task.stop(), self._hearing.stop())
        if self in self._engine.loaded.listeners:
            self._engine.remove_listener(self)
        await asyncio.gather(*(each.stop() for each in self._topics.values()))
        self._topics.clear()
        await self._watches.close()
        await self._connector.close()
        await self._admin.close()

    def change(self, topology: Topology) -> None:
        """Use another topology for what the brokers' own geo-replication brings from now on."""
        if self._natives is not None:
            self._natives.change(topology)

    def status(self) -> dict[str, Any]:
        return {
            "service_url": self._settings.service_url,
            "admin_url": self._settings.admin_url,
            "origin": self._broker_origin,
            "error": self._error,
            "limited": self._admin.limited(),
            "requests_refused": self._admin.refusals,
            "watched": self._watches.count,
            "quiet_seconds": round(self._quiet_seconds(1.0), 1),
            "native_replication": dict(self._native.found),
            "refused": self._too_many | self._refused,
            "topics": [each.status() for each in self._topics.values()],
        }

    async def consumers_at_brokers(self, subscription: str, topics: Sequence[str]) -> Mapping[str, int]:
        """Return, by topic, how many consumers of applications ``subscription`` has at the brokers.

        Topics are asked for in groups, and the search ends with the first group that has consumers. Topics without
        consumers are left out, and so are topics and subscriptions that are not bridged. Raises :class:`BridgeError` if
        the brokers do not answer.
        """
        bridged = [topic for topic in topics if topic in self._topics]
        if not self._settings.bridges_subscription(subscription):
            bridged = []

        async def count(topic: str) -> int:
            return (await self._admin.consumers(topic)).get(subscription, 0)

        for first in range(0, len(bridged), ASKED_AT_ONCE):
            part = bridged[first : first + ASKED_AT_ONCE]
            counts = await asyncio.gather(*map(count, part))
            if any(counts):
                return {topic: found for topic, found in zip(part, counts, strict=True) if found}
        return {}

    async def leave_out(self, topic: str, cluster: str, position: Position) -> dict[str, Any]:
        """Pass over the entry of ``cluster`` that the brokers refuse, and return the record of it.

        Raises :class:`NotBridged`, :class:`EntryNotRefused`, and the store's errors.
        """
        return await self._bridged(topic).leave_out(cluster, position)

    def named(self, topic: str) -> list[str]:
        """Return the names of the bridged topics that ``topic`` names: itself, or the partitions of a partitioned
        topic.

        Raises :class:`NotBridged` if there is none.
        """
        if topic in self._topics:
            return [topic]
        found = sorted(name for name in self._topics if base_name(name) == topic)
        if not found:
            reason = (self._too_many | self._refused).get(
                topic,
                "the brokers and the links have not told of it; see that its name is right, and that "
                "`apache.exclude` does not leave it out",
            )
            raise NotBridged(f"{topic} is not bridged in cluster {self._engine.cluster!r}: {reason}")
        return found

    def topic_status(self, topic: str) -> dict[str, Any]:
        """Return the status of one bridged topic."""
        return self._bridged(topic).status()

    def _bridged(self, topic: str) -> TopicBridge:
        """Return the bridge of one topic. Raises :class:`NotBridged` if there is none now."""
        if (bridged := self._topics.get(topic)) is None:
            raise NotBridged(
                f"{topic} is not bridged in cluster {self._engine.cluster!r} now: its brokers or links have not told "
                "of it yet, it was just deleted, or `apache.exclude` leaves it out. `replicator bridge status` says "
                "what holds it up"
            )
        return bridged

    async def renew(self, topic: str, *, dry_run: bool) -> Renewal:
        """Get the halted reading of one bridged topic going again, and return how.

        With ``dry_run`` nothing is changed. Raises :class:`BridgeError` if the brokers do not answer, and
        :class:`RenewalRefused` if messages would be lost.
        """
        bridged = self._bridged(topic)
        renewal = await bridged.renewal()
        if dry_run or renewal.way is ResumeMode.NOTHING or self._topics.get(topic) is not bridged:
            return renewal
        self._renewing.add(topic)
        del self._topics[topic]
        try:
            await bridged.stop(keep_hold=True)
            await bridged.renew(renewal)
        finally:
            self._renewing.discard(topic)
            self._bridge(bridged.topic)
        return renewal

    async def acknowledge_missing(self, topic: str) -> list[dict[str, Any]]:
        """Stop naming the places of a topic where messages may be missing, and return them.

        Raises :class:`NotBridged`, and the store's errors.
        """
        return await self._bridged(topic).acknowledge_missing()

    # Events of the engine.

    def on_appended(self, topic: Topic, blocks: Sequence[AppendedBlock]) -> None:
        bridged = self._topics.get(topic.name)
        if bridged is None:
            self._bridge_if_needed(topic)
            return
        bridged.on_appended(blocks)

    def on_subscription(self, topic: Topic, subscription: Subscription) -> None:
        if topic.name in self._topics:
            self._tell(topic)
        else:
            self._bridge_if_needed(topic)

    def on_subscription_deleted(self, topic: Topic, name: str, generation: int | None) -> None:
        self._tell(topic)

    def on_acknowledged(self, topic: Topic, subscription: Subscription) -> None:
        self._tell(topic, subscription)

    def on_mark_delete(self, topic: Topic, subscription: Subscription, *, local: bool) -> None:
        self._tell(topic, subscription)

    def on_log_deleted(self, topic: Topic) -> None:
        self._too_many.pop(topic.name, None)
        gone = self._topics.pop(topic.name, None)
        if gone is not None:
            self._engine.supervisor.task(
                "apache-bridge", f"ending {topic.name} at the brokers", gone.stop, until_done=True
            ).start()

    def _tell(self, topic: Topic, subscription: Subscription | None = None) -> None:
        bridged = self._topics.get(topic.name)
        if bridged is not None:
            bridged.on_state(subscription)

    # Inside.

    def _bridge_if_needed(self, topic: Topic) -> None:
        """Bridge a topic of the engine that has messages, or a subscription that the brokers must have."""
        if not self._settings.bridges(topic.name):
            return
        if topic.origins.message_vector() or any(
            each.replicated and each.stored and self._settings.bridges_subscription(name)
            for name, each in topic.subscriptions.items()
        ):
            self._bridge(topic)

    def _bridge(self, topic: Topic) -> None:
        if topic.name in self._topics or topic.name in self._renewing or topic.deleted is not None:
            return
        if len(self._topics) >= TOPICS_MAX:
            self._too_many[topic.name] = (
                f"{TOPICS_MAX} topics are bridged, the limit of a worker: leave some out with `apache.exclude`"
            )
            return
        self._too_many.pop(topic.name, None)
        bridged = self._topics[topic.name] = TopicBridge(
            self._settings,
            self._connector,
            self._admin,
            self._engine,
            topic,
            self._broker_origin,
            self._publish_room,
            self._read_room,
            self._engine.supervisor,
            self._elsewhere,
            self._natives,
            lambda: self._quiet_seconds(random.random()),
        )
        self.clients.fence(bridged)
        bridged.start()

    async def _find(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            changed, began = self._watches.take(), loop.time()
            try:
                if began >= due:
                    due = began + DISCOVER_SECONDS
                    await self._find_once()
                    self._well()
                    bridged = {_namespace_of(name) for name in self._topics}
                    await self._native.look(bridged, began)
                else:
                    for namespace in changed:
                        await self._find_in(namespace)
            except (BridgeError, PulsarException, EngineError) as error:
                self._fails(error)
            took = loop.time() - began
            await asyncio.sleep(min(max(LOOK_PAUSE_SECONDS, LOOK_SHARE * took), DISCOVER_SECONDS))
            try:
                async with timeout(max(0.0, due - loop.time())):
                    await self._watches.news.wait()
            except TimeoutError:
                pass

    def _quiet_seconds(self, chance: float) -> float:
        return quiet_seconds(len(self._topics), self._settings.quiet_requests_per_second, chance)

    def _fails(self, error: Exception) -> None:
        self._error = str(error)
        if self._failure.failed():
            log.warning("the Apache Pulsar brokers do not answer", reason=self._error)

    def _well(self) -> None:
        self._error = ""
        seconds = self._failure.ended()
        if seconds is not None:
            log.info("the Apache Pulsar brokers answer again", failed_seconds=seconds)
            for each in self._topics.values():
                each.retry_now()

    async def _watch_namespaces(self) -> None:
        """Watch namespaces, in a task of its own: the binary protocol may hang while the admin API answers."""
        while True:
            await self._watches.keep([name for name, size in self._sizes.items() if size <= WATCHED_TOPICS_MAX])
            await asyncio.sleep(DISCOVER_SECONDS)

    def _unfound(self) -> str:
        """Return which topics of the brokers are not known here; empty if all are."""
        if not self._found_all:
            return "the topics of the brokers were not found yet"
        refused = self._too_many | self._refused
        if not refused:
            return ""
        name, reason = next(iter(refused.items()))
        return (
            f"{len(refused)} topics of the brokers are not bridged, {name} among them ({reason}); `apache.exclude` in "
            "the topology leaves topics out on purpose"
        )

    async def _find_once(self) -> None:
        """Look for topics in all namespaces. A refusal does not end the look; the first one is raised at the end."""
        refusals: list[AdminFailed] = []
        namespaces: list[str] = []
        for tenant in await self._admin.tenants():
            with _answered(refusals):
                namespaces += await self._admin.namespaces(tenant)
        for namespace in namespaces:
            with _answered(refusals):
                await self._find_in(namespace)
        if refusals:
            raise refusals[0]
        self._found_all = True
        for gone in self._sizes.keys() - set(namespaces):
            del self._sizes[gone]
        for name in [name for name in self._refused if _namespace_of(name) not in self._sizes]:
            del self._refused[name]

    async def _find_in(self, namespace: str) -> None:
        found = await self._admin.topics(namespace)  # first: then of each partition here its topic is known
        partitioned = await self._admin.partitioned_topics(namespace)
        self._sizes[namespace] = len(found)
        for gone in {name for name in self._refused if _namespace_of(name) == namespace} - {*found, *partitioned}:
            del self._refused[gone]
        for name in partitioned:
            if self._settings.bridges(name):
                await self._adopt(name)
        for name in found:
            if name not in self._topics and self._settings.bridges(name):
                await self._take(name)

    async def _adopt(self, name: str) -> None:
        """Partition a topic in the engine as it is at the brokers, so that links tell other clusters."""
        try:
            partitions = await self._admin.partitions(name)
            if partitions > self._engine.partitioned.count(name):
                await self._engine.partitioned.adopt(name, partitions)
        except EngineError as error:
            self._refused[name] = str(error)
            return
        except AdminFailed as error:
            if not error.is_refusal:
                raise
            self._refused[name] = str(error)
            return
        self._refused.pop(name, None)

    async def _take(self, name: str) -> None:
        try:
            topic = await self._engine.topic(name, by_link=True)
            self._bridge(topic)
        except (BridgeError, EngineError) as error:
            self._refused[name] = str(error)
            return
        self._refused.pop(name, None)


@contextmanager
def _answered(refusals: list[AdminFailed]) -> Iterator[None]:
    """Collect refusals of the brokers. If they do not answer, raise the error, so that nothing else is asked for."""
    try:
        yield
    except AdminFailed as error:
        if not error.is_refusal:
            raise
        if error.status != HTTPStatus.NOT_FOUND:  # it was deleted meanwhile
            refusals.append(error)


def _namespace_of(topic: str) -> str:
    """Return ``tenant/namespace`` in a full name, whatever else is in it."""
    return "/".join(topic.partition("://")[2].split("/")[:2])
