"""Creation of a topic at the brokers that links brought, unless it was deleted there.

The brokers had a topic if the worker has read from it, published to it, or seen its subscriptions. If they lack it now,
it was deleted. Then it is not made anew: the topic halts, and the other clusters keep their copies.

A partition is made with its partitioned topic, so that no broker makes it as a topic of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus

from replicator.apache.admin import BrokerAdmin
from replicator.apache.errors import AdminFailed, BridgeError, BridgeHalted
from replicator.apache.names import renewing_command
from replicator.engine.engine import Engine
from replicator.engine.topic_name import parse_topic
from replicator.engine.topics.partitions import base_name


class TopicAtBrokers:
    """One topic at the brokers. ``was_there`` returns whether the worker knows that the brokers had it."""

    def __init__(self, admin: BrokerAdmin, engine: Engine, topic: str, was_there: Callable[[], bool]) -> None:
        self._admin = admin
        self._engine = engine
        self._topic = topic
        self._was_there = was_there

    async def ensure(self, *, anew: bool = False) -> None:
        """Make the topic if the brokers do not have it; with ``anew`` also if it was deleted there.

        Raises :class:`BridgeHalted` if it was deleted, and :class:`BridgeError` if it cannot be made.
        """
        name = parse_topic(self._topic)
        if name.partition >= 0:
            await self._ensure_partition(base_name(self._topic), name.partition, anew)
        elif not await self.is_there():
            if self._was_there() and not anew:
                if self._topic in await self._admin.topics(name.full_namespace):
                    raise BridgeError(
                        f"{self._topic}: the brokers list it, and do not find it yet; the bridge asks again by itself"
                    )
                raise self._deleted()
            await self._admin.create_topic(self._topic)

    async def is_there(self) -> bool:
        """Return whether the brokers have the topic."""
        try:
            await self._admin.internals(self._topic)
        except AdminFailed as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            return False
        return True

    async def _ensure_partition(self, base: str, partition: int, anew: bool) -> None:
        there = await self._admin.partitions(base)
        if there > partition:
            return
        partitions = self._engine.partitioned.count(base)
        if partitions <= partition:
            raise BridgeError(
                f"{self._topic}: {base} is no partitioned topic at the brokers, and no cluster has told of one with so "
                f"many partitions, so this topic is not bridged. Consume {await self._entries(self._topic)} there, "
                f"delete it (`pulsar-admin topics delete {self._topic}`), and make the whole one (`pulsar-admin topics "
                f"create-partitioned-topic {base} -p {partition + 1}`); or leave it out with `apache.exclude`"
            )
        if self._was_there() and not anew:
            raise self._deleted()
        make = self._admin.grow_partitioned if there else self._admin.create_partitioned
        await make(base, partitions)
        if await self._admin.partitions(base) <= partition:
            raise BridgeError(
                f"the brokers do not make {base} a topic of {partitions} partitions: it is there without, or a "
                f"partition is there as a topic of its own. Consume {await self._entries(base, self._topic)} there, "
                f"and delete that (`pulsar-admin topics delete TOPIC`); {base} is made with partitions by itself then. "
                f"Or leave {base} out with `apache.exclude`"
            )

    async def _entries(self, *topics: str) -> str:
        """Return in words how many entries the brokers have of ``topics``, leaving out those that they lack."""
        found = []
        for topic in topics:
            try:
                found.append(f"the {(await self._admin.internals(topic)).entries} entries of {topic}")
            except AdminFailed as error:
                if error.status != HTTPStatus.NOT_FOUND:
                    raise
        return " and ".join(found) or f"what is in {topics[0]}"

    def _deleted(self) -> BridgeHalted:
        return BridgeHalted(
            f"{self._topic} was deleted at the brokers. Nothing is made anew, and other clusters keep their copies. "
            "The renewal makes the topic anew with what other clusters published",
            renewing_command(self._topic),
        )
