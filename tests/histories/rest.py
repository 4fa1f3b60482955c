"""End of a history: judging what every subscription gets."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from functools import partial
from typing import Final

from histories.disks import Disks
from histories.judging import Violation
from histories.records import Subscription
from histories.steps import PARTED, TYPES, is_replicated
from histories.traffic import uid_of
from histories.watch import REQUEST_SECONDS, patient
from replicator.client import Client, ConsumerType
from replicator.client.errors import ChunkMissing
from replicator.pipeline.errors import BadOption
from replicator.pipeline.verify.verify import VerifySettings, verify
from replicator.topology import load_topology

INCOMPLETE_MS: Final = 100
"""Time after which a client gives up chunks, once nothing else is left to receive."""


class AtRest(Disks):
    """Judgement of all clusters at the end of a history."""

    async def finish(self) -> None:
        """Heal everything, come to rest, and judge what every subscription gets."""
        for name in sorted(self.model.without_postgres):
            await self.postgres_back(at=name)
        for source, to in sorted(self.model.paused):
            if source in self.model.down:
                await self.start(at=source)
            await self.resume(source=source, to=to)
        for name in sorted(self.model.down):
            await self.start(at=name)
        await self.settle()
        if self.model.moved:
            for name in sorted(self.model.moved):
                await self.fail_back(to=name)
            await self.settle()
        for cluster in self.shape.clusters:
            left = [
                each
                for each in self.model.subscriptions.values()
                if not each.deleted and cluster in each.clusters and cluster not in each.excluded
            ]
            came = await asyncio.gather(*(self._drain(each, cluster) for each in left))
            if sum(came):
                await self.settle()
        await self._judge_backlogs()
        await self.settle()  # a consumer that only connects may make a topic anew
        if self.model.damaged:
            await self._run("verify", "--fix")  # mends blocks that nobody read
        await self._verify()

    async def _judge_backlogs(self) -> None:
        """Raise :class:`Violation` if a cluster says that a subscription has messages left, and none comes."""
        for each in list(self.model.subscriptions.values()):
            for cluster in sorted(each.clusters - each.excluded):
                ages = self.model.topic(each.topic).ages
                if each.deleted or each.passed_over or ages or not await self._backlog(each, cluster):
                    continue
                await self._drain(each, cluster, patient=True)
                if self.model.may_be_cut(each.topic) and await self._backlog(each, cluster):
                    await self._give_up_chunks(each, cluster)
                if left := await self._backlog(each, cluster):
                    raise Violation(f"{each.topic} {each.name} at {cluster} has a backlog of {left}, and nothing comes")

    async def _give_up_chunks(self, subscription: Subscription, at: str) -> None:
        """Let a client acknowledge the chunks that never make a message, as clients do after a minute. It must get no
        message."""
        client = Client(self.regions.client_url(at))
        try:
            consumer = await client.subscribe(
                self._full(subscription.topic),
                subscription.name,
                ConsumerType[TYPES[subscription.name.partition("-")[2]]],
                replicate_subscription_state_enabled=is_replicated(subscription.name),
                negative_ack_redelivery_delay_ms=INCOMPLETE_MS,
                expire_time_of_incomplete_chunked_message_ms=INCOMPLETE_MS,
            )
            deadline = time.monotonic() + patient(REQUEST_SECONDS)
            while time.monotonic() < deadline and await self._backlog(subscription, at):
                with suppress(ChunkMissing):
                    if got := await consumer.receive_many(timeout_millis=INCOMPLETE_MS):
                        raise Violation(f"{subscription.topic} {subscription.name} at {at} gave {got} only at the end")
        finally:
            await client.close()

    async def _backlog(self, subscription: Subscription, at: str) -> int:
        """Return how many messages a subscription has left, by its worker's word."""
        stats = "partitioned-stats" if subscription.topic == PARTED else "stats"
        found = await self._admin(at, "GET", f"{self._path(subscription.topic)}/{stats}", allow=(404,))
        return 0 if found is None else int(found["subscriptions"].get(subscription.name, {}).get("msgBacklog", 0))

    async def _drain(self, subscription: Subscription, at: str, *, patient: bool = False) -> int:
        """Receive and acknowledge all messages that a subscription has left, and judge them. Return their number.

        ``patient`` waits for messages that need not come, too.
        """
        consumer = await self._consumer(at, subscription.topic, subscription.name, earliest=True)
        where = f"{subscription.topic} {subscription.name} at {at}"
        got: list[str] = []

        def is_due() -> object:
            return self.model.missing(subscription, at, got) or (patient and not got)

        try:
            while messages := await self._receive_surely(consumer, 1_000, is_due, where):
                self._judge(subscription, at, messages)
                got += [uid_of(message) for message in messages]
                await self._in_time(
                    asyncio.gather(*(consumer.acknowledge(message) for message in messages)), f"acknowledging at {at}"
                )
            self.model.judge_session(subscription, at, got, redelivered=consumer in self._asked_again)
            if missing := self.model.missing(subscription, at, got):
                raise Violation(f"{where} never got {', '.join(missing[:10])} ({len(missing)}); it got {got}")
            self.model.acknowledged(subscription, at, set(got))
        finally:
            await consumer.close()
        return len(got)

    async def _verify(self) -> None:
        """Run ``verify`` on all clusters. Raise :class:`Violation` if it finds a fault."""
        topology = load_topology(self.regions.file)
        urls = {name: self.regions.url(name) for name in self.shape.clusters}
        settings = VerifySettings(settle_seconds=3.0)
        topics = [self._full(topic) for topic in self.model.topics if topic != PARTED]
        topics += [f"{self._full(PARTED)}-partition-{number}" for number in range(self.model.partitions)]
        if not topics:
            return
        try:
            report = await asyncio.to_thread(partial(verify, None, urls, topology.links, topics, settings=settings))
        except BadOption:
            return  # no cluster has any of these topics
        gone = await self._gone()
        if found := [each for each in report.findings if each.fault != "missing" or each.topic not in gone]:
            raise Violation(f"verify finds {found[:5]}")

    async def _gone(self) -> set[str]:
        """Return the full names of topics that a cluster deleted and did not make anew.

        If the cluster had only copies of such a topic, nobody knows of the deletion, and verify calls them missing
        there. It does so, too, where a cluster between two others deleted what its origin had deleted before.
        """
        found = set()
        for name, topic in self.model.topics.items():
            if self.shape.forwards and len(topic.void) > 1:
                found.add(self._full(name))
            for cluster in topic.void:
                if await self._admin(cluster, "GET", f"{self._path(name)}/stats", allow=(404,)) is None:
                    found.add(self._full(name))
        return found
