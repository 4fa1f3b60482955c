"""Two served clusters for ``verify``, and ways to damage the data of one of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from aiohttp import web
from engine_support import eventually
from sync_support import Cluster

from replicator.api.ack_vectors import add_ack_vectors
from replicator.api.app import make_app
from replicator.api.linked_sources import LinkedSources
from replicator.engine.engine import Engine
from replicator.engine.log.store_tables import BLOCK_KEY
from replicator.engine.topic import Topic
from replicator.pipeline.verify.report import FAULTS, VerifyReport
from replicator.topology import Link

LINKS = (Link("us-east", "eu-west"), Link("eu-west", "us-east"))


class Status:
    """Status of a worker: its links, and no mappings."""

    def __init__(self, node: Cluster) -> None:
        self.links = lambda: tuple(node.links)

    def status(self) -> dict[str, Any]:
        return {}

    def ready(self) -> None:
        return None

    async def mappings(self, topics: object) -> dict[str, tuple[()]]:
        return {}


@asynccontextmanager
async def served(
    *nodes: Cluster,
    before: Callable[[web.Request], Awaitable[None]] | None = None,
    after: Callable[[web.Request], None] | None = None,
) -> AsyncIterator[dict[str, str]]:
    """Serve the whole API of clusters, by name; ``before`` and ``after`` are called around the handling of each
    request."""

    @web.middleware
    async def call_around(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if before is not None:
            await before(request)
        answer = await handler(request)
        if after is not None:
            after(request)
        return answer

    async with AsyncExitStack() as stack:
        urls = {}
        for node in nodes:
            app = make_app(node.engine, Status(node), LinkedSources())
            add_ack_vectors(app, node.sync)
            app.middlewares.append(call_around)
            runner = web.AppRunner(app, shutdown_timeout=0.2)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            urls[node.engine.cluster] = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield urls


def faults(report: VerifyReport) -> dict[str, int]:
    return {fault: count for fault in FAULTS if (count := getattr(report, fault))}


def change_block(topic: Topic, number: int, change: Callable[[bytes], bytes | None]) -> None:
    """Change the bytes of a stored block without the engine, or remove it, as a failing disk does."""
    store = topic.reading._store
    with store.env.begin(write=True, db=store.tables["blocks"]) as txn:
        keys = [key for key in txn.cursor().iternext(values=False) if BLOCK_KEY.unpack(key)[0] == topic.topic_id]
        changed = change(bytes(txn.get(keys[number])))
        if changed is None:
            txn.delete(keys[number])
        else:
            txn.put(keys[number], changed)


def flipped(at: int) -> Callable[[bytes], bytes]:
    def flip(block: bytes) -> bytes:
        place = at % len(block)
        return block[:place] + bytes([block[place] ^ 1]) + block[place + 1 :]

    return flip


async def copied(source: Topic, destination: Engine, messages: int) -> Topic:
    """Return the copy of a topic, once it has that many messages."""
    await eventually(
        lambda: (there := destination.find(source.name)) is not None and there.log.messages == messages, "the copies"
    )
    found = destination.find(source.name)
    assert found is not None
    return found
