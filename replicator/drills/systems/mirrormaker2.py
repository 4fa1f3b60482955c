"""Two real Apache Kafka clusters and MirrorMaker 2 with synced group offsets, under drill.

MirrorMaker 2 copies from the first cluster to the second. It stands beside the second, as its documentation advises, so
it survives the kill. Copies are in a topic of their own there (``us-east.TOPIC``), which consumers read beside the
topic that producers write to after the failover. A subscription is a consumer group; its offsets come to the second
cluster by MirrorMaker 2's checkpoints. Nothing goes back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from replicator.drills.errors import DrillError
from replicator.drills.observations import FIRST_INDEX, LAST_INDEX, Place
from replicator.drills.peers.jvm import PeerFailed, version_of
from replicator.drills.peers.kafka.cluster import MIRROR_SETTINGS, SETTINGS, KafkaBroker, MirrorMaker, missing
from replicator.drills.peers.together import started_together
from replicator.drills.systems.peer import LACKS, PRIMARY, SECONDARY, PeerClusters, PeerKind
from replicator.drills.systems.seen import CopyReader
from replicator.drills.systems.system import Findings, System
from replicator.drills.traffic import kafka_client
from replicator.drills.traffic.active import POLL_SECONDS, ActiveCluster, Drill
from replicator.drills.traffic.clients import DrillClients
from replicator.drills.traffic.kafka_client import CONSUMER, PRODUCER, KafkaClients

NAME: Final = "mirrormaker2"
TOPIC_PREFIX: Final = "replicator-drill-"
WARM_TOPIC: Final = f"{TOPIC_PREFIX}warm"
WARM_GROUP: Final = "drill-warm"
LINKED_SECONDS_MAX: Final = 120.0
LOOK_SECONDS: Final = 0.1
ANSWER_SECONDS_MAX: Final = 60.0
WAY: Final = f"{PRIMARY}->{SECONDARY}"

TUNED: Final[Mapping[str, str]] = {
    f"{WAY}.topics": f"{TOPIC_PREFIX}.*",
    f"{WAY}.groups": "drill-.*",
    "tasks.max": "1",  # a topic has one partition, which is one task's
    "refresh.topics.interval.seconds": "1",
    "refresh.groups.interval.seconds": "1",
    # Offsets of groups are translated, and written at the other cluster, every second instead of every minute.
    "emit.checkpoints.interval.seconds": "1",
    "sync.group.offsets.enabled": "true",
    "sync.group.offsets.interval.seconds": "1",
    # A translation is remembered for each batch, and not for every hundredth message.
    "offset.lag.max": "0",
    # Reading: as much at once as there is. Writing: several batches on their way, in order.
    f"{PRIMARY}.consumer.max.poll.records": "10000",
    f"{SECONDARY}.producer.enable.idempotence": "true",
    f"{SECONDARY}.producer.max.in.flight.requests.per.connection": "5",
    f"{SECONDARY}.producer.acks": "all",
}
KINDS: Final = ("exclusive", "failover")
"""Kinds of groups: one consumer that commits all that it received; or a pair of consumers: one has the partition, and
finishes messages out of order. MirrorMaker 2 carries no other kind of Kafka's over.
"""


class MirrorMaker2(PeerClusters):
    """See :class:`~replicator.drills.systems.system.System`."""

    def __init__(
        self, kind: PeerKind, brokers: Mapping[str, KafkaBroker], mirror: MirrorMaker, admins: Mapping[str, Any]
    ) -> None:
        super().__init__(
            kind,
            f"{TOPIC_PREFIX}{time.time_ns() // 1_000_000}",
            start={name: broker.start for name, broker in brokers.items()},
            kill={name: broker.kill for name, broker in brokers.items()},
        )
        self._kafka = kafka_client.load(f"--system {NAME}")
        self._brokers = brokers
        self._mirror = mirror
        self._admins = admins
        self._copy = f"{PRIMARY}.{self.topic}"
        address = {"bootstrap.servers": brokers[PRIMARY].address, **kafka_client.quiet()}
        self._warm = self._kafka.Producer(address)
        self._warm_group = self._kafka.Consumer({**address, "group.id": WARM_GROUP})

    def clients(self, active: ActiveCluster) -> DrillClients:
        addresses = {name: broker.address for name, broker in self._brokers.items()}
        return KafkaClients(addresses, {PRIMARY: (), SECONDARY: (self._copy,)}, active)

    def watchers(self, drill: Drill) -> Sequence[Coroutine[Any, Any, None]]:
        reader = CopyReader(drill, SECONDARY, drill.clients, self.running[SECONDARY])
        return [reader.run(), self._watch_acknowledgements(drill)]

    def close(self) -> None:
        self._warm_group.close()
        self._mirror.stop()

    async def findings(self) -> Findings:
        self._mirror.check_alive()
        return Findings(
            system=NAME,
            engine="MirrorMaker 2",
            sync="group offsets",
            lacks=LACKS,
            configuration={
                "versions": {
                    "Apache Kafka and MirrorMaker 2": version_of("kafka"),
                    "confluent-kafka": version("confluent-kafka"),
                },
                **self.kind.configuration,
            },
        )

    async def link(self) -> None:
        """Make the topic in both clusters, and wait until MirrorMaker 2 copies messages and offsets of groups.

        It takes some ten seconds to begin. A topic and a group of their own show that it has.
        """
        for name in self.clusters:
            await asyncio.to_thread(self._make_topic, name, self.topic)
        await asyncio.to_thread(self._make_topic, PRIMARY, WARM_TOPIC)
        await self._until(self._has_copies, f"made {self._copy}")
        await self._until(self._warm_group_is_synced, "copied the offset of a group")

    async def _until(self, is_so: Callable[[], bool], done: str) -> None:
        deadline = time.monotonic() + LINKED_SECONDS_MAX
        while not await asyncio.to_thread(is_so):
            self._mirror.check_alive()
            if time.monotonic() > deadline:
                raise PeerFailed(
                    f"MirrorMaker 2 had not {done} after {LINKED_SECONDS_MAX:.0f} s; its log "
                    f"ends:\n{self._mirror.log_tail()}"
                )
            await asyncio.sleep(LOOK_SECONDS)

    def _make_topic(self, name: str, topic: str) -> None:
        from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

        self._admins[name].create_topics([NewTopic(topic, 1, 1)])[topic].result(ANSWER_SECONDS_MAX)

    def _has_copies(self) -> bool:
        topics = self._admins[SECONDARY].list_topics(timeout=ANSWER_SECONDS_MAX).topics
        return self._copy in topics and f"{PRIMARY}.{WARM_TOPIC}" in topics

    def _warm_group_is_synced(self) -> bool:
        """Publish and commit one more message; return whether an earlier one's offset has arrived."""
        self._warm.produce(WARM_TOPIC, b"warm", partition=0)
        self._warm.flush(ANSWER_SECONDS_MAX)
        partition = self._kafka.TopicPartition(WARM_TOPIC, 0)
        _, end = self._warm_group.get_watermark_offsets(partition, timeout=ANSWER_SECONDS_MAX)
        self._warm_group.commit(offsets=[self._kafka.TopicPartition(WARM_TOPIC, 0, end)], asynchronous=False)
        return self._committed(WARM_GROUP, f"{PRIMARY}.{WARM_TOPIC}") > 0

    async def _watch_acknowledgements(self, drill: Drill) -> None:
        """Ask the second cluster for the offsets that MirrorMaker 2 wrote there, while clients are at the first."""
        known = dict.fromkeys((each.name for each in drill.observations.subscriptions), 0)
        while drill.watching_sync and not drill.finished.is_set():
            for group in known:
                offset = await asyncio.to_thread(self._committed, group, self._copy)
                if offset > known[group] and drill.watching_sync:
                    first, last = Place(0, known[group], FIRST_INDEX), Place(0, offset - 1, LAST_INDEX)
                    drill.observations.covered(group, SECONDARY, first, last, time.monotonic())
                    known[group] = offset
            await asyncio.sleep(POLL_SECONDS)

    def _committed(self, group: str, copy: str) -> int:
        """Return the group's offset of the copy at the second cluster; 0 if there is none."""
        asked = self._kafka.ConsumerGroupTopicPartitions(group, [self._kafka.TopicPartition(copy, 0)])
        try:
            answer = self._admins[SECONDARY].list_consumer_group_offsets([asked])[group].result(ANSWER_SECONDS_MAX)
        except self._kafka.KafkaException:
            return 0
        return max((max(int(each.offset), 0) for each in answer.topic_partitions), default=0)


