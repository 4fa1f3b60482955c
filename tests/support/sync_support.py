"""Clusters with the links that a test names, and queries for tests of subscription sync."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import permutations
from pathlib import Path

from engine_support import DataPlaneServer, Inbox, eventually, opened, settled, subscribed
from sync_node_support import FAST, TOPIC, Node, agree, backlog

from replicator.engine.engine import EngineSettings
from replicator.engine.log.entry import decode_entry
from replicator.engine.subscriptions.consumer import EngineConsumer
from replicator.engine.topic import Topic
from replicator.engine.types import Ack, SubscriptionType
from replicator.links.link import Link
from replicator.sync.service import SubscriptionSync


class Cluster(Node):
    """A cluster whose links are started one by one."""

    def link_to(self, other: Node, address: str = "") -> Link:
        link = Link(
            self.engine,
            other.engine.cluster,
            address or other.server.address,
            on_lost_copy=self.sync.announce_all,
        )
        self.links.append(link)
        link.start()
        return link


@asynccontextmanager
async def cluster(
    path: Path,
    name: str,
    names: Collection[str],
    *,
    settings: EngineSettings | None = None,
    exact: bool = True,
    port: int = 0,
) -> AsyncIterator[Cluster]:
    """Yield one of the clusters ``names``, at a port of its own; it has no links yet."""
    async with opened(path / name, name, settings) as engine:
        server = DataPlaneServer(engine, names)
        server.port = port
        await server.start()
        node = Cluster(engine, server, list(names))
        if not exact:
            others = [each for each in names if each != name]
            node.sync = SubscriptionSync(
                engine, peers=others, reachable_origins=others, settings=FAST, index=node.index, exact=False
            )
        await node.start({})
        try:
            yield node
        finally:
            await node.stop()
            await server.stop()


@asynccontextmanager
async def clusters(
    path: Path,
    *names: str,
    links: Collection[tuple[str, str]] | None = None,
    settings: EngineSettings | None = None,
    exact: bool = True,
) -> AsyncIterator[list[Cluster]]:
    """Yield clusters with these links, or each linked with each."""
    async with AsyncExitStack() as stack:
        nodes = {
            name: await stack.enter_async_context(cluster(path, name, names, settings=settings, exact=exact))
            for name in names
        }
        for source, destination in permutations(names, 2) if links is None else links:
            link = nodes[source].link_to(nodes[destination])
            stack.push_async_callback(link.stop)
        yield list(nodes.values())


async def having(node: Node, messages: int, name: str = "sub", topic: str = TOPIC) -> Topic:
    """Return the topic in a cluster, once it has that many messages and the subscription."""

    def found() -> bool:
        here = node.engine.find(topic)
        return here is not None and here.log.messages == messages and (name in here.subscriptions or not name)

    await eventually(found, f"{messages} messages and {name!r} in {node.engine.cluster}")
    here = node.engine.find(topic)
    assert here is not None
    return here


async def taking(
    node: Node,
    count: int,
    subscription_type: SubscriptionType = SubscriptionType.SHARED,
    *,
    name: str = "sub",
    topic: str = TOPIC,
) -> tuple[EngineConsumer, Inbox]:
    """Return a consumer of a replicated subscription in a cluster that has been sent ``count`` entries."""
    found = await node.engine.topic(topic)
    consumer, inbox = await subscribed(found, name, subscription_type, permits=1_000_000, replicated=True)
    await inbox.holds(count)
    return consumer, inbox


async def acknowledged(consumer: EngineConsumer, inbox: Inbox, which: slice = slice(None)) -> list[bytes]:
    """Acknowledge some of the deliveries and close the consumer; return the payloads of the acknowledged messages."""
    taken = inbox.deliveries[which]
    await consumer.acknowledge([Ack(delivery.position) for delivery in taken])
    consumer.close()
    return [payload(delivery.entry) for delivery in taken]


def payload(entry: bytes) -> bytes:
    return bytes(decode_entry(entry)[1])


async def in_step(one: Node, other: Node, left: int, name: str = "sub") -> None:
    """Return when both have the same messages and the same exact state, with that many entries left in each."""
    await eventually(
        lambda: (
            agree(one, other, name)
            and one.topic().log.messages == other.topic().log.messages
            and backlog(one, name) == left == backlog(other, name)
        ),
        f"{left} entries left in {one.engine.cluster} and {other.engine.cluster}",
    )


async def quiet(*nodes: Node) -> None:
    """Return when the topic has not grown anywhere for 10 snapshot intervals; only time can show this."""

    await settled(lambda: [node.topic().log.entries for node in nodes], 0.2)
