"""A topic that was deleted and made anew while its links go on, and the decision of an operator."""

from __future__ import annotations

from engine_support import TOPIC, eventually, message
from sync_node_support import Node

from replicator.engine.engine import Engine

MESSAGES = 10


async def publish(engine: Engine, what: bytes, count: int = MESSAGES) -> list[bytes]:
    """Publish so many messages, and return their entries."""
    entries = [message(b"%s %d" % (what, number)) for number in range(count)]
    await (await engine.topic(TOPIC)).publish(entries)
    return entries


async def make_anew(engine: Engine) -> list[bytes]:
    """Delete the topic and make it anew with messages."""
    await engine.deleting.delete(TOPIC, force=True)
    return await publish(engine, b"new")


def backlog(engine: Engine) -> int | None:
    """Return how many messages the replicated subscription has left; None if there is none."""
    topic = engine.find(TOPIC)
    subscription = None if topic is None else topic.subscriptions.get("sub")
    return None if subscription is None else subscription.cursor.backlog_entries()


async def decide(node: Node, policy: str = "keep-both") -> None:
    """End the gaps of all links that leave ``node``."""
    for link in node.links:
        await eventually(lambda link=link: link.status()["gap_count"] == 1, f"the gap of {link.key}")  # type: ignore[misc]
        await link.resolve(TOPIC, policy)