def _check() -> None:
    why = missing()
    if why is not None:
        raise DrillError(f"--system {NAME}: {why}")
    kafka_client.load(f"--system {NAME}")


@asynccontextmanager
async def _started(kind: PeerKind, directory: Path) -> AsyncIterator[System]:
    brokers = {name: KafkaBroker(directory / name) for name in (PRIMARY, SECONDARY)}
    mirror = MirrorMaker(directory / "mirror", (PRIMARY, brokers[PRIMARY]), (SECONDARY, brokers[SECONDARY]), TUNED)
    try:
        await started_together(*(broker.start for broker in brokers.values()))
        from confluent_kafka.admin import AdminClient

        admins = {
            name: AdminClient({"bootstrap.servers": broker.address, **kafka_client.quiet()})
            for name, broker in brokers.items()
        }
        await started_together(mirror.start)
        system = MirrorMaker2(kind, brokers, mirror, admins)
        await system.link()
        try:
            yield system
        finally:
            await asyncio.to_thread(system.close)
    finally:
        for program in (mirror, *brokers.values()):
            await asyncio.to_thread(program.stop)


MIRRORMAKER2: Final = PeerKind(
    name=NAME,
    kinds=KINDS,
    client="confluent-kafka",
    configuration={
        "broker": SETTINGS,
        "MirrorMaker 2": {**MIRROR_SETTINGS, **TUNED},
        "producers": {name: str(value) for name, value in PRODUCER.items()},
        "consumers": {name: str(value) for name, value in CONSUMER.items()},
    },
    both_ways=False,
    check=_check,
    started=_started,
)
