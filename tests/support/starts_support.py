"""Subscriptions that two clusters made apart from each other, with different starts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import permutations
from pathlib import Path

from engine_support import Inbox, eventually, message, subscribed
from sync_node_support import TOPIC, Node, backlog
from sync_support import Cluster, clusters, payload, quiet

from replicator.engine.subscriptions.consumer import EngineConsumer
from replicator.engine.types import InitialPosition, SubscriptionType
from replicator.links.link import Link

Type = SubscriptionType


async def copied(nodes: Sequence[Node], messages: int) -> None:
    await eventually(
        lambda: all((t := node.engine.find(TOPIC)) is not None and t.log.messages == messages for node in nodes),
        f"{messages} messages everywhere",
    )


@asynccontextmanager
async def apart(
    path: Path, *names: str, messages: int = 10, by: str = "", exact: bool = True
) -> AsyncIterator[list[Cluster]]:
    """Clusters without links that all have the messages, which one of them published."""
    async with clusters(path, *names, links=(), exact=exact) as nodes:
        publisher = next(node for node in nodes if node.engine.cluster == (by or names[0]))
        topic = await publisher.engine.topic(TOPIC)
        await topic.publish([message(b"%d" % number) for number in range(messages)])
        links = [publisher.link_to(other) for other in nodes if other is not publisher]
        await copied(nodes, messages)
        for link in links:
            await link.stop()
        publisher.links.clear()
        yield nodes


@asynccontextmanager
async def joined(nodes: Sequence[Cluster], *pairs: tuple[str, str]) -> AsyncIterator[None]:
    """Links, each with each or as said, until the end."""
    by_name = {node.engine.cluster: node for node in nodes}
    links: list[Link] = [
        by_name[source].link_to(by_name[destination]) for source, destination in pairs or permutations(by_name, 2)
    ]
    try:
        yield
    finally:
        for link in links:
            await link.stop()
        for node in nodes:
            node.links.clear()


async def made(
    node: Node, initial: InitialPosition, kind: SubscriptionType = Type.SHARED
) -> tuple[EngineConsumer, Inbox]:
    return await subscribed(node.topic(), "sub", kind, initial=initial, replicated=True)


def said(inbox: Inbox) -> list[str]:
    return [payload(delivery.entry).decode() for delivery in inbox.deliveries]


async def left(nodes: Sequence[Node], entries: int) -> None:
    """Return when every cluster has the subscription with that backlog, and it stays so."""
    await eventually(
        lambda: all(node.subscription() is not None and backlog(node) == entries for node in nodes),
        f"a backlog of {entries} everywhere",
    )
    await quiet(*nodes)
    assert [backlog(node) for node in nodes] == [entries] * len(nodes)
